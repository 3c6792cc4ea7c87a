"""What users pass to `open` and `connect`: a wrong argument is a UsageError at the call, with its name and value in it.

Values come back in the plain types that JSON, command lines and other processes take: NumPy's numbers too are welcome.
"""

import operator
import os
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from lanefeed.errors import UsageError

__all__ = ["column_names", "flag", "folder", "number", "number_or_none", "paths", "seconds"]

_Path = str | os.PathLike[str]


def number(name: str, value: Any, least: int, otherwise: str = "") -> int:
    """A whole number of at least `least`; `otherwise` ends the error's text."""
    try:
        found = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least:
        raise UsageError(f"{name} is {value!r}: it must be a whole number of at least {least}{otherwise}")
    return found


def number_or_none(name: str, value: Any, least: int, none: str) -> int | None:
    """The same, or None, which stands for `none`."""
    return None if value is None else number(name, value, least, f", or None for {none}")


def flag(name: str, value: Any) -> bool:
    """True or False. No other value counts as one: "False" and "Forbid" are true to Python."""
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is {value!r}: write {name}=True or {name}=False")
    return bool(value)


def seconds(name: str, value: Any) -> float:
    """A time to wait."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise UsageError(f"{name} is {value!r}: it must be a number of seconds above 0")
    return float(value)


def folder(name: str, value: Any) -> str:
    """A folder's path, as it is given."""
    if not _is_path(value):
        raise UsageError(f"{name} is {value!r}: give the path of a folder, such as {name}='/dev/shm/mine'")
    return os.fspath(value)


def paths(uris: _Path | Sequence[_Path]) -> tuple[str, ...]:
    """What `open` reads, as texts."""
    found: list[Any]
    try:
        found = [uris] if _is_path(uris) or isinstance(uris, bytes) else list(uris)  # type: ignore[arg-type]
    except TypeError:
        found = [uris]
    if not found:
        raise UsageError("open() was given no path: name a file, a folder or a glob such as 'data/*.parquet'")
    for uri in found:
        if not _is_path(uri):
            raise UsageError(
                f"open() was given {uri!r}, which is no path: name a file, a folder or a glob such as "
                "'data/*.parquet', or give a list of them"
            )
    return tuple(os.fspath(uri) for uri in found)


def column_names(columns: Any) -> tuple[str, ...]:
    """Names of columns; none stand for all of them."""
    if isinstance(columns, str):
        raise UsageError(f"columns is the text {columns!r}: give a list of names, such as columns=[{columns!r}]")
    try:
        found = () if columns is None else tuple(columns)
    except TypeError:
        raise UsageError(f"columns is {columns!r}: give a list of names, such as columns=['x', 'label']") from None
    for name in found:
        if not isinstance(name, str) or not name:
            raise UsageError(f"columns has {name!r}: give columns by their names, such as columns=['x', 'label']")
    # NumPy's texts are texts of their own kind.
    return tuple(str(name) for name in found)


def _is_path(value: Any) -> bool:
    """Whether it is a path that is text: bytes are none, as paths travel in JSON."""
    return isinstance(value, str) or (isinstance(value, os.PathLike) and isinstance(os.fspath(value), str))
