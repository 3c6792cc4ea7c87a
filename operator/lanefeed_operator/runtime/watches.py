"""How long ago each watch was last heard of, told by the HTTP session that kopf watches through.

Made by `main`, written by the shell's event loop, read by health and metrics. A watch is heard of when the API server
answers its request and whenever an event comes; the server is told to end every watch after WATCH_SECONDS, so one that
lives is heard of at least that often, however quiet its objects are. Where a watch begins, or lists anew because it had
lost its place, what was deleted before was not told: `relisted` asks the resync to find out.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import aiohttp

from lanefeed_operator.kube.api import Kind

__all__ = ["WATCH_SECONDS", "Watches"]

log = logging.getLogger(__name__)

#: The API server ends a watch after this long, and kopf begins the next one where it ended.
WATCH_SECONDS = 120

_PATH = re.compile(r"/(?:api/(?P<core>v\d\w*)|apis/(?P<group>[^/]+)/v\d\w*)/(?:namespaces/[^/]+/)?(?P<plural>[a-z]+)")


class Watches:
    """See the module. Thread safe."""

    def __init__(
        self,
        kinds: Iterable[Kind],
        *,
        relisted: Callable[[Kind], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count from now."""
        self._clock, self._relisted = clock, relisted
        self._lock = threading.Lock()
        self._kinds = {(kind.group, kind.plural): kind for kind in kinds}
        self._heard = {kind: clock() for kind in self._kinds.values()}
        self._watched: set[Kind] = set()

    def heard(self, kind: Kind) -> None:
        """An event came."""
        with self._lock:
            self._heard[kind] = self._clock()

    def ages(self) -> dict[str, float]:
        """Resource -> seconds of silence."""
        with self._lock:
            now = self._clock()
            return {kind.plural: max(0.0, now - at) for kind, at in self._heard.items()}

    def missing(self, seconds: float) -> list[str]:
        """Resources whose watch has not begun, and of which nothing was heard for so long: no listing is under way."""
        with self._lock:
            late = self._clock() - seconds
            return sorted(k.plural for k, at in self._heard.items() if k not in self._watched and at < late)

    def answered(self, path: str, watch: bool) -> None:
        """The API server answered 200 to a GET of `path`."""
        match = _PATH.fullmatch(path)
        kind = self._kinds.get((match["group"] or "", match["plural"])) if match else None
        if kind is None:
            return
        with self._lock:
            self._heard[kind] = self._clock()
            begun = kind in self._watched
            if watch and not begun:
                self._watched.add(kind)
                if len(self._watched) == len(self._heard):
                    log.info("every watch has begun: %s", ", ".join(sorted(k.plural for k in self._watched)))
        if watch != begun:
            self._relisted(kind)

    def tracing(self) -> aiohttp.TraceConfig:
        """For the session's `trace_configs`."""
        tracing = aiohttp.TraceConfig()

        async def ended(_session: Any, _context: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
            if params.response.status == 200 and params.method.upper() == "GET":
                self.answered(params.url.path, "watch" in params.url.query)

        tracing.on_request_end.append(ended)
        return tracing
