"""One pass over one job: observe -> reconcile -> persist -> acknowledge -> act. The cluster's shell of the same loop
that `local.runner` runs on one machine (the contract is in reconcile/types.py).

Called by the workers, one at a time for each job, and by the simulation. Synchronous; no threads, no watches, no clock
of its own. It decides nothing: what happens to a job is reconcile's word.

Write ahead, with the resourceVersion as precondition: of two operators that believe they are the one, one gets 409 and
begins again from what the other wrote. What a pass acts on was written by it, or read live.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from lanefeed_core.lastwords import LastWordsError
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.lastwords import reports_of
from lanefeed_operator.errors import JobError
from lanefeed_operator.kube.api import JOBS, PODS, STJS, Conflict, KubeApi, NotFound, Object
from lanefeed_operator.kube.facts import PodFacts
from lanefeed_operator.kube.observe import World, children, indexer_info, indexer_trouble, living
from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile import types as r
from lanefeed_operator.reconcile.engine import MANAGER
from lanefeed_operator.reconcile.plans import info_of, lanes_of
from lanefeed_operator.render import Settings
from lanefeed_operator.runtime import admit, events
from lanefeed_operator.runtime import ending as ending_
from lanefeed_operator.runtime.actions import NAMESPACE_ENDS, Actions, Refused, Scene
from lanefeed_operator.runtime.registry import Member, Registry
from lanefeed_operator.runtime.view import JobKey, View

__all__ = ["Controller"]

log = logging.getLogger(__name__)

#: Before Jobs and Pods have been seen whole nothing may be concluded from what is missing.
UNSYNCED_SECONDS = 0.5
#: A refused action is tried again after 1, 2, 4, ... seconds, at most after so many, changed or not.
REFUSED_SECONDS = 30.0
#: A running job is looked at this often for its progress; reports of progress alone wake nobody.
PROGRESS_SECONDS = 10.0
#: An indexer that waits for a volume, and a pod that does not go, show it only by waiting.
WAITING_SECONDS = 10.0
#: A fault of a spec is looked for again after this long: a newer CRD changes what is served, and counts no generation.
FAULT_SECONDS = 600.0
#: A namespace is asked this often whether it is being deleted, where a pod that has ended does not go.
PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass works with."""

    key: JobKey
    raw: Object
    member: Member
    job: Job
    status: Status
    now: float


