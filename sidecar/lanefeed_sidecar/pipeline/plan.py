"""A stream's columns as the pipeline moves them, worked out once: with 73 of them asking each time takes milliseconds.

Used by `window`, `pool` and `assemble`, for every window and every frame. Pure.
"""

import math
from dataclasses import dataclass

import numpy as np

from lanefeed_core.layout import Column, column_runs

__all__ = ["Plan", "Run", "plan_of"]


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring fixed columns of one dtype and shape, or a column alone."""

    columns: range
    shape: tuple[int, ...]
    dtype: "np.dtype[np.generic]"
    #: Bytes of a row of one of them; of an element of a ragged one.
    row_bytes: int
    ragged: bool
    #: Strides within a row.
    inner: tuple[int, ...]
    #: Whether one of them may hold nulls.
    nullable: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs of all columns, in order."""

    columns: tuple[Column, ...]
    runs: tuple[Run, ...]
    #: Bytes of a row of all fixed columns.
    row_bytes: int


#: By identity of the columns, which a plan keeps alive: a process has one stream, tests have several.
_PLANS: dict[int, Plan] = {}
_MOST = 16


def plan_of(columns: tuple[Column, ...]) -> Plan:
    """The plan of these columns, made once for each tuple."""
    known = _PLANS.get(id(columns))
    if known is not None and known.columns is columns:
        return known
    runs = tuple(_run(columns, run) for run in column_runs(columns))
    made = Plan(columns, runs, sum(len(run.columns) * run.row_bytes for run in runs if not run.ragged))
    if len(_PLANS) >= _MOST:
        _PLANS.clear()
    _PLANS[id(columns)] = made
    return made


def _run(columns: tuple[Column, ...], run: range) -> Run:
    first, dtype = columns[run.start], np.dtype(columns[run.start].dtype)
    inner = tuple(dtype.itemsize * math.prod(first.shape[axis + 1 :]) for axis in range(len(first.shape)))
    nullable = any(columns[index].nullable for index in run)
    return Run(run, first.shape, dtype, first.row_bytes, first.ragged, inner, nullable)
