"""`KubeApi` against a real API server: plain dicts over the transport of the `kubernetes` package.

Made once by `main` (in a pod or from a kubeconfig), used from every thread. The package gives the configuration, TLS,
credentials and the connection pool; its typed models are not used, they cost memory and drop fields that they do not
know. Every call has a deadline. What may be repeated without harm is tried a few times; the work queue does the rest.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import config
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration

from lanefeed_operator.kube.api import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    Kind,
    NotFound,
    Object,
    TokenOwner,
    Unreachable,
)

__all__ = ["Client", "Hook", "connect"]

log = logging.getLogger(__name__)

#: (verb, HTTP status or 0, seconds) of every request.
Hook = Callable[[str, int, float], None]

CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
TRIES = 3
FIRST_WAIT = 0.25
#: A longer Retry-After is the work queue's to wait for, not a worker's.
LONGEST_WAIT = 3.0
CHUNK = 500
#: A list that changes faster than it can be read in chunks is begun anew this often.
LIST_TRIES = 3
FIELD_MANAGER = "lanefeed-operator"
MESSAGE_CHARS = 2048
_TOKEN_REVIEWS = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)


def connect(
    *, kubeconfig: str | None = None, context: str | None = None, hook: Hook | None = None, pool: int = 16
) -> "Client":
    """A client for the cluster that this process is in, or that the kubeconfig names. Raises ApiError if neither."""
    return Client(configuration(kubeconfig, context, pool), hook=hook)


def configuration(kubeconfig: str | None, context: str | None, pool: int) -> Configuration:
    """Where the API server is and who we are. Raises ApiError where nothing says so."""
    settings = Configuration()
    try:
        if kubeconfig is None and context is None and _in_cluster():
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=settings)
    except config.ConfigException as error:
        raise ApiError(f"no cluster: {error}; set KUBECONFIG, or run in a pod with a service account") from None
    settings.connection_pool_maxsize = pool
    return settings


def _in_cluster() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ


class Client:
    """See the module; the methods are those of `KubeApi`."""

    def __init__(
        self,
        settings: Configuration,
        *,
        hook: Hook | None = None,
        seconds: float = CALL_SECONDS,
        first_wait: float = FIRST_WAIT,
    ) -> None:
        """`hook` is told of every request. `seconds`: deadline of a call, all its tries together."""
        # urllib3's own tries know nothing of what may be repeated.
        settings.retries = urllib3.Retry(0, redirect=0)
        self._settings = settings
        self._client = ApiClient(settings)
        self._pool: Any = self._client.rest_client.pool_manager
        self._host = str(settings.host).rstrip("/")
        self._hook = hook
        self._seconds = seconds
        self._first_wait = first_wait

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    # ---- KubeApi -----------------------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object, read from the quorum."""
        return self._call("get", "GET", _path(kind, namespace, name), again=True)

    def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> "Objects":
        """All objects, read in chunks."""
        found = {}
        for item in self.scan(kind, namespace, labels=labels):
            found[item["metadata"].get("namespace", ""), item["metadata"]["name"]] = item
        return list(found.values())

    def scan(self, kind: Kind, namespace: str = "", *, labels: str = "") -> Iterator[Object]:
        """As `list`, a chunk at a time: at most `CHUNK` raw objects are held. May yield an object twice."""
        for last in (False,) * (LIST_TRIES - 1) + (True,):
            try:
                yield from self._chunks(kind, namespace, labels)
                return
            except ApiError as error:
                # The place in the list was forgotten by the server.
                if error.code != 410 or last:
                    raise

    def create(self, kind: Kind, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        """Create, strictly validated."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        verb = "dry-run" if dry_run else "create"
        return self._call(verb, "POST", _path(kind, namespace), query, {**_typed(kind), **body}, again=dry_run)

    def replace_status(self, kind: Kind, namespace: str, body: Object) -> Object:
        """PUT of /status; the resourceVersion in `body` is the precondition."""
        path = _path(kind, namespace, body["metadata"]["name"], "status")
        return self._call("replace_status", "PUT", path, {"fieldManager": FIELD_MANAGER}, {**_typed(kind), **body})

    def patch(self, kind: Kind, namespace: str, name: str, patch: Object, *, subresource: str = "") -> Object:
        """JSON merge patch."""
        path = _path(kind, namespace, name, subresource)
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        try:
            return self._call("patch", "PATCH", path, query, patch, content="application/merge-patch+json")
        except Invalid as error:
            # So says the server of a UID that is another object's by now: for us that is a precondition.
            if "metadata.uid: Invalid value" in str(error):
                raise Conflict(str(error)) from None
            raise

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
        """Delete the object with this UID."""
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": propagation,
        }
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            self._call("delete", "DELETE", _path(kind, namespace, name), None, body, again=True)
        except NotFound:
            return

    def token_owner(self, token: str, audience: str) -> TokenOwner | None:
        """TokenReview."""
        body = {**_typed(_TOKEN_REVIEWS), "spec": {"token": token, "audiences": [audience]}}
        status = self._call("create", "POST", _path(_TOKEN_REVIEWS, ""), None, body, again=True).get("status") or {}
        if not status.get("authenticated") or audience not in (status.get("audiences") or ()):
            return None
        user = status.get("user") or {}
        extra = user.get("extra") or {}
        prefix, _, account = str(user.get("username", "")).rpartition(":")
        words = prefix.split(":")
        return TokenOwner(
            namespace=words[2] if words[:2] == ["system", "serviceaccount"] and len(words) == 3 else "",
            service_account=account,
            pod_name=_first(extra.get("authentication.kubernetes.io/pod-name")),
            pod_uid=_first(extra.get("authentication.kubernetes.io/pod-uid")),
        )

    # ---- requests ----------------------------------------------------------------------------------------------

    def _chunks(self, kind: Kind, namespace: str, labels: str) -> Iterator[Object]:
        query = {"limit": str(CHUNK)} | ({"labelSelector": labels} if labels else {})
        typed = _typed(kind)
        while True:
            found = self._call("list", "GET", _path(kind, namespace), query, again=True)
            # Items of a list come without their type.
            yield from ({**typed, **item} for item in found.get("items") or ())
            place = (found.get("metadata") or {}).get("continue")
            if not place:
                return
            query["continue"] = place

    def _call(
        self,
        verb: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        *,
        content: str = "application/json",
        again: bool = False,
    ) -> Object:
        """One call with its tries. `again`: it may be repeated although the server may have done it already."""
        url = f"{self._host}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        deadline = time.monotonic() + self._seconds
        wait = self._first_wait
        for left in range(TRIES - 1, -1, -1):
            try:
                return self._once(verb, method, url, data, content, deadline)
            except Unreachable as error:
                # 429 is said before anything is done.
                pause = max(wait, error.retry_after or 0.0)
                late = time.monotonic() + pause >= deadline
                if left == 0 or not (again or error.code == 429) or pause > LONGEST_WAIT or late:
                    raise
                log.debug("%s %s: %s; again in %.2f s", method, path, error, pause)
                time.sleep(pause)
                wait *= 2
        raise AssertionError("unreachable")

    def _once(self, verb: str, method: str, url: str, data: bytes | None, content: str, deadline: float) -> Object:
        return _parsed(method, url, self._text(verb, method, url, data, content, deadline))

    def _text(self, verb: str, method: str, url: str, data: bytes | None, content: str, deadline: float) -> bytes:
        headers = {"Accept": "application/json", "User-Agent": f"{FIELD_MANAGER}/1"}
        if data is not None:
            headers["Content-Type"] = content
        headers |= _authorization(self._settings, method, url)
        began = time.monotonic()
        left = max(0.1, deadline - began)
        code = 0
        try:
            answer = self._pool.request(
                method,
                url,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, left), read=left),
            )
            code = int(answer.status)
            text: bytes = answer.data
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"{method} {url}: the API server does not answer: {_cause(error)}", code=0) from None
        finally:
            if self._hook is not None:
                self._hook(verb, code, time.monotonic() - began)
        if code >= 300:
            raise _refusal(method, url, code, text, answer.headers.get("Retry-After"))
        return text


def _authorization(settings: Configuration, method: str, url: str) -> dict[str, str]:
    """The header that says who we are. Raises Unreachable where that cannot be read now, as in a token's renewal."""
    try:
        auth = settings.auth_settings().get("BearerToken")
    except (config.ConfigException, OSError) as error:
        raise Unreachable(f"{method} {url}: the credentials cannot be read: {error}", code=0) from None
    return {"Authorization": auth["value"]} if auth and auth.get("value") else {}


#: Named outside of the class, where `list` is the method.
Objects = list[Object]


def _typed(kind: Kind) -> Object:
    return {"apiVersion": f"{kind.group}/{kind.version}" if kind.group else kind.version, "kind": kind.kind}


def _path(kind: Kind, namespace: str, name: str = "", subresource: str = "") -> str:
    parts = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
    if kind.namespaced and namespace:
        parts += ["namespaces", namespace]
    parts += [kind.plural, *(part for part in (name, subresource) if part)]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _first(values: Any) -> str:
    return str(values[0]) if isinstance(values, list) and values else ""


def _cause(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else f"{error}"


def _parsed(method: str, url: str, text: bytes) -> Object:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        # A proxy's page, or half an answer; deeper than DEEPEST_JSON is no API server's.
        raise Unreachable(f"{method} {url}: the answer is no JSON ({error}): {text[:80]!r}", code=0) from None
    if not isinstance(found, dict):
        raise Unreachable(f"{method} {url}: the answer is no object: {text[:80]!r}", code=0)
    return found


def _refusal(method: str, url: str, code: int, text: bytes, retry_after: str | None) -> ApiError:
    """The server's refusal in our tree, with its own words."""
    try:
        status = json.loads(text)
        status = status if isinstance(status, dict) else {}
    except (ValueError, RecursionError):
        status = {}
    message = str(status.get("message") or text.decode(errors="replace").strip() or f"HTTP {code}")[:MESSAGE_CHARS]
    reason = str(status.get("reason") or "")
    details = status.get("details") or {}
    asked = _seconds(retry_after)
    if asked is None and isinstance(details, dict) and details.get("retryAfterSeconds"):
        asked = float(details["retryAfterSeconds"])
    if code == 429 or code >= 500:
        return Unreachable(f"{method} {url}: {message}", code=code, retry_after=asked)
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExists(message)
    kinds: dict[int, type[ApiError]] = {
        400: Invalid,
        401: Forbidden,
        403: Forbidden,
        404: NotFound,
        409: Conflict,
        413: Invalid,
        422: Invalid,
    }
    return kinds.get(code, ApiError)(message, code=code, retry_after=asked)


def _seconds(text: str | None) -> float | None:
    """Retry-After: seconds, or a date."""
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
