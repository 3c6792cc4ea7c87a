"""Every test ends clean: no process, no tmpfs file and no pile of file descriptors stays behind.

Each pytest process (an xdist worker, or the only one) has a tmpfs folder of its own and marks what it starts through
the environment, so tests that run side by side, or a real job on this machine, are never mistaken for a leftover. A
fixture of a wider scope is set up before a test's first look, so what it holds is not charged to the test.
"""

import gc
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

# Nothing here is a timed test: an example that is slow, or slowly made, on a busy machine is not a failure.
hypothesis.settings.register_profile("lanefeed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("lanefeed")

# A shell that runs the suite in the background has it ignore Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MARK = "LANEFEED_TEST_WORKER"
#: How long a process that was told to end may take. Only one that does not end makes a test wait that long.
GRACE_SECONDS = 30.0
#: gRPC and torch open a few descriptors on first use and keep them.
DESCRIPTOR_GROWTH = 8
#: Helpers that Python keeps for the whole life of the process that started them.
KEPT = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@pytest.fixture(scope="session", autouse=True)
def shm_root() -> Iterator[Path]:
    """This worker's tmpfs folder, which code under test finds in LANEFEED_SHM_ROOT."""
    root = Path(f"/dev/shm/lanefeed-test-{os.getpid()}")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANEFEED_SHM_ROOT", str(root))
        patch.setenv(MARK, root.name)
        try:
            yield root
            assert not _files(root), f"left in tmpfs at the end: {_names(_files(root))}"
            assert not _processes(root.name), f"running at the end: {_described(_processes(root.name))}"
        finally:
            _end(_processes(root.name))
            shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, shm_root: Path) -> Iterator[None]:
    """Fails a test that leaves processes, files in tmpfs or, where real processes talk, descriptors."""
    counts_descriptors = bool({"integration", "chaos"} & set(request.path.parts))
    processes, files, descriptors = _processes(shm_root.name), _files(shm_root), _descriptors()
    yield
    left = _wait_for_end(shm_root.name, processes)
    new_files = _files(shm_root) - files
    problems = []
    if left:
        problems.append(f"processes still run: {_described(left)}")
        _end(left)
    if new_files:
        problems.append(f"files left in tmpfs: {_names(new_files)}")
        for path in new_files:
            path.unlink(missing_ok=True)
    if counts_descriptors:
        problems += _descriptor_problems(descriptors, shm_root)
    assert not problems, "; ".join(problems)


def _files(root: Path) -> set[Path]:
    """Everything below `root` that is not a folder."""
    return {Path(folder) / name for folder, _, names in os.walk(root) for name in names}


def _names(paths: set[Path]) -> str:
    return ", ".join(sorted(map(str, paths)))


def _processes(mark: str) -> set[psutil.Process]:
    """Living processes that carry this worker's mark, and its own children (a fork does not show the mark)."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            marked = wanted in Path(entry.path, "environ").read_bytes().split(b"\0")
            if marked or _parent(entry.path) == os.getpid():
                found.add(psutil.Process(int(entry.name)))
        except (OSError, psutil.NoSuchProcess):
            continue
    return {p for p in found if _counts(p)}


def _parent(proc: str) -> int:
    return int(Path(proc, "stat").read_text().rsplit(")", 1)[1].split()[1])


def _counts(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and not any(name in command for name in KEPT)
    except psutil.NoSuchProcess:
        return False


def _described(processes: set[psutil.Process]) -> str:
    lines = []
    for process in processes:
        try:
            lines.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        except psutil.NoSuchProcess:
            continue
    return ", ".join(lines)


def _wait_for_end(mark: str, before: set[psutil.Process]) -> set[psutil.Process]:
    """The processes that are new and still there after the grace time."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := _processes(mark) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _end(processes: set[psutil.Process]) -> None:
    """SIGKILL what a test left, so that the next test starts clean."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=GRACE_SECONDS)


def _descriptors() -> dict[int, str]:
    """This process's open descriptors and what they are."""
    found = {}
    for entry in list(os.scandir("/proc/self/fd")):
        try:
            found[int(entry.name)] = os.readlink(entry.path)
        except OSError:
            continue
    return found


def _descriptor_problems(before: dict[int, str], root: Path) -> list[str]:
    """What the growth of descriptors says; an open file in tmpfs is one too many."""
    gc.collect()
    new = {fd: what for fd, what in _descriptors().items() if before.get(fd) != what}
    in_tmpfs = sorted(what for what in new.values() if what.startswith(str(root)))
    if in_tmpfs:
        return [f"files in tmpfs still open: {', '.join(in_tmpfs)}"]
    growth = len(_descriptors()) - len(before)
    if growth > DESCRIPTOR_GROWTH:
        return [f"{growth} more descriptors than before: {', '.join(sorted(new.values()))}"]
    return []
