"""The Lease, with clocks in hand: nobody may write while another may lead."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanefeed_operator.kube.api import LEASES, ApiError, Kind, KubeApi, Unreachable
from lanefeed_operator.runtime.guard import GuardedApi
from lanefeed_operator.runtime.lease import DURATION, RENEW_DEADLINE, RETRY, Lease, LeaseLost
from support.kube_store import KubeStore


class World:
    """An API server, a true time, and replicas whose clocks begin anywhere."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = KubeStore()
        self.down = False
        #: What happens, once, while the next GET is under way: it is slow, and tried again.
        self.meanwhile: Callable[[], None] | None = None
        self.store.before = self._answer

    def _answer(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        if self.down:
            raise Unreachable("connection refused")
        if verb == "get" and self.meanwhile is not None:
            self.meanwhile, happens = None, self.meanwhile
            happens()

    def replica(self, name: str, offset: float = 0.0) -> Lease:
        api: KubeApi = self.store
        return Lease(
            api, "ns", "lease", name, clock=lambda: self.now + offset, now=lambda: datetime.fromtimestamp(self.now, UTC)
        )

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.store.get(LEASES, "ns", "lease")["spec"]
        return spec


def test_the_first_takes_it_and_the_second_stands_by() -> None:
    world = World()
    a, b = world.replica("a"), world.replica("b", 5000.0)
    assert a.step()
    assert not b.step()
    assert (a.valid(), b.valid(), b.holder) == (True, False, "a")
    for _ in range(20):
        world.now += RETRY
        assert a.step()
        assert not b.step()
    assert world.spec()["leaseTransitions"] == 0


def test_a_dead_leader_is_followed_after_the_leases_time_and_not_before() -> None:
    world = World()
    a, b = world.replica("a"), world.replica("b", -300.0)
    a.step()
    b.step()
    world.now += DURATION - 0.5
    assert not b.step()
    world.now += 1.0
    assert b.step()
    assert world.spec()["holderIdentity"] == "b"
    assert world.spec()["leaseTransitions"] == 1
    with pytest.raises(LeaseLost, match="is held by b"):
        a.step()


def test_a_renewal_late_in_a_slow_get_is_waited_for_from_then_on() -> None:
    world = World()
    a, b = world.replica("a"), world.replica("b")
    assert a.step()

    def slow() -> None:
        world.now += 9.0
        assert a.step()

    world.meanwhile = slow
    assert not b.step()
    world.now += RENEW_DEADLINE - 0.5
    assert a.valid()
    assert not b.step(), "it has waited for 9.5 s of its 15"
    world.now += DURATION - RENEW_DEADLINE + 1
    assert b.step()
    assert not a.valid()


def test_a_paused_leader_may_not_write_and_ends_also_if_nobody_came_in_between() -> None:
    world = World()
    a = world.replica("a")
    a.step()
    world.now += RENEW_DEADLINE + 0.1
    assert not a.valid(), "it is not told: the clock says so"
    with pytest.raises(LeaseLost, match="could not be renewed for 10 s"):
        a.step()


def test_an_api_server_that_is_away_ends_the_lead_before_another_may_take_it() -> None:
    world = World()
    a = world.replica("a")
    a.step()
    world.down = True
    world.now += 4.0
    assert a.step(), "a renewal may fail for a while"
    world.now += RENEW_DEADLINE
    with pytest.raises(LeaseLost):
        a.step()


def test_a_release_lets_the_next_one_in_at_once() -> None:
    world = World()
    a, b = world.replica("a"), world.replica("b")
    a.step()
    b.step()
    a.release()
    assert not a.valid()
    world.now += RETRY
    assert b.step()


def test_its_own_lease_is_taken_again_after_a_restart_of_the_container() -> None:
    world = World()
    world.replica("a").step()
    world.now += 3.0
    assert world.replica("a", 77.0).step()


def test_a_conflict_by_somebody_who_edits_the_lease_is_no_loss() -> None:
    world = World()
    a = world.replica("a")
    a.step()
    edits = iter([1])

    def edit(verb: str, kind: Kind, namespace: str, name: str) -> None:
        if verb == "patch" and next(edits, None):
            world.store.mutate(LEASES, "ns", "lease", lambda o: o["metadata"].setdefault("labels", {}).update(x="y"))

    world.store.before = edit
    world.now += RETRY
    assert a.step()


def test_two_that_take_it_at_once_are_not_both_leaders() -> None:
    world = World()
    a, b = world.replica("a"), world.replica("b")
    world.replica("gone").step()
    a.step()
    b.step()
    world.now += DURATION + 1
    inner = iter([1])

    def race(verb: str, kind: Kind, namespace: str, name: str) -> None:
        if verb == "patch" and next(inner, None):
            b.step()

    world.store.before = race
    assert not a.step()
    assert b.valid()


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from("abcp"),
            st.floats(0, 12),
            st.booleans(),
            # While the GET of that step is under way: how long it takes, and who steps late in it.
            st.none() | st.tuples(st.floats(0, 30), st.sampled_from("abcp")),
        ),
        max_size=60,
    ),
    offsets=st.tuples(*[st.floats(-1e6, 1e6)] * 3),
)
def test_never_two_may_write(
    steps: list[tuple[str, float, bool, tuple[float, str] | None]], offsets: tuple[float, float, float]
) -> None:
    """Any order of steps, pauses (`p`), outages, slow reads and restarts of replicas whose clocks agree on nothing."""
    world = World()
    ways: dict[str, Callable[[], Lease]] = {
        name: lambda n=name, o=offset: world.replica(n, o)  # type: ignore[misc]
        for name, offset in zip("abc", offsets, strict=True)
    }
    replicas = {name: way() for name, way in ways.items()}

    def step(who: str) -> None:
        if who != "p":
            try:
                replicas[who].step()
            except LeaseLost:
                replicas[who] = ways[who]()
        writers = [name for name, lease in replicas.items() if lease.valid()]
        assert len(writers) <= 1, f"{writers} may both write at {world.now}"

    def slow(seconds: float, other: str) -> None:
        world.now += seconds
        step(other)

    for who, seconds, down, while_reading in steps:
        world.now += seconds
        world.down = down
        # A replica has one thread: it does not step within its own step.
        if while_reading is not None and while_reading[1] != who:
            world.meanwhile = partial(slow, *while_reading)
        step(who)
        world.meanwhile = None


