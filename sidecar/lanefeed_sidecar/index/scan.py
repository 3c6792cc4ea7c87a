"""Reads one shard's footer: rows, row groups, schema, nulls. Called by `build` in threads; decodes no data of Parquet."""

import os
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from lanefeed_core.manifest import Shard
from lanefeed_sidecar.formats.footer import FooterError, fingerprint, sniff
from lanefeed_sidecar.index.schema import ShardSchema, flat_fields

__all__ = ["BadShard", "Scanned", "content_digest", "scan"]


class BadShard(Exception):
    """A file that cannot be used; the text names it, says why and what to do."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """What the footer says."""

    shard: Shard
    kind: str
    schema: ShardSchema
    has_page_checksums: bool | None = None


def scan(path: str) -> Scanned:
    """Read the footer of a file. Raises BadShard."""
    try:
        stat = os.stat(path)
        kind = sniff(path)
        if not kind:
            raise FooterError("it is neither Parquet nor an Arrow file by its first bytes")
        mark = fingerprint(path, kind)
        shard = Shard(path, stat.st_size, (), (), str(stat.st_mtime_ns), mark)
        return _parquet(path, shard) if kind == "parquet" else _arrow(path, shard)
    except (FooterError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
        size = os.path.getsize(path) if os.path.exists(path) else 0
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadShard(
            f"{path} ({size} bytes) cannot be read: {why}; remove or rewrite it, or set data.onCorrupt to Quarantine"
        ) from error


def _parquet(path: str, shard: Shard) -> Scanned:
    with pq.ParquetFile(path, memory_map=True) as file:
        meta = file.metadata
        groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
        rows = tuple(g.num_rows for g in groups)
        if sum(rows) != meta.num_rows or min(rows, default=0) < 0:
            raise FooterError(f"its footer contradicts itself: {meta.num_rows} rows in all, {sum(rows)} in row groups")
        flat = flat_fields(file.schema_arrow)
        nulls = _parquet_nulls(meta, groups)
        columns = {name: (kind, nulls.get(name, True)) for name, kind in flat.items()}
        sizes = tuple(g.total_byte_size for g in groups)
        return Scanned(replace(shard, row_groups=rows, row_group_bytes=sizes), "parquet", ShardSchema(path, columns))


def _parquet_nulls(meta: pq.FileMetaData, groups: list[pq.RowGroupMetaData]) -> dict[str, bool]:
    """Column -> whether it may hold nulls, by statistics and the schema's own word. Lists: the schema's word only."""
    found: dict[str, bool] = {}
    for index in range(meta.num_columns):
        column = meta.schema.column(index)
        name = column.path.removesuffix(".list.element").removesuffix(".list.item").removesuffix(".bag.array_element")
        if column.max_definition_level == 0:
            found[name] = False
            continue
        if column.max_repetition_level:
            # Statistics count null elements; whether a list itself is null only the levels say.
            found[name] = _list_may_be_null(groups, index)
            continue
        parts = [g.column(index) for g in groups if g.num_rows]
        stats = [p.statistics for p in parts]
        known = all(s is not None and s.has_null_count for s in stats)
        found[name] = any(s.null_count for s in stats) if known else True
    return found


def _list_may_be_null(groups: list[pq.RowGroupMetaData], index: int) -> bool:
    """False where every leaf value is there: no null elements, no empty or null lists can hide behind num_values."""
    for group in groups:
        column = group.column(index)
        stats = column.statistics
        if stats is None or not stats.has_null_count or stats.null_count:
            return True
    return False


def _arrow(path: str, shard: Shard) -> Scanned:
    with pa.memory_map(path) as source, pa.ipc.open_file(source) as file:
        rows, sizes = [], []
        nulls: dict[str, bool] = {}
        for index in range(file.num_record_batches):
            batch = file.get_batch(index)
            rows.append(batch.num_rows)
            sizes.append(batch.nbytes)
            table = pa.Table.from_batches([batch])
            if any(pa.types.is_struct(f.type) for f in table.schema):
                table = table.flatten()
            for name in table.column_names:
                nulls[name] = nulls.get(name, False) or table.column(name).null_count > 0
        columns = {n: (kind, nulls.get(n, False)) for n, kind in flat_fields(file.schema).items()}
        made = replace(shard, row_groups=tuple(rows), row_group_bytes=tuple(sizes))
        return Scanned(made, "arrow", ShardSchema(path, columns))


def content_digest(path: str) -> str:
    """xxh3-64 of the whole file, 16 hex digits."""
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(4 << 20):
            digest.update(block)
    return str(digest.hexdigest())
