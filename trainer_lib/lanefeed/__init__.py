"""Lanefeed's trainer library: this rank's batches, zero-copy, restartable at any step with any number of ranks.

    loader = lanefeed.connect()              # in a job: `lanefeed run job.yaml`, or a ShardedTrainingJob
    loader = lanefeed.open("data/*.parquet", global_batch_size=512, epochs=1)

    for epoch in loader.epochs():
        for batch in loader:
            train(batch)

Imports NumPy, gRPC and protobuf; torch only when tensors are asked for.
"""

from lanefeed._batch import Batch
from lanefeed._client.feed import Commit
from lanefeed._connect import connect
from lanefeed._loader import Loader
from lanefeed._merge import merge
from lanefeed._open import open  # noqa: A004 - lanefeed.open reads as it should
from lanefeed._ragged import Ragged
from lanefeed._sigterm import stop_on_sigterm
from lanefeed._stats import Stats
from lanefeed._stream import KeptBatchesWarning
from lanefeed._version import VERSION as __version__
from lanefeed.errors import (
    ArenaError,
    AttachTimeout,
    AuthError,
    BatchTooLarge,
    CommitRefused,
    DataError,
    ForkError,
    LanefeedError,
    LedgerMismatch,
    NotConnected,
    PlanMismatch,
    ProtocolMismatch,
    SidecarError,
    SidecarLost,
    StateMismatch,
    Stopped,
    UsageError,
)
from lanefeed_core.images import ImageColumn

__all__ = [
    "ArenaError",
    "AttachTimeout",
    "AuthError",
    "Batch",
    "BatchTooLarge",
    "Commit",
    "CommitRefused",
    "DataError",
    "ForkError",
    "ImageColumn",
    "KeptBatchesWarning",
    "LanefeedError",
    "LedgerMismatch",
    "Loader",
    "NotConnected",
    "PlanMismatch",
    "ProtocolMismatch",
    "Ragged",
    "SidecarError",
    "SidecarLost",
    "StateMismatch",
    "Stats",
    "Stopped",
    "UsageError",
    "__version__",
    "connect",
    "merge",
    "open",
    "stop_on_sigterm",
]
