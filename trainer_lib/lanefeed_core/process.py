"""What a process asks of its system: signals heard where locks may be taken, and files enough to open.

Called by the sidecar and the operator at their start. Here like `futex`, since both need it and neither may import the
other; the rest of the core has nothing to do with processes. The trainer library never calls it: there the process is
the user's.
"""

import resource
import signal
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue

__all__ = ["hear_signals", "raise_open_files"]


def hear_signals(numbers: Iterable[int], hear: Callable[[int], None]) -> None:
    """Call `hear` with a signal's number each time that one of these comes, in a thread of its own.

    A handler runs between any two lines of the main thread, also while that holds a lock: of an event that it waits
    for, of a log. Were the handler to set the event or to log, it would wait for the main thread, which is itself. So
    it puts the number into a queue whose `put` may interrupt itself, and nothing else. Raises ValueError outside of
    the main thread.
    """
    came: SimpleQueue[int] = SimpleQueue()

    def listen() -> None:
        while True:
            hear(came.get())

    for number in numbers:
        signal.signal(number, lambda number, _frame: came.put(number))
    threading.Thread(target=listen, name="signals", daemon=True).start()


def raise_open_files(most: int) -> tuple[int, str]:
    """Raise the limit of open files as far as it goes: (the limit from now on, why it is not higher or "").

    Container runtimes start processes with a soft limit of 1,024 by habit, for programs that use select(); ours do not.
    Bounded by the hard limit and by `most`; a limit is never lowered, and one without end counts as `most`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most, ""
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft >= wanted:
        return soft, ""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        return soft, str(error)
    return wanted, ""
