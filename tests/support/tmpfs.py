"""A real, small tmpfs for run folders, mounted at a short path: Unix sockets allow 107 bytes."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(size: str) -> Iterator[Path]:
    """Mount a tmpfs of `size` ("2m"); skips the test where that needs rights that it does not have."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    place = Path(tempfile.mkdtemp(prefix="lf-", dir="/tmp"))
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True)
    try:
        if made.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {made.stderr!r}")
        yield place
    finally:
        if not made.returncode:
            subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()
