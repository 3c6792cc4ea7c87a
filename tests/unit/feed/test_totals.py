"""A rank's figures over its lives: counters never fall, whoever attaches again; what is gone has nothing ready."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.slots import SlotState
from lanefeed_core.wire import PROTOCOL_VERSION
from lanefeed_sidecar.arena import RunFolder
from lanefeed_sidecar.errors import Unavailable
from lanefeed_sidecar.feed.hub import Hub
from lanefeed_sidecar.feed.life import Life
from lanefeed_sidecar.feed.totals import Figures
from lanefeed_sidecar.metrics.collector import ReportCounts, renderer
from support.feed_pod import MANIFEST
from support.life_rig import Rig, wait

SESSION = "ab" * 16
BEFORE = Figures(1.5, 40.0, 2)


class Rank:
    """Rank 0 of a hub, and the trainers that attach as it."""

    def __init__(self, rig: Rig, folder: RunFolder) -> None:
        self.hub = Hub(rig.pod.config, MANIFEST, rig.engine, rig.arena, folder, session=SESSION, stats=rig.stats)
        self.stats = rig.stats

    def attach(self, pid: int, **fields: object) -> Life:
        request = pb.AttachRequest(protocol=PROTOCOL_VERSION, rank=0, world=1, plan_generation=1, pid=pid)
        request.MergeFrom(pb.AttachRequest(**fields))  # type: ignore[arg-type]
        self.hub.attach(request)
        return self.hub.lives()[0]

    @property
    def figures(self) -> Figures:
        return self.hub.totals(0).figures

    def metric(self, name: str) -> float:
        text = renderer(self.hub, self.stats, ReportCounts(0.0, int, int, int, int))().decode()
        (value,) = [line.split()[1] for line in text.splitlines() if line.startswith(name + '{rank="0"}')]
        return float(value)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    rig = Rig(tmp_path, range(4), ranks=1)
    found = Rank(rig, RunFolder(str(tmp_path)))
    yield found
    for life in found.hub.close(Unavailable("the test is over")):
        assert life.join(60)
    rig.close()


def tell(life: Life, figures: Figures) -> None:
    life.progress(
        pb.Progress(
            wait_seconds=figures.wait_seconds,
            step_seconds=figures.step_seconds,
            copied_batches=figures.copied_batches,
        )
    )


@pytest.mark.parametrize("fields", [{}, {"resuming": True, "session": SESSION}], ids=["a state", "the same session"])
def test_a_process_that_attaches_again_goes_on_counting(rank: Rank, fields: dict[str, object]) -> None:
    tell(rank.attach(7), BEFORE)
    again = rank.attach(7, **fields)
    assert rank.figures == BEFORE, "before its first word too: a counter that falls is a reset to Prometheus"
    assert rank.metric("lanefeed_trainer_wait_seconds_total") == 1.5
    # A step that the attach cut short is forgotten by the trainer.
    tell(again, Figures(1.5, 38.0, 2))
    assert rank.figures == BEFORE
    tell(again, Figures(1.75, 44.0, 3))
    assert rank.figures == Figures(1.75, 44.0, 3)
    assert again.seconds == 4.25, "its pace is that of this life"
    tell(rank.attach(8), Figures(0.25, 1.0, 0))
    assert rank.figures == Figures(2.0, 45.0, 3)
    assert rank.hub.totals(0).attaches == 3


@pytest.mark.parametrize("first", [Figures(0.25, 50.0, 2), Figures(2.0, 50.0, 0), Figures(2.0, 0.0, 2)])
def test_another_process_with_the_same_number_begins_anew(rank: Rank, first: Figures) -> None:
    """As in a container that was started again: its counters are not held up until they pass the former ones."""
    tell(rank.attach(7), BEFORE)
    again = rank.attach(7)
    assert rank.figures == BEFORE
    tell(again, first)
    assert rank.figures == BEFORE + first
    assert again.seconds == first.seconds
    # Only its first word tells: later ones may be late, or a rogue's.
    tell(again, Figures())
    assert rank.figures == BEFORE + first
    rank.attach(7)
    assert rank.figures == BEFORE + first


def test_a_life_that_is_gone_has_nothing_ready(rank: Rank) -> None:
    life = rank.attach(7)
    wait(life, SlotState.READY, 4)
    assert rank.metric("lanefeed_frames_ready") == 4
    life.close()
    assert rank.metric("lanefeed_frames_ready") == 0
    assert rank.metric("lanefeed_slots_free") == 4
