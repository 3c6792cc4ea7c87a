"""What an Indexed Job is in a cluster: keeps one pod alive at each index of a plan generation until it succeeds.

Ended pods are replaced at the same index as `failures.verdict` says; each end is counted once, durably, before anything
follows from it. Pods are adopted from their documents, so a runner can be killed at any point. Decides nothing else.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lanefeed_operator.local import files, poddoc, procs
from lanefeed_operator.local.poddoc import PodDoc, PodState, load_doc, load_state, save_doc, save_state
from lanefeed_operator.reconcile.failures import Verdict, verdict
from lanefeed_operator.reconcile.types import EXIT_STOPPED, FAILED, SUCCEEDED, Children, Pod

__all__ = ["IndexedJob", "PodFactory", "job_file", "stored"]

#: (index, uid, folder) -> the pod to run.
PodFactory = Callable[[int, str, Path], PodDoc]
#: An event for people: what happened.
Say = Callable[[str], None]

#: A free end sooner than this after the pod's start is slowed down when it repeats.
QUICK_SECONDS = 10.0
#: Beyond its grace time a supervisor has this long before it is killed itself.
STUCK_SECONDS = 20.0


@dataclass(slots=True)
class IndexRecord:
    """`index.json`: what is remembered of an index over its pods."""

    failures: int = 0
    disruptions: int = 0
    #: Free, quick ends in a row.
    quick: int = 0
    #: UID of the last pod whose end was counted.
    counted: str = ""
    succeeded: bool = False
    failed: bool = False


class PodSlot:
    """One index: its folder, its present pod and its record."""

    def __init__(self, job: "IndexedJob", index: int) -> None:
        """Read what a former runner left."""
        self.job, self.index = job, index
        self.folder = job.pods / f"{job.generation}-{index}"
        self.record = IndexRecord(**(files.read_json(self.folder / "index.json") or {}))
        self.doc = load_doc(self.folder)
        self.state: PodState | None = None
        self.last_dead: Pod | None = None
        self.not_before = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._adopted: tuple[int, int] = (0, 0)
        self._seen = (0, 0)
        self._ended = False
        self._delete_deadline: float | None = None
        self._events = 0
        if self.doc is not None:
            self._adopt(self.doc)

    # ---- looking -----------------------------------------------------------------------------------------------

    def _adopt(self, doc: PodDoc) -> None:
        """Find the living supervisor of a pod that another runner made."""
        self._read()
        if self.state is None:
            # The runner died before the supervisor wrote: it may be on its way.
            for pid in procs.marked(procs.POD_MARK, doc.uid):
                if not procs.mark_of(pid, procs.CONTAINER_MARK):
                    self._adopted = (pid, procs.start_time(pid))
        else:
            self._adopted = (self.state.pid, self.state.pid_started)
            self._events = len(self.state.events)
        if self.living:
            self.job.adopted(doc)

    def _read(self) -> None:
        """Read `pod.json` if it changed."""
        try:
            stat = (self.folder / "pod.json").stat()
        except FileNotFoundError:
            return
        seen = (stat.st_ino, stat.st_mtime_ns)
        if seen == self._seen:
            return
        self._seen = seen
        state = load_state(self.folder)
        if state is not None and self.doc is not None and state.uid == self.doc.uid:
            self.state = state
            self._tell(state)

    def _tell(self, state: PodState) -> None:
        for text in state.events[self._events :]:
            self.job.say(f"pod {self.index}: {text}")
        self._events = len(state.events)

    @property
    def living(self) -> bool:
        """Whether the pod's supervisor runs."""
        if self._process is not None:
            return self._process.poll() is None
        return procs.alive(*self._adopted)

    # ---- one pass ----------------------------------------------------------------------------------------------

    def sync(self, now: float) -> None:
        """Notice an end, count it, replace the pod when it is time. `now`: monotonic."""
        if self.doc is not None and not self._ended:
            living = self.living
            self._read()
            if living:
                self._finish_early(self.doc)
                self._push(now)
                return
            self._bury(self.doc)
        if self.job.stopping and self.state is not None and self.state.exit_code == EXIT_STOPPED:
            # It left at the agreed stop with its checkpoint; a new life would only void that commit.
            return
        if self.record.succeeded or self.record.failed or self.job.deleting or now < self.not_before:
            return
        self._start()

    def _finish_early(self, doc: PodDoc) -> None:
        """An index has succeeded when its trainer has; the pod may live on to hand over its commits."""
        state = self.state
        if state is not None and state.exit_code == 0 and state.phase == "Running" and self.record.counted != doc.uid:
            self._count(doc, state)

    def _bury(self, doc: PodDoc) -> None:
        """The supervisor is gone: sweep what is left of the pod, and count its end."""
        state = self.state
        if state is None or state.phase not in (SUCCEEDED, FAILED):
            procs.kill_marked(procs.POD_MARK, doc.uid)
            shutil.rmtree(doc.run_dir, ignore_errors=True)
            base = state or PodState(uid=doc.uid, created=time.time())
            message = "its supervisor was killed"
            state = replace(base, phase=FAILED, reason=poddoc.SUPERVISOR_LOST, message=message, ready=False)
            save_state(self.folder, state)
        self.state, self._ended = state, True
        if self.record.counted != doc.uid:
            self._count(doc, state)

    def _count(self, doc: PodDoc, state: PodState) -> None:
        record = replace(self.record, counted=doc.uid)
        disrupted = state.reason in (poddoc.SUPERVISOR_LOST, poddoc.DELETED)
        code = state.exit_code if state.exit_code is not None else (0 if state.phase == SUCCEEDED else 1)
        if disrupted and code == 0 and state.phase == FAILED:
            code = 1
        free = disrupted or code == EXIT_STOPPED
        ran = (state.finished or time.time()) - (state.created or time.time())
        record.quick = record.quick + 1 if free and ran < QUICK_SECONDS else 0
        # The first quick end costs nothing; only repeated ones are slowed down.
        end = verdict(
            code,
            record.failures,
            self.job.max_restarts,
            disrupted=disrupted,
            quick=max(0, record.quick - 1),
            hopeless=self.job.hopeless,
        )
        record.failures += int(end.counts)
        if not self.job.deleting:
            record.disruptions += int(free)
        record.succeeded = end.verdict is Verdict.DONE
        record.failed = end.verdict is Verdict.FAIL and not self.job.deleting
        files.write_json(self.folder / "index.json", asdict(record))
        self.record = record
        self.not_before = time.monotonic() + end.delay
        self.last_dead = self._pod(state) if self._ended else None
        self._say_end(state, end.delay)

    def _say_end(self, state: PodState, delay: float) -> None:
        if self.job.deleting or self.record.succeeded:
            return
        if self.job.stopping and state.exit_code == EXIT_STOPPED:
            return
        what = "gives up" if self.record.failed else "is replaced" + (f" in {delay:.0f} s" if delay else "")
        self.job.say(f"pod {self.index} {what}: {state.message or state.reason}")

    # ---- making and ending -------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Write the pod ahead, then start its supervisor."""
        uid = str(uuid.uuid4())
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        doc = self.job.factory(self.index, uid, self.folder)
        files.write_atomic(self.folder / "config.json", doc.config, durable=False)
        save_doc(doc)
        (self.folder / "pod.json").unlink(missing_ok=True)
        marks = {procs.POD_MARK: uid, procs.JOB_UID_MARK: doc.job_uid}
        with (self.folder / "logs" / "pod.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lanefeed_operator.local.pod", str(self.folder), uid],
                env=dict(os.environ) | marks,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.doc, self.state, self._ended, self._seen, self._events = doc, None, False, (0, 0), 0

    def delete(self, now: float) -> None:
        """Begin a graceful deletion, once."""
        if self._delete_deadline is None and self.doc is not None and not self._ended:
            self._delete_deadline = now + self.doc.grace_seconds + STUCK_SECONDS
            self._signal(signal.SIGTERM)

    def _push(self, now: float) -> None:
        """A supervisor that does not end is killed; its pod is swept when it is gone."""
        if self._delete_deadline is not None and now > self._delete_deadline:
            self._signal(signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL, now; the next sync sweeps."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(number)
        elif procs.alive(*self._adopted):
            procs.signal_pid(self._adopted[0], number)

    # ---- facts -------------------------------------------------------------------------------------------------

    def _pod(self, state: PodState) -> Pod:
        return Pod(
            index=self.index,
            uid=state.uid,
            phase=state.phase,
            ready=state.ready and state.phase == "Running",
            reason=state.reason,
            message=state.message,
            exit_code=state.exit_code,
            disrupted=state.reason in (poddoc.SUPERVISOR_LOST, poddoc.DELETED),
            started=state.started,
        )

    def pods(self) -> list[Pod]:
        """The dead one before, if it is remembered, and the present one."""
        found = [self.last_dead] if self.last_dead else []
        if self.doc is None:
            return found
        if not self._ended:
            state = self.state
            # Until the supervisor is gone its pod is not over, whatever its last word was.
            if state is None or state.phase in (SUCCEEDED, FAILED):
                return [*found, Pod(index=self.index, uid=self.doc.uid, phase="Running" if state else "Pending")]
            return [*found, self._pod(state)]
        return found or ([self._pod(self.state)] if self.state else [])


class IndexedJob:
    """The children of one plan generation."""

    def __init__(
        self,
        pods: Path,
        generation: int,
        replicas: int,
        *,
        max_restarts: int,
        hopeless: Collection[int] = (),
        factory: PodFactory,
        say: Say,
        adopted: Callable[[PodDoc], None],
    ) -> None:
        """Written down first; adopts what is there already."""
        self.pods, self.generation, self.replicas = pods, generation, replicas
        self.max_restarts, self.factory, self.say, self.adopted = max_restarts, factory, say, adopted
        self.hopeless = hopeless
        self.file = job_file(pods, generation)
        stored_job = files.read_json(self.file) or {}
        self.deleting = bool(stored_job.get("deleting"))
        #: A stop was agreed: who leaves with code 75 is not replaced.
        self.stopping = False
        if not stored_job:
            pods.mkdir(parents=True, exist_ok=True)
            self._write()
        self.slots = [PodSlot(self, index) for index in range(replicas)]

    def _write(self) -> None:
        files.write_json(
            self.file, {"generation": self.generation, "replicas": self.replicas, "deleting": self.deleting}
        )

    def sync(self) -> None:
        """One pass over all indexes."""
        now = time.monotonic()
        for slot in self.slots:
            slot.sync(now)

    def delete(self) -> None:
        """Nothing is replaced from now on; every pod is ended gracefully."""
        if not self.deleting:
            self.deleting = True
            self._write()
        now = time.monotonic()
        for slot in self.slots:
            slot.delete(now)

    def kill(self) -> None:
        """SIGKILL all, and wait until nothing is left of them."""
        self.deleting = True
        self._write()
        deadline = time.monotonic() + 10
        while self.living and time.monotonic() < deadline:
            for slot in self.slots:
                slot.kill()
            time.sleep(0.02)
        self.sync()

    @property
    def living(self) -> bool:
        """Whether any pod's supervisor runs."""
        return any(slot.doc is not None and slot.living for slot in self.slots)

    def forget(self) -> None:
        """After deletion: the generation is no more. Logs and documents stay for people."""
        self.file.unlink(missing_ok=True)

    def pod_uids(self) -> set[str]:
        """UIDs of the living pods."""
        return {slot.doc.uid for slot in self.slots if slot.doc is not None and slot.living}

    def view(self) -> Children:
        """As reconcile sees it."""
        records = {slot.index: slot.record for slot in self.slots}
        return Children(
            generation=self.generation,
            replicas=self.replicas,
            succeeded=frozenset(i for i, r in records.items() if r.succeeded),
            failed=frozenset(i for i, r in records.items() if r.failed),
            failures={i: r.failures for i, r in records.items() if r.failures},
            disruptions=sum(r.disruptions for r in records.values()),
            pods=tuple(pod for slot in self.slots for pod in slot.pods()),
            deleting=self.deleting,
        )


def job_file(pods: Path, generation: int) -> Path:
    """The document of one plan generation's children."""
    return pods / f"job-{generation}.json"


def stored(pods: Path) -> dict[int, int]:
    """Plan generations whose children were created and not deleted yet -> replicas."""
    documents = (files.read_json(entry) for entry in pods.glob("job-*.json"))
    return {int(d["generation"]): int(d["replicas"]) for d in documents if d}
