"""The operator's process: makes the parts, starts them in order, and ends within five seconds when told to.

Called by `python -m lanefeed_operator`. The main thread waits; whatever must not die alone (a watch, the lead) tells
it, and it ends the process. Decides nothing about jobs.
"""

import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lanefeed_core.process import hear_signals
from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import DEEPEST_JSON, NODES, ApiError, Forbidden, Kind, KubeApi, NotFound, Object
from lanefeed_operator.kube.client import Client, connect
from lanefeed_operator.runtime import logs
from lanefeed_operator.runtime.decisions import Decisions
from lanefeed_operator.runtime.guard import GuardedApi
from lanefeed_operator.runtime.health import Health, api_answers
from lanefeed_operator.runtime.http import HttpServer
from lanefeed_operator.runtime.leader import Leader
from lanefeed_operator.runtime.lease import Lease
from lanefeed_operator.runtime.metrics import Metrics, version
from lanefeed_operator.runtime.namespaces import ASK_AGAIN_SECONDS, readable, returned
from lanefeed_operator.runtime.parts import Parts
from lanefeed_operator.runtime.settings import PREFIX, OperatorSettings, SettingsError, read
from lanefeed_operator.runtime.shell import KINDS

__all__ = ["Process", "main"]

log = logging.getLogger(__name__)

#: From SIGTERM to the end, whatever hangs.
END_SECONDS = 5.0
#: The same once the lead is lost.
LOST_SECONDS = 1.0
#: Of these the passes at hand get so much.
PASS_SECONDS = 3.0
RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 5.0)
POLL_SECONDS = 0.5
BAD_SETTINGS, FAILED = 2, 1
#: Threads without which the rest would go on and do less than it says, by the beginnings of their names.
NEEDED = ("pass-", "resync", "watches", "lease")


