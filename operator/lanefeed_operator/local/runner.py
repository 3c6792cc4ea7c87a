"""`lanefeed run`: the loop observe -> reconcile -> persist -> act, on one machine, for one job.

Runs until the job is over or the user stops it. Whatever kills it, pods train on; the next runner goes on from
`status.yaml` and adopts them. It decides nothing: what happens is reconcile's word, Ctrl-C is `spec.suspend`.
"""

import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lanefeed_core.manifest import Manifest
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.service import Server, serve
from lanefeed_operator.local import children, procs, rundir
from lanefeed_operator.local.children import IndexedJob
from lanefeed_operator.local.errors import Interrupted, LocalError
from lanefeed_operator.local.factory import Factory
from lanefeed_operator.local.indexer import Indexer, check_unchanged, read_manifest
from lanefeed_operator.local.plans import PlanFiles
from lanefeed_operator.local.poddoc import PodDoc
from lanefeed_operator.local.store import JobStore
from lanefeed_operator.local.view import Display, Scene, plural
from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile import types as r
from lanefeed_operator.reconcile.plans import info_of, lanes_of, make_plan

__all__ = ["Outcome", "Runner"]

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
#: Passes that want to follow at once may do so this often before the loop takes a breath.
MAX_HURRY = 50


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: the process's exit code and the last status."""

    code: int
    status: Status
    manifest: Manifest | None


