"""The sidecar's error tree; each kind travels to the trainer under its class name (docs/protocol.md, Errors).

SidecarError              anything that ends a stream; the text is written for the user
|-- DataError             a shard that cannot be read, fails its check, was replaced, or has another schema
|-- BatchTooLarge         one rank batch is larger than a slot
|-- ArenaError            the tmpfs folder cannot hold the arena
|-- StateMismatch         a state of another dataset, seed, size or version
|-- PlanMismatch          rank, world or plan generation do not fit, or ranks start at different steps
|-- ProtocolMismatch      trainer and sidecar speak other protocol versions
|-- AuthError             the token is wrong or missing
|-- CommitRefused         a commit that cannot count, or a pod that was replaced
|-- LedgerMismatch        what was consumed is not what the manifest says
|-- Unavailable           not now: stopping, or a session that is gone; trainers try again
`-- ConfigError           a pod configuration or a memory budget that cannot work
"""

__all__ = [
    "ArenaError",
    "AuthError",
    "BatchTooLarge",
    "CommitRefused",
    "ConfigError",
    "DataError",
    "LedgerMismatch",
    "PlanMismatch",
    "ProtocolMismatch",
    "SidecarError",
    "StateMismatch",
    "Unavailable",
]


class SidecarError(Exception):
    """Base of the sidecar's errors; `retryable` says whether trying again may help."""

    retryable = False

    @property
    def kind(self) -> str:
        """The name under which it travels."""
        return type(self).__name__


class DataError(SidecarError):
    """A shard that cannot be read, fails its check, was replaced, or has another schema; names the file."""


class BatchTooLarge(SidecarError):
    """One rank batch is larger than a slot; names both sizes and the field to change."""


class ArenaError(SidecarError):
    """The tmpfs folder cannot hold the arena; names needed and available bytes and the field to change."""


class StateMismatch(SidecarError):
    """A state of another dataset, seed, size or version."""


class PlanMismatch(SidecarError):
    """Rank, world size or plan generation do not fit, or ranks start at different steps."""


class ProtocolMismatch(SidecarError):
    """Trainer and sidecar speak other protocol versions; names both."""


class AuthError(SidecarError):
    """The token is wrong or missing."""


class CommitRefused(SidecarError):
    """A commit that cannot count, or a pod that was replaced."""


class LedgerMismatch(SidecarError):
    """The samples consumed in an epoch are not those that the manifest lists."""


class Unavailable(SidecarError):
    """Not now: the sidecar or the job is stopping, or the session is gone. Trainers try again until their deadline."""

    retryable = True

    @property
    def kind(self) -> str:
        """It travels as its base: trainers go by the status code UNAVAILABLE."""
        return SidecarError.__name__


class ConfigError(SidecarError):
    """A pod configuration or a memory budget that cannot work; names the field."""
