"""The step at which ranks of one pod leave, and who may take a rank's place."""

import pytest

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar.errors import PlanMismatch
from lanefeed_sidecar.feed.agree import stop_step
from lanefeed_sidecar.feed.attach import check_not_replaced

SESSION = "a" * 32


def test_the_step_is_ahead_of_the_fastest_by_two_seconds_of_its_own_rate() -> None:
    assert stop_step([]) == 2
    assert stop_step([(0, 0, 0.0)]) == 2
    assert stop_step([(0, 100, 10.0), (0, 101, 10.0)]) == 101 + 21
    assert stop_step([(500, 500, 0.0), (500, 502, 8.0)]) == 504
    assert stop_step([(100, 400, 3.0), (0, 5, 1.0)]) == 600
    # Told of when it had just begun: its steps are of now, its seconds are not.
    assert stop_step([(0, 10, 0.001), (0, 10, 1.0)]) == 30


class Living:
    """What is asked of a life."""

    def __init__(self, pid: int, streaming: bool = True) -> None:
        self.pid, self.streaming = pid, streaming


def test_who_was_replaced_by_a_living_process_does_not_take_the_rank_back() -> None:
    back = pb.AttachRequest(rank=3, resuming=True, session=SESSION, pid=10)
    with pytest.raises(PlanMismatch, match="rank 3 is process 11 now, which attached after process 10 did: only one"):
        check_not_replaced(back, SESSION, Living(11))
    for life in (None, Living(10), Living(11, streaming=False)):
        check_not_replaced(back, SESSION, life)
    check_not_replaced(back, "b" * 32, Living(11))
