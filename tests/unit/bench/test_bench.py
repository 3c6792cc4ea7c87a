"""The benchmark's own arithmetic: a wrong ratio or a guard that cannot bite would be worse than none."""

import io
import json
import subprocess
import sys
import time
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from bench import limits, measure, report, results, run, sweeps, workloads  # noqa: E402
from bench.jobs import Job  # noqa: E402
from bench.memory import Bounds, Samples, numbers, verdict  # noqa: E402
from bench.one import Request  # noqa: E402

#: The first tokens of W4, as the shared workload generator makes them too.
PINNED = [47715, 4088, 12, 0, 25]


def rounds(ours: list[float], limit: list[float]) -> dict[str, list[dict[str, float]]]:
    return {
        "lanefeed.W4": [{"mb_s": v, "next_cpu_us": 8.0, "foreign_cores": 0.1} for v in ours],
        "decode.W4": [{"mb_s": v} for v in limit],
        "tdnodes.W4": [{"mb_s": v / 2} for v in ours],
        "resume": [{"first_from_open_s": 0.5, "exact": True}],
    }


def test_ratios_are_taken_within_a_round() -> None:
    # The machine doubled its speed between rounds: the ratio must not notice.
    found = results.flatten(rounds([90, 180, 95], [100, 200, 100]), ["W4"])
    assert found["first_epoch_ratio.W4"] == pytest.approx(0.9)
    assert found["spread.first_epoch_ratio.W4"] == pytest.approx(0.05)
    assert found["peer_ratio.tdnodes.W4"] == pytest.approx(2.0)
    assert found["resume_exact"] == 1.0


def test_what_was_not_measured_is_absent() -> None:
    found = results.flatten(rounds([90], [100]), ["W4", "W2"])
    assert "peer_ratio.spdl.W4" not in found
    assert not [key for key in found if key.endswith(".W2")]


def test_guard_bites_below_half_only() -> None:
    committed = {"first_epoch_ratio.W4": 1.0, "mb_s.lanefeed.W4": 1000.0}
    assert results.guard({"first_epoch_ratio.W4": 0.51, "mb_s.lanefeed.W4": 1.0}, committed) == []
    wrong = results.guard({"first_epoch_ratio.W4": 0.49}, committed)
    assert wrong == ["first_epoch_ratio.W4 is 0.490 and was 1.000: less than half"]


