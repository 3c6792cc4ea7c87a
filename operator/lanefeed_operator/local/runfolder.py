"""Makes a pod's run folder. Apart from `rundir`, so that a supervisor starts without loading NumPy."""

import os
import secrets
from pathlib import Path

__all__ = ["make_run_dir"]


def make_run_dir(folder: Path, token_name: str) -> None:
    """The folder (0750) and the pod's token in it (0640)."""
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    folder.chmod(0o750)
    fd = os.open(folder / token_name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    with os.fdopen(fd, "w") as token:
        token.write(secrets.token_hex(32))
