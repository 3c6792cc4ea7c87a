"""What a life of the stream has received, in order: frames on the rank's board, and events that came as messages.

Whoever takes an event (the training thread) looks at the board itself, so that a frame's way costs no other thread and
no message. The client's thread attaches the sessions one after another, puts what comes as messages, and at a session's
end takes what is left on its board. Everything here is in the order of the stream: frames that came before an event are
given before it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty

from lanefeed._arena.leases import Leases
from lanefeed._client.feed import Event, Failed, FrameCame
from lanefeed._client.session import Session
from lanefeed.errors import LanefeedError, SidecarError
from lanefeed_core.proto import lanefeed_pb2 as pb

__all__ = ["Inbox"]

#: A wait on the board looks again this often, in case a wake-up was missed.
LOOK_SECONDS = 0.2
#: A frame that was announced and is not there after so long will not come: the stream begins again with messages.
DOUBT_SECONDS = 5.0


class Inbox:
    """Thread safe; one thread takes."""

    def __init__(self, leases: Leases, start: int, doubt: Callable[[str], None]) -> None:
        """No session yet. `doubt` is called, at most once a session, where its board cannot be believed."""
        self._leases = leases
        self._doubt = doubt
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._events: deque[Event] = deque()
        self._session: Session | None = None
        self._over = False
        #: Total step after the last frame that was received, and number of the session's next frame.
        self.next_step = start
        self._number = 0
        self._heard = 0.0
        self._doubted = 0.0

    # ---- for the client's thread -------------------------------------------------------------------------------

    def attach(self, session: Session) -> None:
        """Frames come from this session from now on."""
        with self._lock:
            if self._over:
                return
            self._session, self._number, self._doubted = session, 0, 0.0
        self._bell.set()

    def detach(self) -> None:
        """The session is over: what it left on its board is taken into the inbox."""
        with self._lock:
            session = self._session
            self._drain(None)
            self._session = None
        if session is not None and session.board is not None:
            session.board.wake()

    def discard(self) -> None:
        """Nobody takes frames any more: those that wait are let go, and none is taken from a board.

        A life that ends would keep them, and with them their slots, until the collector comes by: the next life would
        have no slot to read into.
        """
        with self._lock:
            self._over, self._session = True, None
            self._events = deque(event for event in self._events if not isinstance(event, FrameCame))

    def frame(self, session: Session, frame: pb.Frame) -> None:
        """A frame came as a message. Raises LanefeedError where it is not the next one, or its slot holds another."""
        with self._lock:
            if self._over:
                return
            self._drain(frame.sequence)
            if session.board is not None and self._number < frame.sequence:
                self._doubt(f"frame {frame.sequence} came and number {self._number} is not whole")
                return
            self._events.append(self._came(session, frame))
        self._ring()

    def put(self, event: Event) -> None:
        """An event, after all frames that came before it."""
        with self._lock:
            self._drain(None)
            self._events.append(event)
        self._ring()

    def heard(self) -> tuple[float, str]:
        """When a frame was received last, and which."""
        return self._heard, f"frame {self._number - 1} up to step {self.next_step} was the last to come"

    def _ring(self) -> None:
        self._bell.set()
        session = self._session
        if session is not None and session.board is not None:
            session.board.wake()

    # ---- for whoever takes -------------------------------------------------------------------------------------

    def get_nowait(self, consumed: int | None = None) -> Event:
        """The next event; raises queue.Empty. `consumed`: the next step to consume, for the sidecar."""
        with self._lock:
            event = self._look(consumed)
        if event is not None:
            return event
        session = self._session
        if consumed is not None and session is not None and session.board is not None:
            session.board.say(consumed=consumed)
        raise Empty

    def get(self, timeout: float) -> Event:
        """The next event, within `timeout` seconds; raises queue.Empty."""
        end = time.monotonic() + timeout
        while True:
            session = self._session
            board = session.board if session is not None else None
            if board is not None:
                seen = board.published
            else:
                seen = 0
                self._bell.clear()
                if self._session is not session:
                    # One was attached, and its ring was cleared away.
                    continue
            with self._lock:
                event = self._look()
            if event is not None:
                return event
            left = end - time.monotonic()
            if left <= 0:
                raise Empty
            if board is None:
                self._bell.wait(left)
            else:
                board.wait(seen, min(left, LOOK_SECONDS))
                self._suspect(seen)

    def _look(self, consumed: int | None = None) -> Event | None:
        if self._events:
            return self._events.popleft()
        try:
            return self._from_board(consumed)
        except LanefeedError as error:
            self._session = None
            return Failed(error)

    def _from_board(self, consumed: int | None = None) -> FrameCame | None:
        session = self._session
        if session is None or session.board is None:
            return None
        frame = session.board.read(self._number)
        return self._came(session, frame, consumed) if frame is not None else None

    def _drain(self, before: int | None) -> None:
        """Take frames from the board, up to number `before`."""
        try:
            while before is None or self._number < before:
                came = self._from_board()
                if came is None:
                    return
                self._events.append(came)
        except LanefeedError as error:
            self._session = None
            self._events.append(Failed(error))

    def _came(self, session: Session, frame: pb.Frame, consumed: int | None = None) -> FrameCame:
        if frame.first_step != self.next_step or not frame.steps:
            raise SidecarError(
                f"the sidecar sent steps {frame.first_step}..{frame.first_step + frame.steps} and step "
                f"{self.next_step} is next: steps were left out or sent twice; this is a bug of Lanefeed, please "
                "report it"
            )
        if session.arena is None:
            raise SidecarError("a frame came before the arena was mapped")
        base = session.arena.slot(frame.slot, frame.sequence, frame.first_step)
        lease = self._leases.add(session.id, frame.slot, session.turn, session.board, frame.sequence)
        lease.watch(base)
        self.next_step += frame.steps
        self._number = frame.sequence + 1
        self._heard = time.monotonic()
        if session.board is not None:
            session.board.say(consumed=consumed, taken=self._number)
        return FrameCame(frame, base, lease)

    def _suspect(self, seen: int) -> None:
        """Nothing came while somebody waits: was there something that cannot be believed?"""
        if seen == self._number & 0xFFFFFFFF or self._session is None:
            self._doubted = 0.0
            return
        now = time.monotonic()
        self._doubted = self._doubted or now
        if now - self._doubted >= DOUBT_SECONDS:
            self._doubted = now
            self._doubt(
                f"{seen} frames were announced and the description of number {self._number} is not whole after "
                f"{DOUBT_SECONDS:.0f} s"
            )
