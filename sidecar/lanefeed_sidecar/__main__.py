"""`python -m lanefeed_sidecar`; see `main`."""

import os
import signal
import sys


def _leave(number: int, _frame: object) -> None:
    """Told to end before anything began (later `supervisor` has a handler of its own).

    As process 1 of a container we would get no signal at all without a handler, and hold the pod for its whole grace
    time. An indexer that was ended has not made its manifest.
    """
    os._exit(128 + number if sys.argv[1:2] == ["index"] else 0)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    from lanefeed_sidecar.main import main

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: native threads of libraries that are alive at the interpreter's end can hang it (arrow#50188).
    os._exit(code)
