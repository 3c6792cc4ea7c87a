"""Reads one shard's footer: rows, row groups, schema, nulls. Called by `build` in threads; decodes no data of Parquet.

Arrow IPC files say little in their footer, so their record batches are mapped and their null counts looked at.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from lanefeed_core.manifest import Shard
from lanefeed_sidecar.formats.footer import FooterError, fingerprint, has_page_checksum, sniff
from lanefeed_sidecar.formats.types import PHYSICAL_BYTES
from lanefeed_sidecar.index.schema import Flat, ShardSchema, flat_fields, leaves

__all__ = ["SCAN_ERRORS", "BadShard", "Scanned", "bad_shard", "scan", "scan_arrow", "scan_parquet"]

#: What a file that cannot be used raises.
SCAN_ERRORS = (FooterError, pa.ArrowException, OSError, ValueError)


class BadShard(Exception):
    """A file that cannot be used; the text names it, says why and what to do."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """What the footer says."""

    shard: Shard
    kind: str
    schema: ShardSchema
    #: Whether the first page carries a checksum; None where that is unknown or means nothing (Arrow).
    page_checksums: bool | None = None
    #: Numbers in each row group of the columns of lists of which the footer can be trusted to say so.
    list_values: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


def scan(path: str) -> Scanned:
    """Read the footer of a file. Raises BadShard."""
    size = 0
    try:
        stat = os.stat(path)
        size = stat.st_size
        kind = sniff(path)
        if not kind:
            raise FooterError("it is neither Parquet nor an Arrow file by its first bytes" if size else "it is empty")
        shard = Shard(path, size, (), (), str(stat.st_mtime_ns), fingerprint(path, kind))
        return _parquet(path, shard) if kind == "parquet" else _arrow(path, shard)
    except SCAN_ERRORS as error:
        raise bad_shard(path, size, error) from error


def bad_shard(path: str, size: int, error: Exception) -> BadShard:
    """Says why and what to do."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return BadShard(f"{path} ({size} bytes) cannot be read: {why}; remove or rewrite it")


def _parquet(path: str, shard: Shard) -> Scanned:
    with pq.ParquetFile(path, memory_map=True) as file:
        return scan_parquet(path, shard, file, lambda offset: has_page_checksum(path, offset))


def scan_parquet(path: str, shard: Shard, file: pq.ParquetFile, checks: Callable[[int], bool | None]) -> Scanned:
    """What an open Parquet file's footer says. `checks`: whether the page at an offset carries a checksum."""
    meta = file.metadata
    groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
    rows = tuple(g.num_rows for g in groups)
    if sum(rows) != meta.num_rows or min(rows, default=0) < 0:
        raise FooterError(f"its footer contradicts itself: {meta.num_rows} rows in all, {sum(rows)} in row groups")
    schema = file.schema_arrow
    flat = flat_fields(schema)
    starts = dict(zip(flat, _first_leaves(schema), strict=True))
    trusted = meta.created_by.startswith("parquet-cpp-arrow")
    columns = {n: (c.kind, _may_hold_nulls(c, groups, starts[n], trusted)) for n, c in flat.items()}
    lists = _list_leaves(file.schema)
    values = _list_values(flat, groups, starts, {index for index, _ in lists}) if trusted else {}
    made = replace(shard, row_groups=rows, row_group_bytes=tuple(_decoded(group, lists) for group in groups))
    return Scanned(made, "parquet", ShardSchema(path, columns), _page_checksums(groups, checks), values)


