"""Why a call is not answered: the gRPC status, the words, and the name that it is counted under.

Raised by the parts of the report service, turned into a status in one place (`service`).
"""

import grpc

from lanefeed_operator.errors import OperatorError

__all__ = ["RESULTS", "Rejected"]

#: What calls are counted under; `Rejected.result` is one of these.
RESULTS = (
    "ok",
    "stale",
    "fenced",
    "not_yet",
    "unauthenticated",
    "unknown_job",
    "too_large",
    "busy",
    "unavailable",
    "invalid",
    "error",
)


class Rejected(OperatorError):
    """The call is not answered. UNAVAILABLE and RESOURCE_EXHAUSTED: to be tried again."""

    def __init__(self, code: grpc.StatusCode, message: str, result: str) -> None:
        """`result`: one of RESULTS."""
        super().__init__(message)
        self.code, self.result = code, result

    @classmethod
    def unauthenticated(cls, message: str) -> "Rejected":
        """We do not know who this is."""
        return cls(grpc.StatusCode.UNAUTHENTICATED, message, "unauthenticated")

    @classmethod
    def forbidden(cls, message: str) -> "Rejected":
        """We know who this is, and it speaks for somebody else."""
        return cls(grpc.StatusCode.PERMISSION_DENIED, message, "unauthenticated")

    @classmethod
    def unavailable(cls, message: str, result: str = "unavailable") -> "Rejected":
        """Not now."""
        return cls(grpc.StatusCode.UNAVAILABLE, message, result)

    @classmethod
    def busy(cls, message: str) -> "Rejected":
        """Too much at once."""
        return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, message, "busy")

    @classmethod
    def too_large(cls, message: str) -> "Rejected":
        """A message above the cap."""
        return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, message, "too_large")

    @classmethod
    def invalid(cls, message: str) -> "Rejected":
        """No message of this protocol; sending it again changes nothing."""
        return cls(grpc.StatusCode.INVALID_ARGUMENT, message, "invalid")
