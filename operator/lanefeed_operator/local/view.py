"""What a person sees of a run: a live picture on a terminal, one line an event anywhere else (CI, files).

Reads, never decides. Written to stderr; stdout is left to results.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status, StreamStatus
from lanefeed_operator.local.slots import SlotWatch
from lanefeed_operator.reconcile.types import Children, FeedView, RankView

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "Scene", "changes", "duration", "make_display", "plural"]

#: A progress line of the plain display comes this often.
PLAIN_SECONDS = 10.0
LIVE_SECONDS = 0.25
MAX_RANKS_SHOWN = 16
COLORS = {"Running": "green", "Complete": "green", "Failed": "red", "Suspended": "yellow"}


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything there is to show at one moment."""

    job: Job
    status: Status
    feed: FeedView
    children: Mapping[int, Children]
    #: Pod index -> host:port of its sidecar's /metrics.
    addresses: Mapping[int, str] = field(default_factory=dict)

    @property
    def current(self) -> Children | None:
        """The present plan's pods."""
        return self.children.get(self.status.plan_generation)

    @property
    def ranks(self) -> list[RankView]:
        """The present plan's ranks, by number."""
        if self.feed.plan_generation != self.status.plan_generation:
            return []
        return [self.feed.ranks[rank] for rank in sorted(self.feed.ranks)]

    @property
    def step(self) -> int:
        """The slowest rank's total step, or the last commit's."""
        ranks = self.ranks
        return min((view.consumed for view in ranks), default=0) or self.feed.last_step or self.status.cursor.total_step


class Display(Protocol):
    """Where a run is shown."""

    def event(self, text: str) -> None:
        """Something happened."""

    def changed(self, before: Status, after: Status) -> None:
        """The status was written."""

    def show(self, scene: Scene) -> None:
        """The present picture; called often."""

    def close(self) -> None:
        """The run is over."""


def changes(before: Status, after: Status) -> list[str]:
    """What a change of the status means, in words; progress left out."""
    found = []
    if after.stream is not None and before.stream is None:
        s = after.stream
        found.append(
            f"dataset {s.manifest[:8]}: {s.rows:,} samples, {s.steps_per_epoch:,} steps an epoch, {s.lanes} lanes, "
            f"windows of {s.window:,} rows"
        )
    found += [f"quarantined: {entry}" for entry in after.quarantined if entry not in before.quarantined]
    if after.plan_generation != before.plan_generation:
        found.append(
            f"plan generation {after.plan_generation}: {plural(after.plan.replicas, 'pod')} x "
            f"{plural(after.plan.ranks_per_replica, 'rank')} from step {after.plan.start} ({after.plan.reason})"
        )
    found += _stop_changes(before, after)
    old = {e.epoch for e in before.ledger.epochs}
    for e in after.ledger.epochs:
        if e.epoch not in old:
            word = "proven" if e.verified else "NOT proven"
            found.append(f"epoch {e.epoch} {word}: {e.samples:,} samples, digest {e.digest or '-'}")
    found += _troubles(before, after)
    if after.state != before.state:
        found.append(f"job is {after.state}{_why(after)}")
    return found


def _troubles(before: Status, after: Status) -> list[str]:
    """Conditions that turned bad, or say something else now; their messages say what to do."""
    found = []
    for kind, bad in (("SpecValid", "False"), ("DatasetReady", "False"), ("Degraded", "True")):
        new, old = after.condition(kind), before.condition(kind)
        told = old is not None and (old.status, old.message) == (bad, new.message if new else "")
        if new is not None and new.status == bad and not told:
            found.append(f"{new.reason}: {new.message}")
    return found


