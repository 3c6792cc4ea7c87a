"""A feed without a sidecar, for `lanefeed.testing`: arrays in memory, cut into frames as the protocol says.

The order comes from `lanefeed_core`, as everywhere. Frames are made when the loader asks, in this process, with
no thread; everything else is the production path: leases, batches, look-ahead, states, the proof.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanefeed._arena.leases import Leases
from lanefeed._client.feed import Commit, End, Event, Events, Failed, FrameCame, Hello, Reporter, StopAt
from lanefeed.errors import CommitRefused, LanefeedError, UsageError, from_core
from lanefeed_core.cursor import SavedState
from lanefeed_core.errors import CoreError
from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import ALIGN, SLOT_HEADER_BYTES, Column, aligned
from lanefeed_core.ledger import sum_steps
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.slices import rank_slice
from lanefeed_core.stream import StreamSpec
from lanefeed_core.wire import StreamInfo

__all__ = ["FakeFeed", "Table", "pack"]


class Table:
    """Columns in memory: arrays [N, ...], or sequences of str, bytes or 1-d arrays, which become ragged."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        """Raises UsageError where columns differ in length or cannot be delivered."""
        self.values: dict[str, Any] = {}
        self.columns: list[Column] = []
        for name, given in columns.items():
            column, values = _column(name, given)
            self.columns.append(column)
            self.values[name] = values
        lengths = {len(values) for values in self.values.values()}
        if len(lengths) != 1:
            raise UsageError(f"columns differ in length or there are none: {sorted(lengths)}")
        self.rows = lengths.pop()

    @property
    def digest(self) -> str:
        """32 hex digits that stand for the data."""
        h = hashlib.blake2b(digest_size=16)
        for name, values in self.values.items():
            h.update(name.encode())
            for part in [values] if isinstance(values, np.ndarray) else values:
                h.update(part.tobytes())
        return h.hexdigest()


def _column(name: str, given: Any) -> tuple[Column, Any]:
    first = next(iter(given), None)
    if isinstance(given, np.ndarray) and given.dtype != object:
        logical = "bool" if given.dtype == np.bool_ else ""
        return Column(name, given.dtype.name, tuple(given.shape[1:]), logical=logical), given
    if isinstance(first, str | bytes):
        logical = "string" if isinstance(first, str) else "binary"
        raw = [np.frombuffer(v.encode() if isinstance(v, str) else v, dtype=np.uint8) for v in given]
        return Column(name, "uint8", kind="ragged", logical=logical), raw
    if isinstance(first, np.ndarray):
        return Column(name, first.dtype.name, kind="ragged"), list(given)
    raise UsageError(
        f"column {name} is a {type(given).__name__} of {type(first).__name__}: give an array, str, bytes or arrays"
    )


def pack(
    table: Table, ids: NDArray[np.int64], mask: NDArray[np.bool_] | None, room: Callable[[int], NDArray[np.uint8]]
) -> tuple[NDArray[np.uint8], pb.Frame]:
    """A frame of samples `ids` [K, R]: its bytes, in what `room(nbytes)` gives, and its description.

    first_step, sequence, slot, epoch and global_samples are left to the caller.
    """
    steps, rows = ids.shape
    frame = pb.Frame(steps=steps, rows=rows, samples=rows)
    blocks: list[tuple[int, Any]] = []
    at = SLOT_HEADER_BYTES

    def put(array: Any) -> int:
        nonlocal at
        start = at
        blocks.append((start, array))
        at = aligned(start + array.nbytes)
        return start

    frame.ids_offset = put(ids)
    if mask is not None:
        frame.mask_offset = put(mask.astype(np.uint8))
        frame.samples = int(mask[0].sum())
        frame.sums.extend(int(sum_steps(step[keep][None])[0]) for step, keep in zip(ids, mask, strict=True))
    else:
        frame.sums.extend(sum_steps(ids).tolist())
    for column in table.columns:
        values = table.values[column.name]
        if not column.ragged:
            frame.blocks.add(values=put(np.ascontiguousarray(values[ids.ravel()])))
            continue
        parts = [[values[i] for i in step] for step in ids]
        flat = [part for step in parts for part in step]
        offsets = np.zeros((steps, rows + 1), dtype=np.int64)
        if rows:
            offsets[:, 1:] = np.cumsum([[len(part) for part in step] for step in parts], axis=1)
        starts = [0, *np.cumsum(offsets[:, -1]).tolist()]
        joined = np.concatenate(flat) if flat else np.zeros(0, dtype=column.dtype)
        frame.blocks.add(values=put(joined), offsets=put(offsets), starts=starts)
    base = room(at)
    for start, array in blocks:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        base[start : start + raw.nbytes] = raw
    return base, frame


def _heap(nbytes: int) -> NDArray[np.uint8]:
    """Aligned bytes whose views all chain to the array that is returned (its own base is no array)."""
    raw = bytearray(nbytes + ALIGN)
    skip = -np.frombuffer(raw, dtype=np.uint8).ctypes.data % ALIGN
    base: NDArray[np.uint8] = np.frombuffer(memoryview(raw)[skip : skip + nbytes], dtype=np.uint8)
    return base


class _Inbox:
    """Makes the next frame when nothing is there."""

    def __init__(self, more: Callable[[], None]) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._more = more
        self.put = self._events.put

    def get_nowait(self, consumed: int | None = None) -> Event:
        if self._events.empty():
            self._more()
        return self._events.get_nowait()

    def get(self, timeout: float) -> Event:
        return self._events.get(timeout=timeout)


class FakeFeed:
    """Feed over a `Table`. `commits` are those that were made; `stop(step)` asks the trainer to leave."""

    def __init__(
        self, table: Table, spec: StreamSpec, *, rank: int, world: int, epochs: int, frame_steps: int, slots: int
    ) -> None:
        """Raises UsageError where the sizes make no stream."""
        self.table = table
        self.slots = slots
        self.rank, self.world = rank, world
        self.frame_steps = frame_steps
        #: Commits of this rank, oldest first.
        self.commits: list[pb.RankCommit] = []
        self.refuse = ""
        self.last_commit: Commit | None = None
        self.stop_at: StopAt | None = None
        self._leases = Leases()
        try:
            self.lanes = Lanes(spec, np.array([table.rows]))
        except CoreError as error:
            raise from_core(error) from None
        low, high = rank_slice(spec.global_batch_size, world, rank)
        self.info = StreamInfo(
            job="fake",
            manifest=table.digest,
            rows=table.rows,
            spec=spec,
            columns=tuple(table.columns),
            steps_per_epoch=self.lanes.steps_per_epoch,
            epochs=epochs,
            max_steps=0,
            rank_batch=high - low,
            plan_generation=1,
        )
        self._next = 0
        self._sequence = 0
        self._inbox = _Inbox(self._more)
        self._closed = False

    @property
    def inbox(self) -> Events:
        """Events; frames are made on demand."""
        return self._inbox

    def peek(self) -> Hello:
        """What a sidecar would say."""
        return Hello(self.info, 0, self.slots, "fake", self.last_commit)

    def start(self, state_json: str, report: Reporter) -> Hello:
        """Begin at a state."""
        start = 0
        if state_json:
            state, info = SavedState.from_dict(json.loads(state_json)), self.info
            try:
                state.check(manifest=info.manifest, spec=info.spec, steps_per_epoch=info.steps_per_epoch)
            except CoreError as error:
                raise from_core(error) from None
            start = state.cursor.total_steps(self.info.steps_per_epoch)
        self.seek(start)
        return Hello(self.info, start, self.slots, "fake", self.last_commit)

    def seek(self, step: int) -> None:
        """Go on at `step`."""
        self._next = step
        self._inbox = _Inbox(self._more)

    def _more(self) -> None:
        while not self._leases.released.empty():
            self._leases.released.get_nowait()
        if self.info.total_steps and self._next >= self.info.total_steps:
            self._inbox.put(End())
            return
        epoch, step = divmod(self._next, self.info.steps_per_epoch)
        count = min(self.frame_steps, self.info.steps_per_epoch - step)
        batches = [self.lanes.batch(epoch, s) for s in range(step, step + count)]
        size = len(batches[0][0])
        batches = [batch for batch in batches if len(batch[0]) == size and batch[1].all() == batches[0][1].all()]
        low, high = rank_slice(size, self.world, self.rank)
        ids = np.stack([ids[low:high] for ids, _ in batches])
        masks = np.stack([mask[low:high] for _, mask in batches])
        padded = not bool(batches[0][1].all())
        base, frame = pack(self.table, ids, masks if padded else None, _heap)
        frame.first_step, frame.epoch, frame.sequence = self._next, epoch, self._sequence
        frame.global_samples = self.lanes.step_samples(step)
        self._next += frame.steps
        self._sequence += 1
        lease = self._leases.add("fake", frame.sequence % self.slots)
        lease.watch(base)
        self._inbox.put(FrameCame(frame, base, lease))

    def heard(self) -> tuple[float, str]:
        """Nothing is ever late here."""
        return 0.0, "a fake feed"

    def wake(self, error: LanefeedError) -> None:
        """A failure for whoever waits."""
        self._inbox.put(Failed(error))

    def nudge(self) -> None:
        """Nobody listens."""

    def commit(self, commit: pb.RankCommit, seconds: float) -> None:
        """Keep the commit; refuse it while `refuse` says why."""
        if self.refuse:
            raise CommitRefused(self.refuse)
        self.commits.append(commit)
        self.last_commit = Commit(commit.stop, commit.name, self.info.plan_generation)

    def stop(self, step: int, reason: str = "test") -> None:
        """Ask the trainer to leave when `step` is consumed."""
        self.stop_at = StopAt(step, reason)

    def close(self) -> None:
        """Nothing to let go of."""
        self._closed = True
