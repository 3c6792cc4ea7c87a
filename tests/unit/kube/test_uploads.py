"""A manifest that is being stored, which takes as long as the API server does: nobody else waits for it."""

import pytest

from lanefeed_operator.kube.api import CONFIG_MAPS, Kind, Unreachable
from unit.kube.bed import NAME, Bed


def test_passes_go_on_and_a_second_upload_is_sent_away_while_a_manifest_is_stored() -> None:
    bed = Bed()
    bed.run()
    name = bed.index_pod()
    seen: list[str] = []

    def before(verb: str, kind: Kind, _ns: str, what: str) -> None:
        if (verb, kind) != ("create", CONFIG_MAPS) or "manifest" not in what or seen:
            return
        seen.append(what)
        member = bed.registry.members()[0]
        assert member.lock.acquire(blocking=False), "workers would wait for the API server"
        member.lock.release()
        with pytest.raises(Unreachable, match=f"a manifest of job {NAME} is being stored right now: send it again"):
            bed.hand_over(name)
        bed.run()
        assert member.chunks == 0

    bed.store.before = before
    assert bed.hand_over(name) == ""
    assert seen
    assert bed.hand_over(name) == "", "the second one finds what the first one has stored"
    bed.index_over(name)
    bed.run()
    assert bed.status["planGeneration"] == 1


def test_an_upload_that_failed_half_way_is_stored_by_the_next() -> None:
    bed = Bed()
    bed.run()
    name = bed.index_pod()

    def before(verb: str, kind: Kind, _ns: str, what: str) -> None:
        if (verb, kind) == ("create", CONFIG_MAPS) and "manifest" in what:
            raise Unreachable("down")

    bed.store.before = before
    with pytest.raises(Unreachable, match="down"):
        bed.hand_over(name)
    bed.store.before = lambda *_: None
    assert bed.hand_over(name) == ""


def test_a_new_operator_looks_for_the_manifest_without_the_lock() -> None:
    bed = Bed()
    bed.run()
    bed.indexed()
    bed.run()
    bed.start_operator()
    free: list[bool] = []

    def before(verb: str, kind: Kind, _ns: str, what: str) -> None:
        if (verb, kind) == ("get", CONFIG_MAPS) and "manifest" in what:
            member = bed.registry.members()[0]
            free.append(member.lock.acquire(blocking=False))
            if free[-1]:
                member.lock.release()

    bed.store.before = before
    bed.run()
    assert free == [True]
    assert bed.registry.members()[0].chunks == 1
