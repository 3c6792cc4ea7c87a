"""Which of the namespaces that the operator is told to look after it can read. Called by `main`.

A namespace that was deleted takes the operator's Role there with it, and the API server answers 403 from then on; one
that somebody forgot to make answers the same. The others must not wait for it: it is left out, and asked again.
"""

import logging
from collections.abc import Sequence

from lanefeed_operator.kube.api import JOBS, PODS, STJS, ApiError, Forbidden, Kind, KubeApi
from lanefeed_operator.runtime.feed import selector
from lanefeed_operator.runtime.guard import scan

__all__ = ["ASK_AGAIN_SECONDS", "readable", "returned"]

log = logging.getLogger(__name__)

#: How often namespaces that were left out are asked again.
ASK_AGAIN_SECONDS = 60.0
_NEEDED: tuple[Kind, ...] = (STJS, JOBS, PODS)


def readable(client: KubeApi, namespaces: Sequence[str]) -> tuple[str, ...]:
    """Those that answer; all namespaces are (). Raises ApiError: of the API server, or Forbidden where none answers."""
    if not namespaces:
        _ask(client, "")
        return ()
    found, refused = [], {}
    for namespace in namespaces:
        try:
            _ask(client, namespace)
            found.append(namespace)
        except Forbidden as error:
            refused[namespace] = error
    if not found:
        raise next(iter(refused.values()))
    for namespace, refusal in refused.items():
        log.warning("namespace %s is left out until it can be read: %s", namespace, refusal)
    return tuple(found)


def returned(client: KubeApi, left_out: Sequence[str]) -> str:
    """The first of those left out that answers by now, "" if none does."""
    for namespace in left_out:
        try:
            _ask(client, namespace)
        except ApiError as error:
            log.debug("namespace %s is still left out: %s", namespace, error)
        else:
            return namespace
    return ""


def _ask(client: KubeApi, namespace: str) -> None:
    """Read the beginning of each list that the operator needs. Raises ApiError."""
    for kind in _NEEDED:
        next(iter(scan(client, kind, namespace, labels=selector(kind))), None)
