"""A run folder that the user named: one life at a time, and nothing of an earlier one is read."""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import lanefeed
from lanefeed._local import folder as folders
from lanefeed._local import named
from lanefeed._local.folder import RunFolder, lock
from lanefeed._local.named import LEFT, NamedFolder
from lanefeed_sidecar.feed.starts import RANKS_NAME
from lanefeed_sidecar.report.commits import COMMITS_NAME
from lanefeed_sidecar.report.localbook import BOOK_NAME


def never(_: RunFolder) -> int:
    raise AssertionError("no sidecar was to be ended")


def join(path: Path, life: str = "a", *, kept: bool = False, end: Callable[[RunFolder], int] = never) -> NamedFolder:
    return NamedFolder(path, life, kept=kept, end=end)


def leave(folder: RunFolder) -> None:
    if folder.leave():
        folder.done(remove=False)


def left_in(folder: Path) -> list[str]:
    return sorted(name for name in LEFT if (folder / name).exists())


def litter(folder: Path) -> None:
    for name in (*LEFT, "mine.txt", "sidecar.log"):
        (folder / name).write_text("old")


def sidecar_in(folder: Path) -> int:
    """The lock of a living sidecar: a descriptor."""
    fd = lock(folder / "sidecar.pid", fcntl.LOCK_EX)
    assert fd is not None
    return fd


def ender(fd: int) -> Callable[[RunFolder], int]:
    def end(_: RunFolder) -> int:
        os.close(fd)
        return 1

    return end


def test_all_that_a_sidecar_would_read_again_is_known() -> None:
    assert {BOOK_NAME, RANKS_NAME, COMMITS_NAME, "manifest.bin", "pod.json"} <= set(LEFT)


def test_a_new_life_finds_nothing_of_the_former_and_what_is_the_users_stays(tmp_path: Path) -> None:
    first = join(tmp_path)
    litter(tmp_path)
    leave(first)
    second = join(tmp_path)
    assert left_in(tmp_path) == []
    assert (tmp_path / "mine.txt").exists()
    assert (tmp_path / "sidecar.log").exists()
    leave(second)


def test_what_living_ranks_have_written_stays(tmp_path: Path) -> None:
    """Also where their sidecar is dead: it will be started again, and goes on from there."""
    one = join(tmp_path)
    litter(tmp_path)
    two = join(tmp_path)
    leave(one)
    three = join(tmp_path)
    assert left_in(tmp_path) == sorted(LEFT)
    for folder in (two, three):
        leave(folder)


def test_who_wants_something_else_waits_until_the_others_have_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "JOIN_SECONDS", 200.0)
    caplog.set_level(logging.INFO, "lanefeed")
    one, joined = join(tmp_path, "a"), []
    litter(tmp_path)
    thread = threading.Thread(target=lambda: joined.append(join(tmp_path, "b")))
    thread.start()
    end = time.monotonic() + 60
    while "waiting for the loaders that read something else" not in caplog.text:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert left_in(tmp_path) == sorted(LEFT)
    leave(one)
    thread.join(60)
    assert left_in(tmp_path) == []
    leave(joined[0])


def test_who_wants_something_else_is_told_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = join(tmp_path, "a")
    monkeypatch.setattr(folders, "JOIN_SECONDS", 0.2)
    monkeypatch.setattr(named, "JOIN_SECONDS", 0.2)
    with pytest.raises(lanefeed.UsageError, match=r"in use for 0\.2 s by loaders of other data.*: close them first"):
        join(tmp_path, "b")
    leave(one)


@pytest.mark.parametrize(("life", "kept"), [("a", False), ("b", False), ("b", True)])
def test_a_sidecar_without_users_is_ended_before_its_files_go(tmp_path: Path, life: str, kept: bool) -> None:
    """Its owner was killed just now, or it is torchrun's and served something else."""
    leave(join(tmp_path, "a"))
    litter(tmp_path)
    fd = sidecar_in(tmp_path)
    folder = join(tmp_path, life, kept=kept, end=ender(fd))
    assert not folder.has_sidecar()
    assert left_in(tmp_path) == []
    leave(folder)


def test_the_sidecar_of_torchruns_agent_serves_the_ranks_that_it_starts_anew(tmp_path: Path) -> None:
    leave(join(tmp_path, "a"))
    litter(tmp_path)
    fd = sidecar_in(tmp_path)
    folder = join(tmp_path, "a", kept=True)
    assert left_in(tmp_path) == sorted(LEFT)
    os.close(fd)
    leave(folder)


def test_of_many_that_come_at_once_nobody_loses_what_another_has_made(tmp_path: Path) -> None:
    """Whoever is in has the folder's files; nobody's coming may remove them again."""
    for _ in range(20):
        litter(tmp_path)
        gate, lost = threading.Barrier(6), []

        def work(gate: threading.Barrier = gate, lost: list[str] = lost) -> None:
            gate.wait(60)
            folder = join(tmp_path)
            with folder.starting():
                if not (tmp_path / "manifest.bin").exists():
                    (tmp_path / "manifest.bin").write_text("new")
            gate.wait(60)
            lost.extend(["gone"] if (tmp_path / "manifest.bin").read_text() != "new" else [])
            gate.wait(60)
            leave(folder)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert lost == []
        assert (tmp_path / "manifest.bin").read_text() == "new"
