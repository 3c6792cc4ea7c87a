"""Leader election with a Lease of our own: who holds it acts, who loses it ends its process.

Used by `main` where two replicas run. The holder renews every 2 s; whoever waits takes over once it has seen no renewal
for 15 s of its own clock (wall clocks of two machines are never compared). The holder stops writing after 10 s without
a renewal that succeeded, which is before anybody may take over: `guard.GuardedApi` asks before each write, so a process
that was paused finds out by the clock, not by being told. The clock goes on while the process or the machine sleeps.

What a pause between that question and the write itself lets through is stopped by resourceVersions, UIDs and names
that carry the plan generation, as for any stale writer.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import LEASES, AlreadyExists, ApiError, Conflict, KubeApi, NotFound, Object

__all__ = ["Lease", "LeaseLost", "boot_clock"]

log = logging.getLogger(__name__)

DURATION = 15.0
RENEW_DEADLINE = 10.0
RETRY = 2.0


def boot_clock() -> float:
    """Seconds that go on while the process is stopped and the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseLost(OperatorError):
    """Another replica may lead by now: this process must end."""


class Lease:
    """One replica's view of the Lease. `step` is called by one thread; `valid` by any."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float] = boot_clock,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`identity` must differ between replicas; `now` is written for people to read."""
        self._api, self._namespace, self._name, self._me = api, namespace, name, identity
        self._clock, self._now = clock, now
        #: Until when this replica may write, by its own clock.
        self._until = float("-inf")
        self._held = False
        #: The last (holder, renewTime, transitions) that was seen, and when it was first seen.
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0
        #: Who holds it, for people.
        self.holder = ""

    def valid(self) -> bool:
        """Whether this replica may write now."""
        return self._clock() < self._until

    def step(self) -> bool:
        """Take or renew it; whether this replica leads. Raises LeaseLost where it led and may not any more."""
        begun = self._clock()
        try:
            mine = self._renew_or_take()
        except ApiError as error:
            log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            mine = None
        if mine:
            if self._held and begun >= self._until:
                # Paused for so long that another one may have led and gone in between.
                raise LeaseLost(
                    f"the lease {self._namespace}/{self._name} could not be renewed for {RENEW_DEADLINE:g} s"
                )
            self._held, self._until = True, begun + RENEW_DEADLINE
        elif self._held and (mine is False or not self.valid()):
            self._until = float("-inf")
            raise LeaseLost(self._lost(mine))
        return self._held

    def _lost(self, mine: bool | None) -> str:
        why = f"is held by {self.holder}" if mine is False else f"could not be renewed for {RENEW_DEADLINE:g} s"
        return f"the lease {self._namespace}/{self._name} {why}: another replica may act by now, so this one ends"

    def release(self) -> None:
        """Let the next one take it at once; only after the last write."""
        if not self._held or not self.valid():
            return
        self._until, self._held = float("-inf"), False
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self._me:
                self._patch(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except ApiError as error:
            log.info("the lease was not released, it runs out in %g s: %s", DURATION, error)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _renew_or_take(self) -> bool:
        """Whether it is ours. Raises ApiError where that cannot be told."""
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
        except NotFound:
            return self._create()
        spec = lease.get("spec") or {}
        self.holder = spec.get("holderIdentity") or ""
        # The clock after the answer: with its tries that took up to half a minute, and the holder may have renewed late
        # in it.
        now = self._clock()
        seen = (self.holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if self.holder not in ("", self._me) and now - self._seen_at < DURATION:
            return False
        fields: Object = {"holderIdentity": self._me, "leaseDurationSeconds": int(DURATION), "renewTime": self._stamp()}
        if self.holder != self._me:
            fields |= {"acquireTime": self._stamp(), "leaseTransitions": (spec.get("leaseTransitions") or 0) + 1}
        try:
            self._patch(lease, fields)
        except Conflict:
            # Another replica was quicker; the next step sees who.
            return False if self.holder != self._me else self._still_mine()
        self.holder = self._me
        return True

    def _still_mine(self) -> bool:
        """After a conflict on our own lease: whoever edited it, who holds it now decides."""
        lease = self._api.get(LEASES, self._namespace, self._name)
        self.holder = (lease.get("spec") or {}).get("holderIdentity") or ""
        if self.holder != self._me:
            return False
        self._patch(lease, {"renewTime": self._stamp()})
        return True

    def _create(self) -> bool:
        spec = {
            "holderIdentity": self._me,
            "leaseDurationSeconds": int(DURATION),
            "acquireTime": self._stamp(),
            "renewTime": self._stamp(),
            "leaseTransitions": 0,
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}, "spec": spec}
        try:
            self._api.create(LEASES, self._namespace, body)
        except AlreadyExists:
            return False
        self.holder = self._me
        return True

    def _patch(self, lease: Object, spec: Object) -> None:
        meta = {"uid": lease["metadata"]["uid"], "resourceVersion": lease["metadata"]["resourceVersion"]}
        self._api.patch(LEASES, self._namespace, self._name, {"metadata": meta, "spec": spec})

    def _stamp(self) -> str:
        return self._now().isoformat(timespec="microseconds").replace("+00:00", "Z")
