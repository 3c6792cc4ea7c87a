"""Which namespaces are looked after: one that is gone, or not there yet, holds up no other."""

import pytest

from lanefeed_operator.kube.api import Forbidden, Kind, NotFound, Unreachable
from lanefeed_operator.runtime.namespaces import readable, returned
from support.kube_store import KubeStore


def store(*refused: str, error: type[Exception] = Forbidden) -> KubeStore:
    """An API server that answers 403 in these namespaces."""
    found = KubeStore()

    def before(_verb: str, _kind: Kind, namespace: str, _name: str) -> None:
        if namespace in refused:
            raise error(f"forbidden in {namespace!r}")

    found.before = before
    return found


def test_those_that_answer_are_read_and_the_others_are_said(caplog: pytest.LogCaptureFixture) -> None:
    assert readable(store(), ("a", "b")) == ("a", "b")
    assert readable(store("b"), ("a", "b", "c")) == ("a", "c")
    assert "namespace b is left out until it can be read" in caplog.text
    assert readable(store(), ()) == (), "all of them"


def test_where_none_answers_it_is_the_rights_that_are_missing() -> None:
    with pytest.raises(Forbidden, match="'a'"):
        readable(store("a", "b"), ("a", "b"))
    with pytest.raises(Forbidden):
        readable(store(""), ())


@pytest.mark.parametrize("error", [NotFound, Unreachable])
def test_an_api_server_that_is_not_ready_leaves_nothing_out(error: type[Exception]) -> None:
    with pytest.raises(error):
        readable(store("b", error=error), ("a", "b"))


def test_one_that_answers_again_is_named() -> None:
    assert returned(store("b"), ("b",)) == ""
    assert returned(store("b"), ("b", "c")) == "c"
    assert returned(store("b", error=Unreachable), ("b",)) == ""
