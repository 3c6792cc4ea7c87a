"""The seam to the Kubernetes API: what the shell may ask of it, and how it can refuse.

`client.Client` is the real one; the simulation implements the same protocol over a store of its own, with conflicts,
stale reads and crashes. Objects are plain dicts as the API server writes them. Calls are synchronous and safe from any
thread; each has a deadline. Nothing above this seam knows HTTP.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lanefeed_operator.errors import OperatorError

__all__ = [
    "CONFIG_MAPS",
    "DEEPEST_JSON",
    "EVENTS",
    "JOBS",
    "LEASES",
    "NODES",
    "PODS",
    "SECRETS",
    "SERVICES",
    "STJS",
    "AlreadyExists",
    "ApiError",
    "Conflict",
    "Forbidden",
    "Invalid",
    "Kind",
    "KubeApi",
    "NotFound",
    "Object",
    "TokenOwner",
    "Unreachable",
]

Object = dict[str, Any]

#: Recursion limit of a process that reads objects: the API server takes 10,000 levels from anybody who may write one
#: field that is kept as it is, and Python reads one thousand by itself. The rest is for what is around them.
DEEPEST_JSON = 12_000


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the API. `group` is "" for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True


STJS = Kind("lanefeed.dev", "v1alpha1", "shardedtrainingjobs", "ShardedTrainingJob")
JOBS = Kind("batch", "v1", "jobs", "Job")
PODS = Kind("", "v1", "pods", "Pod")
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
SERVICES = Kind("", "v1", "services", "Service")
SECRETS = Kind("", "v1", "secrets", "Secret")
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
EVENTS = Kind("events.k8s.io", "v1", "events", "Event")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")


class ApiError(OperatorError):
    """The API server refused or failed. `code`: HTTP status, 0 where there was none."""

    code = 0

    def __init__(self, message: str, *, code: int | None = None, retry_after: float | None = None) -> None:
        """`retry_after`: seconds that the server asked to wait."""
        super().__init__(message)
        self.retry_after = retry_after
        if code is not None:
            self.code = code


class NotFound(ApiError):
    """404: there is no such object (or no such resource)."""

    code = 404


class Conflict(ApiError):
    """409 on a write with a precondition: the object changed, or is another one (UID). Read again, decide again."""

    code = 409


class AlreadyExists(ApiError):
    """409 on a create: an object of that name is there."""

    code = 409


class Invalid(ApiError):
    """400 or 422: the object itself is refused; trying again changes nothing. The text is the API server's."""

    code = 422


class Forbidden(ApiError):
    """401 or 403: the operator lacks a right (or a quota or an admission policy forbids it)."""

    code = 403


class Unreachable(ApiError):
    """No answer, 429, or 5xx, after the client's own few tries. Try again later."""


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """Whom a projected service-account token was made for, as TokenReview says. "" where it does not say."""

    namespace: str
    service_account: str
    pod_name: str
    pod_uid: str


class KubeApi(Protocol):
    """See the module. Every method raises ApiError or one of its kinds."""

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object, read from the quorum (never from a cache)."""

    def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[Object]:
        """All objects, of one namespace or of all ("" ); `labels` is a label selector. Read in chunks."""

    def create(self, kind: Kind, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        """Create; with strict field validation. Raises AlreadyExists, Invalid."""

    def replace_status(self, kind: Kind, namespace: str, body: Object) -> Object:
        """PUT .../status of `body`, whose metadata.resourceVersion is the precondition. Raises Conflict, NotFound."""

    def patch(self, kind: Kind, namespace: str, name: str, patch: Object, *, subresource: str = "") -> Object:
        """JSON merge patch. Put metadata.uid and resourceVersion into `patch` as preconditions. Raises Conflict."""

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        propagation: Literal["Background", "Foreground"] = "Background",
        grace: int | None = None,
    ) -> None:
        """Delete the object with this UID. Gone already is no error; another UID raises Conflict."""

    def token_owner(self, token: str, audience: str) -> TokenOwner | None:
        """TokenReview: whose token it is, None if it is not valid for the audience."""
