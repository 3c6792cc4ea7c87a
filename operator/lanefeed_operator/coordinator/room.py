"""How many connections the report service has memory for, by the limit of its container.

Asked once by `cluster`, at start. A connection costs memory before anybody has said who it is: without this bound
whoever reaches the port could have the operator killed by opening more.
"""

from collections.abc import Sequence
from pathlib import Path

__all__ = ["FEWEST", "LIMIT_FILES", "in_memory", "memory_limit"]

#: Bytes of a connection: TLS, and what is known of its pod.
CONNECTION_BYTES = 60 << 10
#: Bytes of all else: 150 MiB, and a little over.
OTHER_BYTES = 160 << 20
#: Some pods report however little there is, and a quarter of a small limit is theirs: OTHER_BYTES is a large cluster's.
FEWEST, SHARE = 64, 4
#: A limit from here on is none: cgroup v1 writes "unlimited" as a number near 2^63.
UNLIMITED_BYTES = 1 << 60
#: In a container its own cgroup is mounted there: version 2, version 1.
LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_limit(files: Sequence[Path] = LIMIT_FILES) -> int | None:
    """Bytes that this container may use, by the first of `files` that is there; None where nothing limits it."""
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isascii() and text.isdigit() and int(text) < UNLIMITED_BYTES else None
    return None


def in_memory(limit: int) -> int:
    """Connections that fit into `limit` bytes beside the rest of the operator, or into a quarter; at least FEWEST.

    >>> in_memory(512 << 20)  # the chart's, which promises 6,000 pods
    6007
    """
    return max(FEWEST, (limit - OTHER_BYTES) // CONNECTION_BYTES, limit // SHARE // CONNECTION_BYTES)
