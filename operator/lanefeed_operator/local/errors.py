"""Errors of the local shell.

LocalError          (an OperatorError) something on this machine that the user can mend
|-- AlreadyRunning  another `lanefeed run` of the same job
|-- UnknownJob      no state of a job of this name
|-- DatasetChanged  the listing is not the frozen manifest's any more
`-- Interrupted     the user stopped what was under way
"""

from lanefeed_operator.errors import OperatorError

__all__ = ["AlreadyRunning", "DatasetChanged", "Interrupted", "LocalError", "UnknownJob"]


class LocalError(OperatorError):
    """Something on this machine that the user can mend; the text says what, which value, and what to do."""


class AlreadyRunning(LocalError):
    """Another `lanefeed run` of the same job holds its state folder."""


class UnknownJob(LocalError):
    """There is no state of a job of this name."""


class DatasetChanged(LocalError):
    """Files were added, removed or changed since the manifest was frozen."""


class Interrupted(LocalError):
    """The user stopped what was under way."""
