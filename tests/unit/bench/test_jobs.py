"""What `make bench` runs: that it keeps to its time, leaves out what matters least, and asks for nothing impossible."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from bench import jobs, peer_data, spawn, workloads  # noqa: E402
from bench.adapters import peer  # noqa: E402
from bench.bed import Point, PointFailed, measure_point  # noqa: E402
from bench.footers import linked  # noqa: E402
from bench.install_peers import ENVIRONMENTS, peers_python  # noqa: E402
from bench.one import Request  # noqa: E402
from bench.results import PEERS  # noqa: E402

REQUEST = Request(loader="x", workload="W4")


def wanted(*, quick: bool = False) -> jobs.Wanted:
    return jobs.Wanted(workloads=["W4"], seconds=2.0, threads=2, quick=quick, state_path="/nowhere")


def job(key: str, rank: int) -> jobs.Job:
    return jobs.Job(key, REQUEST, rank=rank)


def test_a_round_keeps_to_its_time_and_leaves_out_what_matters_least() -> None:
    all_jobs = [job("sleep.fkat", 5), job("lanefeed", 0), job("tdnodes", 1), job("decode", 0)]
    took = {"sleep.fkat": 9.0, "lanefeed": 5.0, "tdnodes": 4.0, "decode": 4.0}
    assert jobs.fitting(all_jobs, took, 22.0) == all_jobs
    assert [j.key for j in jobs.fitting(all_jobs, took, 21.0)] == ["lanefeed", "tdnodes", "decode"]
    # Ours and the limits are measured however little time is left.
    assert [j.key for j in jobs.fitting(all_jobs, took, 0.0)] == ["lanefeed", "decode"]


def test_every_peer_can_be_asked_for() -> None:
    known = {name for environment in ENVIRONMENTS.values() for name in environment}
    assert set(jobs.PEER_OPTIONS) == set(PEERS) == set(peer.MODULES) == known
    assert set(peer_data.FORMATS) <= known
    assert {form for form, _ in peer_data.FORMATS.values()} == set(peer_data.WRITERS)


def test_a_peer_that_is_not_installed_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANEFEED_PEERS_VENV", str(tmp_path / "peers"))
    monkeypatch.setenv("LANEFEED_PEERS", str(tmp_path))
    monkeypatch.setenv("LANEFEED_BENCH_DATA", str(tmp_path / "data"))
    assert peers_python("hf") is None
    assert "make bench-peers" in jobs.why_left_out("hf", "W4")
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / ".installed-hf").touch()
    assert "hf files are not made" in jobs.why_left_out("hf", "W4")
    made = workloads.data_root() / "hf" / "W4.done"
    made.parent.mkdir(parents=True)
    made.touch()
    assert jobs.why_left_out("hf", "W4") == ""
    assert jobs.why_left_out("wds", "W2")


def test_quick_measures_no_peers_and_every_job_is_ours() -> None:
    keys = [j.key for j in jobs.make_jobs(wanted(quick=True))]
    assert keys == ["decode.W4", "lanefeed.W4", "busy.lanefeed.W4", "sleep.lanefeed.W4", "cold", "resume", "warm"]
    assert all(j.ours and j.rank == 0 for j in jobs.make_jobs(wanted(quick=True)))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are shell scripts, which know nothing of Python's paths."""
    monkeypatch.setattr(spawn, "_environment", lambda job: {"PATH": "/usr/bin:/bin"})


def script(tmp_path: Path, text: str) -> jobs.Job:
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return jobs.Job("x", REQUEST, str(path))


@pytest.mark.usefixtures("shell")
def test_a_job_is_run_again_while_others_used_the_machine_and_the_quietest_counts(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    noisy = (
        f'echo x >> {counter}; n=$(wc -l < {counter}); echo "RESULT {{\\"foreign_cores\\": 0.$((9 - n)), \\"n\\": $n}}"'
    )
    assert spawn.run_job(script(tmp_path, noisy), 3) == {"foreign_cores": 0.6, "n": 3}
    counter.unlink()
    assert spawn.run_job(script(tmp_path, noisy), 1)["n"] == 1


@pytest.mark.usefixtures("shell")
def test_a_job_without_a_result_says_why(tmp_path: Path) -> None:
    with pytest.raises(spawn.RunFailed, match=r"exit code 3(?s:.)*no such thing"):
        spawn.run_job(script(tmp_path, "echo no such thing >&2; exit 3"))


def test_footers_are_links_and_made_once(tmp_path: Path) -> None:
    sources = [tmp_path / "a", tmp_path / "b"]
    for source in sources:
        source.write_text(source.name)
    target = linked([str(s) for s in sources], tmp_path / "many", 5)
    names = sorted(target.rglob("*.parquet"))
    assert [path.read_text() for path in names] == ["a", "b", "a", "b", "a"]
    names[0].unlink()
    assert len(list(linked([str(s) for s in sources], tmp_path / "many", 5).rglob("*.parquet"))) == 4
    # Another count, or other files: made anew.
    assert len(list(linked([str(sources[0])], tmp_path / "many", 3).rglob("*.parquet"))) == 3


def test_a_point_that_cannot_be_says_what_its_readers_said(tmp_path: Path) -> None:
    with pytest.raises(PointFailed, match=r"exit codes \[1\](?s:.)*nothing-here"):
        measure_point(Point(files=str(tmp_path / "nothing-here" / "*.parquet"), batch=4))


def test_a_point_counts_what_two_ranks_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": list(range(4096))}), tmp_path / "a.parquet", row_group_size=256)
    point = Point(files=str(tmp_path / "*.parquet"), batch=8, ranks=2, threads=1, warm_up=0.0, warm_mib=0, seconds=0.2)
    found = measure_point(point)
    # Every batch is 8 numbers of 8 bytes, whoever took it.
    assert found["mb_s"] * 1e6 == pytest.approx(found["batches_s"] * 64, rel=1e-6)
    assert len(found["of_each"]) == 1
