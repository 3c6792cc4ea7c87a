"""A small deterministic engine with the pipeline's seam: it fills real slots straight from `lanes`, without files.

Column "x" is int64 [2]: (3 * id + 1, -id); column "text" is ragged bytes: the id in decimal. Run as a script it is a
whole sidecar with this engine in it: `python feed_engine.py --config FILE`.
"""

import os
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.cursor import Cursor
from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import SLOT_HEADER_BYTES, Column, aligned
from lanefeed_core.ledger import sum_ids
from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.slices import rank_slice
from lanefeed_sidecar.errors import DataError, SidecarError
from lanefeed_sidecar.pipeline.frames import Block, FrameMeta
from lanefeed_sidecar.pipeline.stats import Stats

STEPS = 3


class SmallEngine:
    """Frames of up to STEPS steps. Environment: ENGINE_DELAY (seconds a frame), ENGINE_FAIL ("step:kind")."""

    def __init__(self, config: PodConfig, manifest: Manifest, stats: Stats) -> None:
        self.config = config
        self.lanes = Lanes(config.spec, manifest.shard_rows)
        self.columns = (Column("x", "int64", (2,)), Column("text", "uint8", kind="ragged", logical="string"))
        self.slot_bytes = config.slot_bytes or 64 << 10
        self.ranks = config.plan.ranks(config.pod_index)
        by_epochs = config.epochs * self.lanes.steps_per_epoch
        self.total_steps = min(by_epochs or config.max_steps, config.max_steps or by_epochs)
        self.stats = stats
        self.delay = float(os.environ.get("ENGINE_DELAY", "0"))
        self.fail_at, _, self.fail_kind = os.environ.get("ENGINE_FAIL", "").partition(":")
        self.seeks: list[tuple[int, int]] = []

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def memory(self) -> dict[str, int]:
        return {"read_ahead": 0}

    def seek(self, rank: int, step: int) -> None:
        self.seeks.append((rank, step))

    def forget(self, rank: int) -> None:
        self.seeks.append((rank, -1))

    def at(self, total: int) -> tuple[int, int]:
        cursor = Cursor.from_total(total, self.lanes.steps_per_epoch, aligned=self.lanes.spec.aligned)
        return cursor.epoch, cursor.step

    def ids(self, rank: int, total: int) -> NDArray[np.int64]:
        ids, _ = self.lanes.batch(*self.at(total))
        low, high = rank_slice(len(ids), self.config.plan.world, rank)
        return ids[low:high]

    def fill(self, rank: int, step: int, slot: NDArray[np.uint8], *, cancelled: Callable[[], bool]) -> FrameMeta | None:
        if self.total_steps and step >= self.total_steps:
            return None
        end = time.monotonic() + self.delay
        while time.monotonic() < end:
            if cancelled():
                return None
            time.sleep(0.002)
        if self.fail_at and step >= int(self.fail_at):
            # The failure ends the process: not before all ranks are attached, or the slower one would never be served.
            while self.seeks and len({r for r, _ in self.seeks}) < len(self.ranks):
                if cancelled():
                    return None
                time.sleep(0.002)
            if self.fail_kind == "bug":
                raise RuntimeError("a planted bug")
            raise DataError("shard part-0.parquet: bytes 0-100 fail their check; restore the file")
        epoch, first = self.at(step)
        steps = 1
        size = self.lanes.step_rows(first)
        while (
            steps < STEPS and first + steps < self.lanes.steps_per_epoch and self.lanes.step_rows(first + steps) == size
        ):
            steps += 1
        if self.total_steps:
            steps = min(steps, self.total_steps - step)
        ids = np.stack([self.ids(rank, step + k) for k in range(steps)])
        texts = [[str(i).encode() for i in row] for row in ids.tolist()]
        sizes = [sum(map(len, row)) for row in texts]
        starts = [0, *np.cumsum(sizes).tolist()]
        rows = ids.shape[1]
        x = np.stack([3 * ids + 1, -ids], axis=-1)
        raw = np.frombuffer(b"".join(b for row in texts for b in row), np.uint8)
        offsets = np.array([[0, *np.cumsum([len(b) for b in row])] for row in texts], np.int64)
        at = [SLOT_HEADER_BYTES]
        for part in (ids, x, offsets, raw):
            end = at[-1] + part.nbytes
            if end > len(slot):
                raise SidecarError("the test's slots are too small")
            slot[at[-1] : end] = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            at.append(aligned(end))
        self.stats.add(frames=1, batches=steps, samples=rows * steps)
        return FrameMeta(
            first_step=step,
            epoch=epoch,
            steps=steps,
            rows=rows,
            samples=rows,
            global_samples=size,
            blocks=(Block(at[1]), Block(at[3], offsets=at[2], starts=tuple(starts))),
            ids_offset=at[0],
            sums=tuple(sum_ids(row) for row in ids),
        )


if __name__ == "__main__":
    from lanefeed_sidecar import supervisor
    from lanefeed_sidecar.main import serve

    # A machine that stops for a while is no reason for a test's sidecar to leave before it has cleaned up.
    supervisor.STOP_SECONDS = float(os.environ.get("ENGINE_STOP_SECONDS", "30"))
    supervisor.LAST_REPORT_SECONDS = float(os.environ.get("ENGINE_LAST_REPORT_SECONDS", supervisor.LAST_REPORT_SECONDS))
    code = serve(sys.argv[1:], SmallEngine)
    sys.stderr.flush()
    os._exit(code)
