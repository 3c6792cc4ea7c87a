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


def pod(index: int, world: int, **more: object) -> dict[str, str]:
    return {"LANEFEED_POD_INDEX": str(index), "LANEFEED_WORLD_SIZE": str(world), **{k: str(v) for k, v in more.items()}}


def test_in_a_pod_the_data_rank_follows_the_pods_index_and_not_the_order_of_host_names() -> None:
    """12 pods of 2 ranks: torchrun sorts them 0, 1, 10, 11, 2, ...; a sidecar serves its own pod's ranks."""
    order = sorted(range(12), key=lambda index: f"job-1-{index}.job.ns.svc")
    found = {}
    for node, index in enumerate(order):
        for local in range(2):
            env = pod(index, 24, RANK=2 * node + local, WORLD_SIZE=24, LOCAL_RANK=local, LOCAL_WORLD_SIZE=2)
            place = _env.place(env=env | {"GROUP_RANK": str(node)})
            found[index, local] = place.rank
            assert (place.world, place.pod, place.local_world, place.local_rank) == (24, index, 2, local)
            assert place.together
    assert found == {(index, local): 2 * index + local for index in range(12) for local in range(2)}
    assert _env.place(0, 6, env).rank == 0, "arguments win: model-parallel users know better"


def test_in_a_pod_without_torchrun() -> None:
    assert (_env.place(env=pod(2, 3)).rank, _env.place(env=pod(2, 3)).world) == (2, 3)
    one = pod(2, 3, PET_NPROC_PER_NODE=1)
    assert (_env.place(env=one).rank, _env.place(env=one).together) == (2, False)
    assert _env.place(env=pod(2, 6, PET_NPROC_PER_NODE=2, LOCAL_RANK=1)).rank == 5
    with pytest.raises(
        lanefeed.UsageError, match="this pod has 2 ranks and LOCAL_RANK is not set: start them with tor"
    ):
        _env.place(env=pod(0, 6, PET_NPROC_PER_NODE=2))


def test_torchruns_world_counts_where_it_is_not_the_plans_and_arguments_over_both() -> None:
    """The sidecar then says what does not fit."""
    env = pod(2, 3)
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
            gate.wait(60)
            if folder.leave():
                last.append(folder)

        threads = [threading.Thread(target=leave, args=(f,)) for f in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(last) == 1
        last[0].done(remove=False)


def test_who_comes_while_the_last_one_cleans_up_waits_and_begins_anew(tmp_path: Path) -> None:
    leaving = RunFolder(tmp_path / "f")
    (leaving.path / "old").touch()
    assert leaving.leave()
    timer = threading.Timer(0.3, lambda: leaving.done(remove=True))
    began = time.monotonic()
    timer.start()
    coming = RunFolder(tmp_path / "f")
    assert time.monotonic() - began > 0.2
    assert not (coming.path / "old").exists()
    timer.join()
    assert coming.leave()
    coming.done(remove=True)
