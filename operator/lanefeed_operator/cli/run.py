"""`lanefeed run`: a job on this machine, from start or from where it stopped, until it is done."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lanefeed_operator.api.status import Status, from_time
from lanefeed_operator.cli.common import StateDir, console, positive
from lanefeed_operator.local.admission import admit, read_job
from lanefeed_operator.local.clean import end_pods
from lanefeed_operator.local.runner import Outcome, Runner
from lanefeed_operator.local.store import JobStore, state_root
from lanefeed_operator.local.summary import proof_table, verdicts
from lanefeed_operator.local.view import duration, make_display, plural

__all__ = ["run"]


def run(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The ShardedTrainingJob.")],
    replicas: Annotated[int | None, typer.Option(help="Number of pods, instead of spec.replicas.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget an earlier run of this job and begin anew.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Run a job on this machine: a sidecar and a trainer for each pod. Run it again to go on after anything."""
    positive(replicas, "--replicas")
    wanted = read_job(job)
    store = JobStore(state_root(state_dir) / wanted.metadata.name)
    store.lock()
    try:
        if fresh:
            end_pods(store)
            store.forget()
        admitted, status = admit(store, wanted, replicas=replicas)
        display = make_display()
        try:
            outcome = Runner(store, admitted, status, display).run()
        finally:
            display.close()
    finally:
        store.unlock()
    _finish(store, outcome)
    sys.exit(outcome.code)


def _finish(store: JobStore, outcome: Outcome) -> None:
    out = console(stderr=True)
    status = outcome.status
    failed = status.condition("Failed")
    if failed is not None and failed.status == "True":
        out.print(f"[bold red]failed[/] ({failed.reason}): ", end="")
        sys.stderr.write(f"{failed.message}\n")
        out.print(f"logs: {store.pods}/*/logs; run it again to go on from step {status.cursor.total_step}")
        return
    if not status.terminal:
        out.print(
            f"[yellow]stopped[/] at step {status.cursor.total_step} (last commit"
            f"{f' {status.cursor.commit}' if status.cursor.commit else ''}); run it again to go on from there"
        )
        return
    _proof(out, status, outcome)


def _proof(out: Console, status: Status, outcome: Outcome) -> None:
    """The summary of a complete job, on stdout."""
    total = status.stream.total_steps if status.stream else 0
    took = from_time(status.completion_time) - from_time(status.start_time)
    counts = status.restarts
    out.print(
        f"[bold green]complete[/]: {total:,} steps in {duration(took)}; {plural(counts.failures, 'failure')}, "
        f"{plural(counts.disruptions, 'disruption')}, {plural(counts.resizes, 'resize')}, "
        f"{plural(status.plan_generation, 'plan generation')}"
    )
    if outcome.manifest is not None and status.ledger.epochs:
        console().print(proof_table(verdicts(status, outcome.manifest)))
    proven = status.condition("Proven")
    if proven is None or proven.status != "True":
        out.print(f"[bold yellow]not proven[/]: {proven.message if proven else 'no commit was made'}")
