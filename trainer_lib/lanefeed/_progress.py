"""Where the trainer is: how many steps it was given and how many of them count as consumed.

The loader calls `gave` for each batch, batches call `touched` when they are first looked at. Pure: no thread, no clock.
Three ways of counting (`lookahead=`):

* "off": a batch counts when it is yielded. `for batch in loader: train(batch); save(loader.state_dict())` is right.
* "auto" (default): as "off", until an older batch is first touched after a newer one was yielded. Then somebody (a
  wrapper such as Accelerate's or Lightning's) reads ahead, and from there on steps count up to the last touched batch.
* "manual", or once `mark` is called: only what `mark_consumed` says counts. For wrappers that touch batches ahead.
"""

from lanefeed.errors import UsageError

__all__ = ["LOOKAHEAD", "Progress"]

LOOKAHEAD = ("auto", "off", "manual")


class Progress:
    """Total steps of one rank. `given` and `consumed` are the *next* step to give and to consume."""

    __slots__ = ("_ahead", "_base", "_last_touched", "_marked", "_mode", "given")

    def __init__(self, mode: str = "auto", start: int = 0) -> None:
        """Begin at total step `start`. Raises UsageError for an unknown mode."""
        if mode not in LOOKAHEAD:
            raise UsageError(f"lookahead is {mode!r}: it must be one of {', '.join(LOOKAHEAD)}")
        self._mode = mode
        self._ahead = False
        self._marked = mode == "manual"
        self.given = start
        self._base = start
        self._last_touched = start

    def again(self, start: int) -> "Progress":
        """The next life, from total step `start` on. What was learnt about look-ahead stays; batches of this life
        that are touched later change nothing in the next.
        """
        new = Progress(self._mode, start)
        new._ahead = self._ahead
        new._marked = self._marked
        return new

    @property
    def reads_ahead(self) -> bool:
        """Whether steps are counted by touch or mark."""
        return self._ahead or self._marked

    @property
    def marked(self) -> bool:
        """Whether only `mark_consumed` counts."""
        return self._marked

    @property
    def consumed(self) -> int:
        """Next step to consume: what a state saved now says."""
        if self._marked:
            return self._base
        return self._last_touched if self._ahead else self.given

    def touched(self, step: int) -> None:
        """The batch of total step `step` was looked at for the first time."""
        if self._mode == "auto" and step + 1 < self.given:
            self._ahead = True
        if step >= self._last_touched:
            self._last_touched = step + 1

    def mark(self, count: int = 1) -> None:
        """`count` more batches are consumed, counted from the start of this life. Raises UsageError past `given`."""
        self.mark_step(self._base + count)

    def mark_step(self, step: int) -> None:
        """All batches before total step `step` are consumed. Raises UsageError past `given` or backwards."""
        if not self._base <= step <= self.given:
            raise UsageError(
                f"mark_consumed() reaches step {step}, and steps {self._base}..{self.given} were handed out and not "
                "marked yet: call it once for each batch that was trained, from the first on"
            )
        self._marked = True
        self._base = step
