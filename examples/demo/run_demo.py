"""`make demo`: the whole promise on one machine, in about a minute, with the proof at the end.

Makes a dataset, runs `job.yaml` as 2 pods x 2 ranks, kills a trainer, a sidecar and a whole pod with SIGKILL, scales to
3 pods and to 1, and lets it finish. Then it reads the dataset once more with one uninterrupted rank and compares: every
sample's id in every global batch, as the chain of checkpoints saw them. Exits 1 if anything was lost or repeated.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import yaml
from make_data import make
from procs import command, environment, kill, marked
from rich.console import Console
from rich.table import Table

import lanefeed

HERE = Path(__file__).parent
console = Console()


@dataclass
class Event:
    """Something done to the job: when, and the step at which it stood."""

    what: str
    at: float
    step: int
    #: Seconds from the event to the next batch of rank 0 that needed what was taken away.
    pause: float | None = None


@dataclass
class Demo:
    """One run of the job: its folder, its runner process and what was done to it."""

    work: Path
    events: list[Event] = field(default_factory=list)
    runner: subprocess.Popen[bytes] | None = None

    @property
    def out(self) -> Path:
        """Where checkpoints and the step log go."""
        return self.work / "out"

    def start(self) -> None:
        """`lanefeed run job.yaml`, as a user would."""
        env = os.environ | {"DEMO_OUT": str(self.out)}
        run = [sys.executable, "-m", "lanefeed_operator.cli.main", "run", "job.yaml"]
        self.runner = subprocess.Popen(run, cwd=self.work, env=env)

    def lines(self) -> list[tuple[float, int]]:
        """(time, step) of every batch that rank 0 trained."""
        log = self.out / "steps.log"
        if not log.exists():
            return []
        rows = [line.split() for line in log.read_text().splitlines()]
        return [(float(row[0]), int(row[1])) for row in rows if len(row) == 3]

    def step(self) -> int:
        """The last step that rank 0 trained."""
        lines = self.lines()
        return lines[-1][1] if lines else 0

    def wait_for(self, step: int, seconds: float = 400) -> None:
        """Wait until rank 0 has trained `step`. Raises SystemExit if the job ends or stalls first."""
        end = time.monotonic() + seconds
        while self.step() < step:
            assert self.runner is not None
            if self.runner.poll() is not None:
                raise SystemExit(f"the job ended before step {step}; see {self.work}/.lanefeed/demo")
            if time.monotonic() > end:
                raise SystemExit(f"step {step} was not reached within {seconds} s; see {self.work}/.lanefeed/demo")
            time.sleep(0.05)

    def wait_for_pods(self, replicas: int, more_steps: int, seconds: float = 400) -> None:
        """Wait until the job runs with `replicas` pods and has trained `more_steps` more."""
        end = time.monotonic() + seconds
        while self.status().get("plan", {}).get("replicas") != replicas:
            if time.monotonic() > end:
                raise SystemExit(f"{replicas} pods did not run within {seconds} s; see {self.work}/.lanefeed/demo")
            time.sleep(0.1)
        self.wait_for(self.step() + more_steps)

    def status(self) -> dict:
        """The job's status as the runner last wrote it."""
        return yaml.safe_load((self.work / ".lanefeed/demo/status.yaml").read_text()).get("status") or {}

    def note(self, what: str) -> None:
        """Remember an event and show it."""
        self.events.append(Event(what, time.time(), self.step()))
        console.print(f"[bold red]>>> {what}[/] at step {self.step()}")

    def pods(self, index: int) -> list[int]:
        """Pids of everything that belongs to the living pod with this index."""
        uids = {
            environment(pid).get("LANEFEED_LOCAL_POD_UID", "")
            for pid in marked(LANEFEED_JOB="demo", LANEFEED_POD_INDEX=str(index))
        }
        return [pid for uid in uids if uid for pid in marked(LANEFEED_LOCAL_POD_UID=uid)]

    def kill_trainer(self) -> None:
        """SIGKILL one rank's process."""
        pids = [p for p in self.pods(1) if "train.py" in command(p) and environment(p).get("LOCAL_RANK") == "1"]
        self.note("SIGKILL of a trainer (rank 3)")
        kill(pids[:1]) or sys.exit("found no trainer to kill")

    def kill_sidecar(self) -> None:
        """SIGKILL one pod's sidecar."""
        pids = [p for p in self.pods(0) if "lanefeed_sidecar" in command(p)]
        self.note("SIGKILL of a sidecar (pod 0)")
        kill(pids[:1]) or sys.exit("found no sidecar to kill")

    def kill_pod(self) -> None:
        """SIGKILL everything in a pod."""
        pids = self.pods(1)
        self.note(f"SIGKILL of a whole pod (pod 1, {len(pids)} processes)")
        kill(pids) or sys.exit("found no pod to kill")

    def scale(self, replicas: int) -> None:
        """`lanefeed scale`, as a user would."""
        self.note(f"scale to {replicas} pod{'s' if replicas > 1 else ''}")
        scale = [sys.executable, "-m", "lanefeed_operator.cli.main", "scale", "demo", str(replicas)]
        subprocess.run(scale, cwd=self.work, check=True)

    def pauses(self) -> None:
        """For each event, the longest gap between two batches of rank 0 before the next event."""
        lines = self.lines()
        for event, after in zip(self.events, [*self.events[1:], None], strict=True):
            end = after.at if after else float("inf")
            times = [t for t, _ in lines if t <= event.at][-1:] + [t for t, _ in lines if event.at < t <= end]
            gaps = [b - max(a, event.at) for a, b in pairwise(times)]
            event.pause = max(gaps, default=None)


