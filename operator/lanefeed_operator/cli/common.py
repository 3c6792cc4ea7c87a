"""What the commands share: options, and finding a job by its name or its YAML."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lanefeed_operator.local.admission import read_job
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.local.store import JobStore, find, state_root

__all__ = ["JobArgument", "StateDir", "console", "is_file", "locate"]

StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="Folder of local jobs' states (default: .lanefeed here).")
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Name of a job (run here, or in the cluster), or its YAML.")
]


#: Width where there is no terminal: files and pipes should not be cut at 80.
WIDE = 160


def console(*, stderr: bool = False) -> Console:
    """A console whose lines are not cut where nobody looks at them as they come."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, soft_wrap=True, width=WIDE)


def is_file(job: str) -> bool:
    """Whether the argument names a YAML file rather than a job."""
    return job.endswith((".yaml", ".yml", ".json")) or Path(job).is_file()


def locate(job: str, state_dir: Path | None) -> JobStore:
    """The state folder of a job that was run. Raises UnknownJob, naming the known ones."""
    root = state_root(state_dir)
    return find(root, read_job(Path(job)).metadata.name if is_file(job) else job)


def positive(value: int | None, name: str) -> None:
    """Refuse numbers below 1 with a word on which."""
    if value is not None and value < 1:
        raise LocalError(f"{name} is {value}: it must be a whole number from 1")
