"""The resync: the first listing, what a dropped watch did not tell, and every job once in a while."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lanefeed_operator.kube.api import JOBS, NODES, PODS, STJS, ApiError, Forbidden, Kind, Unreachable
from lanefeed_operator.render.constants import JOB_LABEL, MANAGED_BY
from lanefeed_operator.runtime import resync
from lanefeed_operator.runtime.decisions import Decisions
from lanefeed_operator.runtime.facts import JobFacts
from lanefeed_operator.runtime.feed import Feed
from lanefeed_operator.runtime.guard import GuardedApi
from lanefeed_operator.runtime.resync import Resync
from lanefeed_operator.runtime.view import View
from lanefeed_operator.runtime.workers import JobKey
from support.apiserver import until
from support.kube_store import KubeStore

KINDS = (STJS, JOBS, PODS, NODES)


class Bed:
    def __init__(self, *, seconds: float = 600.0, namespaces: tuple[str, ...] = ()) -> None:
        self.store, self.view, self.facts = KubeStore(), View(), JobFacts()
        self.looks: list[JobKey] = []
        self.rounds: list[tuple[int, float]] = []
        feed = Feed(self.view, self.facts, Decisions(), lambda key, _: self.looks.append(key))
        api = GuardedApi(self.store, may_write=lambda: True)
        self.resync = Resync(
            api,
            feed,
            kinds=KINDS,
            namespaces=namespaces,
            seconds=seconds,
            wake_all=lambda keys, spread: self.rounds.append((len(keys), spread)),
            rng=random.Random(1),
        )
        for name in ("a", "b"):
            self.store.create(STJS, name, {"metadata": {"name": f"job-{name}"}, "spec": {}})
            for label in (MANAGED_BY | {JOB_LABEL: f"job-{name}"}, {"app": "another"}):
                meta = {"generateName": "pod-", "labels": label}
                self.store.create(PODS, name, {"metadata": meta, "spec": {"nodeName": "n"}})
        self.store.create(NODES, "", {"metadata": {"name": "n"}})

    @contextmanager
    def running(self) -> Iterator[None]:
        self.resync.start()
        try:
            yield
        finally:
            self.resync.stop()
            self.resync._thread.join(60)
            assert not self.resync._thread.is_alive()


def test_the_first_listing_makes_all_known_and_nothing_of_others() -> None:
    bed = Bed()
    assert bed.resync.load() == 2
    assert bed.rounds == [(2, 0.0)]
    assert [bed.view.count(kind) for kind in (STJS, PODS, NODES)] == [2, 2, 1]
    assert bed.view.is_synced(*KINDS)


def test_of_some_namespaces_nothing_else_is_read() -> None:
    bed = Bed(namespaces=("b",))
    assert bed.resync.load() == 1
    assert bed.view.keys() == [("b", "job-b")]
    assert {call[2] for call in bed.store.calls if call[0] == "list" and call[1] != "nodes"} == {"b"}


def test_a_namespace_that_may_not_be_read_holds_up_no_other() -> None:
    """It was deleted, and the operator's Role with it."""
    bed = Bed(namespaces=("a", "b"))

    def before(_verb: str, _kind: Kind, namespace: str, _name: str) -> None:
        if namespace == "a":
            raise Forbidden("shardedtrainingjobs is forbidden")

    bed.store.before = before
    with pytest.raises(Forbidden):
        bed.resync.relist(STJS)
    assert bed.view.keys() == [("b", "job-b")]


def test_an_api_server_that_is_away_at_the_start_is_said() -> None:
    bed = Bed()

    def away(*_: object) -> None:
        raise Unreachable("no answer")

    bed.store.before = away
    with pytest.raises(ApiError):
        bed.resync.load()
    assert not bed.view.is_synced(STJS)


def test_what_went_unnoticed_goes_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "SETTLE_SECONDS", 0.02)
    bed = Bed()
    bed.resync.load()
    gone = bed.store.get(STJS, "a", "job-a")
    bed.store.delete(STJS, "a", "job-a", uid=gone["metadata"]["uid"])
    bed.looks.clear()
    with bed.running():
        for _ in range(20):
            bed.resync.ask(STJS)
        until("the job to go", lambda: bed.view.keys() == [("b", "job-b")])
        time.sleep(0.1)
    assert bed.looks == [("a", "job-a")]
    assert sum(call[:2] == ("list", STJS.plural) for call in bed.store.calls) == 2, "twenty wishes are one listing"


def test_every_job_is_looked_at_once_in_a_while_and_a_failure_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "SETTLE_SECONDS", 0.02)
    monkeypatch.setattr(resync, "RETRY_SECONDS", 0.05)
    bed = Bed(seconds=0.3)
    bed.resync.load()
    failing, lock = [3], threading.Lock()

    def before(verb: str, kind: Kind, *_: str) -> None:
        with lock:
            if verb == "list" and kind == PODS and failing[0]:
                failing[0] -= 1
                raise Unreachable("no answer")

    bed.store.before = before
    with bed.running():
        until("three rounds", lambda: len(bed.rounds) >= 4)
        until("the pods to be listed again", lambda: failing[0] == 0)
    assert bed.rounds[1:4] == [(2, 0.3 * resync.SPREAD)] * 3