def _list_values(
    flat: Mapping[str, Flat], groups: list[pq.RowGroupMetaData], starts: Mapping[str, int], lists: set[int]
) -> dict[str, tuple[int, ...]]:
    """Arrow's writer counts levels: null and empty lists and null numbers too, all of which it also counts as nulls."""
    found = {}
    for name, column in flat.items():
        if starts[name] not in lists or not _is_list(column.kind):
            continue
        counts = []
        for group in groups:
            about = group.column(starts[name])
            statistics = about.statistics
            if group.num_rows and (statistics is None or not statistics.has_null_count or statistics.null_count):
                break
            counts.append(max(0, about.num_values))
        else:
            found[name] = tuple(counts)
    return found


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _list_leaves(schema: pq.ParquetSchema) -> list[tuple[int, int]]:
    """(index, bytes of a value) of the leaves that are numbers in lists."""
    leaves_of = ((index, schema.column(index)) for index in range(len(schema)))
    return [
        (index, PHYSICAL_BYTES[leaf.physical_type])
        for index, leaf in leaves_of
        if leaf.max_repetition_level and leaf.physical_type in PHYSICAL_BYTES
    ]


def _decoded(group: pq.RowGroupMetaData, lists: list[tuple[int, int]]) -> int:
    """Bytes once decoded, as the footer says: sizes are of encoded pages, but a list's numbers are counted."""
    found = max(0, group.total_byte_size)
    for index, width in lists:
        about = group.column(index)
        found += max(0, about.num_values * width - max(0, about.total_uncompressed_size))
    return int(found)


def _first_leaves(schema: pa.Schema) -> Iterator[int]:
    """For each flat column the index of its first Parquet column; Parquet numbers leaves depth first."""
    at = 0
    for field in schema:
        parts = list(field.type) if pa.types.is_struct(field.type) else [field]
        for part in parts:
            yield at
            at += leaves(part.type)


def _may_hold_nulls(column: Flat, groups: list[pq.RowGroupMetaData], leaf: int, trusted: bool) -> bool:
    """By the schema's word, else by statistics; unknown is True.

    Statistics of a list count null elements, and with Arrow's writer null and empty lists too. Other writers differ in
    that, so their lists are believed only where the schema allows no nulls.
    """
    if not column.may_be_null:
        return False
    if pa.types.is_nested(column.kind) and not trusted:
        return True
    for group in groups:
        if group.num_rows == 0:
            continue
        statistics = group.column(leaf).statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count:
            return True
    return False


def _page_checksums(groups: list[pq.RowGroupMetaData], checks: Callable[[int], bool | None]) -> bool | None:
    for group in groups:
        if group.num_rows and group.num_columns:
            first = group.column(0)
            return checks(first.dictionary_page_offset or first.data_page_offset)
    return None


def _arrow(path: str, shard: Shard) -> Scanned:
    with pa.memory_map(path) as source, pa.ipc.open_file(source) as file:
        return scan_arrow(path, shard, file)


def scan_arrow(path: str, shard: Shard, file: pa.ipc.RecordBatchFileReader) -> Scanned:
    """What an open Arrow file's record batches say."""
    flat = flat_fields(file.schema)
    rows, sizes = [], []
    nulls = dict.fromkeys(flat, False)
    for index in range(file.num_record_batches):
        batch = file.get_batch(index)
        batch.validate()
        rows.append(batch.num_rows)
        sizes.append(batch.nbytes)
        for name, array in zip(flat, _flat_arrays(batch), strict=True):
            nulls[name] = nulls[name] or _has_nulls(array)
    columns = {name: (column.kind, nulls[name]) for name, column in flat.items()}
    made = replace(shard, row_groups=tuple(rows), row_group_bytes=tuple(sizes))
    return Scanned(made, "arrow", ShardSchema(path, columns))


def _flat_arrays(batch: pa.RecordBatch) -> Iterator[pa.Array]:
    for array in batch.columns:
        if pa.types.is_struct(array.type):
            yield from array.flatten()
        else:
            yield array


def _has_nulls(array: pa.Array) -> bool:
    """Null rows; in a dictionary array also rows that point to a null of the dictionary."""
    return array.null_count > 0 or (pa.types.is_dictionary(array.type) and array.dictionary.null_count > 0)
