"""One pod on this machine: `python -m lanefeed_operator.local.pod FOLDER`, started by the runner, plays the kubelet.

Makes the run folder in tmpfs, starts the sidecar (restarted always), then the trainer once the sidecar is ready
(restartPolicy Never), and says in `pod.json` how they stand. SIGTERM is a pod's deletion: SIGTERM to the trainer, grace
time, SIGKILL, then the sidecar. A pod outlives its runner: it goes on training, and a finished one waits with what
it has to report until a runner answers. It decides nothing about the job.
"""

import fcntl
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from lanefeed_operator.local import poddoc, probes, procs
from lanefeed_operator.local.container import Container
from lanefeed_operator.local.poddoc import PodDoc, PodState, load_doc, save_state
from lanefeed_operator.local.runfolder import make_run_dir

__all__ = ["Supervisor", "main"]

TICK_SECONDS = 0.1
#: How long a sidecar may take to hand over its commits when its pod is deleted, and when its trainer has failed:
#: the replacement waits for that.
DELETE_FLUSH_SECONDS = 5.0
FAILED_FLUSH_SECONDS = 0.5
#: How long a stopped sidecar may take to end before SIGKILL.
SIDECAR_STOP_SECONDS = 5.0
#: How long a pod waits for its sidecar to be ready for the first time (a cluster has a startup probe), and who sets it.
START_SECONDS = 120.0
ENV_START_SECONDS = "LANEFEED_START_SECONDS"
EXIT_FATAL = 2
MAX_EVENTS = 50
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Supervisor:
    """One pod's life, on one thread: signals are waited for, never handled."""

    def __init__(self, doc: PodDoc) -> None:
        """Prepare; `run` does it."""
        self.doc = doc
        self.folder = Path(doc.folder)
        self.run_dir = Path(doc.run_dir)
        self.state = PodState(
            uid=doc.uid, pid=os.getpid(), pid_started=procs.start_time(os.getpid()), created=time.time()
        )
        self._saved: PodState | None = None
        mark = {procs.POD_MARK: doc.uid, procs.JOB_UID_MARK: doc.job_uid}
        logs = self.folder / "logs"
        config = self.folder / "config.json"
        self.sidecar = Container(
            name="sidecar",
            command=[doc.python, "-m", "lanefeed_sidecar", "--config", str(config)],
            cwd=doc.cwd,
            env=doc.sidecar_env | mark,
            log=logs / "sidecar.log",
        )
        self.trainer = Container(
            name="trainer", command=doc.command, cwd=doc.cwd, env=doc.env | mark, log=logs / "trainer.log"
        )
        self._start_seconds = float(os.environ.get(ENV_START_SECONDS) or START_SECONDS)
        self._start_by = time.monotonic() + self._start_seconds
        #: Set by SIGTERM: when the trainer's grace time ends.
        self._deadline: float | None = None

    # ---- life --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """From nothing to the end; leaves no process and no tmpfs file of the pod behind."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        procs.become_reaper()
        try:
            self.save()
            make_run_dir(self.run_dir, self.doc.token_name)
            self._live()
        except OSError as error:
            self._end("Failed", poddoc.CANNOT_START, f"the pod cannot start: {error}")
        finally:
            procs.kill_marked(procs.POD_MARK, self.doc.uid)
            shutil.rmtree(self.run_dir, ignore_errors=True)
            if self.state.phase not in ("Succeeded", "Failed"):
                self._end("Failed", poddoc.ERROR, "the supervisor ended without a result: see pod.log")
            self.state.finished = time.time()
            self.save()

    def _live(self) -> None:
        self.sidecar.start()
        while True:
            self._wait(TICK_SECONDS)
            self._keep_sidecar()
            if self.state.phase in ("Succeeded", "Failed"):
                break
            if self._deadline is not None:
                self._delete()
                break
            self._keep_trainer()
            self.save()
            if self.trainer.exit_code is not None:
                self._sweep_trainer()
                self._drain(self.trainer.exit_code)
                self._judge(self.trainer.exit_code)
                break
        self._stop_sidecar()

    def _wait(self, seconds: float) -> None:
        """Wait for a signal or the time; reap every child, adopted ones too."""
        got = signal.sigtimedwait(_SIGNALS, seconds)
        if got is not None and got.si_signo != signal.SIGCHLD:
            # A second one means now.
            grace = 0.0 if self._deadline is not None else self.doc.grace_seconds
            self._deadline = time.monotonic() + grace
        for pid, code in _reaped():
            for container in (self.sidecar, self.trainer):
                if container.pid == pid:
                    container.ended(code)

    def _keep_sidecar(self) -> None:
        """Restart an ended sidecar, with backoff; give up where it says that no restart mends it."""
        self.state.sidecar_pid = self.sidecar.pid
        if self.sidecar.exit_code is None:
            self._probe()
            return
        self.state.ready = False
        if self.sidecar.exit_code == EXIT_FATAL:
            why = self.sidecar.last_line() or "see sidecar.log"
            self._end("Failed", poddoc.SIDECAR_FATAL, why)
            self.state.exit_code = EXIT_FATAL
            self.trainer.kill()
            return
        if self.sidecar.may_restart():
            self.event(f"sidecar ended with {self.sidecar.exit_code}; restarted")
            self.state.sidecar_restarts += 1
            (self.run_dir / probes.METRICS_NAME).unlink(missing_ok=True)
            self.sidecar.start()

    def _probe(self) -> None:
        if not self.state.ready and self.trainer.exit_code is None:
            self.state.ready = probes.ready(self.run_dir)
            self.state.metrics = probes.metrics_address(self.run_dir)

    def _keep_trainer(self) -> None:
        if self.trainer.pid or self.trainer.exit_code is not None:
            return
        if not self.state.ready:
            if time.monotonic() > self._start_by:
                self._give_up()
            return
        try:
            self.trainer.start()
        except OSError as error:
            # 127 as a shell says it; the message names the program.
            self.trainer.exit_code = 127
            self.state.message = f"the trainer's command cannot be started: {error}; check command and workingDir"
            return
        self.state.trainer_pid, self.state.phase, self.state.started = self.trainer.pid, "Running", time.time()

    def _give_up(self) -> None:
        """The sidecar has not become ready in time: the pod fails, and a new one may do better."""
        times = self.state.sidecar_restarts
        died = f" (it died {times} times)" if times else ""
        words = probes.why_not_ready(self.run_dir) or self.sidecar.last_line() or "it said nothing"
        self._end(
            "Failed",
            poddoc.SIDECAR_FATAL,
            f"the sidecar was not ready within {self._start_seconds:g} s{died}: {words}; see sidecar.log, and "
            f"{ENV_START_SECONDS} for how long to wait",
        )
        self.state.exit_code = 1

    # ---- the end -----------------------------------------------------------------------------------------------

    def _delete(self) -> None:
        """SIGTERM, grace, SIGKILL; then the sidecar may report what the trainer left."""
        self.note("deletion: SIGTERM to the trainer")
        self.trainer.signal(signal.SIGTERM)
        while self.trainer.running and self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                break
            self._wait(min(TICK_SECONDS, left))
        self._sweep_trainer()
        self._wait(0)
        self._flush(patience=DELETE_FLUSH_SECONDS, absent=DELETE_FLUSH_SECONDS)
        code = self.trainer.exit_code
        if code == 0:
            self._judge(code)
        else:
            self._end("Failed", poddoc.DELETED, "deleted")
            self.state.exit_code = code

    def _sweep_trainer(self) -> None:
        """End the trainer's group and whatever it started in sessions of its own (torchrun does)."""
        self.trainer.kill()
        also = (procs.CONTAINER_MARK, "trainer")
        procs.kill_marked(procs.POD_MARK, self.doc.uid, also=also)

    def _drain(self, code: int) -> None:
        """What a finished trainer committed must reach the control plane, however long that is down (G6).

        A commit is taken when all ranks have made it, so a rank that is done early waits for the others: until then
        the pod lives, its trainer's exit code is known, and its deletion ends the wait. A failed one only hands over
        what was not sent yet.
        """
        self.state.exit_code, self.state.ready = code, False
        self.save()
        self._flush(patience=None if code == 0 else FAILED_FLUSH_SECONDS, absent=None)

    def _flush(self, *, patience: float | None, absent: float | None) -> None:
        """Wait until all commits are taken, at most `patience` seconds of somebody listening, or `absent` of nobody.

        None: for as long as it takes, or until the pod is deleted.
        """
        deleting = self._deadline is not None
        since, listened = time.monotonic(), False
        while True:
            listening = probes.listening(self.doc.coordinator)
            if listening != listened:
                since, listened = time.monotonic(), listening
            if listening and probes.flushed(self.run_dir):
                return
            limit = patience if listening else absent
            if limit is not None and time.monotonic() - since > limit:
                return
            self._wait(0.02 if listening and limit else TICK_SECONDS)
            self._keep_sidecar()
            if self.state.phase == "Failed" or (self._deadline is not None and not deleting):
                return
            self.save()

    def _stop_sidecar(self) -> None:
        """SIGTERM lets it send its last report."""
        self.sidecar.signal(signal.SIGTERM)
        deadline = time.monotonic() + SIDECAR_STOP_SECONDS
        while self.sidecar.running and time.monotonic() < deadline:
            self._wait(0.05)
        self.sidecar.kill()

    def _judge(self, code: int) -> None:
        self.state.exit_code = code
        if code == 0:
            self._end("Succeeded", poddoc.COMPLETED, "")
        else:
            self._end("Failed", poddoc.ERROR, self.state.message or f"the trainer ended with {_name(code)}")

    def _end(self, phase: str, reason: str, message: str) -> None:
        self.state.phase, self.state.reason, self.state.message = phase, reason, message
        self.state.ready = False

    # ---- reporting ---------------------------------------------------------------------------------------------

    def event(self, text: str) -> None:
        """Remember what happened, for the log and for people."""
        self.state.events = [*self.state.events, text][-MAX_EVENTS:]
        self.note(text)

    def note(self, text: str) -> None:
        """Write a line to the supervisor's own log."""
        stamp = time.strftime("%H:%M:%S")
        sys.stderr.write(f"{stamp} pod {self.doc.generation}-{self.doc.index} {self.doc.uid[:8]}: {text}\n")

    def save(self) -> None:
        """Write `pod.json` if anything changed."""
        if self.state == self._saved:
            return
        save_state(self.folder, self.state)
        self._saved = replace(self.state)


def _reaped() -> list[tuple[int, int]]:
    """(pid, exit code; negative for a signal) of every child that has ended."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


def _name(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _lock(folder: Path) -> TextIO:
    """Only one supervisor a folder: one that was given up on may still be ending. Waits 10 s for it."""
    file = (folder / "pod.lock").open("w")
    deadline = time.monotonic() + 10
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SystemExit(f"{folder} is still held by another supervisor after 10 s") from None
            time.sleep(0.05)


def main() -> None:
    """Entry: argv[1] is the pod's folder, argv[2] the UID that this process is for."""
    folder, uid = Path(sys.argv[1]), sys.argv[2]
    with _lock(folder):
        doc = load_doc(folder)
        if doc is None or doc.uid != uid:
            raise SystemExit(f"pod {uid} was replaced before it began")
        Supervisor(doc).run()


if __name__ == "__main__":
    main()
