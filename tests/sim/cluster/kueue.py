"""A queue as Kueue is one for Jobs with its label: suspends them at birth, admits by quota, evicts, admits again."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from lanefeed_operator.kube.api import JOBS, Kind, Object
from lanefeed_operator.render.constants import EQUAL_COMPLETIONS, MIN_PARALLELISM
from sim.cluster.jobcontroller import condition, where
from support.kube_store import KubeStore

LABEL = "kueue.x-k8s.io/queue-name"


@dataclass
class Queue:
    """One queue over everything."""

    store: KubeStore
    clock: Callable[[], float]
    rng: random.Random
    due: dict[str, float] = field(default_factory=dict)
    full: dict[str, int] = field(default_factory=dict)

    def admit(self, kind: Kind, body: Object) -> str:
        """Its webhook: what it manages is born suspended."""
        if kind == JOBS and LABEL in body["metadata"].get("labels", {}):
            body["spec"]["suspend"] = True
        return ""

    def jobs(self) -> list[Object]:
        """What it manages and is not over."""
        return [
            o
            for (kind, _, _), o in self.store.objects.items()
            if kind == JOBS
            and LABEL in o["metadata"].get("labels", {})
            and "deletionTimestamp" not in o["metadata"]
            and not condition(o, "Complete")
            and not condition(o, "Failed")
        ]

    def sync(self) -> None:
        """Admits what is due, perhaps with fewer pods where the user allowed it."""
        for job in self.jobs():
            uid, size = job["metadata"]["uid"], job["spec"].get("completions") or 1
            if not job["spec"].get("suspend"):
                continue
            at = self.due.setdefault(uid, self.clock() + self.rng.choice([0.5, 2.0, 6.0]))
            if self.clock() < at or any(not j["spec"].get("suspend") for j in self.jobs() if j is not job):
                continue
            least = int(job["metadata"].get("annotations", {}).get(MIN_PARALLELISM, size))
            self.full.setdefault(uid, size)
            self.resume(job, self.rng.randint(least, self.full[uid]) if least < self.full[uid] else size)

    def resume(self, job: Object, size: int) -> None:
        def change(o: Object) -> None:
            o["spec"] = {**o["spec"], "suspend": False}
            if o["spec"].get("completionMode") == "Indexed":
                o["spec"]["parallelism"] = size
                if EQUAL_COMPLETIONS in o["metadata"].get("annotations", {}):
                    o["spec"]["completions"] = size

        self.store.mutate(JOBS, *where(job), change)

    def evict(self) -> bool:
        """Preemption: one admitted Job has to wait again; whether there was one."""
        running = [job for job in self.jobs() if not job["spec"].get("suspend")]
        if running:
            job = self.rng.choice(running)
            self.due[job["metadata"]["uid"]] = self.clock() + self.rng.choice([1.0, 5.0, 12.0])
            self.store.mutate(JOBS, *where(job), lambda o: o.update(spec={**o["spec"], "suspend": True}))
        return bool(running)
