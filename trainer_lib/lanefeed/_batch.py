"""What a trainer gets for each step: a dict of columns, with ids, weight and mask.

Made by the loader, one for each step; columns become arrays or tensors when somebody first looks at them, so a batch
costs the same whatever its number of columns. The first look is also how the loader notices look-ahead (`_progress`).
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol

from lanefeed._side_by_side import copied, holds
from lanefeed._source import Fixed, Source
from lanefeed.errors import UsageError

__all__ = ["Batch", "Source"]


class Watch(Protocol):
    """Who wants to know that a batch was looked at."""

    def touched(self, step: int) -> None:
        """The batch of total step `step` was looked at for the first time."""


class _Once:
    """Shared by a batch and its copies on a device: the first look at any of them counts, once."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch

    def touched(self, step: int) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.touched(step)


class Batch(dict[str, Any]):
    """Columns of one step of this rank: {column: tensor, NumPy array or Ragged}, rows first.

    Values are views of shared memory (or of device memory): keep them as long as you like, write into them; they never
    change under your hands. A batch behaves as a dict for Python code; `dict(batch)` gives a plain one, also for C code
    that looks past a dict's methods (json).
    """

    __slots__ = ("__weakref__", "_at", "_lazy", "_source", "_watch", "step")

    #: Total step of this batch, counted from 0 over all epochs.
    step: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `dict(...)`; a batch made so has columns only. The loader makes whole ones."""
        super().__init__(*args, **kwargs)
        self._source: Source | None = None
        self._lazy: Source | None = None
        self._watch: Watch | None = None
        self._at = 0
        self.step = -1

    # ---- what a batch knows besides its columns ----------------------------------------------------------------

    @property
    def ids(self) -> Any:
        """Sample ids, int64 [rows], on the host: the row's number in the manifest. Padding repeats real samples."""
        self._touch()
        return self._known.ids(self._at)

    @property
    def mask(self) -> Any:
        """bool [rows], False for rows that are padding; None where nothing is padded."""
        self._touch()
        return self._known.mask(self._at)

    @property
    def validity(self) -> dict[str, Any]:
        """Column -> bool [rows], False for nulls; only columns in which this batch may have a null."""
        return self._known.validity(self._at)

    def stack(self, names: Sequence[str]) -> Any:
        """Columns side by side: one tensor or array [rows, len(names)].

        A view of the columns' own memory, made in microseconds, where they are neighbours of one dtype in the dataset's
        order (or evenly spaced, such as every second): writing to it writes to them. Its columns are contiguous, not
        its rows. Any other columns of one dtype and shape are copied. Nulls are zeros, as in the columns (`validity`).
        Raises UsageError for columns that cannot be one tensor, KeyError for one that the batch does not have.
        """
        if isinstance(names, str) or not names:
            raise UsageError(f"stack() takes a list of columns, such as ['f0', 'f1'], and got {names!r}")
        self._touch()
        view = self._view(tuple(names))
        return copied(names, [self[name] for name in names]) if view is None else view

    def _view(self, names: tuple[str, ...]) -> Any:
        """The columns side by side in their own memory; None where they are not there, or no longer."""
        try:
            view = None if self._source is None else self._source.stack(names, self._at)
        except KeyError:
            return None
        if view is not None and dict.__len__(self):
            # A column may have been replaced by the user's own, or be gone.
            found = map(dict.get, repeat(self), names)
            known = self._lazy is not None
            if not all((known and one is None) or holds(view, at, one) for at, one in enumerate(found)):
                return None
        return view

    @property
    def weight(self) -> float:
        """How much this rank's mean counts in the mean over ranks: its samples / (samples of the step / ranks).

        1.0 but for uneven worlds and an epoch's short last step; multiply the loss by it.
        """
        return self._known.weight

    @property
    def epoch(self) -> int:
        """Epoch of this batch."""
        return self._known.epoch

    @property
    def rows(self) -> int:
        """Rows of each column, padding included; may be 0 in a Partial last step."""
        return self._known.rows

    @property
    def _known(self) -> Source:
        if self._source is None:
            raise UsageError(
                "this Batch was made from a plain dict: ids, mask, weight, ... stayed with the loader's batch"
            )
        return self._source

    def to(self, *args: Any, **kwargs: Any) -> "Batch":
        """The batch with every tensor moved by `Tensor.to(*args, **kwargs)`; ids stay on the host.

        Does not count as looking at the batch, so wrappers that move batches ahead of time shift no cursor.
        Raises UsageError where columns are NumPy arrays.
        """
        source = self._known

        def move(value: Any) -> Any:
            if not hasattr(value, "to"):
                raise UsageError(f"a {type(value).__name__} cannot be moved to a device: connect with tensors='torch'")
            return value.to(*args, **kwargs)

        values = {name: self._peek(name) for name in self._peek_names()}
        mask = source.mask(self._at)
        fixed = Fixed(
            {name: move(value) for name, value in values.items()},
            ids=source.ids(self._at),
            mask=None if mask is None else move(mask),
            validity={name: move(valid) for name, valid in source.validity(self._at).items()},
            weight=source.weight,
            epoch=source.epoch,
            rows=source.rows,
        )
        if self._watch is not None and not isinstance(self._watch, _Once):
            self._watch = _Once(self._watch)
        return make(fixed, 0, self.step, self._watch)

    # ---- a dict whose values are made on demand ----------------------------------------------------------------

    def _touch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.touched(self.step)

    def __missing__(self, name: str) -> Any:
        lazy = self._lazy
        if lazy is None:
            raise KeyError(name)
        try:
            value = lazy.value(name, self._at)
        except KeyError:
            raise KeyError(f"{name!r}: this batch has the columns {', '.join(lazy.names)}") from None
        self._touch()
        dict.__setitem__(self, name, value)
        return value

    def _peek_names(self) -> list[str]:
        names = list(self._lazy.names) if self._lazy else []
        return names + [name for name in dict.__iter__(self) if name not in names]

    def _peek(self, name: str) -> Any:
        """A value, without touching the batch or keeping what was made."""
        if dict.__contains__(self, name) or self._lazy is None:
            return dict.__getitem__(self, name)
        return self._lazy.value(name, self._at)

    def _fill(self) -> None:
        """Make every value, in the columns' order; from here on this is an ordinary dict."""
        self._touch()
        lazy = self._lazy
        if lazy is None:
            return
        values = dict(zip(lazy.names, lazy.values(self._at), strict=True))
        if dict.__len__(self):
            # What was looked at, or put there, stays what it is.
            values |= dict.items(self)
            dict.clear(self)
        self._lazy = None
        dict.update(self, values)

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return dict.__iter__(self)

    def __reversed__(self) -> Iterator[str]:
        self._fill()
        return dict.__reversed__(self)

    def __len__(self) -> int:
        return len(self._peek_names()) if self._lazy else dict.__len__(self)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or (self._lazy is not None and name in self._lazy.names)

    def keys(self) -> Any:
        """As for a dict."""
        self._fill()
        return dict.keys(self)

    def values(self) -> Any:
        """As for a dict."""
        self._fill()
        return dict.values(self)

    def items(self) -> Any:
        """As for a dict."""
        self._fill()
        return dict.items(self)

    def get(self, name: str, default: Any = None) -> Any:
        """As for a dict."""
        return self[name] if name in self else default  # noqa: SIM401 - this is get

    def __delitem__(self, name: str) -> None:
        self._fill()
        dict.__delitem__(self, name)

    def pop(self, name: str, *default: Any) -> Any:
        """As for a dict."""
        self._fill()
        return dict.pop(self, name, *default)

    def popitem(self) -> tuple[str, Any]:
        """As for a dict."""
        self._fill()
        return dict.popitem(self)

    def clear(self) -> None:
        """As for a dict."""
        self._fill()
        dict.clear(self)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """As for a dict."""
        self._fill()
        return dict.setdefault(self, name, default)

    def __eq__(self, other: object) -> bool:
        self._fill()
        return dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __or__(self, other: Any) -> Any:
        return dict(self) | dict(other)

    def __ror__(self, other: Any) -> Any:
        return dict(other) | dict(self)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {_describe(self._peek(name))}" for name in self._peek_names())
        return f"Batch(step {self.step}, {{{columns}}})"

    def copy(self) -> "Batch":
        """A shallow copy with the same ids, weight and mask."""
        self._fill()
        copied = make(self._source, self._at, self.step, None)
        copied._lazy = None
        dict.update(copied, dict.items(self))
        return copied

    __copy__ = copy

    def __reduce__(self) -> Any:
        self._fill()
        source = self._source
        if source is None:
            return Batch, (dict(self),)
        extra = {
            "ids": source.ids(self._at),
            "mask": source.mask(self._at),
            "validity": source.validity(self._at),
            "weight": source.weight,
            "epoch": source.epoch,
            "rows": source.rows,
        }
        return _rebuild, (dict(self), extra, self.step)


def make(source: Source | None, at: int, step: int, watch: Watch | None) -> Batch:
    """The batch of step `at` of `source`, total step `step`; the hot path, so it sets slots and nothing else."""
    batch = Batch.__new__(Batch)
    batch._source = batch._lazy = source
    batch._at = at
    batch.step = step
    batch._watch = watch
    return batch


def _rebuild(values: dict[str, Any], extra: dict[str, Any], step: int) -> Batch:
    batch = make(Fixed(values, **extra), 0, step, None)
    batch._fill()
    return batch


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{value.dtype} {list(shape)}"
