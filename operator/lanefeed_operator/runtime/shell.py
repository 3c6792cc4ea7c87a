"""kopf as what it is good at: authentication and watches. Every event goes into the View and wakes a job; no more.

Run by `main` in a thread of its own, with an event loop of its own; it ends when told, or with the error that ended a
watch, and then the process ends: a watch that is dead and says nothing is the worst that can happen to an operator.

Only `on.event` is used. So kopf writes nothing into the cluster: no finalizer, no annotation, no peering, no event; and
what it would compare to find out what changed is not computed (`_NoState`). Selectors are the server's.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import kopf
from kopf._core.reactor.inventory import ResourceMemories

from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import JOBS, NODES, PODS, STJS, Kind, Object
from lanefeed_operator.runtime.feed import SELECTOR, Feed
from lanefeed_operator.runtime.watches import WATCH_SECONDS, Watches

__all__ = ["KINDS", "Shell"]

#: What is watched; nodes where the operator may.
KINDS = (STJS, JOBS, PODS, NODES)
#: A watch of which nothing comes, not even a bookmark (the server sends one a minute), is begun anew after this long.
SILENT_SECONDS = 75.0
#: Listings come in pieces of this many objects: both sides hold one piece in memory.
CHUNK = 500
#: A watch that has neither begun by then, nor is being listed for, never will.
BEGIN_SECONDS = 60.0
POLL_SECONDS = 0.2
CLEAN_SECONDS = 1.0
#: Retries of a request before its watch gives up and with it the process: five minutes, and never long after the API
#: server is back.
BACKOFFS = (1, 1, 2, 3, *(5,) * 60)


class _NoState(kopf.DiffBaseStorage):
    """kopf asks for the parts of each object that it would compare; nobody compares, so there are none."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        """Nothing; copying each object would be most of the cost of an event."""
        return {}

    def fetch(self, *, body: Any) -> Any:
        """Nothing was kept."""
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        """Keep nothing."""


class _NoMemories(ResourceMemories):
    """kopf remembers something of each object, for handlers that we do not have: 6 KB for each of 64,000 pods.

    The only name of kopf's that is not public; a test notices if it goes.
    """

    async def recall(self, raw_body: Any, **kwargs: Any) -> Any:
        """Anew each time, kept by nobody."""
        return await super().recall(raw_body, **(kwargs | {"ephemeral": True}))


class Shell:
    """See the module."""

    def __init__(
        self,
        feed: Feed,
        watches: Watches,
        *,
        kinds: Sequence[Kind] = KINDS,
        namespaces: Iterable[str] = (),
    ) -> None:
        """`namespaces` empty: the whole cluster."""
        self._feed, self._watches = feed, watches
        self._kinds, self._namespaces = tuple(kinds), tuple(namespaces)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watches", daemon=True)
        #: Why the watches ended; None while they run, or if they were told to.
        self.error: Exception | None = None
        self._tasks: Collection[asyncio.Task[Any]] = ()
        self._on_end: Callable[[], None] = lambda: None

    def start(self, ended: Callable[[], None] = lambda: None) -> None:
        """Begin to watch; `ended` is called at the end."""
        self._on_end = ended
        self._thread.start()

    def stop(self) -> None:
        """End the watches; `join` waits for that."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        """Wait until the watches have ended, at most so long."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    # ---- kopf ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._watch())
        except Exception as error:
            # The edge of a thread: whatever it was, `main` must hear of it, and end the process.
            if not self._stop.is_set():
                self.error = error
        # At once: kopf may hang while it cleans up after a task that failed (seen).
        self._on_end()
        loop.run_until_complete(self._clean_up())

    async def _watch(self) -> None:
        """Watch until told to end, or until something of kopf's ends by itself. Raises what it ended with."""
        self._tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=self._settings(),
            memories=_NoMemories(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stop,
        )
        while not self._stop.is_set():
            done, _ = await asyncio.wait(self._tasks, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if done and not self._stop.is_set():
                raise OperatorError("kopf ended without being told to")
            missing = self._watches.missing(BEGIN_SECONDS)
            if missing:
                # kopf asks once what resources there are; where the API server was just starting, it never finds them.
                raise OperatorError(f"{', '.join(missing)}: the watch has not begun after {BEGIN_SECONDS:g} s")

    async def _clean_up(self) -> None:
        self._stop.set()
        me = asyncio.current_task()
        ending = asyncio.create_task(kopf.run_tasks(self._tasks, ignored={me} if me else set()))
        await asyncio.wait([ending], timeout=CLEAN_SECONDS)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.TEMPORARY, backoff=2)(self._login)
        for kind in self._kinds:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(self._handler(kind))
        return registry

    def _settings(self) -> kopf.OperatorSettings:
        s = kopf.OperatorSettings()
        s.peering.standalone = True
        s.posting.enabled = False
        s.scanning.disabled = True
        s.persistence.diffbase_storage = _NoState()
        s.watching.server_timeout = WATCH_SECONDS
        s.watching.client_timeout = WATCH_SECONDS + 30
        s.watching.connect_timeout = 10
        s.watching.inactivity_timeout = SILENT_SECONDS
        s.watching.chunk_size = CHUNK
        s.networking.request_timeout = 30
        s.networking.connect_timeout = 10
        s.networking.enforce_retry_after = True
        s.networking.error_backoffs = BACKOFFS
        # A worker keeps its object in memory while it waits for the next event of it.
        s.queueing.idle_timeout = 0.5
        s.queueing.exit_timeout = 0.5
        s.process.ultimate_exiting_timeout = None
        s.execution.executor = ThreadPoolExecutor(2, thread_name_prefix="kopf")
        for kind in (JOBS, PODS):
            s.watching.label_selectors[kind.group, kind.version, kind.plural] = SELECTOR
        return s

    async def _login(self, **kwargs: Any) -> kopf.AiohttpSession:
        """A session that tells `Watches` what is answered. Called again when the token has run out."""
        info = await asyncio.to_thread(kopf.login_via_client, **kwargs)
        if info is None:
            raise kopf.LoginError("there is neither a service account nor a kubeconfig: set KUBECONFIG")
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers() | {"User-Agent": "lanefeed-operator"},
            trace_configs=[self._watches.tracing()],
        )
        return kopf.AiohttpSession(server=info.server, aiohttp_session=session)

    def _handler(self, kind: Kind) -> Callable[..., Awaitable[None]]:
        async def seen(event: Any, **_: Any) -> None:
            obj: Object = event["object"]
            self._watches.heard(kind, obj["metadata"].get("namespace", ""))
            if event["type"] == "DELETED":
                self._feed.gone(kind, obj)
            else:
                self._feed.seen(kind, obj)

        seen.__name__ = f"{kind.plural}_seen"
        return seen
