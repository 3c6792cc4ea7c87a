"""`make bench`: every loader, limit and start on the workloads, in interleaved rounds; numbers, table, plots.

Each run is a cold process. Rounds repeat all runs in a new random order, so that the machine's drift hits all alike.
A run during which other processes used the CPU is repeated. `--quick` takes under three minutes, measures ours and the
decode limit only, and writes results/quick.json (not committed); `--guard` fails where a ratio fell below half of the
committed results/latest.json.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import decoded, report, results, workloads  # noqa: E402
from bench.adapters.peer import peers_folder  # noqa: E402
from bench.install_peers import peers_python  # noqa: E402
from bench.limits import memory_limits  # noqa: E402
from bench.one import Request  # noqa: E402

__all__: list[str] = []

RESULTS = ROOT / "bench" / "results"
#: Above this many cores of other processes a run is repeated, RETRIES runs at most; the quietest one counts.
FOREIGN_CORES = 0.12
RETRIES = 3
LIMIT_SECONDS = 120
#: The best options of each peer in ../shared/research/peer-bench.md, for {threads} cores.
PEER_OPTIONS: dict[str, dict[str, Any]] = {
    "tdnodes": {"threads": "{threads}"},
    "spdl": {"where": "arena", "threads": "{threads}", "whole": 1},
    "sdl": {"workers": "{threads}", "stateful": 1},
    "torchdl": {"workers": "{threads}", "whole": 1, "prefetch": 2},
}


@dataclass(frozen=True, slots=True)
class Job:
    """One process to run in each round."""

    key: str
    request: Request
    python: str
    module: str = "bench.one"


class RunFailed(Exception):
    """A measuring process gave no result; the text holds the end of what it said."""


def _spawn(job: Job) -> dict[str, float]:
    """Run the job's process to its end and return its result."""
    path = os.pathsep.join(str(ROOT / part) for part in (".", "trainer_lib", "sidecar", "operator"))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [job.python, "-m", job.module, str(time.monotonic()), job.request.to_json()]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        try:
            out, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            out = ""
        finally:
            _end_group(process)
        for line in out.splitlines():
            if line.startswith("RESULT "):
                return dict(json.loads(line[7:]))
        log.seek(0)
        raise RunFailed(f"{job.key} gave no result (exit code {process.returncode}):\n{log.read()[-1500:]}")


def _end_group(process: "subprocess.Popen[str]") -> None:
    """End what the run left in its own session; first a moment in which its makers clean up shared memory."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_job(job: Job, tries: int = RETRIES) -> dict[str, float]:
    """Run the job, again while others used the machine; the quietest run."""
    best: dict[str, float] = {}
    for _ in range(tries):
        found = _spawn(job)
        if not best or found.get("foreign_cores", 0) < best["foreign_cores"]:
            best = {"foreign_cores": 0.0, **found}
        if best["foreign_cores"] <= FOREIGN_CORES:
            break
    return best


def _options(options: dict[str, Any], threads: int) -> dict[str, Any]:
    return {key: threads if value == "{threads}" else value for key, value in options.items()}


def make_jobs(args: argparse.Namespace, state_path: str) -> Iterator[Job]:
    """The processes of one round."""
    ours, peers, threads = sys.executable, peers_python(), args.threads
    base = Request(loader="lanefeed", workload="W4", seconds=args.seconds, options={"threads": threads})
    for name in args.workloads:
        here = replace(base, workload=name)
        yield Job(f"decode.{name}", replace(here, loader="decode"), ours, "bench.limits")
        yield Job(f"lanefeed.{name}", here, ours)
        if not args.quick:
            cached = {"threads": threads, "cache_dir": str(decoded.filled(name)), "cache_bytes": decoded.BYTES}
            yield Job(f"cached.{name}", replace(here, options=cached), ours)
            yield Job(f"caching.{name}", replace(here, options={**cached, "cache_dir": decoded.FRESH}), ours)
    steps = [replace(base, step=step, step_ms=2.0) for step in ("busy", "sleep")]
    for request in steps:
        yield Job(f"{request.step}.lanefeed.W4", request, ours)
    yield Job("cold", replace(base, mode="first"), ours)
    yield Job("resume", replace(base, mode="resume", state_path=state_path), ours)
    if args.quick or peers is None or not peers_folder().exists():
        return
    for peer, options in PEER_OPTIONS.items():
        theirs = replace(base, loader=peer, options=_options(options, threads))
        for name in args.workloads:
            if (peer, name) != ("sdl", "W2"):  # 24 ms a batch of 73 tensors: it would say nothing that W4 does not
                yield Job(f"{peer}.{name}", replace(theirs, workload=name), str(peers))
        for request in steps:
            yield Job(f"{request.step}.{peer}.W4", replace(theirs, step=request.step, step_ms=2.0), str(peers))


def measure_rounds(args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """All rounds. A job that fails once is left out of later rounds, and said so."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    rounds: dict[str, list[dict[str, float]]] = {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Progress(
            TextColumn("{task.description:32s}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True
        ) as progress,
    ):
        state = f"{scratch}/state"
        jobs = list(make_jobs(args, state))
        save = Request(loader="lanefeed", workload="W4", mode="save", state_path=state)
        run_job(Job("save", replace(save, options={"threads": args.threads}), sys.executable))
        task = progress.add_task("", total=args.rounds * len(jobs))
        for number in range(args.rounds):
            random.shuffle(jobs)
            # Both sides of the main ratios run one after the other, in turn.
            jobs.sort(key=lambda job: _pair(job.key, number))
            for job in list(jobs):
                progress.update(task, description=f"round {number + 1}: {job.key}")
                try:
                    found = run_job(job, args.tries)
                    rounds.setdefault(job.key, []).append(found)
                    progress.console.print(_line(number, job.key, found))
                except RunFailed as failure:
                    if job.python == sys.executable:
                        raise
                    progress.console.print(f"[yellow]left out: {failure}")
                    jobs.remove(job)
                progress.advance(task)
    return rounds