def main(argv: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> int:
    """Run until SIGTERM; the exit code."""
    if argv:
        print(f"{' '.join(argv)}: there are no arguments; the environment says all, see runtime/settings.py")  # noqa: T201
        return BAD_SETTINGS
    try:
        settings = read(environ)
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 -- there is no log yet
        return BAD_SETTINGS
    sys.setrecursionlimit(DEEPEST_JSON)
    logs.setup(as_json=settings.log_json, level=settings.log_level)
    process = Process(settings)
    hear_signals((signal.SIGTERM, signal.SIGINT), process.signalled)
    threading.excepthook = process.broke
    return process.run()


class Process:
    """See the module."""

    def __init__(self, settings: OperatorSettings, api: Client | None = None) -> None:
        """`api`: another cluster than the one that this process would find, for tests."""
        self._settings, self._given = settings, api
        #: As told; of the settings those are left out that cannot be read.
        self._namespaces = settings.watch_namespaces
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._code = 0
        self.metrics, self.health, self.decisions = Metrics(), Health(), Decisions()
        self._leader: Leader | None = None
        self._parts: Parts | None = None
        self._servers: list[HttpServer] = []

    def signalled(self, number: int) -> None:
        """SIGTERM or SIGINT. Not for a handler: it takes locks, see `hear_signals`."""
        self.end(f"signal {signal.Signals(number).name}", 0)

    def broke(self, args: threading.ExceptHookArgs) -> None:
        """A thread ended with an error that nobody caught, a fault of ours: no probe would see that it is missing."""
        if args.exc_value is None or isinstance(args.exc_value, SystemExit):
            return
        name = args.thread.name if args.thread is not None else "(unknown)"
        log.error("thread %s broke", name, exc_info=args.exc_value)
        if name.startswith(NEEDED):
            self.end(f"thread {name} broke, a fault of the operator's: {args.exc_value!r}", FAILED)

    def end(self, why: str, code: int, seconds: float = END_SECONDS) -> None:
        """Begin to end, within `seconds`; the first reason counts. From any thread."""
        if self._stop.is_set():
            return
        self._code = code
        self._stop.set()
        log.log(logging.ERROR if code else logging.INFO, "ending: %s", why)
        # Whatever hangs, in C code or for a lock, does not hold the process up.
        timer = threading.Timer(seconds, os._exit, (code or FAILED,))
        timer.daemon = True
        timer.start()

    @property
    def ports(self) -> tuple[int, ...]:
        """Where health and metrics listen."""
        return tuple(server.port for server in self._servers)

    def run(self) -> int:
        """Until the end; the exit code."""
        log.info("lanefeed operator %s: %s", version(), self._described())
        try:
            self._serve()
            self._work()
        except OperatorError as error:
            self.end(str(error), FAILED)
        finally:
            self._close()
        return self._code

    # ---- life ------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        s = self._settings
        probes = {"/healthz": self.health.healthz, "/readyz": self.health.readyz}
        page = {"/metrics": self.metrics.page}
        self._servers.append(HttpServer(s.bind, s.health_port, probes, PREFIX + "HEALTH_PORT"))
        self._servers.append(HttpServer(s.bind, s.metrics_port, page, PREFIX + "METRICS_PORT"))
        log.info("health at %s:%d, metrics at %s:%d", s.bind, self.ports[0], s.bind, self.ports[1])

    def _work(self) -> None:
        client = self._given or connect(hook=self.metrics.request, pool=2 * self._settings.workers + 8)
        kinds = self._await_api(client)
        if kinds is None or not self._await_lead(client):
            return
        # A standby waits for weeks: what can be read may be something else by now.
        kinds = self._await_api(client) if self._leader is not None else kinds
        if kinds is None:
            return
        s = self._settings
        leader = self._leader
        api = GuardedApi(client, may_write=leader.valid if leader else lambda: True, wrote_status=self._wrote_status)
        self.health.waiting("starting: jobs and pods are being listed")
        parts = self._parts = Parts(s, api, self.metrics, self.health, self.decisions, kinds, self.end)
        namespace = s.watch_namespaces[0] if s.watch_namespaces else s.namespace
        self.health.api_answers = api_answers(client, namespace)
        jobs = self._load(client, parts)
        if jobs is None:
            return
        self.health.ready()
        log.info("ready after %.1f s: %d jobs", time.monotonic() - self._begun, jobs)
        left_out = tuple(name for name in self._namespaces if name not in s.watch_namespaces)
        if left_out:
            threading.Thread(target=self._look_for, args=(client, left_out), name="left-out", daemon=True).start()
        self._wait()

    def _wait(self) -> None:
        """Until somebody ends it. A lead that is lost while its thread hangs in a request is noticed here."""
        while not self._stop.wait(POLL_SECONDS):
            if self._leader is not None and not self._leader.valid():
                self._lost("the lease could not be renewed in time: another replica may act by now")

    def _look_for(self, client: KubeApi, left_out: Sequence[str]) -> None:
        """One of those left out that can be read by now is looked after by a new process: kopf cannot take one in."""
        while not self._stop.wait(ASK_AGAIN_SECONDS):
            back = returned(client, left_out)
            if back:
                self.end(f"namespace {back} can be read by now: beginning anew, to look after it too", FAILED)

    def _await_api(self, client: KubeApi) -> tuple[Kind, ...] | None:
        """Wait for the API server and the CRD; what may be watched. None: the process is ending.

        Namespaces that cannot be read are left out of the settings from here on.
        """
        s = self._settings
        for attempt in itertools.count():
            if self._stop.is_set():
                return None
            try:
                self._settings = replace(s, watch_namespaces=readable(client, self._namespaces))
                return KINDS if self._sees_nodes(client) else tuple(k for k in KINDS if k != NODES)
            except NotFound:
                why = "the CustomResourceDefinition of ShardedTrainingJobs is not installed (chart value crds.install)"
            except ApiError as error:
                why = f"the API server cannot be used: {error}"
            self._say_waiting(why, attempt)
        return None

    def _sees_nodes(self, client: KubeApi) -> bool:
        try:
            client.list(NODES)
        except Forbidden:
            log.warning("may not list nodes: pods on lost nodes are not noticed; grant list and watch on nodes")
            return False
        return True

    def _await_lead(self, client: KubeApi) -> bool:
        s = self._settings
        if not s.leader_election:
            self.metrics.leader = lambda: True
            return True
        lease = Lease(client, s.namespace, s.lease_name, s.identity)
        leader = Leader(lease, stop=self._stop, lost=self._lost)
        self.metrics.leader = leader.valid
        # A standby is ready: so rollouts end, and the leader can be drained. It does not listen for reports.
        if not leader.acquire(lambda holder: self.health.ready(f"standby: {holder} leads")):
            return False
        self._leader = leader
        return True

    def _lost(self, why: str) -> None:
        """Another may lead: whatever is at hand may write nothing any more, so there is nothing to finish."""
        self.end(why, FAILED, LOST_SECONDS)

    def _load(self, client: KubeApi, parts: Parts) -> int | None:
        """List everything and start the parts; the number of jobs. None: the process is ending."""
        for attempt in itertools.count():
            if self._stop.is_set():
                return None
            try:
                return parts.start()
            except ApiError as error:
                if isinstance(error, Forbidden) and self._fewer(client):
                    self.end(f"a namespace cannot be read any more: beginning anew, without it ({error})", FAILED)
                    return None
                self._say_waiting(f"the cluster cannot be read: {error}", attempt)
        return None

    def _fewer(self, client: KubeApi) -> bool:
        """Whether some of the namespaces cannot be read any more. A right of another kind may come yet."""
        now = self._settings.watch_namespaces
        try:
            return bool(now) and readable(client, now) != now
        except ApiError:
            return False

    def _say_waiting(self, why: str, attempt: int) -> None:
        self.health.waiting(why)
        pause = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
        if (attempt + 1) & attempt == 0:
            log.warning("%s; trying on", why)
        self._stop.wait(pause)

    def _close(self) -> None:
        begun = time.monotonic()
        self.health.waiting("ending")
        finished = self._parts.stop(PASS_SECONDS) if self._parts is not None else True
        if self._leader is not None:
            self._leader.release()
        for server in self._servers:
            server.close()
        what = "" if finished else "; a pass did not end in time: the next operator begins it anew"
        log.info("ended in %.1f s%s", time.monotonic() - begun, what)

    def _wrote_status(self, error: ApiError | None, job: Object) -> None:
        self.metrics.wrote_status(error)
        if error is None:
            self.decisions.wrote(job)

    def _described(self) -> str:
        s = self._settings
        where = f"namespaces {', '.join(s.watch_namespaces)}" if s.watch_namespaces else "all namespaces"
        return f"{where}, {s.workers} workers, sidecars report to {s.render.coordinator}"