def test_tooth_a_lease_that_trusts_renewals_of_the_past_is_found() -> None:
    """The invariant above sees a replica that thinks its lead lasts longer than others wait."""
    world = World()
    a, b = world.replica("a"), world.replica("b")
    a.step()
    b.step()
    a._until = world.now + 1e9
    world.now += DURATION + 1
    b.step()
    assert [x.valid() for x in (a, b)] == [True, True]


def test_whoever_does_not_lead_writes_nothing() -> None:
    world = World()
    leads = [True]
    api = GuardedApi(world.store, may_write=lambda: leads[0])
    body = {"metadata": {"name": "x"}, "spec": {}}
    made = api.create(LEASES, "ns", body)
    leads[0] = False
    before = world.store.version
    for write in (
        lambda: api.create(LEASES, "ns", {"metadata": {"name": "y"}}),
        lambda: api.patch(LEASES, "ns", "x", {"spec": {"holderIdentity": "z"}}),
        lambda: api.delete(LEASES, "ns", "x", uid=made["metadata"]["uid"]),
        lambda: api.replace_status(LEASES, "ns", made),
    ):
        with pytest.raises(ApiError, match="does not lead"):
            write()
    assert world.store.version == before
    assert api.get(LEASES, "ns", "x")["metadata"]["uid"] == made["metadata"]["uid"], "reading is free"
    assert [o["metadata"]["name"] for o in api.list(LEASES, "ns")] == ["x"]
