"""A silent node is lost only where another one is heard: after an outage of the API server all of them look lost."""

import pytest

from lanefeed_operator.kube.facts import NodeFacts
from lanefeed_operator.kube.silence import lost_nodes


def node(name: str, *, lost: float | None = None, heard: float | None = None) -> NodeFacts:
    return NodeFacts("", name, name, "1", lost_since=lost, heard_since=heard)


def since(*nodes: NodeFacts) -> dict[str, float | None]:
    return {name: facts.lost_since for name, facts in lost_nodes(nodes).items()}


def test_a_node_is_lost_since_it_was_marked_while_others_were_heard_all_along() -> None:
    assert since(node("a", lost=100), node("b", heard=5), node("c", heard=200)) == {"a": 100}


def test_where_no_node_is_heard_none_is_lost() -> None:
    assert since(node("a", lost=100), node("b", lost=40)) == {}
    assert since() == {}


def test_after_an_outage_the_first_node_that_is_heard_again_begins_the_count() -> None:
    assert since(node("a", lost=100), node("b", heard=112), node("c", heard=119)) == {"a": 112}


def test_a_node_that_fell_silent_after_the_outage_counts_from_then() -> None:
    assert since(node("a", lost=500), node("b", heard=112)) == {"a": 500}


def test_a_node_that_was_lost_long_before_the_outage_is_not_lost_for_ever() -> None:
    """It gets the patience once more: nobody knows whether it came back meanwhile."""
    assert since(node("a", lost=10), node("b", heard=112), node("c", heard=112)) == {"a": 112}


@pytest.mark.parametrize("gap", [0, 7, 60])
def test_the_count_does_not_depend_on_the_order_in_which_nodes_come_back(gap: float) -> None:
    back = [node("b", heard=112.0), node("c", heard=112 + gap)]
    assert since(node("a", lost=100), *back) == since(*reversed(back), node("a", lost=100)) == {"a": 112}
