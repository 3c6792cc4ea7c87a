"""One pod's supervisor with real processes and real signals."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lanefeed_operator.local import poddoc, procs
from unit.local.pods import RunningPod, make_doc, wait_for

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
Start = Callable[..., RunningPod]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts pods; nothing of them is left afterwards."""
    pods: list[RunningPod] = []

    def make(command: list[str], *, sidecar: str = "", **changes: object) -> RunningPod:
        doc = make_doc(tmp_path / f"pod{len(pods)}", tmp_path / "shm", command, **changes)
        pods.append(RunningPod(doc, sidecar=sidecar))
        return pods[-1]

    (tmp_path / "shm").mkdir()
    yield make
    for pod in pods:
        pod.close()


def clean(pod: RunningPod) -> None:
    assert pod.leftovers() == []
    assert not Path(pod.doc.run_dir).exists()


def test_a_trainer_that_exits_0_succeeds_and_nothing_is_left(start: Start) -> None:
    code = "import os,sys; d=os.environ['WHERE']; open(d,'w').write(os.environ['LANEFEED_LOCAL_POD_UID']); sys.exit(0)"
    pod = start([sys.executable, "-c", code], env={"WHERE": "seen"})
    state = pod.end()
    assert (state.phase, state.exit_code, state.reason) == ("Succeeded", 0, poddoc.COMPLETED)
    assert (pod.folder / "seen").read_text() == pod.doc.uid
    clean(pod)


@pytest.mark.parametrize(
    ("code", "expected"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("sys.exit(75)", 75)]
)
def test_a_trainer_that_fails_fails_its_pod_with_the_code(start: Start, code: str, expected: int) -> None:
    pod = start([sys.executable, "-c", f"import os,sys; {code}"])
    state = pod.end()
    assert (state.phase, state.exit_code) == ("Failed", expected)
    assert ("SIGKILL" if expected < 0 else str(expected)) in state.message
    clean(pod)


def test_a_killed_sidecar_is_restarted_and_the_trainer_never_notices(start: Start) -> None:
    pod = start(SLEEP)
    before = pod.until(phase="Running", ready=True)
    os.kill(before.sidecar_pid, signal.SIGKILL)
    after = pod.until(sidecar_restarts=1, ready=True)
    assert after.trainer_pid == before.trainer_pid
    assert after.sidecar_pid != before.sidecar_pid


def test_the_sidecar_is_told_how_stores_are_reached(start: Start) -> None:
    pod = start(SLEEP, sidecar_env={"AWS_ENDPOINT_URL": "http://here"}, env={"OTHER": "x"})
    state = pod.until(ready=True)
    wait_for(lambda: pod.state.trainer_pid)
    told = Path(f"/proc/{state.sidecar_pid}/environ").read_bytes().split(b"\0")
    assert b"AWS_ENDPOINT_URL=http://here" in told
    assert b"OTHER=x" not in told


def test_a_sidecar_that_crashes_at_first_is_tried_again(start: Start) -> None:
    pod = start([sys.executable, "-c", ""], sidecar="crash-once")
    state = pod.end()
    assert (state.phase, state.sidecar_restarts) == ("Succeeded", 1)


def test_a_sidecar_that_no_restart_mends_fails_the_pod_with_its_own_words(start: Start) -> None:
    pod = start(SLEEP, sidecar="exit2")
    state = pod.end()
    assert (state.phase, state.reason, state.exit_code) == ("Failed", poddoc.SIDECAR_FATAL, 2)
    assert "the arena needs 9 GiB" in state.message
    assert state.trainer_pid == 0
    clean(pod)


def test_a_trainer_is_not_started_before_its_sidecar_is_ready(start: Start) -> None:
    pod = start(SLEEP, sidecar="never-ready")
    wait_for(lambda: pod.state.sidecar_pid)
    time.sleep(0.5)
    assert (pod.state.phase, pod.state.trainer_pid) == ("Pending", 0)


