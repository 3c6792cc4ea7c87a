"""The indexer that stands in the way: on a lost node, unable to start, or failed with a spec that is mended by now."""

from typing import Any

import pytest

from lanefeed_operator.kube.api import JOBS, NODES, PODS, STJS
from lanefeed_operator.render import constants as c
from unit.kube.bed import NAME, NS, Bed, spec

INDEX = f"{NAME}-index"


def lose(bed: Bed, node: str) -> None:
    """Nobody hears of the node from now on; of another one somebody does, so it is no outage of the API server."""
    for name, ready in (("node9", "True"), (node, "Unknown")):
        status = {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": bed.store.timestamp()}]}
        bed.store.create(NODES, "", {"metadata": {"name": name}})
        bed.store.mutate(NODES, "", name, lambda o, s=status: o.update(status=s))


def template(image: str) -> dict[str, Any]:
    """Another image for the trainer, and a node selector, which the indexer's pod shares."""
    found: dict[str, Any] = spec()["template"]
    found["spec"]["containers"][0]["image"] = image
    found["spec"]["nodeSelector"] = {"disk": image}
    return found


def mend(bed: Bed) -> None:
    """The user mends the spec, and the operator looks: what is deleted first is made a look later."""
    bed.patch_spec(template=template("ssd"))
    bed.later(1)
    bed.later(1)


def uid(bed: Bed) -> str:
    return str(bed.store.objects[JOBS, NS, INDEX]["metadata"]["uid"])


def test_the_indexers_pod_on_a_lost_node_is_freed_so_that_its_job_makes_another() -> None:
    bed = Bed()
    bed.run()
    name = bed.index_pod()
    lose(bed, "node1")
    limit = 300
    bed.later(1)
    assert bed.condition("DatasetReady")[1] == "NodeLost"
    assert f"the indexer's pod {name}" in bed.condition("DatasetReady")[2]
    bed.later(limit - 10)
    assert bed.store.objects[PODS, NS, name]["status"]["phase"] == "Running"
    bed.later(10)
    found = bed.store.objects[PODS, NS, name]
    assert found["status"]["phase"] == "Failed", "phase first: with it the Job makes another, at once"
    assert found["status"]["conditions"][-1]["type"] == "DisruptionTarget", "and counts no failure"
    assert found["metadata"]["deletionTimestamp"]


@pytest.mark.parametrize("phase", ["Pending", None])
def test_an_indexer_that_cannot_start_is_replaced_when_the_spec_is_mended(phase: str | None) -> None:
    bed = Bed(template=template("nosuch"))
    bed.run()
    if phase:
        bed.set_pod(bed.index_pod(), phase=phase)
    former = uid(bed)
    bed.later(30)
    assert uid(bed) == former, "the same spec makes the same pod: it is waited for"
    mend(bed)
    assert uid(bed) != former
    made = bed.store.objects[JOBS, NS, INDEX]["spec"]["template"]["spec"]
    assert made["nodeSelector"] == {"disk": "ssd"}


def test_an_indexer_that_works_is_left_to_it_whatever_the_spec_says() -> None:
    bed = Bed()
    bed.run()
    name, former = bed.index_pod(), uid(bed)
    mend(bed)
    assert uid(bed) == former
    assert bed.hand_over(name) == ""
    bed.run()
    assert bed.status["planGeneration"] == 1


def test_an_indexer_that_failed_is_made_again_at_once_with_a_mended_spec() -> None:
    bed = Bed()
    for _ in range(4):
        while bed.store.objects.get((JOBS, NS, INDEX), {"status": "none"}).get("status"):
            bed.later(10)
        status = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": ""}]}
        bed.store.mutate(JOBS, NS, INDEX, lambda o, s=status: o.update(status=s))
    bed.run()
    former = uid(bed)
    bed.later(11)
    assert uid(bed) == former, "it is not its turn yet: it would fail again"
    mend(bed)
    assert uid(bed) != former


def test_an_indexer_of_a_release_that_wrote_no_digest_is_replaced_where_it_does_not_work() -> None:
    bed = Bed()
    bed.run()
    former = uid(bed)
    bed.store.mutate(JOBS, NS, INDEX, lambda o: o["metadata"]["annotations"].pop(c.TEMPLATE_ANNOTATION))
    bed.later(1)
    bed.later(1)
    assert uid(bed) != former


def test_nothing_is_freed_where_node_lost_seconds_is_zero() -> None:
    bed = Bed(elastic={"nodeLostSeconds": 0})
    bed.run()
    name = bed.index_pod()
    lose(bed, "node1")
    bed.later(3600)
    assert bed.store.objects[PODS, NS, name]["status"]["phase"] == "Running"
    assert "(0: never)" in bed.condition("DatasetReady")[2]
    assert bed.store.objects[STJS, NS, NAME]["status"]["state"] in ("Indexing", "Pending")
