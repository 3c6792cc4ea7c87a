"""Who calls: a projected service-account token is turned into the pod that it was made for.

The API server is asked (TokenReview) when a token is new, and again when the answer is old: after 60 seconds, or later
where so many pods report that this would be more than REVIEWS_PER_SECOND, but never after the token's own end. A pod
that is gone meanwhile is not let in by this: `admission` believes the UID that holds the index alone. What cannot be
reviewed is never accepted: a refused token is UNAUTHENTICATED, an API server that does not answer UNAVAILABLE.

Tokens are kept as hashes, and never logged.
"""

import base64
import binascii
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lanefeed_operator.coordinator.rejected import Rejected
from lanefeed_operator.kube.api import ApiError, KubeApi, TokenOwner

__all__ = ["Authenticator", "Caller", "TokenAuthenticator"]

log = logging.getLogger(__name__)

#: How long an answer of the API server counts.
FRESH_SECONDS = 60.0
REFUSED_SECONDS = 10.0
SAY_SECONDS = 30.0
#: What the API server is asked by all pods together, in the long run.
REVIEWS_PER_SECOND = 20.0
MAX_KNOWN = 131_072
MAX_REFUSED = 4096
MAX_TOKEN_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Caller:
    """The pod that calls. An empty UID speaks for every pod (one machine: whoever holds the job's token)."""

    namespace: str
    pod_uid: str

    def check(self, namespace: str, pod_uid: str, job: str) -> None:
        """Raise Rejected unless this is pod `pod_uid` of `namespace`, where the job lives."""
        if not self.pod_uid:
            return
        if self.pod_uid != pod_uid:
            raise Rejected.forbidden(f"the token is of pod {self.pod_uid} and the message says pod {pod_uid}")
        if self.namespace != namespace:
            raise Rejected.forbidden(f"the token is of namespace {self.namespace} and job {job} is of {namespace}")


class Authenticator(Protocol):
    """Turns tokens into callers; safe from any thread."""

    def known(self, token: str) -> Caller | None:
        """From memory, at once; None where `review` must be asked. Raises Rejected for a token known to be refused."""

    def review(self, token: str) -> Caller:
        """Find out, which may take as long as the API server does. Raises Rejected."""


class TokenAuthenticator:
    """An Authenticator that asks the API server."""

    def __init__(
        self,
        api: KubeApi,
        audience: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`audience`: whom tokens must be made for. `clock`: one that does not jump; `wall`: seconds since 1970."""
        self._api, self._audience, self._clock, self._wall = api, audience, clock, wall
        self._lock = threading.Lock()
        #: Token's hash -> (until when the answer counts, who it is).
        self._known: dict[bytes, tuple[float, Caller]] = {}
        self._refused: dict[bytes, tuple[float, str]] = {}
        self._said = float("-inf")

    @property
    def size(self) -> int:
        """Tokens whose owner is remembered."""
        return len(self._known)

    def known(self, token: str) -> Caller | None:
        """See Authenticator."""
        if not token or len(token) > MAX_TOKEN_BYTES:
            raise Rejected.unauthenticated(
                "the token is missing" if not token else f"a token of {len(token)} bytes is none of a service account"
            )
        key, now = _key(token), self._clock()
        with self._lock:
            found, refused = self._known.get(key), self._refused.get(key)
        if found is not None and now < found[0]:
            return found[1]
        if refused is not None and now < refused[0]:
            raise Rejected.unauthenticated(refused[1])
        return None

    def review(self, token: str) -> Caller:
        """See Authenticator."""
        known = self.known(token)
        if known is not None:
            return known
        try:
            owner = self._api.token_owner(token, self._audience)
        except ApiError as error:
            self._complain(error)
            raise Rejected.unavailable(
                f"the API server cannot be asked whose token this is: try again ({error})"
            ) from None
        return self._keep(token, owner)

    def _complain(self, error: ApiError) -> None:
        """Every pod asks again within seconds: say it now and then."""
        now = self._clock()
        with self._lock:
            due = now >= self._said + SAY_SECONDS
            self._said = now if due else self._said
        if due:
            log.warning("whose tokens pods send cannot be asked, so reports of new ones wait: %s", error)

    def _keep(self, token: str, owner: TokenOwner | None) -> Caller:
        key, now = _key(token), self._clock()
        why = _fault(owner, self._audience)
        with self._lock:
            self._known.pop(key, None)
            if owner is None or why:
                self._refused.pop(key, None)
                self._refused[key] = (now + REFUSED_SECONDS, why)
                _shorten(self._refused, MAX_REFUSED)
                raise Rejected.unauthenticated(why)
            caller = Caller(owner.namespace, owner.pod_uid)
            fresh = max(FRESH_SECONDS, len(self._known) / REVIEWS_PER_SECOND)
            self._known[key] = (now + min(fresh, _seconds_left(token, self._wall())), caller)
            self._refused.pop(key, None)
            self._sweep(now)
            return caller

    def _sweep(self, now: float) -> None:
        """Forget answers that are old; they stand in the order in which they were given."""
        for key in list(self._known)[:2]:
            if self._known[key][0] <= now:
                del self._known[key]
        _shorten(self._known, MAX_KNOWN)


def _fault(owner: TokenOwner | None, audience: str) -> str:
    if owner is None:
        return f"the API server refuses the token: expired, of a pod that is gone, or not made for {audience}"
    if not owner.pod_uid or not owner.namespace:
        return "the token is bound to no pod: only the projected token of a job's own pod counts"
    return ""


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()[:16]


def _seconds_left(token: str, now: float) -> float:
    """What a JWT says of its own end; a reviewed token's word counts. No limit where it is no JWT."""
    try:
        part = token.split(".")[1]
        end = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"]
        return max(0.0, float(end) - now)
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return float("inf")


def _shorten(entries: dict[bytes, Any], most: int) -> None:
    while len(entries) > most:
        del entries[next(iter(entries))]
