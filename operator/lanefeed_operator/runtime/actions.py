"""Does in the cluster what reconcile decided, one action at a time, each a no-op when it is done already.

Called by the controller right after the status that an action rests on was written. What it makes is put into the view
at once, so that the next pass knows of it before the watch does. A refusal that trying again does not mend is raised as
`Refused`, which the controller shows in the conditions; other API errors are the work queue's.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import ConfigError, PodConfig
from lanefeed_operator.api.spec import Job, Provider
from lanefeed_operator.api.status import Status, StreamStatus
from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import (
    CONFIG_MAPS,
    JOBS,
    PODS,
    SERVICES,
    STJS,
    AlreadyExists,
    Forbidden,
    Invalid,
    Kind,
    KubeApi,
    NotFound,
    Object,
)
from lanefeed_operator.kube.facts import JobFacts, PodFacts
from lanefeed_operator.kube.observe import World, lost_for
from lanefeed_operator.reconcile import types as r
from lanefeed_operator.reconcile.plans import lanes_of, make_plan
from lanefeed_operator.render import (
    RenderError,
    Settings,
    indexed_job,
    indexer,
    names,
    plan_map,
    pod_config,
    pod_group,
    service,
    sizes,
    trust_map,
)
from lanefeed_operator.render import constants as c
from lanefeed_operator.runtime.ending import is_ending
from lanefeed_operator.runtime.fencing import free_pod
from lanefeed_operator.runtime.indexing import next_step, wait_seconds
from lanefeed_operator.runtime.owned import NameConflict, ensure, is_ours
from lanefeed_operator.runtime.registry import Member, Registry
from lanefeed_operator.runtime.view import View

__all__ = ["NAMESPACE_ENDS", "Actions", "Refused", "Scene"]

log = logging.getLogger(__name__)

#: A deletion that is not seen after this long is asked for again.
ASK_AGAIN_SECONDS = 10.0
#: Children of a former job of the same name are waited for this long, then shown as what is in the way.
FORMER_SECONDS = 60.0
#: Plans whose documents are kept, the present one with them.
KEPT_PLANS = 3
#: What a job may have asked to be deleted; the oldest are forgotten.
MAX_ASKED = 64
INVALID_TEMPLATE = "InvalidPodTemplate"
NAMESPACE_ENDS = "NamespaceTerminating"
_GROUPS = {
    Provider.VOLCANO: Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),
    Provider.COSCHEDULING: Kind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"),
}


class Refused(OperatorError):
    """An action that was refused for a reason that trying again does not mend; `why` is shown to the user."""

    def __init__(self, why: r.Why) -> None:
        """Keep the reason."""
        self.why = why
        super().__init__(why.message)


@dataclass(frozen=True, slots=True)
class Scene:
    """What an action needs to know: the job, its persisted status, what was observed, and when.

    `current` asks the API server whether the job is still what was observed: the last look before pods are made.
    """

    member: Member
    job: Job
    status: Status
    world: World
    now: float
    current: Callable[[], bool] = lambda: True


class Actions:
    """See the module."""

    def __init__(self, api: KubeApi, view: View, registry: Registry, settings: Settings) -> None:
        """Keep the tools."""
        self._api, self._view, self._registry, self._settings = api, view, registry, settings

    def act(self, scene: Scene, action: r.Action) -> bool:
        """Do it; whether something changed that the next pass should see at once. Raises Refused, ApiError."""
        try:
            return self._act(scene, action)
        except (NameConflict, RenderError, Invalid, Forbidden) as error:
            raise Refused(_why(action, error)) from error

    def _act(self, scene: Scene, action: r.Action) -> bool:
        match action:
            case r.BuildManifest():
                return self._build_manifest(scene)
            case r.WritePlan():
                return self._write_plan(scene, action)
            case r.CreateChildren(generation, _):
                return self._create_children(scene, generation)
            case r.AskStop(generation, step, reason):
                if scene.member.coordinator is not None:
                    scene.member.coordinator.stop(generation, step, reason)
                return False
            case r.DeleteChildren(generation, reason):
                return self._delete_children(scene, generation, reason)
            case r.Fence(generation, index, pod_uid, reason):
                return self._fence(scene, generation, index, pod_uid, reason)
            case r.DeleteJob():
                meta = scene.job.metadata
                self._api.delete(STJS, meta.namespace, meta.name, uid=meta.uid)
                return False

    # ---- the manifest ------------------------------------------------------------------------------------------

    def _build_manifest(self, scene: Scene) -> bool:
        """See `indexing`."""
        member, limit = scene.member, scene.job.spec.elastic.node_lost_seconds
        body = indexer(scene.job, self._settings)
        name, digest = body["metadata"]["name"], body["metadata"]["annotations"][c.TEMPLATE_ANNOTATION]
        step = next_step(scene.world, name, digest, after=member.index_after, lost_seconds=limit)
        for pod in step.free:
            self._free(pod, f"nobody hears of the indexer's node {pod.node} for {limit} s", scene.now)
        if step.anew:
            member.index_tries, member.index_after = 0, 0.0
        if step.delete is not None:
            self._delete(scene, JOBS, step.delete, "Background")
        return self._make_indexer(scene, body) if step.make else False

    def _make_indexer(self, scene: Scene, body: Object) -> bool:
        member = scene.member
        if not scene.current():
            return True
        self._trust(scene, again=True)
        made, new = self._make(scene, JOBS, body)
        self._view.put(JOBS, made)
        if new:
            member.index_tries += 1
            member.index_after = scene.now + wait_seconds(member.index_tries)
            with member.lock:
                # What a former try said is over.
                member.info = member.info if member.chunks else None
        return new

    # ---- a plan and its children -------------------------------------------------------------------------------

    def _write_plan(self, scene: Scene, action: r.WritePlan) -> bool:
        member, stream = scene.member, scene.status.stream
        stored = self._manifest(scene)
        if stream is None or stored is None or member.coordinator is None:
            log.debug("%s: the plan waits for the manifest", member.name)
            return False
        new = action.generation not in member.plans
        if new:
            member.plans[action.generation] = self._plan_document(scene, action, stream, stored[0])
        config = member.plans[action.generation]
        # Of the document: it is what the sidecars follow, also where the spec has changed since.
        member.coordinator.new_plan(action.generation, config.plan.replicas, config.plan.ranks_per_replica)
        return new

    def _plan_document(self, scene: Scene, action: r.WritePlan, stream: StreamStatus, manifest: Manifest) -> PodConfig:
        job = scene.job
        lanes = lanes_of(stream, manifest)
        plan = make_plan(
            job,
            stream,
            generation=action.generation,
            replicas=action.replicas,
            ranks=action.ranks_per_replica,
            start=action.start,
        )
        needs = sizes(job.spec, plan, manifest)
        config = pod_config(job, plan, lanes.spec, scene.status.cursor, needs, self._settings)
        found, new = self._make(scene, CONFIG_MAPS, plan_map(job, config, lanes, manifest))
        if new:
            return config
        return _read_config(found, job.metadata.name, action.generation)

    def _create_children(self, scene: Scene, generation: int) -> bool:
        """Service, trust, PodGroup, Indexed Job; the Job is tried first, so that half a set is not left behind."""
        member, job = scene.member, scene.job
        stored, config = self._manifest(scene), member.plans.get(generation)
        if stored is None or config is None:
            return False
        body = indexed_job(job, config, stored[0], self._settings, chunks=stored[1])
        if any(x.name == body["metadata"]["name"] for x in scene.world.our_jobs("pods")):
            return False
        self._wait_for_former(scene)
        if not scene.current():
            return True
        self._try(member, body)
        self._make(scene, SERVICES, service(job, self._settings))
        self._trust(scene, again=True)
        group, kind = pod_group(job, body), _GROUPS.get(job.spec.scheduling.gang.provider)
        if group is not None and kind is not None:
            self._make_group(scene, kind, group)
        member.doubt = body["metadata"]["name"]
        made, new = self._make(scene, JOBS, body)
        self._view.put(JOBS, made)
        member.doubt = ""
        if new:
            self._tidy(scene, generation - KEPT_PLANS)
        return True

    def _tidy(self, scene: Scene, generation: int) -> None:
        """Documents of plans that are long over are deleted; the last few stay for people."""
        if generation < 1:
            return
        member, name = scene.member, names.plan_map_name(scene.member.name, generation)
        member.plans.pop(generation, None)
        try:
            found = self._api.get(CONFIG_MAPS, member.namespace, name)
        except NotFound:
            return
        if is_ours(found, member.uid):
            self._api.delete(CONFIG_MAPS, member.namespace, name, uid=found["metadata"]["uid"])

    def _wait_for_former(self, scene: Scene) -> None:
        """Pods of a former job of this name have our host names, and ranks could meet them."""
        limit, waiting = scene.job.spec.elastic.node_lost_seconds, []
        for pod in scene.world.former():
            if lost_for(scene.world, pod, limit):
                self._free(pod, f"its job is gone, and its node is lost for {limit} s", scene.now)
            else:
                waiting.append(pod.name)
        if waiting:
            some = ", ".join(sorted(waiting)[:4]) + (", ..." if len(waiting) > 4 else "")
            text = f"pods of a former job of this name are still ending ({some}): they are waited for"
            raise Refused(r.Why("FormerPods", f"{text}; where they do not end, see kubectl describe pod"))

    def _try(self, member: Member, body: Object) -> None:
        """A dry run: an invalid template is said before anything is made of it."""
        try:
            self._api.create(JOBS, member.namespace, body, dry_run=True)
        except AlreadyExists:
            # It is there already; `ensure` says whose it is.
            return

    def trust(self, scene: Scene) -> None:
        """A CA that was rotated reaches pods that run. Raises Refused, ApiError."""
        if not self._registry.ca or scene.member.trusted == self._registry.ca:
            return
        try:
            self._trust(scene)
        except (NameConflict, Invalid, Forbidden) as error:
            raise Refused(r.Why(_word(error), f"the CA for the job's pods cannot be written: {error}")) from error

    def _trust(self, scene: Scene, *, again: bool = False) -> None:
        """The ConfigMap with the report service's CA: there before any pod (`again`), mended when the CA is rotated."""
        ca = self._registry.ca
        if not ca or (scene.member.trusted == ca and not again):
            return
        body = trust_map(scene.job, ca)
        found, _ = self._make(scene, CONFIG_MAPS, body)
        if found.get("data") != body["data"]:
            meta = found["metadata"]
            patch = {"metadata": {"uid": meta["uid"]}, "data": body["data"]}
            self._api.patch(CONFIG_MAPS, meta["namespace"], meta["name"], patch)
        scene.member.trusted = ca

    def _make(self, scene: Scene, kind: Kind, body: Object) -> tuple[Object, bool]:
        patient = scene.now - scene.member.since < FORMER_SECONDS
        return ensure(self._api, kind, body, scene.member.uid, patient=patient)

    def _make_group(self, scene: Scene, kind: Kind, group: Object) -> None:
        try:
            self._make(scene, kind, group)
        except NotFound as error:
            where = f"{kind.group}/{kind.version}"
            raise Refused(
                r.Why(
                    "NoSuchGang",
                    f"the cluster has no PodGroup of {where} ({error}): install the scheduler that "
                    "spec.scheduling.gang.provider names, or remove the gang",
                )
            ) from error

    def _manifest(self, scene: Scene) -> tuple[Manifest, int] | None:
        member = scene.member
        return self._registry.manifests.read(member.namespace, member.name, member.uid)

    # ---- ending ------------------------------------------------------------------------------------------------

    def _delete_children(self, scene: Scene, generation: int, reason: str) -> bool:
        """In the foreground: the Job stays until its pods are gone, so that the next plan can wait for that."""
        jobs = [x for x in scene.world.our_jobs("pods") if x.generation == generation]
        for job in jobs:
            if job.deleted is None:
                log.info("%s: plan generation %d is deleted: %s", scene.member.name, generation, reason)
                self._delete(scene, JOBS, job, "Foreground")
        self._delete_group(scene, generation)
        if not jobs:
            # Its Job was taken away from its pods (kubectl delete --cascade=orphan).
            for pod in scene.world.orphans():
                if pod.generation == generation and pod.deleted is None:
                    self._delete(scene, PODS, pod, "Background")
        return False

    def _delete_group(self, scene: Scene, generation: int) -> None:
        """A PodGroup goes with its plan; it is owned by the job, so it goes with that at the latest."""
        member = scene.member
        kind, name = _GROUPS.get(scene.job.spec.scheduling.gang.provider), names.pods_name(member.name, generation)
        if kind is None or not self._due(scene, f"group {generation}"):
            return
        try:
            found = self._api.get(kind, member.namespace, name)
        except NotFound:
            return
        if is_ours(found, member.uid):
            self._api.delete(kind, member.namespace, name, uid=found["metadata"]["uid"])

    def _delete(self, scene: Scene, kind: Kind, what: JobFacts | PodFacts, how: str) -> None:
        """Ask once, and again only where nothing comes of it."""
        if not self._due(scene, what.uid):
            return
        if how == "Foreground":
            self._api.delete(kind, what.namespace, what.name, uid=what.uid, propagation="Foreground")
        else:
            self._api.delete(kind, what.namespace, what.name, uid=what.uid)

    def _due(self, scene: Scene, what: str) -> bool:
        """Whether it is time to ask for a deletion (again); notes that it is asked for."""
        asked = scene.member.asked
        if scene.now - asked.get(what, float("-inf")) < ASK_AGAIN_SECONDS:
            return False
        asked.pop(what, None)
        asked[what] = scene.now
        while len(asked) > MAX_ASKED:
            del asked[next(iter(asked))]
        return True

    def _fence(self, scene: Scene, generation: int, index: int, pod_uid: str, reason: str) -> bool:
        """Fence first: whatever the zombie still says does not count from here on."""
        if scene.member.coordinator is not None:
            scene.member.coordinator.fence(generation, index, pod_uid, reason)
        pod = next((x for x in scene.world.pods if x.uid == pod_uid), None)
        if pod is None:
            return False
        self._free(pod, reason, scene.now)
        return True

    def _free(self, pod: PodFacts, reason: str, now: float) -> None:
        freed = free_pod(self._api, pod, reason, now)
        if freed is not None:
            self._view.put(PODS, freed)


