"""The trainer library's error tree. Every text says what is wrong, with which value, and what to change.

LanefeedError
|-- UsageError            the call itself is wrong: arguments, environment, order of calls
|   |-- NotConnected      there is no sidecar to connect to, or the loader was closed
|   `-- ForkError         a loader was used in a forked process
|-- SidecarError          the sidecar cannot go on; its own words
|   |-- AttachTimeout     no sidecar answered in time
|   |-- SidecarLost       the sidecar went away or went silent, and did not come back in time
|   |-- ProtocolMismatch  trainer and sidecar speak other protocol versions
|   |-- AuthError         the token is wrong or missing
|   |-- PlanMismatch      rank, world or plan generation do not fit the sidecar's plan
|   |-- DataError         a shard that cannot be read or fails its check
|   |-- BatchTooLarge     one rank batch is larger than a slot
|   `-- ArenaError        the shared memory cannot hold the arena, or a slot does not hold the frame it should
|-- StateMismatch         a state of another dataset, seed, size or version (also a ValueError)
|-- CommitRefused         a commit that cannot count: this process was replaced, or the plan has moved on
`-- LedgerMismatch        samples were lost or repeated (also a ValueError)

`Stopped` is no error: it is how a trainer leaves when `loader.stop_requested`.
"""

from lanefeed_core import errors as core

__all__ = [
    "ArenaError",
    "AttachTimeout",
    "AuthError",
    "BatchTooLarge",
    "CommitRefused",
    "DataError",
    "ForkError",
    "LanefeedError",
    "LedgerMismatch",
    "NotConnected",
    "PlanMismatch",
    "ProtocolMismatch",
    "SidecarError",
    "SidecarLost",
    "StateMismatch",
    "Stopped",
    "UsageError",
    "by_kind",
    "from_core",
]


class LanefeedError(Exception):
    """Base of all errors that this library raises on purpose."""


class UsageError(LanefeedError):
    """The call itself is wrong: arguments, environment or order of calls."""


class NotConnected(UsageError):
    """There is no sidecar to connect to, or the loader was closed."""


class ForkError(UsageError):
    """A loader was used in a forked process: its threads and its session stayed in the parent."""


class SidecarError(LanefeedError):
    """The sidecar cannot go on; the text is its own."""


class AttachTimeout(SidecarError):
    """No sidecar answered before the deadline."""


class SidecarLost(SidecarError):
    """The sidecar went away or went silent and did not come back before the deadline."""


class ProtocolMismatch(SidecarError):
    """Trainer library and sidecar speak other protocol versions; names both."""


class AuthError(SidecarError):
    """The token that the trainer sent is wrong or missing."""


class PlanMismatch(SidecarError):
    """Rank, world size or plan generation do not fit, or the ranks of a pod start at different steps."""


class DataError(SidecarError):
    """A shard cannot be read or fails its check; names the file."""


class BatchTooLarge(SidecarError):
    """One rank batch is larger than a slot; names both sizes and the field to change."""


class ArenaError(SidecarError):
    """The shared memory cannot hold the arena, or a slot does not hold the frame that was signalled."""


class StateMismatch(LanefeedError, core.StateMismatch):
    """A saved state belongs to another dataset, seed, global batch size or version; names both values."""


class CommitRefused(LanefeedError):
    """A commit that cannot count: this process was replaced, or the job has moved on to another plan."""


class LedgerMismatch(LanefeedError, core.LedgerMismatch):
    """What was consumed is not what the manifest says: samples were lost or repeated."""


class Stopped(SystemExit):
    """Raise it to leave after `loader.stop_requested`: a SystemExit with code 75 (EX_TEMPFAIL).

    An exit code of 0 would tell Kubernetes that this rank is done for good.
    """

    def __init__(self) -> None:
        """Exit code 75."""
        super().__init__(75)


_KINDS: dict[str, type[LanefeedError]] = {
    error.__name__: error
    for error in (
        ArenaError,
        AuthError,
        BatchTooLarge,
        CommitRefused,
        DataError,
        LedgerMismatch,
        PlanMismatch,
        ProtocolMismatch,
        SidecarError,
        SidecarLost,
        StateMismatch,
    )
}


def by_kind(kind: str, message: str) -> LanefeedError:
    """The error for a `Failure.kind` of the protocol; kinds that this version does not know become SidecarError."""
    found = _KINDS.get(kind)
    return found(message) if found else SidecarError(f"{kind}: {message}" if kind else message)


def from_core(error: core.CoreError) -> LanefeedError:
    """The library's error for one of the core's, with the same text."""
    if isinstance(error, core.StateMismatch):
        return StateMismatch(str(error))
    if isinstance(error, core.LedgerMismatch):
        return LedgerMismatch(str(error))
    if isinstance(error, core.LayoutError):
        return BatchTooLarge(str(error))
    return UsageError(str(error))
