"""A status in which every field of every part is set, whatever the models grow to."""

import types
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from lanefeed_core.book import Book, JobCommit
from lanefeed_core.ledger import Entry, Ledger
from lanefeed_operator.api.status import Status

__all__ = ["full_status"]


def _filled(annotation: Any, name: str) -> Any:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _filled(next(a for a in args if a is not type(None)), name)
    if origin is list:
        return [_filled(args[0], name)]
    if origin is dict:
        return {1: 2}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation(**{n: _filled(f.annotation, n) for n, f in annotation.model_fields.items()})
    return {bool: True, int: 7, float: 1.5, str: "True" if name == "status" else name}[annotation]


def full_status() -> Status:
    """With a book of two commits."""
    values = {n: _filled(f.annotation, n) for n, f in Status.model_fields.items() if n != "book"}
    commit = JobCommit(5, "ckpt/5", 1, Ledger({0: Entry(160, 2**64 - 1)}))
    return Status(**values, book=Book(1, 2, [commit], void=[commit]).to_dict())
