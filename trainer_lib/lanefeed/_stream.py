"""Turns a feed's frames into batches, in order: the loader's engine.

`Loader` calls `take` for each batch. This module knows frames, copies, the device, stall accounting and the proof; it
knows nothing of epochs, states and commits. `take` does no RPC: it cuts the current frame or takes the next event from
a queue.
"""

import logging
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Any

import numpy as np

from lanefeed import _sigterm
from lanefeed._arena.frame import Frame, Layout, frame_end, host_cut
from lanefeed._batch import Batch, make
from lanefeed._client.feed import End, Event, Feed, FrameCame, Hello
from lanefeed._device.copier import Copy, FrameCopier
from lanefeed._device.frame import device_frame
from lanefeed._progress import Progress
from lanefeed._proof import EvenSums, FrameSums, Proof
from lanefeed._stats import Counters, Stats
from lanefeed.errors import LanefeedError, NotConnected, SidecarError, SidecarLost
from lanefeed_core.proto import lanefeed_pb2 as pb

__all__ = ["KeptBatchesWarning", "Stream"]

log = logging.getLogger("lanefeed")

#: A line says what the trainer waits for this often.
WORD_SECONDS = 10.0


class KeptBatchesWarning(UserWarning):
    """Kept batches hold nearly all slots, so further ones are copied out of shared memory."""


