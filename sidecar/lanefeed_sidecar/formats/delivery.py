"""What of a dataset is delivered, and what readers are asked for to make it.

They differ where values are made from what is stored (images). Made once by the engine, which takes slots and windows
from `columns`, and what is read, fetched and kept from `stored`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from lanefeed_core.layout import RAGGED, Column
from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_sidecar.formats.columns import delivered_columns
from lanefeed_sidecar.formats.image_reader import ImageReader
from lanefeed_sidecar.formats.images import ImageDecoder, decoder_version
from lanefeed_sidecar.formats.reader import ShardReader
from lanefeed_sidecar.sources.names import join

__all__ = ["Delivery", "OpenShard", "delivery"]

OpenShard = Callable[[Manifest, int, tuple[Column, ...]], ShardReader]

#: Of sidecar.readAheadBytes, for one image while it is decoded.
_IMAGE_SHARE = 4


@dataclass(frozen=True, slots=True)
class Delivery:
    """Columns as delivered; as stored, one for each; what makes the one from the other."""

    columns: tuple[Column, ...]
    stored: tuple[Column, ...]
    decoders: dict[int, ImageDecoder]
    #: What else the values depend on, for names of what is cached.
    made_by: tuple[object, ...] = ()

    def opening(self, open_shard: OpenShard) -> OpenShard:
        """`open_shard`, of columns as delivered, in terms of one that knows columns as stored."""
        if not self.decoders:
            return open_shard

        def opened(manifest: Manifest, shard: int, _delivered: tuple[Column, ...]) -> ShardReader:
            reader = open_shard(manifest, shard, self.stored)
            return ImageReader(reader, join(manifest.root, manifest.shards[shard].path), self.decoders)

        return opened


def delivery(manifest: Manifest, config: PodConfig) -> Delivery:
    """What a pod delivers. Raises ConfigError for columns that do not fit the dataset, or a library that is missing."""
    columns = delivered_columns(manifest, config.columns, config.images)
    specs = {image.column: image for image in config.images}
    decoders = {
        index: ImageDecoder(specs[column.name], config.read_ahead_bytes // _IMAGE_SHARE)
        for index, column in enumerate(columns)
        if column.name in specs
    }
    stored = tuple(
        replace(column, shape=(), kind=RAGGED, logical="binary") if index in decoders else column
        for index, column in enumerate(columns)
    )
    made_by = (decoder_version(), [image.to_dict() for image in config.images]) if decoders else ()
    return Delivery(columns, stored, decoders, made_by)
