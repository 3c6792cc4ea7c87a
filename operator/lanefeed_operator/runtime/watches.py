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
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import aiohttp

from lanefeed_operator.kube.api import Kind

__all__ = ["WATCH_SECONDS", "Watches"]

log = logging.getLogger(__name__)

#: The API server ends a watch after this long, and kopf begins the next one where it ended.
WATCH_SECONDS = 120

_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/v\d\w*/(?:namespaces/(?P<namespace>[^/]+)/)?(?P<plural>[a-z]+)")

#: One watch: the kind, and the namespace where it is one of several; "" is the whole cluster.
_Watch = tuple[Kind, str]


class Watches:
    """See the module. Thread safe."""

    def __init__(
        self,
        kinds: Iterable[Kind],
        namespaces: Sequence[str] = (),
        *,
        relisted: Callable[[Kind], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count from now. `namespaces` empty: one watch of each kind; else one in each namespace."""
        self._clock, self._relisted = clock, relisted
        self._lock = threading.Lock()
        self._kinds = {(kind.group, kind.plural): kind for kind in kinds}
        self._namespaces = tuple(namespaces)
        places = [(kind, ns) for kind in self._kinds.values() for ns in self._places(kind)]
        self._heard: dict[_Watch, float] = dict.fromkeys(places, clock())
        self._watched: set[_Watch] = set()

    def _places(self, kind: Kind) -> tuple[str, ...]:
        return self._namespaces if kind.namespaced and self._namespaces else ("",)

    def heard(self, kind: Kind, namespace: str) -> None:
        """An event came, of an object in this namespace."""
        with self._lock:
            self._heard[kind, namespace if self._places(kind) != ("",) else ""] = self._clock()

    def ages(self) -> dict[str, float]:
        """Resource -> seconds of silence; of several watches that of the most silent."""
        with self._lock:
            now, found = self._clock(), dict[str, float]()
            for (kind, _), at in self._heard.items():
                found[kind.plural] = max(found.get(kind.plural, 0.0), now - at)
            return found

    def missing(self, seconds: float) -> list[str]:
        """Resources whose watch has not begun, and of which nothing was heard for so long: no listing is under way."""
        with self._lock:
            late = self._clock() - seconds
            found = {watch[0].plural for watch, at in self._heard.items() if watch not in self._watched and at < late}
            return sorted(found)

    def answered(self, path: str, watch: bool) -> None:
        """The API server answered 200 to a GET of `path`."""
        match = _PATH.fullmatch(path)
        kind = self._kinds.get((match["group"] or "", match["plural"])) if match else None
        if match is None or kind is None:
            return
        this = (kind, match["namespace"] or "")
        with self._lock:
            if this not in self._heard:
                return
            self._heard[this] = self._clock()
            begun = this in self._watched
            if watch and not begun:
                self._watched.add(this)
                if len(self._watched) == len(self._heard):
                    names = sorted({kind.plural for kind, _ in self._watched})
                    log.info("every watch has begun: %s", ", ".join(names))
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
