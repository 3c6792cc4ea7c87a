"""The jobs that this operator looks after, by UID: what it must remember of each between two passes.

Filled and emptied by the controller, asked by the report service (it is its `Directory`) from threads of its own. All
of it can be lost: a new operator makes it anew from status and ConfigMaps. A job that was deleted and made anew under
its name has another UID, hence another member.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from lanefeed_core.errors import ManifestError
from lanefeed_core.podconfig import PodConfig
from lanefeed_operator.api.spec import Job
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.errors import JobError
from lanefeed_operator.kube.api import Forbidden, Invalid, KubeApi, Unreachable
from lanefeed_operator.reconcile.plans import info_of
from lanefeed_operator.reconcile.types import ManifestInfo, Why
from lanefeed_operator.render import RenderError
from lanefeed_operator.runtime.manifests import Manifests
from lanefeed_operator.runtime.owned import NameConflict
from lanefeed_operator.runtime.view import JobKey, View

__all__ = ["Member", "Registry"]

log = logging.getLogger(__name__)

MAX_MESSAGE = 4096


@dataclass(slots=True)
class Member:
    """One job. Changed by the pass at hand alone, but for `info`, which indexers bring under `lock`."""

    namespace: str
    name: str
    uid: str
    coordinator: Coordinator | None = None
    #: The spec as it was last read, and what it was read from.
    job: Job | None = None
    read_from: object = None
    #: What is wrong with the spec, what that was read from and when: it is not looked for in every pass.
    fault: JobError | None = None
    fault_of: object = None
    fault_at: float = 0.0
    info: ManifestInfo | None = None
    #: Chunks of the stored manifest; 0: none is stored, as far as we know.
    chunks: int = 0
    #: The manifest was looked for in the cluster.
    looked: bool = False
    #: Indexers made by this process, and when the next one may be.
    index_tries: int = 0
    index_after: float = 0.0
    #: Digest that the job is bound to, "" while it is not.
    bound: str = ""
    #: Plan generations whose document is there -> what its sidecars start from.
    plans: dict[int, PodConfig] = field(default_factory=dict)
    #: resourceVersion of the job that was read live or written by us.
    confirmed: str = ""
    problem: Why | None = None
    #: The CA that the job's pods trust.
    trusted: str = ""
    #: When this operator first looked at it; actions refused in a row.
    since: float = 0.0
    refusals: int = 0
    #: Name of an Indexed Job whose creation got no answer: it may have been made.
    doubt: str = ""
    #: When the namespace may be asked again whether it is being deleted.
    probe_after: float = 0.0
    #: Pods whose last words were taken; None: the coordinator is new, and nobody was told of any pod.
    heard: set[str] | None = None
    #: UID -> when its deletion was last asked for.
    asked: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    #: Held by the thread that stores a manifest, which may take minutes; nobody waits for it.
    storing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def key(self) -> JobKey:
        """(namespace, name)."""
        return self.namespace, self.name


class Registry:
    """See the module. Thread safe. `on_change` wakes the work queue; it is called outside of any lock."""

    def __init__(self, api: KubeApi, view: View) -> None:
        """No job is known yet."""
        self.on_change: Callable[[JobKey], None] = lambda _: None
        self.manifests = Manifests(api)
        self._view = view
        self._lock = threading.Lock()
        self._by_uid: dict[str, Member] = {}
        self._by_key: dict[JobKey, Member] = {}
        self._ca = ""

    # ---- for the controller and main ---------------------------------------------------------------------------

    def member(self, key: JobKey, uid: str) -> Member:
        """The job of this UID; one that had the name before is forgotten."""
        with self._lock:
            found = self._by_key.get(key)
            if found is not None and found.uid == uid:
                return found
            if found is not None:
                self._drop(found)
            new = Member(namespace=key[0], name=key[1], uid=uid)
            self._by_key[key] = self._by_uid[uid] = new
            return new

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        with self._lock:
            found = self._by_key.get(key)
            if found is not None:
                self._drop(found)

    def _drop(self, member: Member) -> None:
        self._by_key.pop(member.key, None)
        self._by_uid.pop(member.uid, None)
        self.manifests.forget(member.uid)

    def members(self) -> list[Member]:
        """All jobs that were looked at."""
        with self._lock:
            return list(self._by_uid.values())

    @property
    def ca(self) -> str:
        """PEM of the report service's CA."""
        return self._ca

    def trust(self, ca: str) -> None:
        """The report service's CA, at the start and when it is rotated: every job hands it to its pods."""
        with self._lock:
            changed, self._ca = ca != self._ca, ca
            keys = list(self._by_key)
        for key in keys if changed else ():
            self.on_change(key)

    def attach(self, member: Member, coordinator: Coordinator) -> None:
        """The member takes reports from now on. Progress alone wakes nobody: a running job is looked at anyway."""
        coordinator.on_change = lambda: self.on_change(member.key)
        coordinator.on_progress = lambda: None
        member.heard = None
        member.coordinator = coordinator

    # ---- coordinator.directory.Directory -----------------------------------------------------------------------

    def find(self, job_uid: str) -> Member | None:
        """The job of this UID."""
        with self._lock:
            return self._by_uid.get(job_uid)

    def put_manifest(self, job_uid: str, pod_uid: str, digest: str, data: bytes) -> str:
        """Store what an indexer made; "" or why it is not wanted. Raises ApiError."""
        member, job, refusal = self._indexed(job_uid, pod_uid)
        if member is None or job is None:
            return refusal
        if not member.storing.acquire(blocking=False):
            raise Unreachable(f"a manifest of job {member.name} is being stored right now: send it again")
        try:
            return self._take(member, job, digest, data)
        finally:
            member.storing.release()
            self.on_change(member.key)

    def _take(self, member: Member, job: Job, digest: str, data: bytes) -> str:
        """One at a time for a member. Its lock is not held while the API server is talked to: workers take it too."""
        with member.lock:
            refusal = self._known(member, digest)
        if refusal is not None:
            return refusal
        try:
            manifest, chunks = self.manifests.write(job, data, digest)
        except (ManifestError, NameConflict, RenderError) as error:
            with member.lock:
                member.info = ManifestInfo(error=str(error), retryable=isinstance(error, NameConflict))
            return str(error)
        except (Forbidden, Invalid) as error:
            # A quota, most often: shown, and the indexer sends it again.
            with member.lock:
                member.info = ManifestInfo(error=f"the manifest cannot be stored: {error}", retryable=True)
            raise
        with member.lock:
            member.info, member.chunks = info_of(manifest), chunks
        return ""

    @staticmethod
    def _known(member: Member, digest: str) -> str | None:
        """What is said without storing anything; None: it is to be stored. Under the member's lock."""
        if not member.looked:
            raise Unreachable(f"the manifest of job {member.name} has not been looked for yet: send it again")
        if member.chunks and member.info is not None:
            same = member.info.digest == digest
            return "" if same else f"the dataset was indexed as {member.info.digest} already, by another pod"
        if member.bound and digest != member.bound:
            # Reconcile says so in the conditions; what the job rests on is not touched.
            member.info = ManifestInfo(digest=digest)
            return (
                f"the job is bound to dataset {member.bound} and this is {digest}: it was changed since the job began"
            )
        return None

    def manifest_failed(self, job_uid: str, pod_uid: str, kind: str, message: str, retryable: bool) -> None:
        """An indexer says that the dataset cannot be indexed."""
        member, _, refusal = self._indexed(job_uid, pod_uid)
        if member is None:
            # Its exit code and last line say it too.
            log.info("an indexer's failure is passed over: %s", refusal)
            return
        with member.lock:
            if not member.chunks:
                member.info = ManifestInfo(error=(message or kind)[:MAX_MESSAGE], retryable=retryable)
        self.on_change(member.key)

    def _indexed(self, job_uid: str, pod_uid: str) -> tuple[Member | None, Job | None, str]:
        """The member whose indexer this pod is, or why it is not. Raises Unreachable for a pod not seen yet."""
        member = self.find(job_uid)
        if member is None:
            return None, None, f"job {job_uid} is not known (any more, or yet): try again"
        for job in self._view.jobs_of(member.key):
            if job.role != "indexer" or job.job_uid != job_uid or job.owner_uid != job_uid:
                continue
            if any(pod.uid == pod_uid and pod.owner_uid == job.uid for pod in self._view.pods_of(member.key)):
                if member.job is None:
                    break
                return member, member.job, ""
        if all(pod.uid != pod_uid for pod in self._view.pods_of(member.key)):
            # A quick indexer is ready before the watch has shown its pod.
            raise Unreachable(f"pod {pod_uid} of job {member.name} is not known yet: send it again")
        return None, None, f"pod {pod_uid} indexes nothing for job {member.name}"
