"""Manifests of datasets in the cluster: immutable ConfigMap chunks, written once, read back after a restart.

Called by the registry (an indexer hands one over) and by the controller (it needs one). Keeps the last few decoded, for
a plan is made of the whole manifest. Thread safe.
"""

import base64
import binascii
import threading
from collections import OrderedDict

from lanefeed_core import manifest_codec
from lanefeed_core.errors import ManifestError
from lanefeed_core.manifest import Manifest
from lanefeed_operator.api.spec import Job
from lanefeed_operator.kube.api import CONFIG_MAPS, KubeApi, NotFound, Object
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import manifest_maps, names
from lanefeed_operator.render.plan import MAX_CHUNKS
from lanefeed_operator.runtime.owned import ensure, is_ours

__all__ = ["Manifests", "Stored"]

#: Decoded manifests that are kept: shards in all, about 1 KiB each.
MAX_SHARDS = 20_000

Stored = tuple[Manifest, int]


class Manifests:
    """See the module."""

    def __init__(self, api: KubeApi) -> None:
        """Nothing is read yet."""
        self._api = api
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Stored] = OrderedDict()

    def write(self, job: Job, data: bytes, digest: str) -> Stored:
        """Check and store what an indexer made. Raises ManifestError, RenderError, NameConflict, ApiError.

        Chunks of another manifest of this job are replaced: the caller has made sure that no plan rests on them.
        """
        manifest = manifest_codec.decode(data)
        if manifest.digest != digest:
            raise ManifestError(
                f"the manifest's digest is {manifest.digest} and the indexer says {digest}: it was changed on its way"
            )
        uid = job.metadata.uid
        maps = manifest_maps(job, data, digest)
        for body in maps:
            found, _ = ensure(self._api, CONFIG_MAPS, body, uid)
            if found.get("binaryData") != body["binaryData"]:
                meta = found["metadata"]
                self._api.delete(CONFIG_MAPS, meta["namespace"], meta["name"], uid=meta["uid"])
                ensure(self._api, CONFIG_MAPS, body, uid)
        self._keep(uid, (manifest, len(maps)))
        return manifest, len(maps)

    def read(self, namespace: str, name: str, uid: str) -> Stored | None:
        """The manifest of a job and its number of chunks; None where it is not there whole. Raises ApiError."""
        with self._lock:
            kept = self._kept.get(uid)
            if kept is not None:
                self._kept.move_to_end(uid)
                return kept
        chunks: list[bytes] = []
        for number in range(MAX_CHUNKS):
            try:
                found = self._api.get(CONFIG_MAPS, namespace, names.manifest_name(name, number))
            except NotFound:
                return None
            chunk = _chunk(found, number) if is_ours(found, uid) else None
            if chunk is None:
                return None
            chunks.append(chunk)
            manifest = _decode(b"".join(chunks))
            if manifest is not None:
                self._keep(uid, (manifest, len(chunks)))
                return manifest, len(chunks)
        return None

    def forget(self, uid: str) -> None:
        """The job is gone."""
        with self._lock:
            self._kept.pop(uid, None)

    def _keep(self, uid: str, stored: Stored) -> None:
        with self._lock:
            self._kept[uid] = stored
            self._kept.move_to_end(uid)
            while len(self._kept) > 1 and sum(len(m.shards) for m, _ in self._kept.values()) > MAX_SHARDS:
                self._kept.popitem(last=False)


def _chunk(found: Object, number: int) -> bytes | None:
    text = (found.get("binaryData") or {}).get(f"{c.MANIFEST_CHUNK}.{number:04}")
    try:
        return base64.b64decode(text, validate=True) if text else None
    except binascii.Error:
        return None


def _decode(data: bytes) -> Manifest | None:
    """None where chunks are missing: the next one may be there."""
    try:
        return manifest_codec.decode(data)
    except ManifestError:
        return None
