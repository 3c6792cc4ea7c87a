"""What the environment says, how core errors look to users, and run folders whose owners died."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import lanefeed
from lanefeed import _env
from lanefeed._local.folder import PREFIX, RunFolder, locked, reclaim
from lanefeed.errors import by_kind, from_core
from lanefeed_core import errors as core

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}


def test_torchrun_wins_over_the_control_plane_and_arguments_over_both() -> None:
    env = {"LANEFEED_POD_INDEX": "2", "LANEFEED_WORLD_SIZE": "3"}
    assert (_env.place(env=env).rank, _env.place(env=env).world) == (2, 3)
    both = _env.place(env=env | TORCHRUN)
    assert (both.rank, both.world, both.pod, both.local_world, both.local_rank) == (5, 8, 1, 4, 1)
    given = _env.place(0, 2, env | TORCHRUN)
    assert (given.rank, given.world, given.local_world) == (0, 2, 1)
    assert (_env.place(env={}).rank, _env.place(env={}).world) == (0, 1)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x': it must be a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2 ranks .*ranks run from 0 to 1"),
        ({"LANEFEED_POD_INDEX": "4", "LANEFEED_WORLD_SIZE": "2"}, "rank 4 of 2 .*start them with torchrun"),
    ],
)
def test_environments_that_do_not_fit(env: dict[str, str], message: str) -> None:
    with pytest.raises(lanefeed.UsageError, match=message):
        _env.place(env=env)


def test_half_of_the_arguments_is_an_error() -> None:
    with pytest.raises(lanefeed.UsageError, match="rank=1 and world=None: give both"):
        _env.place(1)
    assert _env.attach_seconds(None, {}) == 120
    assert _env.attach_seconds(None, {"LANEFEED_ATTACH_SECONDS": "2.5"}) == 2.5
    with pytest.raises(lanefeed.UsageError, match="LANEFEED_ATTACH_SECONDS is 'soon'"):
        _env.attach_seconds(None, {"LANEFEED_ATTACH_SECONDS": "soon"})


def test_errors_form_one_tree() -> None:
    assert isinstance(by_kind("DataError", "x"), lanefeed.DataError)
    assert str(by_kind("Odd", "x")) == "Odd: x"
    assert type(from_core(core.StateMismatch("a"))) is lanefeed.StateMismatch
    assert type(from_core(core.LedgerMismatch("a"))) is lanefeed.LedgerMismatch
    assert type(from_core(core.StreamError("a"))) is lanefeed.UsageError
    names = [n for n in dir(lanefeed) if isinstance(getattr(lanefeed, n), type)]
    errors = [getattr(lanefeed, n) for n in names if issubclass(getattr(lanefeed, n), Exception)]
    assert all(issubclass(e, lanefeed.LanefeedError | Warning) for e in errors)


def test_importing_the_library_imports_no_torch_and_nothing_heavy() -> None:
    heavy = "[m for m in ('torch', 'pyarrow', 'pydantic') if m in sys.modules]"
    code = f"import sys, lanefeed, lanefeed.testing; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- run folders ----------------------------------------------------------------------------------------------------


def old(folder: Path) -> Path:
    (folder / "arena-x").write_bytes(b"x")
    os.utime(folder, (time.time() - 60, time.time() - 60))
    return folder


def test_what_a_dead_owner_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    mine = RunFolder(tmp_path / f"{PREFIX}mine")
    dead = RunFolder(tmp_path / f"{PREFIX}dead")
    assert dead.leave()
    dead.done(remove=False)
    bare = tmp_path / f"{PREFIX}bare"
    bare.mkdir()
    young = tmp_path / f"{PREFIX}young"
    young.mkdir()
    other = tmp_path / "somebody-elses"
    other.mkdir()
    for folder in (mine.path, dead.path, bare):
        old(folder)
    assert reclaim(tmp_path) == [bare, dead.path]
    assert mine.path.exists()
    assert young.exists()
    assert other.exists()
    assert mine.leave()
    mine.done(remove=True)


def test_a_folder_with_a_living_sidecar_is_left_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / f"{PREFIX}x")
    hold = "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.flock(f,2); print(1,flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", hold, str(folder.path / "sidecar.pid")], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert locked(folder.path / "sidecar.pid")
        assert folder.leave()
        folder.done(remove=False)
        old(folder.path)
        assert reclaim(tmp_path) == []
    finally:
        holder.kill()
        holder.communicate()
    assert reclaim(tmp_path) == [folder.path]


def test_the_last_one_out_is_told_so(tmp_path: Path) -> None:
    one, two = RunFolder(tmp_path / "f"), RunFolder(tmp_path / "f")
    assert not one.leave()
    assert two.leave()
    two.done(remove=True)
    assert not two.leave()
    assert not (tmp_path / "f").exists()


def test_of_many_that_leave_at_once_exactly_one_is_the_last(tmp_path: Path) -> None:
    for _ in range(30):
        folders = [RunFolder(tmp_path / "f") for _ in range(6)]
        gate, last = threading.Barrier(6), []

        def leave(folder: RunFolder, gate: threading.Barrier = gate, last: list[RunFolder] = last) -> None:
            gate.wait(10)
            if folder.leave():
                last.append(folder)

        threads = [threading.Thread(target=leave, args=(f,)) for f in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(last) == 1
        last[0].done(remove=False)


def test_who_comes_while_the_last_one_cleans_up_waits_and_begins_anew(tmp_path: Path) -> None:
    leaving = RunFolder(tmp_path / "f")
    (leaving.path / "old").touch()
    assert leaving.leave()
    timer = threading.Timer(0.3, lambda: leaving.done(remove=True))
    timer.start()
    began = time.monotonic()
    coming = RunFolder(tmp_path / "f")
    assert time.monotonic() - began > 0.2
    assert not (coming.path / "old").exists()
    timer.join()
    assert coming.leave()
    coming.done(remove=True)
