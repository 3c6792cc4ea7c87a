"""G1, G2, G3, G5 under SIGKILL: real processes, random victims, random moments, worlds 4 -> 3 -> 7 -> 1."""

import os
from pathlib import Path

import pytest

from chaos.chaos import Chaos

KILLS = int(os.environ.get("LANEFEED_CHAOS_KILLS", "30"))
SEED = int(os.environ.get("LANEFEED_CHAOS_SEED", "1"))


@pytest.mark.timeout(600 + 30 * KILLS)
def test_kills_at_random_change_no_batch(tmp_path: Path) -> None:
    """At least 30 SIGKILLs; every global batch of the surviving checkpoints equals the uninterrupted list."""
    job = Chaos(tmp_path, SEED)
    try:
        rows = 4211
        steps = job.epochs * -(-rows // 28)
        job.run(KILLS, [4, 3, 7, 1], steps)
        status = job.status()
        lanes = job.lanes()
        want = [lanes.batch(e, s)[0].tolist() for e in range(job.epochs) for s in range(lanes.steps_per_epoch)]
        got = job.consumed(status["cursor"]["commit"])  # type: ignore[index]
        assert got == want
        proven = status["ledger"]["epochs"]  # type: ignore[index]
        assert [e["epoch"] for e in proven] == list(range(job.epochs))
        assert all(e["verified"] for e in proven)
        print(f"{sum(job.kills.values())} kills: {dict(job.kills)}")
    finally:
        job.stop()
