"""The loader: epochs, position, state and commits. What users hold; `connect` and `open` make it.

Moves no bytes and knows no wire: `Stream` gives batches, `Commits` commits, the `Feed` talks to the sidecar.
"""

import json
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from lanefeed import _sigterm
from lanefeed._batch import Batch
from lanefeed._client.feed import Commit, Feed, Hello
from lanefeed._commits import Commits
from lanefeed._stats import Stats
from lanefeed._stream import Stream
from lanefeed.errors import ForkError, NotConnected, PlanMismatch, UsageError, from_core
from lanefeed_core.cursor import Cursor, Part, SavedState
from lanefeed_core.errors import CoreError

__all__ = ["Loader"]

log = logging.getLogger("lanefeed")

#: One entry for each fork on the way to this process. Its id is a system call away: too far for every batch.
_forks: list[None] = []
os.register_at_fork(after_in_child=lambda: _forks.append(None))


class Loader:
    """This rank's batches, epoch by epoch.

    Iterating gives the rest of the current epoch, then the next call gives the next epoch. Leaving a loop early loses
    nothing: the next iteration goes on with the next batch. Nothing is attached before it is needed, so a state may be
    loaded at any time. Usable from any thread; one thread iterates at a time. Not usable after a fork.
    """

    def __init__(
        self,
        feed: Feed,
        stream: Stream,
        *,
        rank: int,
        world: int,
        adopt: Callable[[SavedState], bool] | None = None,
        reset: Callable[[], bool] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        """Called by `connect`, `open` and `lanefeed.testing`.

        `adopt` is told of a state before it is used, and says whether the stream is another one now. `reset` ends a
        sidecar of one's own that refuses a state because of what this process had read before, and says whether it
        did. `release` is called at the end.
        """
        self._feed = feed
        self._stream = stream
        self._commits = Commits(feed, stream, rank)
        self._adopt = adopt
        self._reset = reset
        #: Data-parallel rank and number of ranks.
        self.rank = rank
        self.world = world
        self._hello: Hello | None = None
        self._started = False
        self._state: SavedState | None = None
        self._closed = False
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _close, self._commits, stream, release, self._pid)

    # ---- reading -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch (of the whole stream, if it is Continuous)."""
        self._start()
        stream, progress = self._stream, self._stream.progress
        if progress.reads_ahead and progress.given > progress.consumed and self._was_dropped():
            stream.seek()
        if self._total and stream.progress.given >= self._total:
            log.warning("the stream has ended at step %d: there is nothing left to read", self._total)
        return _Epoch(self)

    def __bool__(self) -> bool:
        return True

    def _was_dropped(self) -> bool:
        if self._stream.dropped():
            return True
        spe = self._spe
        return self._stream.progress.marked and bool(self._stream.progress.given % spe)

    def epochs(self) -> Iterator[int]:
        """The numbers of the epochs that are left, from the current one on: `for epoch in loader.epochs(): for batch
        in loader: ...`. An epoch that the body leaves early comes again.

        Raises UsageError where the body reads no batch, since that would go on for ever.
        """
        self._start()
        while not self._total or self._given < self._total:
            before = self._given
            yield before // self._spe if self._aligned else 0
            if self._given == before:
                if self._stream.ended:
                    return
                raise UsageError(
                    f"the body of epochs() read no batch at step {before}: write `for batch in loader:` in it, and "
                    "break out of epochs() too when you want to stop"
                )

    def __len__(self) -> int:
        """Steps of a full epoch; of the whole stream, if it is Continuous. The same on every rank."""
        self._greet()
        length = self._spe if self._aligned else self._total
        if not length:
            raise TypeError("a Continuous stream without maxSteps has no length")
        return length

    # ---- where the trainer is ----------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Total steps consumed over all epochs; the batch in hand counts (see `lookahead`)."""
        if self._started:
            return self._stream.progress.consumed
        if self._state is None:
            return 0
        self._greet()
        return self._state.cursor.total_steps(self._spe)

    @property
    def total_steps(self) -> int:
        """Total step at which the stream ends; 0: never."""
        self._greet()
        return self._total

    @property
    def epoch(self) -> int:
        """Epoch of the batch that was given last; before the first one, of the next batch."""
        self._greet()
        if not self._aligned:
            return 0
        given = self._given
        if self._started and given > self._stream.proof.since:
            given -= 1
        return given // self._spe

    @property
    def last_commit(self) -> Commit | None:
        """What the control plane accepted last (step, name, plan_generation), or None. A restart loads that one."""
        self._greet()
        return self._feed.last_commit

    @property
    def plan_generation(self) -> int:
        """Number of the topology that this process belongs to; put it into checkpoint paths."""
        self._greet()
        return self._info.plan_generation

    @property
    def stop_requested(self) -> bool:
        """True once the step at which all ranks leave is consumed: save, commit, `raise lanefeed.Stopped`."""
        stop = self._feed.stop_at
        return _sigterm.alone() if stop is None else self.step >= stop.step

    @property
    def stop_reason(self) -> str:
        """Why a stop was asked for ("resize", "preemption", ...), or "" if none was."""
        stop = self._feed.stop_at
        if stop is None:
            return _sigterm.REASON if _sigterm.caught() else ""
        return stop.reason

    def stats(self) -> Stats:
        """Batches, seconds waited, seconds of the trainer's own steps, batches copied out."""
        return self._stream.stats()

    # ---- state and commits -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer is: plain values, a few hundred bytes, no collective, the same cursor on every rank.

        Any rank's state restores any rank of any world size. Counts batches as `lookahead` says.
        """
        self._check()
        if not self._started:
            if self._state is None:
                self._greet()
                return SavedState(self._info.manifest, self._info.spec, Cursor()).to_dict()
            return self._state.to_dict()
        taken = self._commits.taken = self._commits.snapshot()
        cursor = Cursor.from_total(taken.step, self._spe, aligned=self._aligned)
        part = Part(self.rank, self.world, self._stream.proof.since, taken.life)
        return SavedState(self._info.manifest, self._info.spec, cursor, part).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken: the next batch is the one after it. At any time, also before
        a sidecar is there.

        Raises StateMismatch for a state of another dataset, seed, size or version, with both values; at the latest
        when the first batch is asked for.
        """
        self._check()
        try:
            saved = SavedState.from_dict(state)
        except CoreError as error:
            raise from_core(error) from None
        if self._adopt is not None and self._adopt(saved):
            self._hello = None
        if self._hello is not None:
            self._check_state(saved)
        self._state = saved
        self._started = False
        self._commits.taken = None

    def commit(self, name: str | None = None) -> None:
        """The checkpoint with the state last taken by `state_dict()` is durable: from here on a restart starts there.

        Without a state taken since the last commit, the current position counts. `name` is handed back in
        `last_commit`. Blocks until the pod has it safe. From any thread: commits go out one at a time, and a state
        that is older than what is committed already is left alone. Raises CommitRefused if this process was
        replaced, SidecarLost if there is no sidecar to take it; called again, it means the same state.
        """
        self._start()
        self._commits.commit(name or "")

    def mark_consumed(self, batches: "int | Batch | None" = None) -> None:
        """Count by hand from here on: one more batch is consumed, or `batches` more, or all up to the batch given.

        For wrappers that touch batches ahead of time. Raises UsageError beyond what was handed out.
        """
        self._start()
        if isinstance(batches, Batch):
            self._stream.progress.mark_step(batches.step + 1)
        else:
            self._stream.progress.mark(1 if batches is None else batches)

    def finish(self) -> None:
        """This rank wants no more batches, though some may be left: it counts as ended, and what it consumed is
        committed.

        Called by `close()`, and at the end of the process, when the stream was consumed to its end.
        """
        self._start()
        self._commits.finish()

    # ---- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the sidecar; batches in hand stay valid. Idempotent, takes about a second at most."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # A failed trainer's last checkpoint may not be there: nothing is committed for it.
            self._commits.total = 0
        self.close()

    def __repr__(self) -> str:
        where = f"step {self._stream.progress.consumed}" if self._started else "not started"
        return f"<lanefeed.Loader rank {self.rank} of {self.world}, {where}>"

    # ---- inner life --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkError(
                f"this loader was made in process {self._pid} and used in its fork {os.getpid()}: its session stayed "
                "with the parent. A loader needs no workers: use lanefeed.torch.IterableDataset with num_workers=0, or "
                "start workers by multiprocessing.set_start_method('spawn') and connect in them"
            )
        if self._closed:
            raise NotConnected("the loader was closed: make a new one with lanefeed.connect() or lanefeed.open()")

    def _greet(self) -> None:
        """Know the stream, without starting it."""
        self._check()
        if self._hello is None:
            self._know(self._feed.peek())

    def _start(self) -> None:
        """Attach at the loaded state, or at the start."""
        self._check()
        if self._started:
            return
        if self._hello is not None and self._state is not None:
            self._check_state(self._state)
        text = json.dumps(self._state.to_dict()) if self._state else ""
        try:
            hello = self._stream.start(text)
        except PlanMismatch:
            if self._reset is None or not self._reset():
                raise
            hello = self._stream.start(text)
        self._know(hello)
        self._started = True
        last = hello.last_commit
        # The end's commit has the name of the checkpoint before it (`Commits.finish`).
        steps = (hello.start, self._total)
        self._commits.checkpoint = last.name if self._state and last and last.step in steps else ""
        if self._state is None and hello.start == 0 and last is not None and last.step:
            log.warning(
                "rank %d starts at step 0 although %r was committed at step %d: load that checkpoint, with its loader "
                "state, unless you mean to begin anew",
                self.rank,
                last.name,
                last.step,
            )
        self._state = None

    def _know(self, hello: Hello) -> None:
        self._hello = hello
        self._commits.total = self._total
        self._commits.steps_per_epoch = self._spe if self._aligned else 1 << 62

    def _check_state(self, state: SavedState) -> None:
        try:
            state.check(manifest=self._info.manifest, spec=self._info.spec, steps_per_epoch=self._info.steps_per_epoch)
        except CoreError as error:
            raise from_core(error) from None

    @property
    def _info(self) -> Any:
        assert self._hello is not None  # noqa: S101 - callers have greeted
        return self._hello.info

    @property
    def _aligned(self) -> bool:
        return bool(self._info.spec.aligned)

    @property
    def _spe(self) -> int:
        return int(self._info.steps_per_epoch)

    @property
    def _total(self) -> int:
        return int(self._info.total_steps)

    @property
    def _given(self) -> int:
        if self._started:
            return self._stream.progress.given
        return self._state.cursor.total_steps(self._spe) if self._state else 0

    def _epoch_stop(self) -> int:
        """Total step at which this iteration ends; 0: at the stream's end."""
        if not self._aligned:
            return self._total
        stop = (self._stream.progress.given // self._spe + 1) * self._spe
        return min(stop, self._total) if self._total else stop


def _close(commits: Commits, stream: Stream, release: Callable[[], None] | None, pid: int) -> None:
    """The loader's end: by close(), by the collector or at the interpreter's exit; never in a forked child."""
    if os.getpid() != pid:
        return
    commits.last_words()
    stream.close()
    if release is not None:
        release()


class _Epoch:
    """One iteration: up to the end of the epoch that was current when it began. Keeps no batch."""

    __slots__ = ("_forks", "_loader", "_stop", "_take")

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._forks = len(_forks)
        self._take = loader._stream.take
        self._stop = loader._epoch_stop()

    def __iter__(self) -> "_Epoch":
        return self

    def __next__(self) -> Batch:
        loader = self._loader
        if len(_forks) != self._forks or loader._closed:
            loader._check()
        if not loader._started:
            # Another state was loaded meanwhile: go on there.
            loader._start()
            self._stop = loader._epoch_stop()
        batch = self._take(self._stop)
        if batch is None:
            loader._feed.nudge()
            raise StopIteration
        return batch
