"""The operator's error tree.

OperatorError
|-- JobError         a job manifest that cannot be used; `.problems` holds every one of its faults
|-- ReconcileError   a status that this version cannot go on from
`-- CoordinatorError the report service cannot start, or was used wrongly
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CoordinatorError", "JobError", "OperatorError", "Problem", "ReconcileError"]


class OperatorError(Exception):
    """Base of the operator's errors; the text says what, which value, and what to change."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a job manifest: where (dotted path, line of the YAML; 0: unknown) and what to do."""

    path: str
    message: str
    line: int = 0

    def __str__(self) -> str:
        """`line 12: spec.batching.globalBatchsize: ...`."""
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


class JobError(OperatorError):
    """A job manifest that cannot be used: all of its faults at once, one a line."""

    def __init__(self, problems: Sequence[Problem], source: str = "") -> None:
        """Keep `problems`; `source` names the file."""
        self.problems = tuple(problems)
        self.source = source
        head = f"{source or 'the job'} has {len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}:"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


class ReconcileError(OperatorError):
    """A persisted status that this version cannot go on from."""


class CoordinatorError(OperatorError):
    """The report service cannot start, or was used wrongly."""