def test_sigterm_gives_the_trainer_its_grace_then_ends_all(start: Start) -> None:
    code = (
        "import signal,sys,time; signal.signal(15, lambda *_: (open('told','w'), sys.exit(0))); "
        "open('up','w'); time.sleep(600)"
    )
    pod = start([sys.executable, "-c", code])
    wait_for((pod.folder / "up").exists)
    pod.process.terminate()
    state = pod.end()
    assert (pod.folder / "told").exists()
    assert (state.phase, state.exit_code) == ("Succeeded", 0)
    clean(pod)


def test_a_trainer_deaf_to_sigterm_is_killed_after_the_grace_time(start: Start) -> None:
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); open('up','w'); time.sleep(600)"
    pod = start([sys.executable, "-c", code], grace_seconds=0.5)
    wait_for((pod.folder / "up").exists)
    begin = time.monotonic()
    pod.process.terminate()
    state = pod.end()
    assert (state.phase, state.reason) == ("Failed", poddoc.DELETED)
    assert 0.4 < time.monotonic() - begin < 60
    clean(pod)


def test_children_die_with_a_killed_supervisor_and_the_rest_can_be_swept(start: Start) -> None:
    # A grandchild in a session of its own, as torchrun makes them.
    code = (
        "import subprocess,sys,time; subprocess.Popen([sys.executable,'-c','import time; time.sleep(600)'],"
        "start_new_session=True); open('up','w'); time.sleep(600)"
    )
    pod = start([sys.executable, "-c", code])
    wait_for((pod.folder / "up").exists)
    state = pod.until(phase="Running")
    pod.process.kill()
    pod.process.wait()
    wait_for(lambda: not procs.start_time(state.trainer_pid) and not procs.start_time(state.sidecar_pid))
    assert len(pod.leftovers()) == 1
    assert procs.kill_marked(procs.POD_MARK, pod.doc.uid) == 1
    assert pod.leftovers() == []


def test_grandchildren_of_a_trainer_that_died_are_ended(start: Start) -> None:
    code = (
        "import subprocess,sys,os; subprocess.Popen([sys.executable,'-c','import time; time.sleep(600)'],"
        "start_new_session=True); os.kill(os.getpid(), 9)"
    )
    pod = start([sys.executable, "-c", code])
    assert pod.end().exit_code == -9
    clean(pod)


def test_a_command_that_does_not_exist_is_named(start: Start) -> None:
    pod = start(["no-such-program"])
    state = pod.end()
    assert (state.phase, state.exit_code) == ("Failed", 127)
    assert "no-such-program" in state.message
    assert "check command and workingDir" in state.message


def test_a_finished_pod_keeps_its_commits_until_a_runner_answers(tmp_path: Path) -> None:
    code = "import os; open(os.environ['LANEFEED_RUN']+'/commits.jsonl','w').write('{}')"
    command, address = [sys.executable, "-c", code], str(tmp_path / "c.sock")
    doc = make_doc(tmp_path / "pod", tmp_path / "shm", command, coordinator=address)
    doc.env["LANEFEED_RUN"] = doc.run_dir
    pod = RunningPod(doc)
    try:
        pod.until(phase="Running")
        commits = Path(doc.run_dir) / "commits.jsonl"
        wait_for(commits.exists)
        time.sleep(0.6)
        assert pod.state.phase == "Running"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "c.sock"))
            server.listen()
            time.sleep(0.3)
            assert pod.state.phase == "Running", "it gave up commits that nobody has taken"
            commits.write_text("")
            assert pod.end().phase == "Succeeded"
    finally:
        pod.close()


def test_a_pod_that_was_replaced_before_it_began_does_nothing(start: Start) -> None:
    pod = start(SLEEP)
    pod.until(phase="Running")
    pod.process.terminate()
    pod.end()
    command = [sys.executable, "-m", "lanefeed_operator.local.pod", str(pod.folder), "another-uid"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, timeout=60
    )
    assert done.returncode == 1
    assert b"was replaced before it began" in done.stderr
