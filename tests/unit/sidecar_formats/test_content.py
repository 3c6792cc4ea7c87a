"""A shard's digest is compared once, and again wherever the file is another one since."""

import os
from pathlib import Path

import pytest

from lanefeed_core.manifest import Shard
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats import identity


def shard(path: Path) -> Shard:
    return Shard(path.name, path.stat().st_size, (1,), content=identity.content_digest(str(path)))


def test_it_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"right" * 100)
    known = shard(path)
    identity.check_content(str(path), known)
    monkeypatch.setattr(identity, "content_digest", lambda _: pytest.fail("read again"))
    identity.check_content(str(path), known)


@pytest.mark.parametrize("how", ["in place", "renamed"])
def test_a_file_that_changed_between_two_openings_is_caught(tmp_path: Path, how: str) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"right" * 100)
    known = shard(path)
    identity.check_content(str(path), known)
    if how == "in place":
        with path.open("r+b") as file:
            file.write(b"wrong")
        os.utime(path, ns=(1, 1))
    else:
        other.write_bytes(b"wrong" * 100)
        other.replace(path)
    with pytest.raises(DataError, match="is corrupt: its digest is"):
        identity.check_content(str(path), known)
