"""Decoding: shards to chunks. The pipeline sees `open_shard`, `delivered_columns` and the chunk types only."""

import difflib

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.formats.chunk import Chunk, ChunkColumn, FixedChunk, RaggedChunk
from lanefeed_sidecar.formats.reader import ShardReader, open_shard
from lanefeed_sidecar.formats.types import Unsupported, column_of

__all__ = [
    "Chunk",
    "ChunkColumn",
    "FixedChunk",
    "RaggedChunk",
    "ShardReader",
    "delivered_columns",
    "open_shard",
]


def delivered_columns(manifest: Manifest, selected: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns as delivered: `selected` in that order, or all.

    Raises ConfigError for a column that does not exist (with the nearest name) or whose type no slot can hold.
    """
    fields = {f.name: f for f in manifest.fields}
    for name in selected:
        if selected.count(name) > 1:
            raise ConfigError(f"data.columns names {name!r} twice: name each column once")
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"data.columns names {name!r}, which the dataset does not have: {hint}It has {', '.join(fields)}"
            )
    columns = []
    for name in selected or tuple(fields):
        made = column_of(name, fields[name].type, nullable=fields[name].nullable)
        if isinstance(made, Unsupported):
            raise ConfigError(
                f"column {name!r} ({fields[name].type}) cannot be delivered: {made.reason}; leave it out with "
                "data.columns, or write it as a supported type"
            )
        columns.append(made)
    return tuple(columns)
