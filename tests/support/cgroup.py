"""A memory cgroup of its own for a process, v1 or v2: what the kernel charges it for, at most, is what counts.

RSS misses kernel memory and page cache; the sampled one misses peaks. A counter of the kernel misses nothing.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


class Cgroup:
    """One cgroup; processes enter it by their command line."""

    def __init__(self, folder: Path, peak: str) -> None:
        self._folder, self._peak = folder, peak

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` inside, from its first page on; it keeps its pid."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]

    def peak(self) -> int:
        """The most bytes that were charged at a time: anonymous memory, tmpfs, page cache, kernel memory."""
        return int((self._folder / self._peak).read_text())


@contextmanager
def memory_cgroup() -> Iterator[Cgroup]:
    """A cgroup below this process's own. Skips the test where none can be made; its processes must have ended."""
    parent, peak = _parent()
    try:
        folder = Path(tempfile.mkdtemp(prefix="lf-", dir=parent))
    except OSError as error:
        pytest.skip(f"no cgroup can be made in {parent}: {error.strerror}")
    try:
        if not (folder / peak).exists():
            pytest.skip(f"{folder} has no {peak}: the memory controller is not enabled here")
        yield Cgroup(folder, peak)
    finally:
        folder.rmdir()


def _parent() -> tuple[Path, str]:
    """(this process's cgroup of the memory controller, its file with the peak)."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path.lstrip("/")
    if "memory" in own:
        folder = ROOT / "memory" / own["memory"]
        return (folder if folder.is_dir() else ROOT / "memory"), "memory.max_usage_in_bytes"
    if os.access(ROOT / "cgroup.controllers", os.R_OK):
        return ROOT / own.get("", ""), "memory.peak"
    pytest.skip("no cgroup of the memory controller is mounted at /sys/fs/cgroup")
