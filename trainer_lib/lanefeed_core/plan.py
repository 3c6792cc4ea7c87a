"""The plan: which ranks read which lanes, and so which shard ranges, for one topology.

Made by the control plane for each plan generation, written as a document that a person can read, honoured by
sidecars. It holds no decision that `slices` does not already make; it fixes the world and shows the ranges.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lanefeed_core.cursor import Cursor
from lanefeed_core.errors import StreamError
from lanefeed_core.lanes import Lanes, ShardRun
from lanefeed_core.manifest import Manifest
from lanefeed_core.slices import World, rank_lanes, rank_slice

__all__ = ["Plan", "PodReads", "pod_reads"]

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """One topology of a job. `generation` is the plan generation; it only ever grows."""

    generation: int
    replicas: int
    ranks_per_replica: int
    start: Cursor
    allow_uneven: bool = False

    @property
    def world(self) -> int:
        """Data-parallel size: replicas x ranks per replica."""
        return self.replicas * self.ranks_per_replica

    def ranks(self, pod: int) -> range:
        """The ranks of a pod, by its index."""
        if not 0 <= pod < self.replicas:
            raise StreamError(f"pod index {pod} is not in a plan of {self.replicas} replicas")
        return range(pod * self.ranks_per_replica, (pod + 1) * self.ranks_per_replica)

    def check(self, global_batch_size: int) -> None:
        """Raise StreamError where the world does not fit the global batch."""
        World(self.world, self.allow_uneven).check(global_batch_size)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "version": PLAN_VERSION,
            "generation": self.generation,
            "replicas": self.replicas,
            "ranks_per_replica": self.ranks_per_replica,
            "allow_uneven": self.allow_uneven,
            "start": self.start.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        """The inverse of `to_dict`. Raises StreamError for another version."""
        if data.get("version") != PLAN_VERSION:
            raise StreamError(f"plan version {data.get('version')!r} is unknown: this Lanefeed knows {PLAN_VERSION}")
        start = data["start"]
        return cls(
            generation=int(data["generation"]),
            replicas=int(data["replicas"]),
            ranks_per_replica=int(data["ranks_per_replica"]),
            start=Cursor(int(start["epoch"]), int(start["step"])),
            allow_uneven=bool(data["allow_uneven"]),
        )


@dataclass(frozen=True, slots=True)
class PodReads:
    """What one pod reads in an epoch, for people: lanes, rows and shard ranges ("path[start:stop]")."""

    pod: int
    ranks: tuple[int, ...]
    rank_batches: tuple[int, ...]
    lanes: tuple[int, ...]
    rows: int
    ranges: tuple[str, ...]


def pod_reads(plan: Plan, lanes: Lanes, manifest: Manifest, epoch: int, *, limit: int = 64) -> list[PodReads]:
    """The shard ranges of every pod in `epoch`; at most `limit` ranges are spelled out for each pod."""
    size = lanes.spec.global_batch_size
    found = []
    for pod in range(plan.replicas):
        ranks = tuple(plan.ranks(pod))
        wanted = sorted({lane for rank in ranks for lane in rank_lanes(lanes, plan.world, rank)})
        slices = [rank_slice(size, plan.world, rank) for rank in ranks]
        runs = islice(_shard_runs(lanes, wanted, epoch), limit)
        ranges = [f"{manifest.shards[run.shard].path}[{run.start}:{run.stop}]" for run in runs]
        found.append(
            PodReads(
                pod=pod,
                ranks=ranks,
                rank_batches=tuple(stop - start for start, stop in slices),
                lanes=tuple(wanted),
                rows=sum(lanes.lane_rows(lane) for lane in wanted),
                ranges=tuple(ranges),
            )
        )
    return found


def _shard_runs(lanes: Lanes, wanted: Sequence[int], epoch: int) -> Iterator[ShardRun]:
    """The pieces of shards of these lanes, one after the other: a million shards are looked at only as far as asked."""
    line = lanes.line(epoch)
    for lane in wanted:
        yield from line.shard_runs(*lanes.lane_line(lane))
