"""The run folder and the arena: one sidecar a folder, leftovers reclaimed, a small or full tmpfs a clear error."""

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanefeed_core.layout import HEADER_BYTES, MAGIC
from lanefeed_core.slots import SlotState
from lanefeed_sidecar.arena import Arena, RunFolder
from lanefeed_sidecar.errors import ArenaError, ConfigError, SidecarError

SESSION = "0123456789abcdef" * 2


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def arena(folder: Path, **fields: object) -> Arena:
    options = {"session": SESSION, "slots": 4, "slot_bytes": 5000, "plan_generation": 7, "room_seconds": 0.0, **fields}
    return Arena(folder / f"arena-{SESSION}", **options)  # type: ignore[arg-type]


def test_the_header_is_as_in_layout_and_slots_are_writable(tmp_path: Path) -> None:
    made = arena(tmp_path)
    made.view(2)[100] = 99
    made.publish(2, 5, 1 << 40)
    made.mark(3, SlotState.LEASED)
    data = made.path.read_bytes()
    assert struct.unpack_from("<8sIIQQ16s", data) == (MAGIC, 1, 4, 8192, 7, bytes.fromhex(SESSION))
    assert len(data) == HEADER_BYTES + 4 * 8192 == made.bytes
    assert struct.unpack_from("<QQQ", data, HEADER_BYTES + 2 * 8192) == (SlotState.READY, 5, 1 << 40)
    assert data[HEADER_BYTES + 2 * 8192 + 100] == 99
    assert data[HEADER_BYTES + 3 * 8192] == SlotState.LEASED
    assert made.path.stat().st_blocks * 512 >= made.bytes, "pages must be reserved at once"
    assert made.path.stat().st_mode & 0o777 == 0o660
    made.close()
    assert not made.path.exists()


def test_too_small_a_tmpfs_names_sizes_and_fields_and_leaves_nothing(small_tmpfs: Path) -> None:
    with pytest.raises(ArenaError) as caught:
        arena(small_tmpfs, slots=64, slot_bytes=1 << 20, room_seconds=30)
    text = str(caught.value)
    assert f"needs {HEADER_BYTES + (64 << 20)} bytes (64 slots of 1048576 bytes)" in text
    assert f"{small_tmpfs} has 1048576 of 1048576 bytes available" in text
    assert "sidecar.slots or sidecar.slotBytes" in text
    assert "emptyDir" in text
    assert not caught.value.retryable, "no waiting makes this tmpfs larger"
    assert list(small_tmpfs.iterdir()) == []


def test_a_full_tmpfs_says_what_is_free_and_may_be_tried_again(small_tmpfs: Path) -> None:
    (small_tmpfs / "other").write_bytes(bytes(800 << 10))
    with pytest.raises(ArenaError, match="has 229376 of 1048576 bytes available") as caught:
        arena(small_tmpfs, slots=4, slot_bytes=100_000)
    assert caught.value.retryable
    assert [p.name for p in small_tmpfs.iterdir()] == ["other"]


def test_room_that_a_dead_session_still_takes_is_waited_for(small_tmpfs: Path) -> None:
    # The old arena is unlinked, but a trainer maps it for another moment (docs/adr/0003).
    old = (small_tmpfs / "old").open("w+b")
    old.write(bytes(800 << 10))
    old.flush()
    (small_tmpfs / "old").unlink()
    import threading

    threading.Timer(0.3, old.close).start()
    made = arena(small_tmpfs, slots=4, slot_bytes=100_000, room_seconds=60)
    made.view(3)[:] = 1
    made.close()


def test_leftovers_of_dead_sessions_go_and_waiting_commits_stay(tmp_path: Path) -> None:
    for name in ("arena-dead", "feed.sock", "metrics.addr", ".ranks.json.1.tmp", "commits.jsonl", "token"):
        (tmp_path / name).write_text("x" * 64)
    folder = RunFolder(str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["commits.jsonl", "sidecar.pid", "token"]
    assert (tmp_path / "sidecar.pid").read_text() == f"{os.getpid()}\n"
    assert tmp_path.stat().st_mode & 0o777 == 0o750
    folder.close()


def test_a_second_sidecar_is_refused_by_name(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    (tmp_path / "arena-live").touch()
    with pytest.raises(SidecarError, match=rf"another sidecar \(pid {os.getpid()}\) is alive in {tmp_path}"):
        RunFolder(str(tmp_path), lock_seconds=0.1)
    assert (tmp_path / "arena-live").exists(), "the living one's arena was touched"
    folder.close()
    RunFolder(str(tmp_path), lock_seconds=0.1).close()


def test_a_lock_that_is_let_go_in_time_is_waited_for(tmp_path: Path) -> None:
    import threading

    fd = os.open(tmp_path / "sidecar.pid", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    threading.Timer(0.2, os.close, (fd,)).start()
    RunFolder(str(tmp_path), lock_seconds=60).close()


def test_the_token_is_kept_or_made(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    made = folder.token()
    assert len(bytes.fromhex(made)) == 32
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o640
    assert folder.token() == made
    (tmp_path / "token").write_text("short")
    with pytest.raises(ConfigError, match="has 5 characters"):
        folder.token()
    folder.close()


def test_folders_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gone is not a folder"):
        RunFolder(str(tmp_path / "gone"))
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with pytest.raises(ConfigError, match=r"too long: its socket would have a path of \d+ bytes and the limit is 107"):
        RunFolder(str(long))
