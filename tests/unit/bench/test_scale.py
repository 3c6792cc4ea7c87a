"""bench.scale in small: what idles writes nothing, what begins writes little. Counts; the figures are bench's."""

from bench.scale.passes import run
from bench.scale.planning import make_job, make_manifest, plan_once


def test_idle_jobs_cause_no_calls_and_few_passes() -> None:
    """Six jobs in a child's API server: all run, then a minute passes in which nothing changes."""
    found = run(6, 4)
    assert found["idle_writes"] == 0
    assert found["idle_calls"] == 0
    # One every ten seconds, and three resyncs.
    assert found["idle_passes"] <= 6 * 10
    assert found["begin_writes_per_job"] <= 12
    assert found["train_writes_per_job_second"] <= 0.15


def test_planning_can_be_measured() -> None:
    found = plan_once(make_job(8), make_manifest(300))
    assert found["plan_seconds"] >= 0
    assert 0 < found["plan_map_bytes"] < 1 << 20
