"""Decoding: shards to chunks. The pipeline sees what is named here only."""

from lanefeed_sidecar.formats.chunk import Chunk, ChunkColumn, FixedChunk, RaggedChunk
from lanefeed_sidecar.formats.columns import delivered_columns
from lanefeed_sidecar.formats.delivery import Delivery, OpenShard, delivery
from lanefeed_sidecar.formats.packed import open_shard
from lanefeed_sidecar.formats.reader import ShardReader

__all__ = [
    "Chunk",
    "ChunkColumn",
    "Delivery",
    "FixedChunk",
    "OpenShard",
    "RaggedChunk",
    "ShardReader",
    "delivered_columns",
    "delivery",
    "open_shard",
]
