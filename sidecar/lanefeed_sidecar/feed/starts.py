"""At which step a rank may begin: one policy, and the little file that lets it hold over sidecar restarts.

Ranks that begin a plan at different steps would train on different global batches; that is refused. A rank that was
restarted alone may go back to any step that it had reached, or to a commit of the job. Called by the hub on attach.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lanefeed_sidecar.arena.folder import write_atomically
from lanefeed_sidecar.errors import PlanMismatch

__all__ = ["RANKS_NAME", "Starts"]

log = logging.getLogger(__name__)

RANKS_NAME = "ranks.json"


@dataclass(slots=True)
class _Begun:
    """Total steps at which a rank began for the first and for the last time in this plan."""

    first: int
    latest: int


class Starts:
    """Where the pod's ranks began. Not thread safe: the hub calls it under its lock."""

    def __init__(self, folder: Path, plan_generation: int) -> None:
        """Go on from what an earlier session of this plan wrote."""
        self._path = folder / RANKS_NAME
        self._generation = plan_generation
        self._begun = self._load()
        #: Ranks that began in an earlier session: how far they got is not known here.
        self._earlier = set(self._begun)

    def check(self, rank: int, step: int, *, reached: int | None, committed: Callable[[int], bool]) -> None:
        """Raise PlanMismatch unless the rank may begin at total step `step`.

        Args:
            reached: the step after the last one that was delivered to it in this session; None: nothing was.
            committed: says whether a step is a commit of the job.
        """
        if rank not in self._begun:
            self._check_first(rank, step)
        elif reached is not None and step > reached and not committed(step):
            raise PlanMismatch(
                f"rank {rank} begins again at step {step}, which it never reached (it got to {reached}) and which is "
                "no commit of this job: load a checkpoint of this job, the same on every rank"
            )
        elif reached is None and rank not in self._earlier and step != self._begun[rank].latest and not committed(step):
            # It attached before in this session and got nothing: as if it began now.
            self._check_first(rank, step)

    def record(self, rank: int, step: int) -> None:
        """The rank began at `step`."""
        begun = self._begun.setdefault(rank, _Begun(step, step))
        begun.latest = step
        data = {"planGeneration": self._generation, "ranks": {str(r): asdict(b) for r, b in self._begun.items()}}
        try:
            write_atomically(self._path, json.dumps(data), 0o640)
        except OSError as error:
            # Only a check of the next session is lost.
            log.warning("cannot write %s: %s", self._path, error.strerror)

    def _check_first(self, rank: int, step: int) -> None:
        for other, begun in sorted(self._begun.items()):
            if other != rank and step not in (begun.first, begun.latest):
                raise PlanMismatch(
                    f"rank {rank} begins at step {step} and rank {other} at step {begun.latest}: all ranks must load "
                    "the same checkpoint (every rank its own part of it), or none"
                )

    def _load(self) -> dict[int, _Begun]:
        try:
            data = json.loads(self._path.read_text())
            if data["planGeneration"] != self._generation:
                return {}
            return {int(r): _Begun(int(b["first"]), int(b["latest"])) for r, b in data["ranks"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read (%r): ranks are checked as if they began now", self._path, error)
            return {}
