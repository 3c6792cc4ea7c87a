"""Which reports count: fenced by job, plan generation, pod UID, session and sequence number.

Used by `core` under its lock. Zombies (a pod that was replaced, a session that was) are refused for good; a report of a
pod or plan that the shell has not told of yet is to be sent again.
"""

from dataclasses import dataclass, field

from lanefeed_core.wire import PROTOCOL_VERSION
from lanefeed_operator.coordinator.reports import PodReport, RankCommit

__all__ = ["Admission", "Place", "problem"]

#: A checkpoint's name is handed back, and kept in the status 16 times.
MAX_NAME_BYTES = 512
#: Lives of one pod's sidecar that are remembered, and so the most that it may have.
MAX_SESSIONS = 1000
#: What is kept of a pod's own words about itself.
MAX_ADDRESS = 256


@dataclass(slots=True)
class Place:
    """Who holds a pod index."""

    uid: str
    session: str = ""
    sequence: int = -1
    former_sessions: tuple[str, ...] = ()
    metrics_address: str = ""
    ready: bool = False


@dataclass(slots=True)
class Admission:
    """The holders of all indexes of one plan generation, and everybody who was replaced."""

    job_uid: str
    generation: int
    places: dict[int, Place] = field(default_factory=dict)
    fenced: set[tuple[int, str]] = field(default_factory=set)

    def expect(self, index: int, uid: str) -> None:
        """This pod holds the index from now on; the one before is fenced."""
        place = self.places.get(index)
        if (index, uid) in self.fenced or (place is not None and place.uid == uid):
            return
        if place is not None:
            self.fenced.add((index, place.uid))
        self.places[index] = Place(uid)

    def fence(self, index: int, uid: str) -> bool:
        """Nothing of this pod counts any more; whether that is new."""
        known = (index, uid) in self.fenced
        self.fenced.add((index, uid))
        return not known

    def refusal(self, r: PodReport) -> tuple[str, bool]:
        """(Why a report does not count, whether that is for good); ("", False) if it does."""
        if r.protocol != PROTOCOL_VERSION:
            return f"the sidecar speaks protocol {r.protocol} and the control plane {PROTOCOL_VERSION}", True
        if r.job_uid != self.job_uid:
            return f"the report is of job {r.job_uid} and this one is {self.job_uid}", True
        if r.plan_generation < self.generation:
            return self.old_plan(r), True
        if r.plan_generation > self.generation:
            return f"plan generation {r.plan_generation} is not known yet: try again", False
        if (r.pod_index, r.pod_uid) in self.fenced:
            return f"pod {r.pod_uid} was replaced at index {r.pod_index}: let it exit", True
        place = self.places.get(r.pod_index)
        if place is None or place.uid != r.pod_uid:
            return f"pod {r.pod_uid} is not known yet at index {r.pod_index}: try again", False
        if r.session in place.former_sessions:
            return f"session {r.session} of pod {r.pod_uid} was replaced by {place.session}", True
        if r.last and place.session not in ("", r.session):
            return f"pod {r.pod_uid} has had another session since these last words: {place.session}", False
        if r.session != place.session and len(place.former_sessions) >= MAX_SESSIONS:
            return f"pod {r.pod_uid} had {MAX_SESSIONS} sessions: its sidecar keeps dying; delete the pod", True
        return "", False

    def old_plan(self, r: PodReport) -> str:
        """Why a report of an older plan generation is fenced."""
        return f"plan generation {r.plan_generation} was replaced by {self.generation}: let this pod exit"

    def is_new(self, r: PodReport) -> bool:
        """Whether an admitted report was not seen before; notes its session and sequence number."""
        place = self.places[r.pod_index]
        if r.session != place.session:
            if place.session:
                place.former_sessions += (place.session,)
            place.session, place.sequence = r.session, -1
        if r.sequence <= place.sequence:
            return False
        place.sequence = r.sequence
        return True

    def describe(self, r: PodReport) -> bool:
        """Note what the pod that holds the index says of itself; whether its readiness changed."""
        place = self.places[r.pod_index]
        changed = place.ready != r.ready
        place.metrics_address, place.ready = r.metrics_address[:MAX_ADDRESS], r.ready
        return changed


def problem(pod_index: int, ranks: range, commit: RankCommit, total_steps: int) -> str:
    """Why a commit can never count, "" if it can. `ranks`: those of the pod; `total_steps`: the job's end, 0: none."""
    what = f"commit of step {commit.stop} by rank {commit.rank}"
    if commit.rank not in ranks:
        return f"{what}: pod {pod_index} has ranks {ranks.start} to {ranks.stop - 1}"
    if commit.ledger is None:
        return f"{what}: its ledger cannot be read"
    if commit.stop < commit.start or commit.start < 0:
        return f"{what}: it goes back from step {commit.start}"
    if total_steps and commit.stop > total_steps:
        return f"{what}: the job ends at step {total_steps}"
    if len(commit.name.encode(errors="replace")) > MAX_NAME_BYTES or not commit.name.isprintable():
        return f"{what}: the checkpoint's name must be printable and at most {MAX_NAME_BYTES} bytes long"
    return ""