def _why(action: r.Action, error: OperatorError) -> r.Why:
    """A refusal for the conditions. What the API server says of Jobs is about the user's template."""
    what, word = type(action).__name__, _word(error)
    if isinstance(error, NameConflict | RenderError):
        return r.Why(word, str(error))
    if isinstance(error, Invalid) and isinstance(action, r.BuildManifest | r.CreateChildren):
        return r.Why(INVALID_TEMPLATE, f"the API server refuses the pods of spec.template: {error}")
    return r.Why(word, f"{what}: the API server refuses it: {error}")


def _word(error: OperatorError) -> str:
    """A refusal in one word; reconcile knows the second one as the spec's author's to mend."""
    if isinstance(error, NameConflict):
        return "NameConflict"
    if isinstance(error, RenderError):
        return "SpecRefused"
    if is_ending(error):
        return NAMESPACE_ENDS
    return "Forbidden" if isinstance(error, Forbidden) else "Invalid"


def _read_config(found: Object, name: str, generation: int) -> PodConfig:
    """From a plan's ConfigMap that a former operator wrote."""
    try:
        return PodConfig.from_json((found.get("data") or {})[c.POD_FILE])
    except (KeyError, ConfigError) as error:
        where = names.plan_map_name(name, generation)
        raise NameConflict(
            f"ConfigMap {where} holds no plan that this version can read ({error}): delete it, it is written again"
        ) from None
