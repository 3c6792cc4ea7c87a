"""For tests of training code: a loader over arrays in memory, and an oracle for exact resumption.

def make():
    return lanefeed.testing.fake_loader({"x": np.arange(100)}, global_batch_size=8, epochs=2)

lanefeed.testing.assert_exact_resume(make)                # any loader: also connect() and open()
lanefeed.testing.assert_exact_resume(make, wrap=my_prefetcher)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from lanefeed._batch import Batch
from lanefeed._fake import FakeFeed, Table
from lanefeed._loader import Loader
from lanefeed._make import copier_for, make_loader, wrapper
from lanefeed.errors import from_core
from lanefeed_core.errors import CoreError
from lanefeed_core.stream import StreamSpec

__all__ = ["FakeFeed", "assert_exact_resume", "fake_loader", "feed_of", "fingerprint"]


def fake_loader(
    columns: Mapping[str, Any],
    *,
    global_batch_size: int,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
    shuffle: bool = True,
    window: int = 64,
    lanes: int = 1,
    epochs: int = 1,
    last_batch: str = "Drop",
    frame_steps: int = 3,
    slots: int = 8,
    tensors: str | None = "numpy",
    device: Any = None,
    lookahead: str = "auto",
) -> Loader:
    """A loader over `columns` with no sidecar and no shared memory; order, states and commits are the real ones.

    columns: name -> array [N, ...], or a list of str, bytes or 1-d arrays. frame_steps: steps of a frame. The other
    arguments are those of `lanefeed.open`. `feed_of(loader)` shows the commits and can ask for a stop.
    """
    try:
        spec = StreamSpec(
            seed=seed,
            global_batch_size=global_batch_size,
            lanes=lanes,
            window=window,
            shuffle=shuffle,
            last_batch=last_batch,
        )
    except CoreError as error:
        raise from_core(error) from None
    wrap = wrapper(tensors)
    feed = FakeFeed(Table(columns), spec, rank=rank, world=world, epochs=epochs, frame_steps=frame_steps, slots=slots)
    return make_loader(feed, rank=rank, world=world, wrap=wrap, copier=copier_for(device, wrap), lookahead=lookahead)


def feed_of(loader: Loader) -> FakeFeed:
    """The fake feed behind a loader that `fake_loader` made: `commits`, `refuse`, `stop(step)`."""
    feed = loader._feed
    if not isinstance(feed, FakeFeed):
        raise TypeError("this loader has a real feed")
    return feed


def fingerprint(batch: Batch) -> tuple[Any, ...]:
    """What a batch holds, bit for bit, as a value that compares: ids and every column."""
    return (
        batch.step,
        tuple(np.asarray(batch.ids).tolist()),
        tuple((name, _bits(batch[name])) for name in batch),
    )


def _bits(value: Any) -> Any:
    if hasattr(value, "offsets"):
        return _bits(value.values), _bits(value.offsets)
    array = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    return array.dtype.name, array.shape, array.tobytes()


def assert_exact_resume(
    make_loader: Callable[[], Loader],
    *,
    steps: int | None = None,
    tail: int | None = None,
    every: int = 1,
    wrap: Callable[[Loader], Iterable[Batch]] | None = None,
) -> int:
    """Take a state after every step, load each into a new loader, and compare what follows, bit for bit.

    Args:
        make_loader: a new loader over the same data each time; it must end (`epochs`), or give `steps`.
        steps: steps of the uninterrupted run (default: to the stream's end).
        tail: steps that are compared after each state (default: all that are left).
        every: take a state after each so many steps.
        wrap: what the trainer iterates over, made from the loader, such as a prefetcher; it is iterated again for
            each epoch.

    Raises AssertionError naming the state and the first batch that differs. Returns the number of states tried.
    """
    whole: list[tuple[Any, ...]] = []
    states: list[tuple[int, dict[str, Any]]] = []
    with make_loader() as loader:
        if steps is None and not loader.total_steps:
            raise ValueError("this stream has no end: give steps=")
        states.append((0, loader.state_dict()))
        for batch in _read(loader, wrap, steps):
            whole.append(fingerprint(batch))
            if len(whole) % every == 0:
                states.append((len(whole), loader.state_dict()))
    for done, state in states:
        left = whole[done:] if tail is None else whole[done : done + tail]
        with make_loader() as loader:
            loader.load_state_dict(state)
            if loader.step != done:
                raise AssertionError(f"the state taken after step {done} says step {loader.step}")
            got = [fingerprint(batch) for batch in _read(loader, wrap, len(left) + (tail is None))]
        for number, (mine, theirs) in enumerate(zip(got, left, strict=False)):
            if mine != theirs:
                raise AssertionError(
                    f"resumed from the state after step {done}, batch {done + number} differs: ids {mine[1]} instead "
                    f"of {theirs[1]}"
                )
        if len(got) != len(left):
            raise AssertionError(
                f"resumed from the state after step {done}, {len(got)} batches came and {len(left)} were left"
            )
    return len(states)


def _read(loader: Loader, wrap: Callable[[Loader], Iterable[Batch]] | None, steps: int | None) -> Iterator[Batch]:
    if steps == 0:
        return
    count = 0
    for _ in loader.epochs():
        for batch in loader if wrap is None else wrap(loader):
            yield batch
            count += 1
            if count == steps:
                return
