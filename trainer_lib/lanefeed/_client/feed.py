"""What a loader needs of whoever feeds it: the seam between `Stream` and the gRPC client (or `lanefeed.testing`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lanefeed._arena.leases import Lease
from lanefeed.errors import LanefeedError
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.wire import StreamInfo

__all__ = ["Commit", "End", "Event", "Events", "Failed", "Feed", "FrameCame", "Hello", "Reporter", "StopAt"]


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that the control plane has accepted: total step, name, plan generation."""

    step: int
    name: str
    plan_generation: int


@dataclass(frozen=True, slots=True)
class StopAt:
    """All ranks leave when total step `step` is consumed."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Hello:
    """The answer to an attach: the stream, where it starts, this rank's number of slots, what was committed last."""

    info: StreamInfo
    start: int
    slots: int
    session: str
    last_commit: Commit | None


@dataclass(slots=True)
class FrameCame:
    """A frame: its description, the slot's bytes uint8 [slot bytes], and the lease that ends when `base` dies."""

    message: pb.Frame
    base: NDArray[np.uint8]
    lease: Lease


@dataclass(frozen=True, slots=True)
class End:
    """The stream has ended: no frame follows."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream cannot go on."""

    error: LanefeedError


Event = FrameCame | End | Failed

#: Makes the Progress message of this moment; `released` is left to the feed.
Reporter = Callable[[], pb.Progress]


class Events(Protocol):
    """Events of one life, in order; both raise queue.Empty."""

    def get_nowait(self, consumed: int | None = None) -> Event:
        """The next one, if it is there. `consumed`: the next step to consume; to say it costs next to nothing."""

    def get(self, timeout: float) -> Event:
        """The next one, within `timeout` seconds."""


class Feed(Protocol):
    """One rank's feed. `peek` and `start` block with a deadline; everything else returns at once, but for `commit`."""

    @property
    def inbox(self) -> Events:
        """Events of the life that `start` began, in order."""

    @property
    def stop_at(self) -> StopAt | None:
        """Where all ranks leave, if that was agreed."""

    @property
    def last_commit(self) -> Commit | None:
        """What the control plane accepted last."""

    def peek(self) -> Hello:
        """What the sidecar says, without starting anything."""

    def start(self, state_json: str, report: Reporter) -> Hello:
        """Begin a life at `state_json` ("": the start); a former life ends, its slots in use stay as they are."""

    def seek(self, step: int) -> None:
        """The same life from total step `step` on; `inbox` begins anew."""

    def heard(self) -> tuple[float, str]:
        """When the feed last said something (time.monotonic), and its last word for a message."""

    def wake(self, error: LanefeedError) -> None:
        """Put a failure into the inbox, if there is one: whoever waits gets it."""

    def nudge(self) -> None:
        """Send progress now."""

    def commit(self, commit: pb.RankCommit, seconds: float) -> None:
        """Return when the commit is safe. Raises CommitRefused, or SidecarLost after `seconds`."""

    def close(self) -> None:
        """End the life and let go of everything; idempotent."""
