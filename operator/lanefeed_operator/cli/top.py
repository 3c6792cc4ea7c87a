"""`lanefeed top`: which jobs starve and why.

Without a job: all jobs of the place, one a line. With one: a line for each of its pods, from two readings of the
sidecars' /metrics: what was read, how long trainers waited, and what the pod's pipeline spends its time on.
"""

import time
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.table import Table
from rich.text import Text

from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.cli import cluster
from lanefeed_operator.cli.choose import Context, Namespace, choose, in_cluster
from lanefeed_operator.cli.common import StateDir, console
from lanefeed_operator.cli.figures import Figures, Reading
from lanefeed_operator.cli.places import LocalPlace, Place
from lanefeed_operator.cli.watch import watch as watch_it
from lanefeed_operator.local.store import find, known_jobs, state_root
from lanefeed_operator.local.view import COLORS

__all__ = ["top"]

#: A share of waiting above this is worth a look, above the second one an alarm.
STALL_SEEN, STALL_BAD = 1.0, 5.0


def top(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Show this job's pods; default: all jobs.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw it anew until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two readings.", min=0.2)] = 2.0,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of the cluster.")] = False,
    state_dir: StateDir = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Show which jobs wait for data, or what each pod of one job does."""
    shown: _Shown
    if job is None:
        shown = _Jobs(state_dir, namespace, context, everywhere=all_namespaces)
    else:
        shown = pods = _Pods(choose(job, state_dir, namespace, context))
        pods.read()
        time.sleep(interval)
    out = console()
    if not watch:
        out.print(shown.table())
        return
    watch_it(out, lambda: (shown.table(), False), interval)


class _Shown(Protocol):
    def table(self) -> Table: ...


class _Jobs:
    """All jobs of a cluster's namespace, or of this machine's state folder."""

    def __init__(self, state_dir: Path | None, namespace: str | None, context: str | None, *, everywhere: bool) -> None:
        self._root = state_root(state_dir)
        self._api: cluster.ClusterApi | None = None
        self._namespace = ""
        local = known_jobs(self._root)
        if everywhere or in_cluster(namespace, context) or (not local and state_dir is None):
            self._api, own, _ = cluster.connect(context)
            self._namespace = "" if everywhere else namespace or own

    def _jobs(self) -> list[Job]:
        if self._api is not None:
            return cluster.jobs(self._api, self._namespace)
        return [LocalPlace(find(self._root, name)).job() for name in known_jobs(self._root)]

    def table(self) -> Table:
        """A line a job, the one that waits most first."""
        spaces = self._api is not None and not self._namespace
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in (["namespace"] if spaces else []) + ["job", "state"]:
            table.add_column(name)
        for name in ("ready", "epoch", "step", "done %", "steps/s", "waiting %", "last commit", "restarts"):
            table.add_column(name, justify="right")
        found = self._jobs()
        for job in sorted(found, key=lambda j: (-(j.status or Status()).stall_percent, j.metadata.name)):
            status = job.status or Status()
            head = [job.metadata.namespace] if spaces else []
            running = status.state == "Running"
            table.add_row(
                *head,
                job.metadata.name,
                Text(status.state, style=COLORS.get(status.state, "cyan")),
                f"{status.ready_replicas}/{status.replicas or job.spec.replicas}",
                str(status.cursor.epoch),
                f"{max(status.progress.consumed, status.cursor.total_step):,}",
                f"{status.progress.percent:.1f}",
                f"{status.progress.steps_per_second:.1f}" if running else "-",
                _stall(status.stall_percent) if running else "-",
                f"{status.cursor.total_step:,}",
                str(status.restarts.failures + status.restarts.disruptions),
            )
        if not found:
            table.add_row(*(["-"] * len(table.columns)))
        return table


class _Pods:
    """The pods of one job, between two readings of their metrics."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._before: dict[int, Reading] = {}
        self._now: dict[int, Reading] = {}

    def read(self) -> None:
        """Ask all pods."""
        at = time.monotonic()
        now = {index: Reading.parse(text, at) for index, text in self._place.metrics().items()}
        # Only what came: after an outage it is compared with the last reading.
        self._before, self._now = self._now, now

    def table(self) -> Table:
        """A line a pod."""
        self.read()
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("pod", "ranks", "step", "samples/s", "read MB/s", "slots free", "waiting %"):
            table.add_column(name, justify="right")
        table.add_column("what the pod spends its time on")
        for index in sorted(self._now):
            table.add_row(*_row(index, Figures.between(self._before.get(index), self._now[index])))
        if not self._now:
            table.add_row("-", *[""] * 6, "no sidecar answers: is the job running? `lanefeed status` says")
        return table


def _row(index: int, found: Figures) -> list[str | Text]:
    return [
        str(index),
        str(found.ranks),
        f"{found.step:,}",
        f"{found.samples_per_second:,.0f}",
        f"{found.read_bytes_per_second / 1e6:,.1f}",
        str(found.slots_free),
        _stall(found.stall_percent),
        found.verdict,
    ]


def _stall(percent: float) -> Text:
    style = "red" if percent > STALL_BAD else "yellow" if percent > STALL_SEEN else "green"
    return Text(f"{percent:.1f}", style=style)
