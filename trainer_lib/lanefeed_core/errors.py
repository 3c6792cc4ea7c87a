"""The error tree of the core.

CoreError (a ValueError: the caller's input or a stored document is wrong)
|-- ManifestError      a manifest that cannot be read, or shards that do not fit together
|-- StreamError        sizes that cannot make a stream: lanes, global batch, window, world size
|-- StateMismatch      a cursor or state of another job, dataset or version
|-- LayoutError        a slot layout that does not fit
`-- LedgerMismatch     what was consumed is not what the manifest says: samples were lost or repeated
"""

__all__ = ["CoreError", "LayoutError", "LedgerMismatch", "ManifestError", "StateMismatch", "StreamError"]


class CoreError(ValueError):
    """Base of all errors of `lanefeed_core`; the text says what, which value, and what to change."""


class ManifestError(CoreError):
    """A manifest cannot be read, or its shards do not fit together."""


class StreamError(CoreError):
    """The sizes given (samples, global batch, lanes, window, world size) cannot make a stream."""


class StateMismatch(CoreError):
    """A saved state belongs to another dataset, seed, global batch size or version than this job."""


class LayoutError(CoreError):
    """Columns or sizes that no slot can hold."""


class LedgerMismatch(CoreError):
    """The samples consumed in an epoch are not the samples that the manifest lists."""
