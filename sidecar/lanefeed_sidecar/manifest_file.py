"""The manifest from a file, or from its pieces: a ConfigMap holds 1 MiB, a projected volume shows several side by side.

Called by the supervisor. Makes no manifest and reads no data.
"""

import re
from pathlib import Path

from lanefeed_core import manifest_codec
from lanefeed_core.errors import ManifestError
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.errors import ConfigError

__all__ = ["read_manifest"]

_PIECE = re.compile(r"\.(\d{4})$")


def read_manifest(path: Path, digest: str = "") -> Manifest:
    """The manifest at `path`, or joined from `path`.0000, `path`.0001, ...

    Raises ConfigError where it cannot be read or pieces are missing, ManifestError where it is damaged or, with
    `digest`, another one.
    """
    data, what = _read(path)
    try:
        manifest = manifest_codec.decode(data)
    except ManifestError as error:
        raise ManifestError(f"{what}: {error}") from None
    if digest and manifest.digest != digest:
        raise ManifestError(
            f"{what} has digest {manifest.digest} and this plan is for {digest}: it is another dataset's or another "
            "time's; restore the ConfigMaps of the job's manifest, or start the job anew"
        )
    return manifest


def _read(path: Path) -> tuple[bytes, str]:
    """The bytes, and what to call them."""
    try:
        if path.exists() or not path.parent.is_dir():
            return path.read_bytes(), f"the manifest {path}"
        pieces = _pieces(path)
        if not pieces:
            raise ConfigError(f"the manifest {path} cannot be read: No such file or directory (nor {path}.0000)")
        data = b"".join(piece.read_bytes() for piece in pieces)
        return data, f"the manifest {path} ({len(pieces)} pieces, {len(data)} bytes)"
    except OSError as error:
        raise ConfigError(f"the manifest {error.filename or path} cannot be read: {error.strerror}") from None


def _pieces(path: Path) -> list[Path]:
    """In order, with none missing between."""
    found = {}
    for entry in path.parent.iterdir():
        match = _PIECE.search(entry.name)
        if match and entry.name == path.name + match[0]:
            found[int(match[1])] = entry
    for number in range(len(found)):
        if number not in found:
            raise ConfigError(
                f"the manifest {path} has {len(found)} pieces up to .{max(found):04} and none is .{number:04}: restore "
                "the ConfigMaps of the job's manifest"
            )
    return [found[number] for number in sorted(found)]
