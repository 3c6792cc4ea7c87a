"""Commits of one loader: which state a commit means, what was consumed up to it, and the last one at the end.

Called by `Loader`, and by its finalizer, which must not hold the loader itself. Checkpoints are often made durable by a
thread of their own: commits may come from any thread, while the trainer takes further states, and go out one at a time.
"""

import json
import logging
import sys
import threading
import time

from lanefeed._client.feed import Feed
from lanefeed._proof import Proof, Snapshot
from lanefeed._stream import Stream
from lanefeed.errors import LanefeedError, SidecarLost
from lanefeed_core.proto import lanefeed_pb2 as pb

__all__ = ["COMMIT_SECONDS", "Commits"]

log = logging.getLogger("lanefeed")

#: How long a commit may take; and the last one, when the trainer is leaving.
COMMIT_SECONDS = 120.0
LAST_SECONDS = 5.0


class Commits:
    """Commits of one rank. `commit` may be called from any thread."""

    def __init__(self, feed: Feed, stream: Stream, rank: int) -> None:
        """Nothing taken yet."""
        self._feed = feed
        self._stream = stream
        self._rank = rank
        #: The state last taken by `state_dict`; the loader sets it, commits leave it.
        self.taken: Snapshot | None = None
        #: The state that the newest commit of one is for, under way or done: if `taken` is still this, it is used up.
        self._used: Snapshot | None = None
        self._picking = threading.Lock()
        #: Held while a commit is sent and counted: the next one's segment begins where it ended.
        self._turn = threading.Lock()
        #: The checkpoint that the trainer would restart from: of this life's last commit, or what this life began from.
        self.checkpoint = ""
        #: Total step at which the stream ends; 0: never or not known.
        self.total = 0
        self.steps_per_epoch = 1

    def snapshot(self) -> Snapshot:
        """The proof at the consumed step of this moment."""
        step = self._stream.progress.consumed
        return self._stream.proof.snapshot(step, step // max(1, self.steps_per_epoch))

    def commit(self, name: str, seconds: float = COMMIT_SECONDS) -> None:
        """Commit the state taken last, or the current one if that was given to a commit before.

        A state that is older than what is committed already is left alone: a restart would not go back to it. Takes
        `seconds` at most, the wait for other threads' commits included. Raises CommitRefused or SidecarLost; then the
        state is not used up, and commit() again means the same one.
        """
        with self._picking:
            proof, taken = self._stream.proof, self.taken
            if taken is None or taken is self._used:
                taken = self.snapshot()
            else:
                self._used = taken
        try:
            self._send(proof, taken, name, seconds)
        except BaseException:
            with self._picking:
                if self._used is taken:
                    self._used = None
            raise

    def _send(self, proof: Proof, taken: Snapshot, name: str | None, seconds: float) -> None:
        """Send what was consumed from the last commit up to `taken`, a snapshot of `proof`, once it is its turn.

        Without a name it has the one of the checkpoint that there is by then.
        """
        end = time.monotonic() + seconds
        if not self._turn.acquire(timeout=seconds):
            raise SidecarLost(
                f"the commit of step {taken.step} had to wait for an earlier one, which has no answer after "
                f"{seconds:g} s: commit again"
            )
        try:
            name = self.checkpoint if name is None else name
            start, segment = proof.segment(taken)
            if taken.step < start:
                log.warning(
                    "the checkpoint %r of step %d is not committed: step %d is already", name, taken.step, start
                )
                return
            message = pb.RankCommit(
                rank=self._rank,
                start=start,
                stop=taken.step,
                name=name,
                ledger_json=json.dumps(segment.to_dict()),
            )
            self._feed.commit(message, max(0.1, round(end - time.monotonic(), 1)))
            proof.commit(taken)
            self.checkpoint = name
        finally:
            self._turn.release()

    def finish(self, seconds: float = COMMIT_SECONDS) -> None:
        """Say that this rank wants no more, and commit what it consumed since its last commit.

        Under that commit's name: whoever has to start again after all has this checkpoint and no newer one, and goes on
        from where its state says. Takes `seconds` at most. Raises CommitRefused or SidecarLost.
        """
        self._stream.finished = True
        self.taken = None
        if self._stream.progress.consumed > self._stream.proof.committed:
            self._send(self._stream.proof, self.snapshot(), None, seconds)
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
