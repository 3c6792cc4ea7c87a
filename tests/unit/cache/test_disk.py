"""The folder: bounded, shared by processes, usable after a crash at any moment."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lanefeed_sidecar.cache import disk
from lanefeed_sidecar.cache.disk import DiskCache
from lanefeed_sidecar.errors import ConfigError

KEY, DEAD = "0" * 32, "d" * 32


def put(cache: DiskCache, number: int, size: int = 100) -> bool:
    return cache.add(f"{KEY}/{number}", size, lambda fd: os.write(fd, b"x" * size))


def real_bytes(root: Path) -> int:
    return sum(p.stat().st_size for p in root.glob("*/*"))


def test_it_never_holds_more_than_its_limit(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 450)
    assert [put(cache, n) for n in range(6)] == [True] * 4 + [False] * 2
    assert cache.used == real_bytes(tmp_path) == 400
    assert cache.remove(f"{KEY}/0") == 100
    assert cache.remove(f"{KEY}/0") == 0
    assert put(cache, 9)
    cache.close()


def test_the_same_entry_twice_counts_once(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    assert put(cache, 1)
    assert put(cache, 1)
    assert cache.used == real_bytes(tmp_path) == 100
    cache.close()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)

    def full(fd: int) -> int:
        os.write(fd, b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        cache.add(f"{KEY}/1", 100, full)
    assert cache.used == real_bytes(tmp_path) == 0
    cache.close()


def test_readers_of_a_removed_entry_read_on(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    put(cache, 1)
    opened = cache.open(f"{KEY}/1")
    assert opened is not None
    fd, size = opened
    cache.remove(f"{KEY}/1")
    assert os.read(fd, 1000) == b"x" * size == b"x" * 100
    assert cache.open(f"{KEY}/1") is None
    os.close(fd)
    cache.close()


def test_an_entry_that_cannot_be_looked_at_is_none_and_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path, 1000)
    put(cache, 1)
    before = len(os.listdir("/proc/self/fd"))

    def stale(_fd: int) -> os.stat_result:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "fstat", stale)
    assert cache.open(f"{KEY}/1") is None
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before
    cache.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c", 1000)
    (tmp_path / "secret").write_text("of somebody else")
    (tmp_path / "c" / KEY).mkdir()
    (tmp_path / "c" / KEY / "1").symlink_to(tmp_path / "secret")
    assert cache.open(f"{KEY}/1") is None
    cache.close()


def test_what_a_crash_left_is_swept_by_whoever_is_alone(tmp_path: Path) -> None:
    first = DiskCache(tmp_path, 1000)
    put(first, 1)
    (tmp_path / KEY / f"{disk.TEMPORARY}{DEAD}").write_bytes(b"y" * 500)
    (tmp_path / disk.USAGE).write_text("00000000000000999999")
    second = DiskCache(tmp_path, 1000)
    assert (tmp_path / KEY / f"{disk.TEMPORARY}{DEAD}").exists(), "somebody may be writing it"
    second.close()
    first.close()
    third = DiskCache(tmp_path, 1000)
    assert third.used == real_bytes(tmp_path) == 100
    third.close()


def test_entries_that_nobody_reads_are_idle_oldest_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    for number, age in ((1, 1000), (2, 5000), (3, 10)):
        put(cache, number)
        os.utime(tmp_path / KEY / str(number), (1e9 - age, 1e9 - age))
    assert list(cache.idle(1e9)) == [f"{KEY}/2", f"{KEY}/1"]
    cache.close()


def test_who_reads_an_entry_keeps_it_from_being_idle(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    put(cache, 1)
    now = time.time()
    for age, idle in ((1000, True), (disk.IDLE_SECONDS / 2, False)):
        os.utime(tmp_path / KEY / "1", (now - age, now - age))
        assert list(cache.idle(now)) == [f"{KEY}/1"] * idle
        opened = cache.open(f"{KEY}/1")
        assert opened is not None
        os.close(opened[0])
        assert list(cache.idle(now + disk.IDLE_SECONDS - 1)) == []
    cache.close()


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the cache folder .*/file/cache cannot be used: Not a directory"):
        DiskCache(tmp_path / "file" / "cache", 1000)


WRITER = """
import os, sys
from pathlib import Path
from lanefeed_sidecar.cache.disk import DiskCache
cache = DiskCache(Path(sys.argv[1]), 5000)
print("ready", flush=True)
n = 0
while True:
    n += 1
    name = f"{int(sys.argv[2]) * 7 % 3:032}/{n % 40}"
    if not cache.add(name, 150, lambda fd: os.write(fd, b"z" * (100 + n % 50))):
        for other in range(40):
            if cache.remove(f"{int(sys.argv[2]) * 7 % 3:032}/{other}"): break
"""


@contextmanager
def standing(processes: list["subprocess.Popen[str]"]) -> Iterator[None]:
    """They stand still meanwhile."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
        while Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)
    yield
    for process in processes:
        process.send_signal(signal.SIGCONT)


def test_processes_share_it_and_kills_do_not_break_it(tmp_path: Path) -> None:
    def start(number: int) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(number)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    running = [start(n) for n in range(3)]
    try:
        for number in range(3):
            running[number].send_signal(signal.SIGKILL)
            running[number].wait()
            # A look at a folder that changes meanwhile would count files that were never there together.
            with standing(running[number + 1 :]):
                assert real_bytes(tmp_path) <= 5000 + 3 * 150
    finally:
        for process in running:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
    alone = DiskCache(tmp_path, 5000)
    assert alone.used == real_bytes(tmp_path) <= 5000
    assert not list(tmp_path.glob(f"*/{disk.TEMPORARY}*"))
    alone.close()


def test_threads_share_it(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 3000)

    def work(number: int) -> None:
        for n in range(60):
            put(cache, number * 100 + n, 90)
            cache.remove(f"{KEY}/{number * 100 + n - 5}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.used == real_bytes(tmp_path) <= 3000
    cache.close()


def test_files_of_others_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    """A folder that the user has for something else too: what is in it is none of ours, however old."""
    foreign = ["photos/mum.jpg", "proj/.new-thing", f"{KEY}/notes.txt", "1/2", f"{KEY[1:]}/3"]
    for name in foreign:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"z" * 900)
        os.utime(tmp_path / name, (0, 0))
    cache = DiskCache(tmp_path, 450)
    assert cache.used == 0
    assert put(cache, 1)
    os.utime(tmp_path / KEY / "1", (0, 0))
    assert list(cache.idle()) == [f"{KEY}/1"]
    cache.close()
    assert all((tmp_path / name).exists() for name in foreign)