class Stream:
    """One rank's batches, from `start` on. `take` may be called from any thread, one at a time (it locks)."""

    def __init__(
        self,
        feed: Feed,
        *,
        world: int,
        wrap: Callable[[Any], Any] | None,
        copier: FrameCopier | None,
        stall_seconds: float,
        lookahead: str,
    ) -> None:
        """`wrap` makes tensors of arrays (None: NumPy); `stall_seconds` is how long a silent sidecar is waited for."""
        self._feed = feed
        self._world = world
        self._wrap = wrap
        self._copier = copier
        self._stall_seconds = stall_seconds
        self._lock = threading.Lock()
        self._layout = Layout(())
        self._slots = 0
        self._leases: deque[Any] = deque()
        self._frame: Frame | None = None
        #: The next frame, taken from the feed and not opened yet, with its copy to the device once that has begun: an
        #: exception on the way loses nothing, the next call goes on with it. Then the one after it (device only).
        self._pending: tuple[FrameCame, Copy | None] | None = None
        self._ahead: tuple[FrameCame, Copy | None] | None = None
        self._recent: deque[tuple[int, weakref.ref[Batch]]] = deque(maxlen=64)
        self._ended = False
        self._error: LanefeedError | None = None
        self._closed = False
        self._warned = False
        #: Since when time counts as the trainer's own; 0: nothing was given yet, or the stream has ended.
        self._since = 0.0
        self.counters = Counters()
        self.progress = Progress(lookahead)
        self.proof = Proof(0)

    # ---- lives -------------------------------------------------------------------------------------------------

    def start(self, state_json: str) -> Hello:
        """Attach at a state ("": the start of the job) and forget what was received before."""
        with self._lock:
            self._frame = self._pending = self._ahead = None
            hello = self._feed.start(state_json, self.report)
            self._layout = Layout(hello.info.columns)
            self._slots = hello.slots
            self.progress = self.progress.again(hello.start)
            self.proof = Proof(hello.start)
            self._ended = self.finished = False
            self._error = None
            self._since = 0.0
            self._recent.clear()
            return hello

    def seek(self) -> None:
        """Begin again at the consumed step: what was given beyond it was dropped by whoever read ahead."""
        with self._lock:
            step = self.progress.consumed
            self._frame = self._pending = self._ahead = None
            self._feed.seek(step)
            self.proof.rewind(step)
            self.progress = self.progress.again(step)
            self._ended = False
            self._error = None
            self._recent.clear()

    def dropped(self) -> bool:
        """Whether batches were given, not consumed, and are all gone: nobody can train on them any more."""
        progress = self.progress
        ahead = [ref() for step, ref in self._recent if step >= progress.consumed]
        return progress.given > progress.consumed and not any(batch is not None for batch in ahead)

    def report(self) -> pb.Progress:
        """The Progress message of this moment; called by the feed's writer."""
        counters = self.stats()
        return pb.Progress(
            consumed=self.progress.consumed,
            wait_seconds=counters.wait_seconds,
            step_seconds=counters.step_seconds,
            copied_batches=counters.copied,
            finished=self.finished,
            stop_wanted=_sigterm.caught(),
        )

    def stats(self) -> Stats:
        """Figures of this moment."""
        since = self._since
        return self.counters.stats(time.monotonic() - since if since else 0.0)

    #: Set by `Loader.finish`.
    finished = False

    @property
    def ended(self) -> bool:
        """The feed has said that no frame follows those given, and none is in hand."""
        return self._ended and self._frame is None and self._pending is None and self._ahead is None

    def close(self) -> None:
        """No batch follows; batches in hand stay valid."""
        self._closed = True
        self._frame = self._pending = self._ahead = None
        self._feed.wake(NotConnected("the loader was closed"))
        if self._copier is not None:
            self._copier.drain()
        self._feed.close()

    # ---- the hot path ------------------------------------------------------------------------------------------

    def take(self, stop: int) -> Batch | None:
        """The next batch, or None at total step `stop` (0: no stop) or at the stream's end.

        Raises SidecarLost after a silence, or the error that ended the stream. After any other exception (no memory,
        a warning that is an error) the next call gives the very batch that this one did not.
        """
        # What is not touched here need not be fetched into the CPU's caches, which a training step has filled with
        # its own: the clock is asked once a frame.
        with self._lock:
            progress = self.progress
            step = progress.given
            if stop and step >= stop:
                return None
            frame = self._frame
            if frame is None:
                frame = self._next_frame()
                if frame is None:
                    return None
            batch = make(frame, step - frame.first, step, progress)
            if progress.reads_ahead:
                self._recent.append((step, weakref.ref(batch)))
            # Nothing fails from here on: the batch counts as given only if it is.
            if step + 1 == frame.first + frame.steps:
                self._frame = None
            progress.given = step + 1
            self.counters.batches += 1
            return batch

    # ---- frames ------------------------------------------------------------------------------------------------

    def _next_frame(self) -> Frame | None:
        if self._since:
            self.counters.step_seconds += time.monotonic() - self._since
            self._since = 0.0
        frame = self._device_frame() if self._copier is not None else self._host_frame()
        self._frame = frame
        self._pending = None
        if frame is not None:
            self._since = time.monotonic()
        return frame

    def _next(self) -> tuple[FrameCame, Copy | None] | None:
        """What is pending: from an earlier call, from the look ahead, or the feed's next frame; None at the end."""
        # `close` may take it away at any time.
        pending = self._pending
        if pending is None:
            pending = self._pending = self._ahead
            self._ahead = None
        if pending is None:
            event = self._frame_event()
            if event is None:
                return None
            pending = self._pending = event, None
        self._check(pending[0].message)
        return pending

    def _host_frame(self) -> Frame | None:
        pending = self._next()
        if pending is None:
            return None
        came, _ = pending
        # A lease that was dropped: it was copied out before an exception.
        if came.lease.alive and self._starved(came.lease.session):
            came = self._copied_out(came)
        cut = host_cut(came.base, self._wrap)
        frame = Frame(came.message, self._layout, cut, cut, self._world)
        self.proof.add(_sums(came.message), self.progress.consumed)
        self._leases.append(came.lease)
        return frame

    def _device_frame(self) -> Frame | None:
        copier = self._copier
        assert copier is not None  # noqa: S101 - the caller has looked
        copier.poll()
        pending = self._next()
        if pending is None:
            return None
        came, copy = pending
        if copy is None:
            copy = self._submit(came)
            self._pending = came, copy
        self._look_ahead()

        ids = came.message.ids_offset
        host_ids = came.base[ids : ids + 8 * came.message.steps * came.message.rows].copy()
        inner = host_cut(host_ids, self._wrap)

        def host(offset: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
            return inner(offset - ids, dtype, shape)

        frame = device_frame(came.message, self._layout, copier.device, copy, host, self._world)
        self.proof.add(_sums(came.message), self.progress.consumed)
        return frame

    def _look_ahead(self) -> None:
        """Start to copy the next frame if it is there."""
        if self._ahead is not None:
            return
        try:
            event = self._feed.inbox.get_nowait()
        except Empty:
            return
        came = self._sort_out(event, peeked=True)
        if came is None:
            return
        self._ahead = came, None
        try:
            self._ahead = came, self._submit(came)
        except (MemoryError, RuntimeError) as error:
            # CUDA's want of memory is a RuntimeError. It is copied when it is needed: then there may be room, or else
            # that call fails.
            log.debug("step %d cannot be copied ahead: %s", came.message.first_step, error)

    def _submit(self, came: FrameCame) -> Copy:
        assert self._copier is not None  # noqa: S101
        return self._copier.submit(came.base[: frame_end(came.message, self._layout)])

    def _check(self, message: pb.Frame) -> None:
        """Raises SidecarError, from here on, where the frame is not the next one."""
        if message.first_step != self.progress.given:
            self._pending = self._ahead = None
            self._error = SidecarError(
                f"the next frame begins at step {message.first_step} and step {self.progress.given} is next: a frame "
                "was lost or came twice; this is a bug of Lanefeed, please report it"
            )
            raise self._error

    # ---- kept batches ------------------------------------------------------------------------------------------

    def _starved(self, session: str) -> bool:
        """Whether frames that were given and are still looked at leave too few slots.

        All but two may be kept, and the frame before this one, whose last batch is normally still in hand, is none
        of them; but one slot must be left in any case, or nothing would ever come again.
        """
        # Batches of a lost session's arena take no slot of this one.
        kept = self._leases = deque(lease for lease in self._leases if lease.alive and lease.session == session)
        older = len(kept) - 1
        return len(kept) >= self._slots - 1 or (self._slots > 2 and older >= self._slots - 2)

    def _copied_out(self, came: FrameCame) -> FrameCame:
        base = came.base[: frame_end(came.message, self._layout)].copy()
        came = FrameCame(came.message, base, came.lease)
        self._pending = came, None
        came.lease.drop()
        self.counters.copied += came.message.steps
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"kept batches hold {len(self._leases)} of this rank's {self._slots} slots: further batches are copied "
                "out of shared memory (slower, never wrong). Keep clones (tensor.clone()) of the few that you need, or "
                "raise sidecar.slots",
                KeptBatchesWarning,
                stacklevel=2,
            )
        return came

    # ---- waiting -----------------------------------------------------------------------------------------------

    def _frame_event(self) -> FrameCame | None:
        """The next frame, or None at the end. Waits."""
        if self._closed:
            raise NotConnected("the loader was closed: make a new one")
        if self._error is not None:
            raise self._error
        if self._ended:
            return None
        inbox = self._feed.inbox
        try:
            event = inbox.get_nowait(self.progress.consumed)
        except Empty:
            event = self._wait()
        return self._sort_out(event)

    def _sort_out(self, event: Event, *, peeked: bool = False) -> FrameCame | None:
        if isinstance(event, FrameCame):
            return event
        if isinstance(event, End):
            self._ended = True
            return None
        # For every later call too: an error does not turn into a wait.
        self._error = event.error
        if peeked:
            # Frames in hand come first.
            return None
        raise self._error

    def _wait(self) -> Event:
        if self._copier is not None:
            self._copier.drain()
        began = said = time.monotonic()
        try:
            while True:
                try:
                    return self._feed.inbox.get(timeout=WORD_SECONDS if self._stall_seconds > WORD_SECONDS else 0.25)
                except Empty:
                    said = self._say(began, said)
        finally:
            self.counters.wait_seconds += time.monotonic() - began

    def _say(self, began: float, said: float) -> float:
        """A line every 10 s; SidecarLost once the sidecar was silent for too long while somebody waits."""
        if self._closed:
            raise NotConnected("the loader was closed while it waited for a batch")
        now = time.monotonic()
        heard, word = self._feed.heard()
        silent = now - max(began, heard)
        what = f"step {self.progress.given}: waiting for {now - began:.0f} s; {word} ({now - heard:.0f} s ago)"
        if silent >= self._stall_seconds:
            raise SidecarLost(
                f"no word from the sidecar for {silent:.0f} s. {what}. Look at the sidecar's log; stall_timeout= sets "
                "how long to wait"
            )
        if now - said >= WORD_SECONDS - 0.5:
            log.warning("%s", what)
            return now
        return said


def _sums(message: pb.Frame) -> FrameSums | EvenSums:
    if message.epoch_sums:
        steps: list[list[tuple[int, int, int]]] = [[] for _ in range(message.steps)]
        for entry in message.epoch_sums:
            steps[entry.step].append((entry.epoch, entry.count, entry.total))
        return FrameSums(message.first_step, tuple(map(tuple, steps)))
    return EvenSums(message.first_step, message.epoch, message.samples, message.sums)
