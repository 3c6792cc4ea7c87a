"""A port for a server that a test starts, ends and starts again: nobody takes it meanwhile.

A port that the kernel gives away (bind to 0) is one of those that it also gives to every outgoing connection: hundreds
a second from tests that run beside, one of which may sit on it when the server wants it back. These come from below.
"""

import random
import socket
from pathlib import Path

__all__ = ["free_port"]

#: Above the ports of well-known programs, of this machine's cluster and of Lanefeed itself.
LOWEST = 12_000
TRIES = 200


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has, and that the kernel gives to nobody."""
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    # Not the tests' own generators, which are seeded: two processes would draw the same ports.
    draw = random.SystemRandom()
    for _ in range(TRIES):
        port = draw.randrange(LOWEST, first) if first > 2 * LOWEST else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError(f"no port between {LOWEST} and {first} is free")
