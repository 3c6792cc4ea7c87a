"""One operator process of the simulation: production View, Registry, Controller and WorkQueue, fed as kopf feeds them.

Its watches may lag, repeat themselves, or be cut and made up for by a list; it may be killed at any call, and what it
knew is gone then; it may freeze in the middle of a pass and go on when another one leads.
"""

import random
from collections import deque
from typing import Any

from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import JOBS, NODES, PODS, STJS, ApiError, Kind, Object
from lanefeed_operator.runtime.controller import Controller
from lanefeed_operator.runtime.guard import GuardedApi
from lanefeed_operator.runtime.queue import WorkQueue
from lanefeed_operator.runtime.registry import Registry
from lanefeed_operator.runtime.view import JobKey, View
from sim.cluster.calls import Calls, Freezer, Killed
from sim.cluster.data import SETTINGS
from support.kube_store import KubeStore

WATCHED = (STJS, JOBS, PODS, NODES)
RESYNC_SECONDS = 30.0


class Operator:
    """See the module."""

    def __init__(self, store: KubeStore, world: Any, name: str) -> None:
        """Start it: everything is listed once."""
        self.store, self.world, self.name = store, world, name
        self.rng: random.Random = world.rng
        self.leads = True
        #: It has just thawed, in the middle of a pass that began when it led.
        self.in_hand = False
        #: Whether a doorkeeper that asks the lease stands before its writes.
        self.guarded = True
        self.calls = Calls(store, world)
        self.calls.owner = self
        api = GuardedApi(self.calls, may_write=lambda: self.leads or not self.guarded)
        self.view = View()
        self.registry = Registry(api, self.view)
        self.registry.on_change = self.changed
        self.controller = Controller(api, self.view, self.registry, SETTINGS, world.clock)
        self.queue: WorkQueue[JobKey] = WorkQueue(random.Random(world.rng.getrandbits(32)))
        self.mail: deque[tuple[float, str, Kind, Object]] = deque()
        #: Watches that are cut: kind -> until when.
        self.blind: dict[Kind, float] = {}
        self.resync = world.now + RESYNC_SECONDS
        #: Calls of passes until it freezes; -1: it does not.
        self.freeze_in = -1
        self.broken: BaseException | None = None
        store.subscribe(self.event)
        for kind in WATCHED:
            self.relist(kind)

    @property
    def dead(self) -> bool:
        return self.calls.dead

    # ---- watches ------------------------------------------------------------------------------------------------

    def event(self, event: str, kind: Kind, o: Object) -> None:
        """A subscriber of the store, as long as the process lives."""
        if self.dead or kind not in WATCHED or kind in self.blind:
            return
        lag = self.world.lag()
        # A watch delivers in order, so what is late holds up what follows; a repeated event may come at any time.
        due = max(self.world.now + lag, max((d for d, _, k, _ in self.mail if k == kind), default=0.0))
        self.mail.append((due, event, kind, o))
        if self.world.twice():
            self.mail.append((due + self.rng.choice([0.0, 2.0, 5.0]), event, kind, o))

    def deliver(self) -> None:
        """What is due."""
        now = self.world.now
        for kind in [k for k, until in self.blind.items() if now >= until]:
            del self.blind[kind]
            self.relist(kind)
        due = [m for m in self.mail if m[0] <= now]
        self.mail = deque(m for m in self.mail if m[0] > now)
        for _, event, kind, o in due:
            self.wake(self.view.remove(kind, o) if event == "DELETED" else self.view.put(kind, o))

    def cut(self, kind: Kind, until: float) -> None:
        """The watch dies without a word; a list makes up for it later."""
        self.blind[kind] = until
        self.mail = deque(m for m in self.mail if m[2] != kind)

    def relist(self, kind: Kind) -> None:
        self.wake(self.view.replace(kind, self.store.list(kind), self.view.stamp()))

    # ---- passes -------------------------------------------------------------------------------------------------

    def wake(self, keys: Any) -> None:
        for key in keys:
            self.queue.add(key, self.world.now)

    def changed(self, key: JobKey) -> None:
        """Reports came: sparingly, as the shell does."""
        self.queue.add(key, self.world.now + self.rng.choice([0.0, 0.5, 1.0]))

    def step(self) -> None:
        """Events, then the passes that are due. Raises nothing; a process that dies here is `dead`."""
        now = self.world.now
        try:
            self.deliver()
            if now >= self.resync:
                self.resync = now + RESYNC_SECONDS
                self.wake(self.view.keys())
            for _ in range(12):
                key = self.queue.take(now)
                if key is None:
                    break
                if self.freeze_in < 0:
                    self.one(key)
                    continue
                self.one_that_freezes(key)
                if self.frozen or self.dead:
                    return
        except Killed:
            self.calls.dead = True

    def one(self, key: JobKey) -> None:
        """One pass, and what the worker makes of its end."""
        now = self.world.now
        try:
            again = self.controller.run_pass(key)
        except ApiError as error:
            self.world.note(f"{self.name}: {type(error).__name__} {error}")
            self.world.seen[type(error).__name__] += 1
            self.queue.failed(key, now, error.retry_after)
        except OperatorError as error:
            self.world.note(f"{self.name}: {error}")
            self.queue.failed(key, now, None)
        else:
            self.queue.done(key, now, again)

    # ---- freezing -----------------------------------------------------------------------------------------------

    def one_that_freezes(self, key: JobKey) -> None:
        """The same in a thread, which stands still at the call that `freeze_in` counts down to."""

        def work() -> None:
            try:
                self.one(key)
            except Killed:
                self.calls.dead = True
            except BaseException as error:
                # Raised again where the world can see it.
                self.broken = error

        self.calls.freezer = Freezer(self.freeze_in)
        self.calls.freezer.run(work)
        if self.calls.freezer.frozen:
            return
        self.freeze_in, self.calls.freezer = self.calls.freezer.left, None
        self.check()

    @property
    def frozen(self) -> bool:
        """Whether it stands still."""
        return self.calls.freezer is not None

    def thaw(self) -> None:
        """Go on where it stood, believing what it believed."""
        freezer, self.calls.freezer, self.freeze_in = self.calls.freezer, None, -1
        assert freezer is not None
        freezer.thaw()
        self.check()

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def stop(self) -> None:
        """The process ends; a frozen thread is let go and dies at its next call."""
        self.calls.dead = True
        if self.calls.freezer is not None:
            self.thaw()
        if self.event in self.store._subscribers:
            self.store._subscribers.remove(self.event)
