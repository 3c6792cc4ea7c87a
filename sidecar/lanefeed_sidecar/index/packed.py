"""Counts the sequences that each row group's documents give: then a packed dataset is indexed like any other.

Called by `build` once the dataset's schema is known. Concat asks the footers, where they can be trusted to say how many
tokens a row group has; otherwise, and for BestFit, which needs every document's length, the one column is read, a row
group at a time. What is counted here is checked against the documents whenever they are packed (`formats.packed`).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.errors import StreamError
from lanefeed_core.layout import Column
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.pack import yield_of
from lanefeed_core.packing import BEST_FIT, Packing, PackingRequest
from lanefeed_sidecar.errors import ConfigError, DataError
from lanefeed_sidecar.formats.packed import document_column, documents_of
from lanefeed_sidecar.formats.reader import ShardReader, open_shard
from lanefeed_sidecar.formats.remote import RemoteShards
from lanefeed_sidecar.formats.types import Unsupported, column_of
from lanefeed_sidecar.index.scan import BadShard, Scanned
from lanefeed_sidecar.sources import is_remote
from lanefeed_sidecar.sources.objects import ReadFailed

__all__ = ["PackedShard", "count", "settle"]

#: A row group that decodes to more is read in pieces of about so many bytes; one page may take as much as a sidecar of
#: the default size allows.
_PIECE_BYTES = 16 << 20
_PAGE_BYTES = 128 << 20
_THREADS = 4


@dataclass(frozen=True, slots=True)
class PackedShard:
    """A shard whose rows are sequences, and the tokens in them, with those that end documents."""

    shard: Shard
    tokens: int


def settle(request: PackingRequest, fields: tuple[Field, ...]) -> Packing:
    """The packing of a dataset with these fields. Raises ConfigError."""
    kinds = {f.name: _token_type(f) for f in fields}
    able = [name for name, kind in kinds.items() if kind]
    name = request.column or (able[0] if len(able) == 1 else "")
    if not name:
        has = f"it has {', '.join(able)}: name one in packed.column" if able else "it has none"
        raise ConfigError(f"layout Packed needs one column of lists of whole numbers, and {has}")
    if name not in kinds:
        raise ConfigError(f"packed.column is {name!r}, which the dataset does not have: it has {', '.join(kinds)}")
    if not kinds[name]:
        kind = next(f.type for f in fields if f.name == name)
        raise ConfigError(f"packed.column {name!r} is {kind}: only lists of whole numbers can be packed")
    try:
        return Packing(
            name,
            kinds[name],
            request.sequence_length,
            request.eos_token,
            request.mode,
            request.cross_document_mask,
        )
    except StreamError as error:
        raise ConfigError(str(error)) from None


def _token_type(field: Field) -> str:
    """NumPy type of the whole numbers of a list column; "" where it is none."""
    made = column_of(field.name, field.type, nullable=field.nullable)
    if isinstance(made, Unsupported) or made.logical or not (made.ragged or made.shape):
        return ""
    return made.dtype if np.dtype(made.dtype).kind in "iu" else ""


def count(
    scanned: list[Scanned],
    fields: tuple[Field, ...],
    kind: str,
    packing: Packing,
    progress: Callable[[int, int], None],
) -> list[PackedShard | BadShard]:
    """Each shard with its sequences counted, in the order given; BadShard: its documents cannot be read."""
    plain = Manifest(tuple(sorted((s.shard for s in scanned), key=lambda s: s.path)), fields, kind)
    columns = (document_column(fields, packing),)
    remote = RemoteShards(plain, columns) if any(is_remote(s.path) for s in plain.shards) else None
    opened: Callable[[Manifest, int, tuple[Column, ...]], ShardReader] = remote.open_stored if remote else open_shard
    at = {shard.path: index for index, shard in enumerate(plain.shards)}
    done: list[PackedShard | BadShard] = []

    def one(item: Scanned) -> PackedShard | BadShard:
        known = item.list_values.get(packing.column)
        if known is not None and packing.mode != BEST_FIT:
            return _by_footer(item.shard, known, packing)
        try:
            return _by_reading(item.shard, partial(opened, plain, at[item.shard.path], columns), packing)
        except DataError as error:
            if isinstance(error.__cause__, ReadFailed):
                # A store that is away says nothing of the shard.
                raise
            return BadShard(str(error))

    try:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="count") as pool:
            for made in pool.map(one, scanned):
                done.append(made)
                progress(len(done), len(scanned))
    finally:
        if remote is not None:
            remote.close()
    return done


def _by_footer(shard: Shard, tokens: tuple[int, ...], packing: Packing) -> PackedShard:
    """No document of it is empty: each has its end."""
    if packing.eos_token is not None:
        tokens = tuple(n + rows for n, rows in zip(tokens, shard.row_groups, strict=True))
    yields = [-(-n // packing.sequence_length) for n in tokens]
    return _packed(shard, yields, sum(tokens), packing)


def _by_reading(shard: Shard, opened: Callable[[], ShardReader], packing: Packing) -> PackedShard:
    reader = opened()
    yields, tokens = [], 0
    try:
        for group in range(len(shard.row_groups)):
            parts = list(_lengths(reader, shard, group))
            lengths = np.concatenate(parts) if parts else np.zeros(0, np.int64)
            yields.append(yield_of(lengths, packing))
            tokens += int(lengths.sum()) + (int((lengths > 0).sum()) if packing.eos_token is not None else 0)
    finally:
        reader.close()
    return _packed(shard, yields, tokens, packing)


def _lengths(reader: ShardReader, shard: Shard, group: int) -> Iterator[NDArray[np.int64]]:
    rows = shard.row_groups[group]
    size = max(reader.weigh(group, _PAGE_BYTES).nbytes, shard.row_group_bytes[group] if shard.row_group_bytes else 0)
    if size <= _PIECE_BYTES:
        chunks = iter([reader.read(group)])
    else:
        chunks = reader.stream(group, max(1, rows * _PIECE_BYTES // size))
    found = 0
    for chunk in chunks:
        lengths = np.diff(documents_of(chunk.columns[0]).offsets)
        found += chunk.rows
        yield lengths
    if found != rows:
        raise DataError(f"shard {shard.path}, row group {group} holds {found} rows and its footer says {rows}")


def _packed(shard: Shard, yields: list[int], tokens: int, packing: Packing) -> PackedShard:
    made = replace(
        shard,
        row_groups=tuple(yields),
        row_group_bytes=tuple(n * packing.sequence_bytes for n in yields),
        documents=shard.row_groups,
    )
    return PackedShard(made, tokens)
