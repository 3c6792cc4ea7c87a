"""The manifest as bytes: prefix-coded paths in JSON, compressed, with a digest that is checked on reading.

zlib from the standard library, not zstd: the core has no other dependency (docs/adr/0002). Files and ConfigMap chunks
hold exactly these bytes.
"""

import json
import zlib
from collections.abc import Iterable
from os.path import commonprefix
from typing import Any

from lanefeed_core.errors import ManifestError
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.packing import Packing

__all__ = ["decode", "encode"]

_MAGIC = b"LFM1"
#: Of packed documents: readers that know nothing of packing must not take sequences for rows.
_MAGIC_PACKED = b"LFM2"
#: A manifest of half a million shards takes about 100 MB as JSON; more is not ours or hostile.
_MAX_JSON_BYTES = 1 << 30


def encode(manifest: Manifest) -> bytes:
    """Manifest -> bytes; the same manifest gives the same bytes."""
    shards = manifest.shards
    paths = list(_prefix_code(s.path for s in shards))
    body: dict[str, Any] = {
        "digest": manifest.digest,
        "format": manifest.format,
        "root": manifest.root,
        "fields": [[f.name, f.type, f.nullable] for f in manifest.fields],
        "quarantined": [list(q) for q in manifest.quarantined],
        "paths": paths,
        "size": [s.size for s in shards],
        "row_groups": [list(s.row_groups) for s in shards],
        "row_group_bytes": [list(s.row_group_bytes) for s in shards],
        "etag": [s.etag for s in shards],
        "fingerprint": [s.fingerprint for s in shards],
        "content": [s.content for s in shards],
    }
    magic = _MAGIC
    if manifest.packing is not None:
        magic = _MAGIC_PACKED
        body |= {"packing": manifest.packing.to_dict(), "documents": [list(s.documents) for s in shards]}
    return magic + zlib.compress(json.dumps(body, separators=(",", ":")).encode(), 6)


def decode(data: bytes) -> Manifest:
    """Bytes -> Manifest. Raises ManifestError where they are not a whole manifest."""
    if data[:4] not in (_MAGIC, _MAGIC_PACKED):
        raise ManifestError("this is not a Lanefeed manifest (wrong first bytes): make one with `lanefeed index`")
    try:
        decompressor = zlib.decompressobj()
        text = decompressor.decompress(data[4:], _MAX_JSON_BYTES)
        if not decompressor.eof:
            raise ManifestError("the manifest is truncated: make it again with `lanefeed index`")
        body: dict[str, Any] = json.loads(text)
        manifest = _build(body)
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(f"the manifest is damaged ({error}): make it again with `lanefeed index`") from None
    if manifest.digest != body["digest"]:
        raise ManifestError(
            f"the manifest is damaged (its digest is {manifest.digest}, it says {body['digest']}): make it again with "
            "`lanefeed index`"
        )
    return manifest


def _build(body: dict[str, Any]) -> Manifest:
    packing = body.get("packing")
    columns = zip(
        _prefix_decode(body["paths"]),
        body["size"],
        body["row_groups"],
        body["row_group_bytes"],
        body["etag"],
        body["fingerprint"],
        body["content"],
        body["documents"] if packing is not None else [()] * len(body["paths"]),
        strict=True,
    )
    shards = tuple(Shard(p, n, tuple(rg), tuple(rb), e, f, c, tuple(d)) for p, n, rg, rb, e, f, c, d in columns)
    return Manifest(
        shards=shards,
        fields=tuple(Field(name, kind, bool(null)) for name, kind, null in body["fields"]),
        format=body["format"],
        root=body["root"],
        quarantined=tuple((p, r) for p, r in body["quarantined"]),
        packing=Packing.from_dict(packing) if packing is not None else None,
    )


def _prefix_code(paths: Iterable[str]) -> Iterable[list[Any]]:
    """Each path as [length of what it shares with the one before, the rest]."""
    before = ""
    for path in paths:
        shared = len(commonprefix((before, path)))  # noqa: RUF071 characters are what is wanted
        yield [shared, path[shared:]]
        before = path


def _prefix_decode(coded: Iterable[list[Any]]) -> Iterable[str]:
    before = ""
    for shared, rest in coded:
        before = before[:shared] + rest
        yield before