def test_what_the_guard_finds_too_bad_is_run_again_until_the_median_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy minute makes no failure; what is slower in every round does."""
    committed = {"first_epoch_ratio.W4": 1.0}
    jobs = [Job(key, Request(loader="x", workload="W4")) for key in ("lanefeed.W4", "decode.W4", "cold")]
    for again, ends in ((95.0, True), (40.0, False)):
        ran: list[str] = []

        def run_job(job: Job, _tries: int, again: float = again, ran: list[str] = ran) -> dict[str, float]:
            ran.append(job.key)
            return {"mb_s": again if job.key == "lanefeed.W4" else 100.0, "foreign_cores": 0.0}

        monkeypatch.setattr(run, "run_job", run_job)
        done = run.Rounds(time.monotonic() + 100, 1)
        done.found = rounds([40, 41, 95], [100, 100, 100])
        done.settle(jobs, committed, ["W4"])
        wrong = results.guard(results.flatten(done.found, ["W4"]), committed)
        assert (wrong == []) is ends
        assert set(ran) == {"lanefeed.W4", "decode.W4"}, "what was fine is not run again"
        assert len(ran) == 2 if ends else len(ran) == 2 * run.MORE_ROUNDS


def test_a_guarded_figure_knows_its_runs() -> None:
    assert results.runs_of("cpu_per_gb_ratio.W2") == ("lanefeed.W2", "decode.W2")
    assert results.runs_of("peer_ratio.tdnodes.W4") == ("lanefeed.W4", "tdnodes.W4")
    assert results.runs_of("ranks2_cpu_ratio") == ("ranks1", "ranks2")


def test_guard_refuses_a_resume_that_is_not_exact() -> None:
    assert len(results.guard({"resume_exact": 0.0}, {})) == 1


def test_the_guard_knows_where_less_is_better() -> None:
    committed = {"cpu_per_gb_ratio.W4": 1.2, "ranks2_cpu_ratio": 1.0, "first_batch_s.cold": 1.0}
    fine = {"cpu_per_gb_ratio.W4": 2.4, "ranks2_cpu_ratio": 0.5, "first_batch_s.cold": 9.0}
    assert results.guard(fine, committed) == []
    assert results.guard({"ranks2_cpu_ratio": 2.1}, committed) == [
        "ranks2_cpu_ratio is 2.100 and was 1.000: more than twice"
    ]


def test_ranks_starts_footers_and_the_store_have_their_numbers() -> None:
    runs = {
        "ranks1": [{"cpu_s_per_gb": 2.0}, {"cpu_s_per_gb": 4.0}],
        "ranks2": [{"cpu_s_per_gb": 2.1}, {"cpu_s_per_gb": 4.2}],
        "warm": [{"first_from_open_s": 0.08}],
        "warm_resume": [{"first_from_open_s": 0.2}],
        "footers": [{"seconds": 41.23, "cpu_s": 40.0}],
        "s3": [{"s3_ratio": 0.97, "s3_unhidden_ratio": 0.5}],
        "cached.W4": [{"mb_s": 4000.0, "batches_s": 30000.0}],
        "hf.W4": [{"mb_s": 1000.0}],
    }
    found = results.flatten(runs, ["W4"])
    assert found["ranks2_cpu_ratio"] == pytest.approx(1.05)
    assert (found["first_batch_s.warm"], found["first_batch_s.warm_resume"]) == (0.08, 0.2)
    assert found["index_footers_s"] == 41.2
    assert (found["s3_ratio"], found["batches_per_s.cache.W4"]) == (0.97, 30000)
    assert found["peer_cache_ratio.hf.W4"] == 4.0
    # Each of them has a goal in the table.
    assert {"ranks2_cpu_ratio", "first_batch_s.warm", "index_footers_s", "s3_ratio"} <= set(report.GOALS)


def test_a_peer_that_is_ahead_has_its_reason_beside_it() -> None:
    numbers = {"peer_ratio.hf.W4": 0.5, "peer_cache_ratio.hf.W4": 2.53, "peer_ratio.lit.W4": 1.5, "mb_s.hf.W4": 1000.0}
    text = report.markdown(numbers)
    assert "**HF datasets, mapped on W4** (0.50): it maps Arrow files" in text
    assert "ours is 2.5 times as fast" in text
    assert "**LitData" not in text
    assert "| HF datasets, mapped | 1000 | 0.50 | - |" in text
    both = report.markdown({**numbers, "mb_s.hf.W1": 900.0})
    assert "| HF datasets, mapped | 1000 | 0.50 | 900 | - | - |" in both


def test_what_a_run_did_not_find_does_not_stay_from_an_older_one() -> None:
    before = {
        "peer_ratio.hf.W4": 9.0,
        "spread.peer_ratio.hf.W4": 1.0,
        "sidecar_rss_mb": 474.3,
        "rss_growth_mb.10min": 5.3,
    }
    assert results.others(before) == {"sidecar_rss_mb": 474.3, "rss_growth_mb.10min": 5.3}
    measured = results.flatten(rounds([90, 95], [100, 100]), ["W4"])
    assert results.others(measured) == {}


def test_sweeps_show_what_was_refused() -> None:
    rows = {
        "row_bytes": [{"value": 8 << 20, "failed": "it does not fit"}],
        "sidecars": [
            {
                "value": 2,
                "mb_s": 400.0,
                "batches_s": 3000.0,
                "cpu_s_per_gb": 2.0,
                "next_cpu_us": 7.2,
                "of_each": [190.0, 210.0],
            }
        ],
    }
    lines = sweeps.table(rows).splitlines()
    assert lines[2] == "| row_bytes | 8M | - | - | refused | - |  |"
    assert lines[3] == "| sidecars | 2 | 400 | 3000 | 2.00 | 7.2 | 190 / 210 |"


def test_window_counts_waiting_and_batches() -> None:
    batch = {"x": np.zeros((16, 2048), np.int32)}

    def slow() -> object:
        for item in repeat(batch):
            time.sleep(0.004)
            yield item

    window = measure.measure(slow(), seconds=0.3, step="busy", step_ms=4.0, roots=list)  # type: ignore[arg-type]
    found = window.to_dict(batch["x"].nbytes)
    # However busy the machine is: every next() slept 4 ms, every step took as long, and sleeping costs no CPU.
    assert found["wait_p50_ms"] >= 4.0
    assert found["stall_percent"] == pytest.approx(100 * sum(window.waits) / window.wall)
    assert window.wall - sum(window.waits) >= 0.004 * (window.batches - 1)
    assert found["mb_s"] == pytest.approx(found["batches_s"] * batch["x"].nbytes / 1e6)
    assert found["next_cpu_us"] < 2000


def test_digest_ignores_integer_width_but_not_order() -> None:
    values = np.arange(32, dtype=np.int32).reshape(4, 8)
    assert measure.digest({"a": values}) == measure.digest([values.astype(np.int64)])
    assert measure.digest(values) != measure.digest(values[::-1])


def test_shards_are_the_same_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEFEED_BENCH_DATA", str(tmp_path))
    drawn = workloads.tokens(np.random.default_rng([workloads.SEED, 4, 0]), 5)
    assert drawn.tolist() == PINNED
    assert workloads.folder("W4") == tmp_path / "data" / "parquet" / "W4"


def test_documents_are_the_same_on_every_machine() -> None:
    """And those that the shared generator makes."""
    column = workloads._table_w1(workloads.WORKLOADS["W1"], 0)["tokens"].combine_chunks()
    values, ends = column.flatten().to_numpy(), column.offsets.to_numpy()
    assert (ends[:4].tolist(), int(ends[-1])) == ([0, 163, 433, 804], 3135899)
    assert (values[:5].tolist(), int(values.sum())) == ([93, 2731, 727, 44, 145], 13979430766)
    assert set(values[ends[1:] - 1].tolist()) == {workloads.END_OF_DOCUMENT}


@pytest.mark.parametrize(
    ("number", "size", "label", "mean"), [(0, (384, 383), 173, 118.8), (5999, (289, 280), 460, 108.2)]
)
def test_images_are_the_same_on_every_machine(number: int, size: tuple[int, int], label: int, mean: float) -> None:
    """The bytes of a JPEG depend on the encoder: what it shows does not."""
    data, found = workloads.image(number)
    picture = Image.open(io.BytesIO(data))
    assert (picture.format, picture.mode, picture.size, found) == ("JPEG", "RGB", size, label)
    assert np.asarray(picture).mean() == pytest.approx(mean, abs=0.5)
    assert 10_000 < len(data) < 60_000


def test_the_limit_of_images_is_their_own_decoder_on_the_same_bytes() -> None:
    table = pa.table({"image": pa.array([workloads.image(n)[0] for n in range(2)], pa.binary()), "label": [1, 2]})
    made = list(limits.Pixels(workloads.WORKLOADS["W3"].images).decode(table))
    assert made == [workloads.WORKLOADS["W3"].sample_bytes] * 2


def samples(rss: list[int], fds: list[int]) -> Samples:
    made = [
        {"rss": r << 20, "anon": r << 20, "file": 0, "shmem": 0, "fds": f, "threads": 9}
        for r, f in zip(rss, fds, strict=True)
    ]
    return Samples(made, made, 10**9)


def test_memory_verdict_names_growth_and_bound() -> None:
    bounds = Bounds(arena=32 << 20, budget=512 << 20)
    steady = numbers(samples([600] * 40, [50] * 40), bounds, "1min")
    assert steady["sidecar_rss_over_budget_mb"] == 56.0
    assert verdict(steady, "1min") == []
    growing = numbers(samples([600 + 2 * i for i in range(40)], list(range(40))), bounds, "1min")
    wrong = verdict(growing, "1min")
    assert [w.split(" ")[0] for w in wrong] == ["rss_growth_mb.1min", "fd_growth.1min"]
    assert "300 above" in verdict(numbers(samples([844] * 40, [1] * 40), bounds, "x"), "x")[0]


def test_docs_block_is_replaced_and_only_it(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nstale\n{report.END}\nafter\n")
    report.write_docs(page, {"first_epoch_ratio.W4": 0.93, "peer_ratio.sdl.W4": 5.0}, "note")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "stale" not in text
    assert "| `first_epoch_ratio.W4` |" in text
    assert "times StatefulDataLoader on W4" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        report.write_docs(page, {}, "")


def test_request_travels_as_json() -> None:
    request = Request(loader="spdl", workload="W4", options={"threads": 2}, step="busy", step_ms=2.0)
    assert Request(**json.loads(request.to_json())) == request


def test_the_gpu_script_says_where_there_is_none() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here: run bench/gpu.py")
    script = Path(__file__).resolve().parents[3] / "bench" / "gpu.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.splitlines() == [
        "no GPU here (torch.cuda.is_available() is False): nothing was measured",
        '{"gpu": false}',
    ]