def _stop_changes(before: Status, after: Status) -> list[str]:
    """A stop that was asked for, and its end."""
    stop, old = after.stop, before.stop
    if stop is None:
        return []
    found = []
    if old is None and not stop.done:
        found.append(f"{stop.reason}: all ranks are asked to write a checkpoint and leave at step {stop.step}")
    if stop.done and (old is None or not old.done):
        outcome = {"Committed": "all ranks have committed", "GraceOver": "the grace time is over"}.get(stop.outcome)
        outcome = outcome or {"AllLeft": "all ranks have left"}.get(stop.outcome, "nothing runs")
        found.append(f"{stop.reason}: {outcome}; last commit at step {after.cursor.total_step}")
    return found


def _why(status: Status) -> str:
    """The condition behind a state; a failure's own words come at the end of the run."""
    if status.state not in ("Suspended", "Complete"):
        return ""
    condition = status.condition(status.state)
    return f": {condition.message}" if condition else ""


def plural(number: int, word: str) -> str:
    """1 resize, 2 resizes."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """12s, 3m05s, 2h04m."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m{int(seconds % 60):02d}s"
    return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02d}m"


class PlainDisplay:
    """One line an event."""

    def __init__(self) -> None:
        """Nothing was shown yet."""
        self._next = 0.0
        self._last = ""

    def event(self, text: str) -> None:
        """See Display."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        sys.stderr.flush()

    def changed(self, before: Status, after: Status) -> None:
        """See Display."""
        for text in changes(before, after):
            self.event(text)

    def show(self, scene: Scene) -> None:
        """A line of progress now and then, if there was any."""
        now = time.monotonic()
        stream = scene.status.stream
        if stream is None or now < self._next:
            return
        self._next = now + PLAIN_SECONDS
        text = _progress_words(scene)
        if text != self._last and scene.ranks:
            self._last = text
            self.event(text)

    def close(self) -> None:
        """See Display."""


def _progress_words(scene: Scene) -> str:
    step, total = scene.step, scene.status.stream.total_steps if scene.status.stream else 0
    stall = max((view.stall_percent for view in scene.ranks), default=0.0)
    words = f"step {step:,}/{total:,} ({100 * step / max(1, total):.0f} %), {scene.feed.rate:.1f} steps/s"
    if scene.feed.rate > 0:
        words += f", {duration((total - step) / scene.feed.rate)} left"
    return f"{words}, waiting for data {stall:.1f} % at most, last commit at step {scene.feed.last_step:,}"


class LiveDisplay:
    """A picture that is drawn anew, with events as lines above it."""

    def __init__(self, console: Console) -> None:
        """Begin to draw on `console`."""
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()
        self._next = 0.0
        self._rates: dict[int, tuple[float, int, float]] = {}
        self._slots = SlotWatch()
        self._scene: Scene | None = None

    def event(self, text: str) -> None:
        """See Display."""
        line = Text(time.strftime("%H:%M:%S "), style="dim")
        line.append(text, style=_style(text))
        self._console.print(line)

    def changed(self, before: Status, after: Status) -> None:
        """See Display."""
        for text in changes(before, after):
            self.event(text)
        if before.state != after.state:
            self._next = 0.0

    def show(self, scene: Scene) -> None:
        """See Display."""
        self._scene = scene
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LIVE_SECONDS
        self._slots.watch(scene.addresses)
        self._live.update(self._picture(scene, now), refresh=True)

    def close(self) -> None:
        """Draw the last picture and leave it there."""
        if self._scene is not None:
            self._live.update(self._picture(self._scene, time.monotonic()), refresh=True)
        self._live.stop()
        self._slots.close()

    # ---- the picture -------------------------------------------------------------------------------------------

    def _picture(self, scene: Scene, now: float) -> Group:
        parts: list[Text | Table] = [self._head(scene)]
        if scene.status.stream is not None:
            parts.append(self._bar(scene, scene.status.stream))
        if scene.ranks and not scene.status.terminal:
            parts.append(self._table(scene, now))
        return Group(*parts)

    def _head(self, scene: Scene) -> Text:
        status, children = scene.status, scene.current
        head = Text()
        head.append(scene.job.metadata.name, style="bold")
        head.append("  ")
        head.append(status.state, style=f"bold {COLORS.get(status.state, 'cyan')}")
        if status.plan_generation:
            head.append(f"  plan generation {status.plan_generation}")
        if children is not None and not status.terminal:
            head.append(f", {children.ready}/{children.replicas} pods ready")
            head.append(f", {len(children.succeeded)} done" if children.succeeded else "")
        counts = status.restarts
        parts = [
            plural(number, word)
            for number, word in (
                (counts.failures, "failure"),
                (counts.disruptions, "disruption"),
                (counts.resizes, "resize"),
            )
            if number
        ]
        if parts:
            head.append(f"  ({', '.join(parts)})", style="dim")
        return head

    def _bar(self, scene: Scene, stream: StreamStatus) -> Table:
        step, total = scene.step, max(1, stream.total_steps)
        grid = Table.grid(padding=(0, 1))
        epoch = min(step // max(1, stream.steps_per_epoch), max(0, scene.job.spec.epochs - 1))
        rate = scene.feed.rate
        left = duration((total - step) / rate) if rate > 0 else "-"
        rows = f"{rate * stream.global_batch_size:,.0f} samples/s"
        grid.add_row(
            f"epoch {epoch + 1}/{scene.job.spec.epochs}" if stream.boundary == "Aligned" else "steps",
            ProgressBar(total=total, completed=step, width=32),
            f"{step:,}/{total:,}",
            f"{rate:.1f} steps/s",
            rows,
            f"{left} left" if not scene.status.terminal else "",
            Text(f"commit {scene.feed.last_step:,}", style="dim"),
        )
        return grid

    def _table(self, scene: Scene, now: float) -> Table:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("rank", "pod", "step", "batches/s", "waiting %", "slots free"):
            table.add_column(name, justify="right")
        table.add_column("state")
        ranks = scene.ranks
        for view in ranks[:MAX_RANKS_SHOWN]:
            stall = Text(f"{view.stall_percent:.1f}", style="red" if view.stall_percent > 5 else "")
            table.add_row(
                str(view.rank),
                str(view.pod_index),
                f"{view.consumed:,}",
                f"{self._rate(view, now):.1f}",
                stall,
                self._slots.text(view.pod_index, view.rank),
                _rank_state(view),
            )
        if len(ranks) > MAX_RANKS_SHOWN:
            table.add_row("...", "", "", "", "", "", f"{len(ranks) - MAX_RANKS_SHOWN} more: lanefeed status")
        return table

    def _rate(self, view: RankView, now: float) -> float:
        """Batches a second of the rank, over about the last two seconds."""
        at, consumed, rate = self._rates.get(view.rank, (now, view.consumed, 0.0))
        if now - at >= 2.0 or view.consumed < consumed:
            rate = max(0.0, (view.consumed - consumed) / max(1e-6, now - at))
            at, consumed = now, view.consumed
        elif rate == 0.0 and now - at > 0.5:
            rate_now = max(0.0, (view.consumed - consumed) / (now - at))
            self._rates[view.rank] = (at, consumed, 0.0)
            return rate_now
        self._rates[view.rank] = (at, consumed, rate)
        return rate


def _rank_state(view: RankView) -> Text:
    if view.ended:
        return Text("done", style="green")
    return Text("trains", style="green") if view.attached else Text("away", style="yellow")


def _style(text: str) -> str:
    if "Failed" in text or "NOT" in text or "gives up" in text:
        return "red"
    if "replaced" in text or "restarted" in text or "ended" in text:
        return "yellow"
    return "green" if "proven" in text or "Complete" in text else ""


def make_display() -> LiveDisplay | PlainDisplay:
    """Live on a terminal, else plain."""
    console = Console(stderr=True)
    return LiveDisplay(console) if console.is_terminal else PlainDisplay()
