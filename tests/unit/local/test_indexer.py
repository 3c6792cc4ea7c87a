"""The indexer as a process: one that was killed says nothing about the data and is run again; none is left behind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from lanefeed_core import manifest_codec
from lanefeed_operator.local import indexer, procs
from lanefeed_operator.local.admission import admit
from lanefeed_operator.local.errors import Interrupted, LocalError
from lanefeed_operator.local.runner import Runner
from lanefeed_operator.local.store import JobStore
from lanefeed_operator.local.view import PlainDisplay
from support.feed_pod import MANIFEST
from unit.local.pods import wait_for
from unit.local.test_store import STREAM, job

#: Dies by SIGKILL as often as asked, counting in a file; then answers.
SCRIPT = """
import json, os, pathlib, sys
count = pathlib.Path(sys.argv[1]); n = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (n + 1))
if n < int(sys.argv[2]): os.kill(os.getpid(), 9)
print(json.dumps({"runs": n + 1}))
"""


def _kills(monkeypatch: pytest.MonkeyPatch, count: Path, times: int) -> None:
    def command(_: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", SCRIPT, str(count), str(times)]

    monkeypatch.setattr(indexer, "command", command)


def test_a_killed_indexer_is_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _kills(monkeypatch, tmp_path / "n", 2)
    assert indexer.index([]) == {"runs": 3}


def test_one_that_is_always_killed_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _kills(monkeypatch, tmp_path / "n", 1000)
    with pytest.raises(LocalError, match=r"the indexer ended with -9 and said nothing"):
        indexer.index([])
    assert len((tmp_path / "n").read_text()) == indexer.KILLED_TRIES


#: Says that it runs, and would for ten minutes.
SLOW = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"


class Slow:
    """An indexer that takes for ever; its pid once it runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        self.file = file
        monkeypatch.setattr(indexer, "command", lambda _: [sys.executable, "-c", SLOW, str(file)])

    def pid(self) -> int:
        wait_for(lambda: self.file.exists() and self.file.read_text())
        return int(self.file.read_text())


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Slow:
    return Slow(monkeypatch, tmp_path / "pid")


def test_one_that_nobody_wants_any_more_is_killed(slow: Slow) -> None:
    with pytest.raises(Interrupted, match="stopped while the dataset was read: run it again to go on"):
        indexer.index([], stopped=lambda: slow.pid() > 0)
    assert procs.start_time(slow.pid()) == 0


def test_one_that_takes_too_long_is_killed(slow: Slow) -> None:
    with pytest.raises(LocalError, match="indexing took longer than 0 s: is the storage there"):
        indexer.index([], seconds=0.0, stopped=lambda: slow.pid() < 0)
    assert procs.start_time(slow.pid()) == 0


def test_it_dies_with_the_runner(slow: Slow) -> None:
    code = (
        "import sys; from lanefeed_operator.local import indexer; "
        f"indexer.command = lambda _: [sys.executable, '-c', {SLOW!r}, {str(slow.file)!r}]; indexer.index([])"
    )
    runner = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    pid = slow.pid()
    runner.kill()
    runner.wait()
    wait_for(lambda: procs.start_time(pid) == 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_runner_that_is_told_to_end_while_the_dataset_is_checked(
    slow: Slow, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """The exit code is the signal's, and nothing is said of the data."""
    store = JobStore(tmp_path / "state" / "tiny")
    store.folder.mkdir(parents=True)
    wanted, status = admit(store, job(tmp_path), replicas=None)
    store.manifest_file.write_bytes(manifest_codec.encode(MANIFEST))
    stream = STREAM.model_copy(update={"manifest": MANIFEST.digest, "global_batch_size": 8, "lanes": 4})
    runner = Runner(store, wanted, status.model_copy(update={"stream": stream}), PlainDisplay())
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]

    def tell() -> None:
        slow.pid()
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=tell)
    thread.start()
    outcome = runner.run()
    thread.join(60)
    assert outcome.code == code
    assert procs.start_time(slow.pid()) == 0
    assert not runner.root.exists()
    assert not (store.folder / "manifest.check").exists()
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
