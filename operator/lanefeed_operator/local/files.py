"""Files that are whole or not there, whenever a process dies. Used by the state folder and the pods."""

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["read_json", "write_atomic", "write_json"]


def write_atomic(path: Path, data: str | bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Write by rename. `durable`: also on disk (file and folder) when this returns; without it, only SIGKILL-proof."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    raw = data.encode() if isinstance(data, str) else data
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(raw)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_json(path: Path, data: Any, *, durable: bool = True) -> None:
    """`write_atomic` of a JSON document that a person can read."""
    write_atomic(path, json.dumps(data, indent=1) + "\n", durable=durable)


def read_json(path: Path) -> dict[str, Any] | None:
    """The document, or None if there is none; our own files are whole, so a broken one is as good as none."""
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return data if isinstance(data, dict) else None