def checkpoint_chain(out: Path, last: str) -> list[list[int]]:
    """Ids of every global batch, as the chain of checkpoints that ends in `last` saw them."""
    batches: list[list[list[int]]] = []
    name = last
    while name:
        parts = sorted((out / name).glob("ids-*.json"), key=lambda p: int(p.stem.split("-")[1]))
        ranks = [json.loads(p.read_text()) for p in parts]
        steps = [list(chain.from_iterable(r["ids"][k] for r in ranks)) for k in range(len(ranks[0]["ids"]))]
        batches.append(steps)
        name = ranks[0]["before"]
    return [step for part in reversed(batches) for step in part]


def uninterrupted(work: Path, spec: dict, stream: dict) -> list[list[int]]:
    """Ids of every global batch, read again from the files by one rank that nothing disturbs."""
    seen = []
    with lanefeed.open(
        str(work / "data"),
        columns=["x", "label"],
        tensors="numpy",
        epochs=spec["epochs"],
        global_batch_size=spec["batching"]["globalBatchSize"],
        last_batch=spec["batching"]["lastBatch"],
        seed=spec["shuffle"]["seed"],
        lanes=stream["lanes"],
        window=stream["window"],
        rank=0,
        world=1,
    ) as loader:
        for _ in loader.epochs():
            seen += [np.asarray(batch.ids).tolist() for batch in loader]
    return seen


def proof(demo: Demo, spec: dict) -> bool:
    """Compare, print the table, and say whether all is well."""
    status = demo.status()
    got = checkpoint_chain(demo.out, status["cursor"]["commit"])
    want = uninterrupted(demo.work, spec, status["stream"])
    epochs = spec["epochs"]
    counts = Counter(i for step in got for i in step)
    expected = Counter(i for step in want for i in step)
    lost = sum((expected - counts).values())
    repeated = sum((counts - expected).values())
    same_order = got == want
    verified = status.get("ledger", {}).get("epochs", [])
    proven = len(verified) == epochs and all(e["verified"] for e in verified)

    table = Table(title="The chain of checkpoints beside an uninterrupted run", title_justify="left", min_width=96)
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row(f"samples expected ({epochs} epochs)", f"{sum(expected.values()):,}")
    table.add_row("samples consumed", f"{sum(counts.values()):,}")
    table.add_row("repeated", _good(repeated == 0, repeated))
    table.add_row("lost", _good(lost == 0, lost))
    for entry in verified:
        equal = entry["digest"] == entry["expected"]
        table.add_row(
            f"ledger digest of epoch {entry['epoch']}",
            _good(equal, f"{entry['digest']} {'=' if equal else '!='} {entry['expected']}"),
        )
    table.add_row("all epochs proven by the ledger", _good(proven, proven))
    table.add_row("global batches compared with an uninterrupted run", f"{len(want):,}")
    table.add_row("order of every global batch equal", _good(same_order, same_order))
    console.print(table)

    pauses = Table(
        title="What was done to it, and how long rank 0 waited for its next batch", title_justify="left", min_width=96
    )
    pauses.add_column("event")
    pauses.add_column("at step", justify="right")
    pauses.add_column("seconds to the next batch", justify="right")
    for event in demo.events:
        pauses.add_row(event.what, str(event.step), f"{event.pause:.2f}" if event.pause is not None else "-")
    console.print(pauses)
    return lost == 0 and repeated == 0 and same_order and proven


def _good(ok: bool, value: object) -> str:
    return f"[{'green' if ok else 'bold red'}]{value}[/]"


def main() -> int:
    """Run the demo in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path(".demo"), help="folder for data, state and checkpoints")
    work = parser.parse_args().work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    make(work / "data")
    for name in ("out", ".lanefeed"):
        shutil.rmtree(work / name, ignore_errors=True)
    (work / "out").mkdir()
    for name in ("job.yaml", "train.py"):
        shutil.copy(HERE / name, work / name)
    spec = yaml.safe_load((work / "job.yaml").read_text())["spec"]

    demo = Demo(work)
    begin = time.monotonic()
    demo.start()
    assert demo.runner is not None
    try:
        for step, act in (
            (100, demo.kill_trainer),
            (250, demo.kill_sidecar),
            (350, demo.kill_pod),
            (500, lambda: demo.scale(3)),
        ):
            demo.wait_for(step)
            act()
        demo.wait_for_pods(3, more_steps=60)
        demo.scale(1)
        code = demo.runner.wait(timeout=600)
    finally:
        if demo.runner.poll() is None:
            demo.runner.terminate()
            demo.runner.wait(timeout=100)
    if code:
        console.print(f"[bold red]lanefeed run ended with {code}[/]; see {work}/.lanefeed/demo")
        return 1
    demo.pauses()
    fine = proof(demo, spec)
    console.print(
        f"{time.monotonic() - begin:.0f} s in all. "
        + ("[green]Nothing lost, nothing repeated.[/]" if fine else "[bold red]NOT EXACT[/]")
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