def _line(number: int, key: str, found: dict[str, float]) -> str:
    """One run, for whoever watches."""
    shown = {"mb_s": "MB/s", "stall_percent": "% waiting", "first_from_open_s": "s to the first batch"}
    parts = [f"{found[name]:.2f} {unit}" for name, unit in shown.items() if name in found]
    return f"{number + 1} {key:18s} {', '.join(parts)}; others used {found['foreign_cores']:.2f} cores"


def _pair(key: str, number: int) -> tuple[str, bool]:
    """Sort key that keeps the rates of a workload together, ours and the limit side by side, swapped every round."""
    kind, _, workload = key.partition(".")
    if kind in {"decode", "lanefeed", "caching"}:
        return workload, (kind != "lanefeed") == bool(number % 2)
    return "X", False


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Lanefeed, its peers and the machine's limits.")
    parser.add_argument("--quick", action="store_true", help="under three minutes: W4 only, no peers, no repeats")
    parser.add_argument("--guard", action="store_true", help="exit 1 if a ratio is below half of the committed one")
    parser.add_argument("--rounds", type=int, default=0, help="default 3")
    parser.add_argument("--seconds", type=float, default=0.0, help="length of a window; default 3 (quick: 2)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="decode threads on both sides")
    parser.add_argument("--workloads", default="", help="default W4,W2 (quick: W4)")
    parser.add_argument(
        "--tries", type=int, default=0, help="runs of a job while others use the CPU; default 3 (quick: 1)"
    )
    args = parser.parse_args()
    args.tries = args.tries or (1 if args.quick else RETRIES)
    args.rounds = args.rounds or 3
    args.seconds = args.seconds or (2.0 if args.quick else 3.0)
    args.workloads = (args.workloads or ("W4" if args.quick else "W4,W2")).split(",")
    return args


def _committed() -> dict[str, float]:
    path = RESULTS / "latest.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _keep(args: argparse.Namespace, numbers: dict[str, float], rounds: dict[str, list[dict[str, float]]]) -> Path:
    """Write the flat numbers. A full run keeps those of latest.json that it did not measure (memory)."""
    RESULTS.mkdir(exist_ok=True)
    if args.quick:
        path = RESULTS / "quick.json"
        path.write_text(json.dumps(numbers, indent=1) + "\n")
        return path
    path = RESULTS / "latest.json"
    merged = {**_committed(), **numbers}
    path.write_text(json.dumps(merged, indent=1) + "\n")
    (RESULTS / "rounds.json").write_text(json.dumps(rounds, indent=1) + "\n")
    report.plot(merged, RESULTS, args.workloads)
    note = f"{args.rounds} rounds on {args.threads} cores, windows of {args.seconds:g} s, {time.strftime('%Y-%m-%d')}."
    report.write_docs(ROOT / "docs" / "performance.md", merged, note)
    return path


def main() -> None:
    """Make data, measure, write, show, guard."""
    args, committed = _arguments(), _committed()
    for name in args.workloads:
        workloads.ensure(name)
        workloads.warm(name)
    if not args.quick and peers_python() is None:
        print("peers are not installed (make bench-peers): measuring ours and the limits only")
    rounds = measure_rounds(args)
    numbers = {**results.flatten(rounds, args.workloads), **{k: round(v, 2) for k, v in memory_limits().items()}}
    path = _keep(args, numbers, rounds)
    report.show({**(committed if not args.quick else {}), **numbers})
    print(f"numbers: {path}")
    wrong = results.guard(numbers, committed) if args.guard else []
    if wrong:
        sys.exit("slower than half of the committed results:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
