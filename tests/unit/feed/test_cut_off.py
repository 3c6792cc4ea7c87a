"""A pod that is cut off for a while: what waits there is joined to fit, and the job's commits go on afterwards."""

import json
from pathlib import Path

import numpy as np
import pytest

from lanefeed_core import expected
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.stream import StreamSpec
from lanefeed_operator.coordinator import proof
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport
from lanefeed_sidecar.report.commits import CommitLog

PODS = 2
#: Pod 0 is cut off from checkpoint LOST on; its report after checkpoint ARRIVED gets through, but not the answer.
LOST, ARRIVED, BACK, END = 10, 14, 40, 60


class Bed:
    """Two pods of `ranks` ranks, which commit after every step."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.ranks, self.world = ranks, PODS * ranks
        spec = StreamSpec(seed=9, global_batch_size=self.world, lanes=min(self.world, 16), window=256)
        self.lanes = Lanes(spec, np.array([self.world * 2 * END]))
        self.core = Coordinator("job", self.lanes, self.lanes.steps_per_epoch)
        self.core.new_plan(1, PODS, ranks)
        self.logs = []
        for index in range(PODS):
            self.core.expect(1, index, f"u{index}")
            (folder / str(index)).mkdir()
            self.logs.append(CommitLog(folder / str(index), 1))
        self.sequence = 0

    def commit(self, step: int) -> None:
        """Every rank commits what it did in `step`."""
        for rank in range(self.world):
            ledger = json.dumps(expected.part(self.lanes, self.world, rank, step, step + 1).to_dict())
            message = pb.RankCommit(rank=rank, start=step, stop=step + 1, name=f"c{step + 1}", ledger_json=ledger)
            self.logs[rank // self.ranks].append(message)

    def report(self, index: int, consumed: int, *, answered: bool = True) -> None:
        """A pod's report; what it makes is persisted at once."""
        self.sequence += 1
        batch = self.logs[index].batch()
        commits = tuple(
            RankCommit(m.rank, m.start, m.stop, m.name, Ledger.from_dict(json.loads(m.ledger_json)))
            for m in (p.message for p in batch)
        )
        first = index * self.ranks
        ranks = tuple(RankReport(first + r, 0, False, consumed, attached=True) for r in range(self.ranks))
        report = PodReport("job", index, f"u{index}", 1, f"s{index}", self.sequence, ranks, commits)
        taken = self.core.take(report, 100.0)
        self.core.persisted(self.core.snapshot(100.0).version)
        reply = self.core.reply(report, taken)
        assert not reply.refused
        if answered:
            self.logs[index].acknowledge([p.number for p in batch[: reply.commits_taken]])

    def run(self) -> None:
        """The whole trace, and a quiet time after it in which the last reports are answered."""
        for step in range(END):
            self.commit(step)
            cut_off = LOST <= step < BACK
            if not cut_off or step == ARRIVED:
                self.report(0, step + 1, answered=not cut_off)
            self.report(1, step + 1)
        for _ in range(2 * self.ranks):
            for index in range(PODS):
                self.report(index, END)


@pytest.mark.parametrize("ranks", [1, 4, 8, 16, 33])
def test_an_answer_that_is_lost_holds_up_no_commit_of_the_job(tmp_path: Path, ranks: int) -> None:
    bed = Bed(tmp_path, ranks)
    bed.run()
    seen = bed.core.snapshot(100.0)
    assert (seen.last_step, seen.mismatch) == (END, None)
    assert [len(log) for log in bed.logs] == [0, 0]


def test_tooth_parts_of_the_same_ranks_each_time_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: what is prepared already is prepared again, and the fifth rank's part never."""
    real = proof.Prover.needed

    def first_ones(self: proof.Prover, *args: object) -> object:
        known = self._sums._known
        self._sums._known = {}
        try:
            return real(self, *args)  # type: ignore[arg-type]
        finally:
            self._sums._known = known

    monkeypatch.setattr(proof.Prover, "needed", first_ones)
    bed = Bed(tmp_path, 8)
    bed.run()
    assert bed.core.snapshot(100.0).last_step < END