class Runner:
    """One run of one job. The caller holds the store's lock."""

    def __init__(self, store: JobStore, job: Job, status: Status, display: Display) -> None:
        """`job` and `status` as `admission` made them."""
        self.store, self.job, self.status, self.display = store, job, status, display
        self.root = rundir.job_root(job.metadata.uid)
        self.plans = PlanFiles(store.plans)
        self.jobs: dict[int, IndexedJob] = {}
        self.manifest: Manifest | None = None
        self.info: r.ManifestInfo | None = None
        self.indexer: Indexer | None = None
        self.coordinator: Coordinator | None = None
        self.server: Server | None = None
        self.feed = r.FeedView()
        self._wake = threading.Event()
        self._interrupts = 0
        self._signal = 0
        self._scale_seen: tuple[int, int] | None = None
        self._applied = job
        self.factory = Factory(self)

    # ---- life --------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until the job is over, or the user stops it. Raises LocalError for what the user can mend."""
        rundir.make_job_root(self.root)
        if warning := rundir.on_disk(self.root):
            self.display.event(f"warning: {warning}")
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._recover()
            self._loop()
        except Interrupted:
            # Nothing runs yet, so there is nobody to ask for a checkpoint.
            pass
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._close()
        return Outcome(self._code(), self.status, self.manifest)

    def _recover(self) -> None:
        """Go on from what a former runner left: manifest, coordinator, living pods; sweep the rest."""
        if self.status.stream is not None:
            self.manifest = read_manifest(self.store.manifest_file)
            self.info = info_of(self.manifest)
            if self.info.digest != self.status.stream.manifest:
                raise LocalError(
                    f"{self.store.manifest_file} has digest {self.info.digest} and the job is bound to "
                    f"{self.status.stream.manifest}: restore it, or begin anew with `lanefeed run --fresh`"
                )
            self._ensure_coordinator()
        for generation, replicas in children.stored(self.store.pods).items():
            self.jobs[generation] = self._indexed_job(generation, replicas)
        living = {uid for job in self.jobs.values() for uid in job.pod_uids()}
        if living:
            self.display.event(f"went on with {plural(len(living), 'living pod')}")
        self._sweep(living)
        if self.manifest is not None and not living and not self.status.terminal:
            self.display.event("checking that the dataset is unchanged")
            scratch = self.store.folder / "manifest.check"
            check_unchanged(self.job, self.manifest, scratch, stopped=lambda: self._interrupts > 0)

    def _sweep(self, living: set[str]) -> None:
        """End what belongs to no pod that lives, and remove its tmpfs."""
        for pid in list(procs.marked(procs.JOB_UID_MARK, self.job.metadata.uid)):
            uid = procs.mark_of(pid, procs.POD_MARK)
            if uid and uid not in living:
                procs.signal_pid(pid, signal.SIGKILL)
        rundir.sweep(self.root, {Path(d.run_dir).name for d in self._docs() if d.uid in living})

    def _docs(self) -> list[PodDoc]:
        return [slot.doc for job in self.jobs.values() for slot in job.slots if slot.doc is not None]

    def _close(self) -> None:
        if self.indexer is not None:
            self.indexer.stop()
        if self.server is not None:
            self.server.stop(0.5)
        if not any(job.living for job in self.jobs.values()):
            rundir.sweep(self.root, set())
            for folder in (self.root, self.root.parent):
                try:
                    folder.rmdir()
                except OSError:
                    # Another job of this user runs.
                    break

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        # Nothing that takes a lock, as waking the loop would: the main thread may be in the middle of waiting, and hold
        # it. The next pass is at most a tick away.
        self._interrupts += 1
        self._signal = number

    # ---- the loop ----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        hurry = 0
        while True:
            self._wake.clear()
            if self._interrupts > 1:
                self._kill()
                return
            decision = self._pass()
            if self._over():
                return
            wake = TICK_SECONDS if decision.wake_after is None else min(TICK_SECONDS, decision.wake_after)
            hurry = hurry + 1 if wake <= 0 else 0
            self._wake.wait(wake if hurry < MAX_HURRY else TICK_SECONDS)

    def _pass(self) -> r.Decision:
        """One pass; see reconcile.types."""
        now = time.time()
        self._notice()
        if self.coordinator is not None:
            self.feed = self.coordinator.snapshot(now)
        over = self.status.terminal
        decision = reconcile(self.job, self.status, self._observe(), now)
        if decision.status is not self.status:
            self.store.save(self.job, decision.status)
            self.display.changed(self.status, decision.status)
            self.status = decision.status
        if self.coordinator is not None and not over:
            # What reports say of a job that is over is not written, and so not acknowledged.
            self.coordinator.persisted(self.feed.version)
        self._ensure_coordinator()
        for action in decision.actions:
            self._act(action)
        addresses = self.coordinator.addresses() if self.coordinator else {}
        self.display.show(Scene(self.job, self.status, self.feed, self._children(), addresses))
        return decision

    def _notice(self) -> None:
        """Changes from outside: the wanted size, Ctrl-C, the indexer's end, pods."""
        self._read_scale()
        if self._interrupts and not self.job.spec.suspend:
            self.display.event("stopping: ranks are asked to write a checkpoint and leave (Ctrl-C again kills them)")
            self.job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update={"suspend": True})})
        if self.indexer is not None:
            info = self.indexer.poll()
            if info is not None:
                self.info, self.indexer = info, None
                if not info.error:
                    self.manifest = read_manifest(self.store.manifest_file)
        for job in self.jobs.values():
            job.stopping = self.status.stop is not None
            job.sync()
        for generation in [g for g, job in self.jobs.items() if job.deleting and not job.living]:
            self.jobs.pop(generation).forget()

    def _read_scale(self) -> None:
        try:
            stat = self.store.scale_file.stat()
        except FileNotFoundError:
            return
        seen = (stat.st_ino, stat.st_mtime_ns)
        if seen == self._scale_seen:
            return
        self._scale_seen = seen
        try:
            wanted = self.store.wanted_replicas()
        except LocalError as error:
            self.display.event(str(error))
            return
        if wanted is not None and wanted != self.job.spec.replicas:
            self.display.event(f"scale to {plural(wanted, 'pod')} (from {self.job.spec.replicas})")
            spec = self.job.spec.model_copy(update={"replicas": wanted})
            meta = self.job.metadata.model_copy(update={"generation": self.job.metadata.generation + 1})
            self.job = self.job.model_copy(update={"spec": spec, "metadata": meta})

    def _observe(self) -> r.Observed:
        plans = self.plans.known() if self.coordinator is not None else frozenset()
        return r.Observed(children=self._children(), plans=plans, manifest=self.info, feed=self.feed)

    def _children(self) -> dict[int, r.Children]:
        return {generation: job.view() for generation, job in self.jobs.items()}

    def _over(self) -> bool:
        """Whether there is nothing left to do here."""
        if any(job.living for job in self.jobs.values()):
            return False
        if self.status.terminal:
            return True
        return self._interrupts > 0 and not self.jobs and (self.status.stop is None or self.status.stop.done)

    def _code(self) -> int:
        if self.status.terminal:
            complete = self.status.condition("Complete")
            return 0 if complete is not None and complete.status == "True" else 1
        return 128 + self._signal

    def _kill(self) -> None:
        self.display.event("killing all pods; the job goes on from its last commit when it is run again")
        for job in self.jobs.values():
            job.kill()

    # ---- actions -----------------------------------------------------------------------------------------------

    def _act(self, action: r.Action) -> None:
        match action:
            case r.BuildManifest():
                self._build_manifest()
            case r.WritePlan():
                self._write_plan(action)
            case r.CreateChildren(generation, replicas):
                if generation not in self.jobs:
                    self.jobs[generation] = self._indexed_job(generation, replicas)
                    self._wake.set()
            case r.AskStop(generation, step, reason):
                self._reports().stop(generation, step, reason)
            case r.DeleteChildren(generation, _):
                if generation in self.jobs:
                    self.jobs[generation].delete()
            case r.Fence(generation, index, pod_uid, reason):
                self._fence(generation, index, pod_uid, reason)
            case r.DeleteJob():
                log.info("ttlSecondsAfterFinished is over: the state folder is kept for people to read")

    def _build_manifest(self) -> None:
        if self.indexer is None:
            self.display.event("indexing the dataset")
            self.info = None
            self.indexer = Indexer(self.job, self.store.manifest_file)

    def _write_plan(self, action: r.WritePlan) -> None:
        stream, manifest = self.status.stream, self.manifest
        if stream is None or manifest is None:
            raise RuntimeError("a plan was decided before the stream was frozen")
        plan = make_plan(
            self.job,
            stream,
            generation=action.generation,
            replicas=action.replicas,
            ranks=action.ranks_per_replica,
            start=action.start,
        )
        self.plans.write(plan, lanes_of(stream, manifest), manifest)
        self._reports().new_plan(action.generation, action.replicas, action.ranks_per_replica)
        self._wake.set()

    def _fence(self, generation: int, index: int, pod_uid: str, reason: str) -> None:
        self._reports().fence(generation, index, pod_uid, reason)
        job = self.jobs.get(generation)
        for slot in job.slots if job else []:
            if slot.doc is not None and slot.doc.uid == pod_uid:
                slot.kill()

    def _indexed_job(self, generation: int, replicas: int) -> IndexedJob:
        return IndexedJob(
            self.store.pods,
            generation,
            replicas,
            max_restarts=self.job.spec.max_restarts,
            hopeless=self.job.spec.failure_policy.non_retryable_exit_codes,
            factory=self.factory.maker(generation),
            say=self.display.event,
            adopted=self._expect,
        )

    def _expect(self, doc: PodDoc) -> None:
        if self.coordinator is not None:
            self.coordinator.expect(doc.generation, doc.index, doc.uid)

    def _reports(self) -> Coordinator:
        if self.coordinator is None:
            raise RuntimeError("the report service was wanted before the stream was frozen")
        return self.coordinator

    @property
    def socket(self) -> Path:
        """The coordinator's Unix socket: in tmpfs, where paths are short."""
        return self.root / "coordinator.sock"

    def _ensure_coordinator(self) -> None:
        """The report service runs once the stream is frozen."""
        stream = self.status.stream
        if self.coordinator is not None or stream is None or self.manifest is None:
            return
        self.coordinator = Coordinator(
            self.job.metadata.uid, lanes_of(stream, self.manifest), stream.total_steps, self.status
        )
        self.coordinator.on_change = self._wake.set
        old = os.umask(0o177)
        try:
            self.server = serve(self.coordinator, f"unix:{self.socket}", self.store.token(), time.time)
        finally:
            os.umask(old)
