"""What `lanefeed.open` was asked for, and the indexer's command line that says it. Made by `_open`, for `sidecar`."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lanefeed.errors import UsageError, from_core
from lanefeed_core.errors import CoreError
from lanefeed_core.images import ImageColumn, ImageError, image_bytes, image_columns, image_options
from lanefeed_core.manifest import Manifest
from lanefeed_core.packing import PackingRequest

__all__ = ["Dataset", "images_of", "packing_options"]

#: What ranks that share a sidecar may be given apart: whoever starts it decides.
_SIZES = ("base", "decode_threads", "read_ahead_bytes", "slots", "slot_bytes", "cache_dir", "cache_bytes")


@dataclass(frozen=True, slots=True)
class Dataset:
    """What `lanefeed.open` was asked for; None lets Lanefeed choose."""

    uris: tuple[str, ...]
    base: str
    global_batch_size: int
    seed: int
    shuffle: bool
    window: int | None
    lanes: int | None
    epochs: int | None
    last_batch: str
    columns: tuple[str, ...]
    uneven: bool
    decode_threads: int
    read_ahead_bytes: int
    slots: int
    slot_bytes: int
    cache_dir: str = ""
    cache_bytes: int = 0
    #: The indexer's options of packing.
    packed: tuple[str, ...] = ()
    images: tuple[ImageColumn, ...] = ()

    def index_command(self, out: Path) -> list[str]:
        """Writes the manifest to `out`."""
        command = [sys.executable, "-m", "lanefeed_sidecar", "index", "--out", str(out), "--base", self.base]
        command += ["--columns", ",".join(self.columns)] if self.columns else []
        return [*command, *image_options(self.images), *self.packed, "--", *self.uris]

    def wanted(self) -> dict[str, Any]:
        """What is read and in which order, for comparison: paths are whole, sizes are left out."""
        uris = [uri if "://" in uri else os.path.join(self.base, uri) for uri in self.uris]
        return {name: value for name, value in asdict(self).items() if name not in _SIZES} | {"uris": uris}

    def row_bytes(self, manifest: Manifest) -> float:
        """Bytes of a sample as delivered, about."""
        return manifest.row_bytes + image_bytes(self.images)


def packing_options(packed: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The indexer's options for `open(packed=...)`. Raises UsageError."""
    if packed is None:
        return ()
    if not isinstance(packed, Mapping):
        raise UsageError(f"packed is {packed!r}: give a dict such as {{'sequence_length': 2048}}")
    known = [field.name for field in fields(PackingRequest)]
    unknown = [repr(name) for name in packed if name not in known]
    if unknown or "sequence_length" not in packed:
        wrong = f"has {', '.join(unknown)}" if unknown else "lacks 'sequence_length'"
        raise UsageError(f"packed {wrong}: it takes sequence_length and, where wanted, {', '.join(known[1:])}")
    try:
        return PackingRequest(**packed).options()
    except CoreError as error:
        raise from_core(error) from None


def images_of(given: Sequence[ImageColumn | Mapping[str, Any]] | None) -> tuple[ImageColumn, ...]:
    """What `open(images=...)` was given. Raises UsageError."""
    if given is not None and (isinstance(given, ImageColumn | Mapping | str) or not isinstance(given, Iterable)):
        raise UsageError(f"images is {given!r}: give a list of them, such as images=[ImageColumn(...)]")
    try:
        return image_columns(list(given or ()))
    except ImageError as error:
        raise UsageError(str(error).replace("data.images", "images")) from None
