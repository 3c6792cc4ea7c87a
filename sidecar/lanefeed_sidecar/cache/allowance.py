"""How much time a decode thread may spend on writing to the cache. Pure: it is told of seconds, it knows no clock.

Writing costs a copy and a digest, about a tenth of decoding. While trainers wait for data that would be theirs; while
read-ahead is full the thread has nothing else to do. So idle seconds are given in full, working seconds in a small
part.
"""

__all__ = ["Allowance"]

#: Share of the working time that writing may take while trainers wait: the first epoch may be slower by this (2 %).
WORK_SHARE = 0.02
#: Idle time is not saved up for longer than this: it would be spent when trainers wait again.
MOST_SECONDS = 1.0


class Allowance:
    """Seconds that may be spent. Used by one thread."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.seconds = 0.0

    def worked(self, seconds: float) -> None:
        """The thread decoded for so long."""
        self.seconds = min(MOST_SECONDS, self.seconds + WORK_SHARE * seconds)

    def idled(self, seconds: float) -> None:
        """The thread waited for work for so long: read-ahead was full."""
        self.seconds = min(MOST_SECONDS, self.seconds + seconds)

    def spent(self, seconds: float) -> None:
        """Writing took so long."""
        self.seconds -= seconds

    @property
    def open(self) -> bool:
        """Whether something may be written now; what it costs is taken off afterwards."""
        return self.seconds > 0
