"""One life of one rank: from an attach to the next one, the end of its stream or of the session.

A filler thread takes a free slot, has the engine fill it and announces it: on the rank's board, where trainer and
machine have one, else as a message from the outbox, which the stream's handler (`messages`) sends, several frames at
once when several are ready. Slots come back the same way. A free slot is the only credit. Made by the hub, driven by
the service; knows gRPC only as messages.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.slots import SlotError, Slots, SlotState
from lanefeed_sidecar import failpoints
from lanefeed_sidecar.arena import Arena
from lanefeed_sidecar.arena.board import HELD, Board
from lanefeed_sidecar.errors import ProtocolMismatch, SidecarError
from lanefeed_sidecar.feed.messages import failure_message, frame_message
from lanefeed_sidecar.feed.seams import FeedEngine
from lanefeed_sidecar.feed.totals import Figures
from lanefeed_sidecar.pipeline.stats import Stats

__all__ = ["Life"]

log = logging.getLogger(__name__)

#: Waits wake up this often, so that a lost notification cannot hang a thread for good.
LOOK_SECONDS = 5.0
#: The same on a board, where the CPU may let a wake-up overtake the word that it is about.
BOARD_LOOK_SECONDS = 0.2

OnError = Callable[["Life", SidecarError], None]


class Life:
    """Slots, filler and outbox of one attached rank. Thread safe."""

    def __init__(
        self,
        rank: int,
        start: int,
        *,
        from_state: bool,
        resuming: bool,
        consumed: int = 0,
        pid: int = 0,
        slots: range,
        held: Iterable[int],
        arena: Arena,
        engine: FeedEngine,
        stats: Stats,
        on_error: OnError,
        board: Board | None = None,
    ) -> None:
        """Nothing runs before `begin`.

        Args:
            start: total step of the first batch.
            from_state: a checkpoint's state was loaded.
            resuming: the same trainer again; how far it consumed is known from its first Progress.
            consumed: with `resuming`, what is known of that.
            pid: the trainer's process, as it says.
            slots: this rank's slots of the arena.
            held: those of them that the trainer still reads from; they stay leased.
            on_error: called from the filler thread when it cannot go on.
            board: the rank's, where the trainer reads frames from it.
        """
        self.rank, self.start, self.from_state, self.resuming = rank, start, from_state, resuming
        self._consumed = consumed if resuming else start
        self.pid = pid
        #: The step after the last one that was signalled.
        self.delivered = start
        #: What the trainer has counted; and what another did, whom its process number made look the same.
        self.counted = self.others = Figures()
        self._before = 0.0
        self._heard = False
        self.streaming = self.end_sent = self.finished = False
        self._total = engine.total_steps
        self._base = slots.start
        self._slots = Slots(len(slots))
        self._arena, self._engine, self._stats, self._on_error = arena, engine, stats, on_error
        self._cond = threading.Condition()
        self._outbox: list[tuple[int, pb.Frame]] = []
        self._events: list[pb.ServerMessage] = []
        self._ending = False
        self._failed = False
        self._closed: SidecarError | None = None
        self._gone = False
        self._board = board
        #: Number of this life on the board, for the trainer; 0: it has none.
        self.board_life = board.begin() if board is not None else 0
        #: With a board: the frame in each slot that the trainer may hold.
        self._numbers: dict[int, int] = {}
        #: What was heard of `consumed` on the board last.
        self._told: int | None = None
        self._lease_held(slots, set(held))
        self._filler = threading.Thread(target=self._fill, name=f"fill-{rank}", daemon=True)

    def _lease_held(self, slots: range, held: set[int]) -> None:
        for slot in slots:
            self._arena.mark(slot, SlotState.FREE)
        for _ in slots:
            local = self._slots.take()
            if local is None:
                break
            if local + self._base in held:
                self._slots.publish(local)
                self._slots.lease(local)
                self._arena.mark(local + self._base, SlotState.LEASED)
                self._numbers[local] = HELD
        for local in reversed(range(len(self._slots))):
            if self._slots[local] == SlotState.FILLING:
                self._slots.abort(local)

    # ---- for the hub -------------------------------------------------------------------------------------------

    def counts_on(self, counted: Figures) -> None:
        """The trainer's process attached before and had counted this: it goes on from there."""
        self.counted, self._before = counted, counted.seconds

    def begin(self) -> None:
        """Start filling slots."""
        self._filler.start()

    def close(self, why: SidecarError | None = None) -> None:
        """End the stream (with `why` as its status) and the filler. Returns at once; `join` waits."""
        with self._cond:
            if self._gone:
                return
            self._gone, self._closed = True, why
            self.streaming = False
            self._wake()

    def join(self, seconds: float) -> bool:
        """Wait for the filler, so that the slots may be given to somebody else; whether it has ended."""
        if self._filler.ident is not None:
            self._filler.join(seconds)
        return not self._filler.is_alive()

    def fail(self, error: SidecarError) -> None:
        """Tell the trainer, then end the stream."""
        with self._cond:
            if self._failed or self._gone:
                return
            self._failed = True
            self._events.append(pb.ServerMessage(failure=failure_message(error)))
            self._cond.notify_all()

    def tell(self, message: pb.ServerMessage) -> None:
        """Send an event with the next frames."""
        with self._cond:
            if not self._gone:
                self._events.append(message)
                self._cond.notify_all()

    @property
    def alive(self) -> bool:
        """Neither replaced nor left by its trainer."""
        return not self._gone

    @property
    def consumed(self) -> int:
        """The next step to consume, as far as the trainer has told."""
        told = self._board.consumed if self._board is not None else None
        # What was never announced cannot be consumed.
        if told is not None and told != self._told and told <= max(self.delivered, self.start):
            self._told = self._consumed = told
        return self._consumed

    @property
    def ended(self) -> bool:
        """The trainer has consumed the whole stream, or says that it wants no more."""
        return self.finished or (self.end_sent and self.consumed >= self._total)

    @property
    def wait_seconds(self) -> float:
        """What the trainer has waited since it was started, as it says."""
        return self.counted.wait_seconds

    @property
    def step_seconds(self) -> float:
        """How long its own steps took since then."""
        return self.counted.step_seconds

    @property
    def seconds(self) -> float:
        """How long this life took, as far as the trainer has told."""
        return self.counted.seconds - self._before

    @property
    def figures(self) -> Figures:
        """What is to be added to those of former lives."""
        with self._cond:
            return self.others + self.counted

    def count(self, state: SlotState) -> int:
        """Number of slots in `state`."""
        with self._cond:
            self._look()
            return self._slots.count(state)

    def reached(self, step: int) -> None:
        """A commit says that the trainer consumed up to `step`."""
        with self._cond:
            self._consumed = max(self.consumed, step)

    # ---- from the trainer --------------------------------------------------------------------------------------

    def progress(self, message: pb.Progress) -> None:
        """Slots come back, steps were consumed. Raises ProtocolMismatch for a slot that is not leased."""
        with self._cond:
            try:
                for slot in message.released:
                    self._slots.release(slot - self._base)
                    self._numbers.pop(slot - self._base, None)
                    self._arena.mark(slot, SlotState.FREE)
            except SlotError as error:
                raise ProtocolMismatch(
                    f"rank {self.rank} released slot {slot}, which it may not ({error}): this trainer is not a "
                    "Lanefeed trainer of this version"
                ) from None
            finally:
                if message.released:
                    self._wake()
            # A step that was never sent cannot be consumed: the message tells where the trainer was before it attached.
            # On a board that word is newer than any message.
            if self._told is None and message.consumed <= max(self.delivered, self.start):
                self._consumed = message.consumed
            self._count(message)
            if message.finished and not self.finished:
                self.finished = True
                self._wake()

    def _count(self, message: pb.Progress) -> None:
        # A container that was started again often gives its trainer the number of the former one.
        if not self._heard and not self.counted.continued(message):
            self.others, self.counted, self._before = self.counted, Figures(), 0.0
        self._heard = True
        self.counted = self.counted.after(message)

    def _wake(self) -> None:
        """Under the lock: all that wait here look again."""
        self._cond.notify_all()
        if self._board is not None:
            self._board.wake()

    def _look(self) -> None:
        """Under the lock: what the board says of slots that the trainer has, or gave back."""
        board = self._board
        if board is None or not self._numbers or self._gone:
            return
        taken = board.taken
        # In the order of their frames, so that the slot that is reused first was looked at last.
        for local, number in sorted(self._numbers.items(), key=lambda item: item[1] if item[1] != HELD else -1):
            back = board.released(local, number)
            if self._slots[local] == SlotState.READY and (number < taken or back):
                self._slots.lease(local)
                self._arena.mark(local + self._base, SlotState.LEASED)
            if back:
                self._slots.release(local)
                self._arena.mark(local + self._base, SlotState.FREE)
                del self._numbers[local]

    # ---- to the trainer ----------------------------------------------------------------------------------------

    def messages(self) -> Iterator[pb.ServerMessage]:
        """What the stream sends, until it fails or is closed; raises what it was closed with."""
        while True:
            with self._cond:
                while not (self._outbox or self._events or self._ending or self._gone):
                    self._cond.wait(LOOK_SECONDS)
                if self._gone:
                    break
                batch = self._lease()
                events, self._events = self._events, []
                end = self._ending and not batch
                if end:
                    self._ending, self.end_sent = False, True
            if batch:
                failpoints.hit("server.before_signal")
                yield pb.ServerMessage(frames=batch)
            if end:
                yield pb.ServerMessage(end=True)
            for event in events:
                yield event
                if event.HasField("failure"):
                    return
        if self._closed is not None:
            raise self._closed

    def _lease(self) -> list[pb.Frame]:
        """All that is ready, now the trainer's."""
        ready, self._outbox = self._outbox, []
        for local, frame in ready:
            self._slots.lease(local)
            self._arena.mark(frame.slot, SlotState.LEASED)
            if self._board is not None:
                self._numbers[local] = frame.sequence
            self.delivered = frame.first_step + frame.steps
        return [frame for _, frame in ready]

    # ---- the filler --------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Thread: fill free slots until the end, an error, or `close`."""
        try:
            self._fill_all()
        except SidecarError as error:
            self._on_error(self, error)
        except Exception as error:
            # The supervisor's edge: a fault of ours must reach the trainer as an error, not as silence.
            log.exception("filling for rank %d failed", self.rank)
            self._on_error(self, SidecarError(f"internal error while assembling for rank {self.rank}: {error!r}"))

    def _fill_all(self) -> None:
        step, sequence = self.start, 0
        while (local := self._take()) is not None:
            slot = local + self._base
            self._arena.mark(slot, SlotState.FILLING)
            meta = None
            try:
                meta = self._engine.fill(self.rank, step, self._arena.view(slot), cancelled=self._cancelled)
                if meta is not None:
                    failpoints.hit("slot.mid_write")
            finally:
                if meta is None:
                    self._abort(local)
            if meta is None:
                break
            frame = frame_message(meta, slot, sequence)
            self._arena.publish(slot, sequence, meta.first_step)
            self._announce(local, frame)
            step, sequence = meta.first_step + meta.steps, sequence + 1
        if self.finished:
            # Nothing more is wanted: memory that was read ahead for this rank goes to the others.
            self._engine.forget(self.rank)
        with self._cond:
            self._ending = not self._gone
            self._cond.notify_all()

    def _announce(self, local: int, frame: pb.Frame) -> None:
        """The frame is whole: tell the trainer."""
        board, end = self._board, frame.first_step + frame.steps
        if board is None:
            with self._cond:
                self._slots.publish(local)
                self._outbox.append((local, frame))
                self._cond.notify_all()
            return
        before = self.delivered
        with self._cond:
            self._slots.publish(local)
            self._numbers[local] = frame.sequence
            # The trainer may read it, and commit, as soon as it is shown.
            self.delivered = end
        failpoints.hit("server.before_signal")
        if not board.announce(frame.sequence, frame.SerializeToString()):
            with self._cond:
                del self._numbers[local]
                self.delivered = before
                self._outbox.append((local, frame))
                self._cond.notify_all()

    def _take(self) -> int | None:
        """A free slot; None when closed. Waiting here is backpressure: the trainer is slower than we are."""
        begin, board = 0.0, self._board
        while not self._cancelled():
            seen = board.releases if board is not None else 0
            with self._cond:
                self._look()
                local = self._slots.take()
                if local is None and board is None and not self._cancelled():
                    begin = begin or time.monotonic()
                    self._cond.wait(LOOK_SECONDS)
                    local = self._slots.take()
            if local is not None:
                if begin:
                    self._stats.wait("fill", "slot", time.monotonic() - begin)
                return local
            if board is not None:
                begin = begin or time.monotonic()
                board.wait(seen, BOARD_LOOK_SECONDS)
        return None

    def _abort(self, local: int) -> None:
        with self._cond:
            self._slots.abort(local)
            self._arena.mark(local + self._base, SlotState.FREE)

    def _cancelled(self) -> bool:
        return self._gone or self.finished
