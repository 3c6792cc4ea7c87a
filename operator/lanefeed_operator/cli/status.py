"""`lanefeed status`: how a job stands, here or in a cluster."""

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.cli.choose import Context, Namespace, choose
from lanefeed_operator.cli.common import JobArgument, StateDir, console
from lanefeed_operator.cli.places import LocalPlace, Place
from lanefeed_operator.cli.watch import watch as watch_it
from lanefeed_operator.local.view import COLORS

__all__ = ["status"]

#: Of a state folder, and of a cluster.
WATCH_SECONDS = 0.5
CLUSTER_WATCH_SECONDS = 2.0


class Output(StrEnum):
    """Form of the output."""

    TABLE = "table"
    YAML = "yaml"


def status(
    job: JobArgument,
    output: Annotated[Output, typer.Option("--output", "-o", help="yaml: the whole object.")] = Output.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw it anew until the job is over.")] = False,
    state_dir: StateDir = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Show how a job stands: state, step, ranks, conditions."""
    place = choose(job, state_dir, namespace, context)
    out = console()
    if output is Output.YAML:
        print(place.text(), end="")
        return
    if not watch:
        out.print(picture(place, place.job()))
        return
    pause = WATCH_SECONDS if isinstance(place, LocalPlace) else CLUSTER_WATCH_SECONDS
    watch_it(out, lambda: _drawn(place), pause)


def _drawn(place: Place) -> tuple[Group, bool]:
    """(the job's picture, whether the job is over)."""
    found = place.job()
    return picture(place, found), found.status is not None and found.status.terminal


def picture(place: Place, job: Job) -> Group:
    """The job as text and tables."""
    now = job.status or Status()
    parts: list[Text | Table] = [_facts(place, job, now)]
    if now.progress.ranks:
        parts.append(_ranks(now))
    if now.conditions:
        parts.append(_conditions(now))
    if now.quarantined:
        parts.append(Text("quarantined:\n  " + "\n  ".join(now.quarantined), style="yellow"))
    return Group(*parts)


def _facts(place: Place, job: Job, now: Status) -> Table:
    grid = Table.grid(padding=(0, 2))
    where = place.facts()
    where = [fact for fact in where if fact[0] != "runner" or not now.terminal]
    total = now.stream.total_steps if now.stream else 0
    at = max(now.progress.consumed, now.cursor.total_step)
    rows: list[tuple[str, str | Text]] = [
        ("job", Text(job.metadata.name, style="bold")),
        ("state", Text(now.state, style=COLORS.get(now.state, "cyan"))),
        ("pods", f"{now.ready_replicas} ready of {now.replicas}, {job.spec.replicas} wanted"),
        ("plan", f"generation {now.plan_generation} from step {now.plan.start} ({now.plan.reason or 'none yet'})"),
        ("step", f"{at:,} of {total:,} ({100 * at / total:.1f} %)" if total else "-"),
        ("last commit", f"step {now.cursor.total_step:,} {now.cursor.commit}".rstrip()),
        ("epochs proven", str(now.ledger.verified)),
        (
            "restarts",
            f"{now.restarts.failures} failures, {now.restarts.disruptions} disruptions, "
            f"{now.restarts.resizes} resizes, {now.restarts.interrupted} exits too early",
        ),
        *where,
    ]
    for name, value in rows:
        grid.add_row(Text(name, style="dim"), value)
    return grid


def _ranks(now: Status) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("rank", "step", "waiting %"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for rank in now.progress.ranks:
        word = "done" if rank.ended else "trains" if rank.attached else "away"
        table.add_row(str(rank.rank), f"{rank.consumed:,}", f"{rank.stall_percent:.1f}", word)
    return table


def _conditions(now: Status) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("condition", "is", "reason", "message"):
        table.add_column(name, overflow="fold")
    for condition in now.conditions:
        table.add_row(condition.type, condition.status, condition.reason, condition.message)
    return table
