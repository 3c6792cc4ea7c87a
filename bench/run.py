"""`make bench`: every loader, limit and start on the workloads, in interleaved rounds; numbers, table, plots.

Each run is a cold process. Rounds repeat all runs in a new random order, so that the machine's drift hits all alike.
A run during which other processes used the CPU is repeated while there is time. The whole keeps to `--minutes`: a round
leaves out its least important jobs, or is left out, and says so. `--quick` takes under three minutes, measures ours and
the decode limit only, and writes results/quick.json (not committed); `--guard` fails where a ratio got worse than half
of the committed results/latest.json, also as the median over some more rounds of its two runs.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import peer_data, report, results, workloads  # noqa: E402
from bench.jobs import PEER_OPTIONS, Job, Wanted, fitting, make_jobs, single_jobs, why_left_out  # noqa: E402
from bench.limits import memory_limits  # noqa: E402
from bench.one import Request  # noqa: E402
from bench.spawn import RETRIES, RunFailed, run_job  # noqa: E402

__all__: list[str] = []

RESULTS = ROOT / "bench" / "results"
#: Rounds more of the two runs of a ratio that the guard finds too bad, at most: one busy minute is no regression.
MORE_ROUNDS = 6
#: Of the whole, for plots and for the last job that takes longer than it did.
SPARE_SECONDS = 20.0


class Rounds:
    """Runs jobs, keeps what they said and how long they took, and shows a line each."""

    def __init__(self, end: float, tries: int) -> None:
        """`end`: when everything is to be over, by time.monotonic."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.end, self.tries = end, tries
        self.found: dict[str, list[dict[str, float]]] = {}
        #: What our own jobs said that gave no result: the rest goes on, and the command fails at its end.
        self.failures: list[str] = []
        self._took: dict[str, list[float]] = {}
        text = TextColumn("{task.description:32s}")
        self.progress = Progress(text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def say(self, text: str) -> None:
        """A line above the progress bar."""
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def run(self, job: Job, tries: int) -> bool:
        """Run it; False where it failed, which is said."""
        start = time.monotonic()
        try:
            found = run_job(job, tries)
        except RunFailed as failure:
            self.say(f"{'FAILED' if job.ours else 'left out'}: {failure}")
            if job.ours:
                self.failures.append(str(failure))
            return False
        self.found.setdefault(job.key, []).append(found)
        self._took.setdefault(job.key, []).append(time.monotonic() - start)
        self.say(_line(len(self.found[job.key]), job.key, found))
        return True

    def needed(self, jobs: list[Job]) -> float:
        """Seconds that ours took, which no round goes without."""
        return sum(mean(self._took.get(job.key, [0.0])) for job in jobs if not job.rank)

    def settle(self, jobs: list[Job], committed: dict[str, float], workloads: list[str]) -> None:
        """Run again what the guard finds too bad, until the median over all rounds is not, or has had its chances."""
        for number in range(MORE_ROUNDS):
            wrong = results.behind(results.flatten(self.found, workloads), committed)
            keys = {key for figure in wrong for key in results.runs_of(figure)}
            again = [job for job in jobs if job.key in keys]
            if not again:
                return
            self.say(f"once more ({number + 1} of {MORE_ROUNDS}), since {'; '.join(wrong.values())}")
            for job in sorted(again, key=lambda job: _pair(job.key, number)):
                self.run(job, RETRIES)

    def round(self, jobs: list[Job], number: int, share: float) -> None:
        """One run of each job that fits into its share of what is left; peers that fail are taken off the list."""
        took = {key: mean(seconds) for key, seconds in self._took.items()}
        kept = fitting(jobs, took, self.left * share)
        if len(kept) < len(jobs):
            gone = ", ".join(sorted({job.key for job in jobs} - {job.key for job in kept}))
            self.say(f"round {number + 1} has {self.left * share:.0f} s and leaves out {gone}")
        random.shuffle(kept)
        # Both sides of the main ratios run one after the other, in turn.
        kept.sort(key=lambda job: _pair(job.key, number))
        task = self.progress.add_task("", total=len(kept))
        until = time.monotonic() + self.left * share
        for position, job in enumerate(kept):
            self.progress.update(task, description=f"round {number + 1}: {job.key}")
            rest = sum(took.get(other.key, 0.0) for other in kept[position:])
            spare = until - time.monotonic() - rest if took else 0.0
            if not self.run(job, self.tries if spare > 30 else 1) and not job.ours:
                jobs.remove(job)
            self.progress.advance(task)
        self.progress.remove_task(task)


def measure(args: argparse.Namespace, committed: dict[str, float]) -> Rounds:
    """Everything that is run once, then all rounds; what the guard would not let pass is run again."""
    rounds = Rounds(args.end, args.tries)
    with tempfile.TemporaryDirectory() as scratch, rounds.progress:
        state = f"{scratch}/state"
        wanted = Wanted(
            workloads=args.workloads,
            seconds=args.seconds,
            threads=args.threads,
            quick=args.quick,
            state_path=state,
        )
        jobs = [job for job in make_jobs(wanted) if job.key.startswith(tuple(args.only))]
        save = Request(loader="lanefeed", workload="W4", mode="save", state_path=state)
        if any(job.key == "resume" for job in jobs):
            rounds.run(Job("save", replace(save, options={"threads": args.threads})), 1)
        for job in single_jobs() if not args.quick else []:
            if job.key.startswith(tuple(args.only)):
                rounds.run(job, 1)
        for number in range(args.rounds):
            if number and rounds.needed(jobs) > rounds.left:
                rounds.say(f"no time for round {number + 1}: ours alone takes {rounds.needed(jobs):.0f} s")
                break
            rounds.round(jobs, number, 1 / (args.rounds - number))
        if args.guard:
            rounds.settle(jobs, committed, args.workloads)
    return rounds


def _line(number: int, key: str, found: dict[str, float]) -> str:
    """One run, for whoever watches."""
    shown = {
        "mb_s": "MB/s",
        "cpu_s_per_gb": "CPU s/GB",
        "stall_percent": "% waiting",
        "first_from_open_s": "s to the first batch",
        "seconds": "s",
        "s3_ratio": "of the store's bandwidth",
    }
    parts = [f"{found[name]:.2f} {unit}" for name, unit in shown.items() if name in found]
    return f"{number} {key:18s} {', '.join(parts)}; others used {found['foreign_cores']:.2f} cores"


def _pair(key: str, number: int) -> tuple[str, bool]:
    """Sort key that keeps the rates of a workload together, ours and the limit side by side, swapped every round."""
    kind, _, workload = key.partition(".")
    if kind in {"decode", "lanefeed", "caching"}:
        return workload, (kind != "lanefeed") == bool(number % 2)
    if kind in {"ranks1", "ranks2"}:
        return "V", (kind == "ranks1") == bool(number % 2)
    return "X", False


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Lanefeed, its peers and the machine's limits.")
    parser.add_argument("--quick", action="store_true", help="under three minutes: W4 only, no peers, no repeats")
    parser.add_argument(
        "--guard", action="store_true", help="exit 1 if a ratio is worse than half of the committed one"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=0.0, help="for everything; default 14.5 (quick: 2.8)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="decode threads on both sides")
    parser.add_argument("--workloads", default="", help="default all (quick: W4)")
    parser.add_argument("--only", default="", help="jobs whose names begin so, comma between; writes nothing")
    parser.add_argument(
        "--tries", type=int, default=0, help="runs of a job while others use the CPU; default 3 (quick: 1)"
    )
    args = parser.parse_args()
    args.tries = args.tries or (1 if args.quick else RETRIES)
    args.end = time.monotonic() + 60 * (args.minutes or (2.8 if args.quick else 14.5)) - SPARE_SECONDS
    args.workloads = (args.workloads or ("W4" if args.quick else ",".join(report.WORKLOADS))).split(",")
    args.write, args.only = not args.only, args.only.split(",")
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
    merged = {**results.others(_committed()), **numbers}
    path.write_text(json.dumps(merged, indent=1) + "\n")
    (RESULTS / "rounds.json").write_text(json.dumps(rounds, indent=1) + "\n")
    report.plot(merged, RESULTS, args.workloads)
    note = f"{args.rounds} rounds on {args.threads} cores, windows of {args.seconds:g} s, {time.strftime('%Y-%m-%d')}."
    report.write_docs(ROOT / "docs" / "performance.md", merged, note)
    return path


def _prepare(args: argparse.Namespace) -> None:
    """Files into the page cache; a line for each peer that is not measured."""
    for name in args.workloads:
        workloads.ensure(name)
        workloads.warm(name)
    for peer in [] if args.quick else PEER_OPTIONS:
        reasons = {name: why_left_out(peer, name) for name in args.workloads}
        for name, reason in reasons.items():
            if reason:
                print(f"without {peer} on {name}: {reason}")
            else:
                peer_data.warm(peer, name)


def main() -> None:
    """Make data, measure, write, show, guard."""
    args, committed = _arguments(), _committed()
    _prepare(args)
    memory: dict[str, Any] = {key: round(value, 2) for key, value in memory_limits().items()}
    done = measure(args, committed)
    numbers = {**results.flatten(done.found, args.workloads), **memory}
    if args.write:
        print(f"numbers: {_keep(args, numbers, done.found)}")
    report.show({**(results.others(committed) if args.write and not args.quick else {}), **numbers})
    wrong = results.guard(numbers, committed) if args.guard else []
    if wrong:
        wrong = ["worse than half of the committed results:", *wrong]
    if done.failures or wrong:
        sys.exit("\n  ".join([*done.failures, *wrong]))


if __name__ == "__main__":
    main()
