"""Commits of one loader: which state a commit means, what was consumed up to it, and the last one at the end.

Called by `Loader`, and by its finalizer, which must not hold the loader itself.
"""

import json
import logging
import sys

from lanefeed._client.feed import Feed
from lanefeed._proof import Snapshot
from lanefeed._stream import Stream
from lanefeed.errors import LanefeedError
from lanefeed_core.proto import lanefeed_pb2 as pb

__all__ = ["COMMIT_SECONDS", "Commits"]

log = logging.getLogger("lanefeed")

#: How long a commit may take; and the last one, when the trainer is leaving.
COMMIT_SECONDS = 120.0
LAST_SECONDS = 5.0


class Commits:
    """Commits of one rank."""

    def __init__(self, feed: Feed, stream: Stream, rank: int) -> None:
        """Nothing taken yet."""
        self._feed = feed
        self._stream = stream
        self._rank = rank
        #: The state last taken by `state_dict` and not committed.
        self.taken: Snapshot | None = None
        #: Total step at which the stream ends; 0: never or not known.
        self.total = 0
        self.steps_per_epoch = 1

    def snapshot(self) -> Snapshot:
        """The proof at the consumed step of this moment."""
        step = self._stream.progress.consumed
        return self._stream.proof.snapshot(step, step // max(1, self.steps_per_epoch))

    def commit(self, name: str, seconds: float = COMMIT_SECONDS) -> None:
        """Commit the state taken last, or the current one. Raises CommitRefused or SidecarLost."""
        taken, self.taken = self.taken or self.snapshot(), None
        message = pb.RankCommit(
            rank=self._rank,
            start=taken.start,
            stop=taken.step,
            name=name,
            ledger_json=json.dumps(taken.segment.to_dict()),
        )
        self._feed.commit(message, seconds)
        self._stream.proof.commit(taken)

    def finish(self, seconds: float = COMMIT_SECONDS) -> None:
        """Say that this rank wants no more, and commit what it consumed since its last commit."""
        self._stream.finished = True
        self.taken = None
        if self._stream.progress.consumed > self._stream.proof.committed:
            self.commit("", seconds)
        self._feed.nudge()

    def last_words(self) -> None:
        """Finish if the stream was consumed to its end and the trainer committed no state there.

        Called when the loader is closed or collected, also at the interpreter's exit; never raises, takes
        `LAST_SECONDS` at most. Not after an uncaught exception: then the last checkpoint may not be there.
        """
        consumed = self._stream.progress.consumed
        if not self.total or consumed < self.total or getattr(sys, "last_type", None) is not None:
            return
        if self._stream.proof.committed >= consumed and self._stream.finished:
            return
        try:
            self.finish(LAST_SECONDS)
        except LanefeedError as error:
            log.warning("the end of the stream could not be committed: %s", error)
