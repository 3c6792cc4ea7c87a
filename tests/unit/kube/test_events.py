"""Events: one for each change that a person wants to see, none while nothing changes; tests of the texts' bounds."""

from lanefeed_operator.api.status import Condition, PlanStatus, Status
from lanefeed_operator.kube.api import EVENTS
from lanefeed_operator.runtime.events import Note, changes, tell
from support.kube_store import KubeStore

META = {"name": "j", "namespace": "ns", "uid": "u"}


def status(state: str, *conditions: tuple[str, str, str, str], generation: int = 1) -> Status:
    found = [Condition(type=t, status=s, reason=r, message=m) for t, s, r, m in conditions]
    return Status(state=state, conditions=found, plan=PlanStatus(generation=generation, replicas=2, reason="Resize"))


RUNNING = ("Running", "True", "AllReady", "all 2 pods run")


def test_nothing_new_is_no_event() -> None:
    same = status("Running", RUNNING)
    assert changes(same, same) == []
    said = status("Running", ("Running", "True", "AllReady", "all 3 pods run"))
    assert changes(same, said) == []
    assert changes(status("Pending"), status("Starting")) == []


def test_a_new_state_is_told_with_its_conditions_words() -> None:
    assert changes(status("Starting"), status("Running", RUNNING)) == [Note("Running", "all 2 pods run")]
    failed = ("Failed", "True", "TooManyRestarts", "pod index 1 failed 4 times")
    assert changes(status("Running", RUNNING), status("Failed", RUNNING, failed)) == [
        Note("Failed", "pod index 1 failed 4 times", warning=True)
    ]


def test_bad_news_are_warnings_when_their_reason_is_new() -> None:
    bad = ("Degraded", "True", "ImagePullBackOff", "no such image")
    after = status("Running", RUNNING, bad)
    assert changes(status("Running", RUNNING), after) == [Note("ImagePullBackOff", "no such image", warning=True)]
    assert changes(after, status("Running", RUNNING, (*bad[:3], "no such image, again"))) == []
    assert changes(after, status("Running", RUNNING, ("Degraded", "False", "Well", "nothing is wrong"))) == []


def test_a_new_plan_is_told() -> None:
    (note,) = changes(status("Resizing"), status("Starting", generation=2))
    assert note == Note("Planned", "plan generation 2: 2 pods x 1 ranks from step 0 (Resize)")


def test_the_same_words_are_told_once_a_minute_and_long_ones_are_cut() -> None:
    store = KubeStore()
    notes = [Note("ImagePullBackOff", "x" * 5000, warning=True)]
    for now in (600.0, 601.0, 659.0, 660.0):
        tell(store, META, notes, now)
    found = [o for (kind, _, _), o in store.objects.items() if kind == EVENTS]
    assert len(found) == 2
    assert found[0]["eventTime"] == "1970-01-01T00:10:00.000000Z"
    assert (found[0]["type"], found[0]["regarding"]["uid"]) == ("Warning", "u")
    assert len(found[0]["note"].encode()) <= 1024