class Controller:
    """See the module."""

    def __init__(
        self, api: KubeApi, view: View, registry: Registry, settings: Settings, clock: Callable[[], float]
    ) -> None:
        """`clock`: seconds since 1970."""
        self._api, self._view, self._registry, self._clock = api, view, registry, clock
        self._actions = Actions(api, view, registry, settings)

    def run_pass(self, key: JobKey) -> float | None:
        """Look at a job once; seconds until it must be looked at again. Raises OperatorError (ApiError): later."""
        if not self._view.is_synced(STJS, JOBS, PODS):
            return UNSYNCED_SECONDS
        raw = self._view.job(key)
        if raw is None:
            self._registry.forget(key)
            return None
        if raw["metadata"].get("deletionTimestamp"):
            # The garbage collector ends it; reports are taken until it is gone.
            return None
        if (raw.get("spec") or {}).get("managedBy", "") not in ("", MANAGER):
            return None
        now = self._clock()
        member = self._registry.member(key, raw["metadata"]["uid"])
        member.since = member.since or now
        status = admit.read_status(raw)
        try:
            job = self._job(member, raw, now)
        except JobError as error:
            return self._refuse(key, raw, status, error, now)
        return self._run(_Pass(key, raw, member, job, status, now))

    # ---- the pass ----------------------------------------------------------------------------------------------

    def _run(self, p: _Pass) -> float | None:
        member = p.member
        self._settle(p)
        world = self._world(p)
        seen = children(world)
        if not p.status.terminal or any(found.alive for found in seen.values()):
            self._recover(p)
        else:
            # Nobody is left to report; and what was reported must not fail a job that now goes on.
            member.coordinator = None
        self._listen(p, world)
        feed = member.coordinator.snapshot(p.now) if member.coordinator is not None else r.FeedView()
        decision = reconcile(p.job, p.status, self._observed(p, world, seen, feed), p.now)
        if not self._persist(p, decision.status):
            return 0.0
        if member.coordinator is not None and not p.status.terminal:
            # What reports say of a job that is over is not written, and so not acknowledged.
            member.coordinator.persisted(feed.version)
        self._coordinate(p, decision.status)
        # After commits were acknowledged: telling people may take a while.
        ending = events.tell(self._api, p.raw["metadata"], events.changes(p.status, decision.status), p.now)
        if decision.actions and not self._confirmed(p):
            return 0.0
        scene = Scene(member, p.job, decision.status, world, p.now, lambda: self._current(p))
        again = self._act(scene, decision.actions)
        self._let_go(scene, ending)
        return self._next(p, decision, feed, again)

    def _job(self, member: Member, raw: Object, now: float) -> Job:
        """The checked spec; read again only where it changed. Raises JobError."""
        source = admit.source_of(raw)
        if member.fault is not None and member.fault_of == source and now - member.fault_at < FAULT_SECONDS:
            raise member.fault.with_traceback(None)
        member.fault = None
        if member.job is None or member.read_from != source:
            try:
                member.job, member.read_from = admit.read_job(raw), source
            except JobError as error:
                member.fault, member.fault_of, member.fault_at = error, source, now
                raise
        return member.job

    def _refuse(self, key: JobKey, raw: Object, status: Status, error: JobError, now: float) -> float | None:
        """A spec that cannot be used: said in the status; what runs goes on."""
        if status.terminal:
            return None
        new = admit.refused(status, error, raw["metadata"].get("generation", 1), now)
        if new is not status:
            if not self._write(key, raw, new):
                return 0.0
            events.tell(self._api, raw["metadata"], events.changes(status, new), now)
        return None

    # ---- observing ---------------------------------------------------------------------------------------------

    def _settle(self, p: _Pass) -> None:
        """A creation with no answer may have landed: that is found out before its absence counts for anything.

        One that lands later still (of an operator that died, or after this look) makes a plan that is over: its pods'
        reports are fenced by their plan generation, and its Job is deleted when the watch shows it.
        """
        member = p.member
        if not member.doubt:
            return
        try:
            self._view.put(JOBS, self._api.get(JOBS, member.namespace, member.doubt))
        except NotFound:
            log.debug("%s/%s: Job %s was not made", *p.key, member.doubt)
        member.doubt = ""

    def _recover(self, p: _Pass) -> None:
        """What a former operator stored: the manifest; from it and the status the coordinator."""
        member = p.member
        member.bound = p.status.stream.manifest if p.status.stream is not None else ""
        if not member.looked:
            # Nobody stores one before this was looked for; the lock is not held while the API server is asked.
            stored = self._registry.manifests.read(member.namespace, member.name, member.uid)
            with member.lock:
                if stored is not None and member.bound in ("", stored[0].digest):
                    member.info, member.chunks = info_of(stored[0]), stored[1]
                elif stored is not None:
                    member.info = r.ManifestInfo(digest=stored[0].digest)
                member.looked = True
        self._coordinate(p, p.status)

    def _coordinate(self, p: _Pass, status: Status) -> None:
        """The coordinator, from the persisted status; made anew where that knows more (another operator wrote it)."""
        member, stream = p.member, status.stream
        if status.terminal and member.coordinator is not None and member.coordinator.behind(status):
            # Another operator ended the job: what this one still believes would take its last commit back.
            member.coordinator = None
        if stream is None or not member.chunks or status.terminal:
            return
        member.bound = stream.manifest
        if member.coordinator is not None and (self._known(p) or not member.coordinator.behind(status)):
            return
        stored = self._registry.manifests.read(member.namespace, member.name, member.uid)
        if stored is None or stored[0].digest != stream.manifest:
            # Somebody deleted the ConfigMaps: reconcile has them built again.
            with member.lock:
                member.info, member.chunks = None, 0
            return
        # A plan that this very pass has decided is not one that was found under way: WritePlan tells of it.
        begun = status.model_copy(update={"plan": p.status.plan}) if p.status.stream is None else status
        made = Coordinator(member.uid, lanes_of(stream, stored[0]), stream.total_steps, begun)
        self._registry.attach(member, made)

    def _world(self, p: _Pass) -> World:
        return World(
            name=p.member.name,
            uid=p.member.uid,
            jobs=self._view.jobs_of(p.key),
            pods=self._view.pods_of(p.key),
            nodes=self._view.lost_nodes(),
            now=p.now,
            sizes={p.status.plan.generation: p.status.plan.replicas},
        )

    def _listen(self, p: _Pass, world: World) -> None:
        """Only the newest living pod of each index of the present plan may report; dead ones had their last words.

        A plan that is closed was listened to to its end, or has failed: then its words would fail the job once more.
        """
        member, generation = p.member, p.status.plan.generation
        if member.coordinator is None or p.status.plan.closed:
            return
        new = member.heard is None
        heard = member.heard = member.heard if member.heard is not None else set()
        for job in world.our_jobs("pods"):
            if job.generation != generation:
                continue
            pods = world.pods_of(job)
            for pod in sorted(pods, key=lambda pod: pod.created):
                if pod.state.words and pod.uid not in heard:
                    heard.add(pod.uid)
                    self._last_words(member.coordinator, pod, p.now, new=new)
            for index, pod in living(pods).items():
                member.coordinator.expect(generation, index, pod.uid)

    @staticmethod
    def _last_words(coordinator: Coordinator, pod: PodFacts, now: float, *, new: bool) -> None:
        """As a report of the pod. A new coordinator is told of the pods in the order in which they held an index."""
        try:
            report = reports_of(pod.state.words, pod_uid=pod.uid)
        except LastWordsError as error:
            log.warning("pod %s/%s: %s", pod.namespace, pod.name, error)
            return
        if new:
            coordinator.expect(pod.generation, pod.index, pod.uid)
        coordinator.take(report, now)

    def _observed(self, p: _Pass, world: World, seen: dict[int, r.Children], feed: r.FeedView) -> r.Observed:
        member = p.member
        manifest, problem = member.info, member.problem
        if manifest is None:
            for job in world.our_jobs("indexer"):
                manifest = indexer_info(world, job)
                problem = problem or indexer_trouble(world, job)
        return r.Observed(
            children=seen,
            plans=frozenset(member.plans) if member.coordinator is not None else frozenset(),
            manifest=manifest,
            feed=feed,
            problem=problem,
        )

    # ---- persisting --------------------------------------------------------------------------------------------

    def _persist(self, p: _Pass, status: Status) -> bool:
        """Write what changed; False: begin again from what is there. Raises ApiError."""
        if status is p.status:
            return True
        if not self._write(p.key, p.raw, status):
            return False
        p.member.confirmed = p.raw["metadata"]["resourceVersion"]
        return True

    def _write(self, key: JobKey, raw: Object, status: Status) -> bool:
        """PUT of the status with the version that was read; it is in the view at once, and in `raw`."""
        try:
            written = self._api.replace_status(STJS, key[0], {**raw, "status": status.to_dict()})
        except (Conflict, NotFound) as error:
            log.info("%s/%s: the status was not written: %s", *key, error)
            self._read_live(key)
            return False
        self._view.put(STJS, written)
        raw["metadata"] = written["metadata"]
        return True

    def _confirmed(self, p: _Pass) -> bool:
        """Whether what the pass went by is the job as it is: written by us, or read live at the same version.

        A watch can lag, and a list can come from an old cache; then actions of a plan that is over would be done again.
        """
        if self._known(p):
            return True
        return self._current(p)

    def _current(self, p: _Pass) -> bool:
        """Whether the job is at this moment what the pass goes by. Before pods are made: it may be gone by now."""
        version = p.raw["metadata"]["resourceVersion"]
        live = self._read_live(p.key)
        if live is None or live["metadata"]["uid"] != p.member.uid or live["metadata"]["resourceVersion"] != version:
            return False
        p.member.confirmed = version
        return True

    @staticmethod
    def _known(p: _Pass) -> bool:
        """Whether we wrote this version, or have gone by it and read it live."""
        return p.member.confirmed == p.raw["metadata"]["resourceVersion"]

    def _read_live(self, key: JobKey) -> Object | None:
        """The job as it is, in the view too; None if it is gone."""
        try:
            live = self._api.get(STJS, *key)
        except NotFound:
            raw = self._view.job(key)
            if raw is not None:
                self._view.remove(STJS, raw)
            return None
        self._view.put(STJS, live)
        return live

    # ---- acting ------------------------------------------------------------------------------------------------

    def _act(self, scene: Scene, actions: tuple[r.Action, ...]) -> bool:
        """All actions; a refusal is kept for the next pass to show, and forgotten once nothing is refused."""
        member, again, problem = scene.member, False, None
        for action in actions:
            try:
                again |= self._actions.act(scene, action)
            except Refused as error:
                problem = problem or error.why
        try:
            if not scene.status.terminal and scene.world.jobs:
                self._actions.trust(scene)
        except Refused as error:
            problem = problem or error.why
        member.refusals = member.refusals + 1 if problem is not None else 0
        if problem != member.problem:
            if problem is not None:
                log.warning("%s/%s: %s: %s", *member.key, problem.reason, problem.message)
            member.problem, again = problem, True
        return again

    def _let_go(self, scene: Scene, ending: bool) -> None:
        """See `ending`: a namespace that is being deleted must not wait for us."""
        member, problem = scene.member, scene.member.problem
        ending |= problem is not None and problem.reason == NAMESPACE_ENDS
        if not ending and ending_.stuck(scene.world) and scene.now >= member.probe_after:
            member.probe_after = scene.now + PROBE_SECONDS
            ending = ending_.probe(self._api, member.namespace)
        if ending:
            ending_.let_go(self._api, scene.world)

    def _next(self, p: _Pass, decision: r.Decision, feed: r.FeedView, again: bool) -> float | None:
        """When to look again at the latest."""
        if again:
            return 0.0
        wakes = [] if decision.wake_after is None else [decision.wake_after]
        if p.member.problem is not None:
            wakes.append(min(REFUSED_SECONDS, 2.0 ** min(p.member.refusals - 1, 10)))
        if not decision.status.terminal:
            if feed.ranks:
                wakes.append(PROGRESS_SECONDS)
            if p.member.info is None or any(pod.deleted is not None for pod in self._view.pods_of(p.key)):
                wakes.append(WAITING_SECONDS)
        return min(wakes, default=None)
