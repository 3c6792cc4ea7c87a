"""The parts of an operator that acts, wired together: one place that knows who calls whom.

Made by `main` once this replica may act. Started in the order in which they need each other, stopped in the other.
"""

import logging
import time
from collections.abc import Callable, Sequence

from lanefeed_operator.coordinator.authenticate import TokenAuthenticator
from lanefeed_operator.coordinator.certificates import names_of
from lanefeed_operator.coordinator.certstore import Certificates
from lanefeed_operator.coordinator.cluster import serve_cluster
from lanefeed_operator.coordinator.service import Server
from lanefeed_operator.kube.api import Kind
from lanefeed_operator.runtime.controller import Controller
from lanefeed_operator.runtime.decisions import Decisions
from lanefeed_operator.runtime.feed import Feed
from lanefeed_operator.runtime.guard import GuardedApi
from lanefeed_operator.runtime.health import Health
from lanefeed_operator.runtime.metrics import Metrics
from lanefeed_operator.runtime.registry import Registry
from lanefeed_operator.runtime.resync import Resync
from lanefeed_operator.runtime.settings import OperatorSettings
from lanefeed_operator.runtime.shell import Shell
from lanefeed_operator.runtime.view import View
from lanefeed_operator.runtime.watches import Watches
from lanefeed_operator.runtime.workers import JobKey, Workers

__all__ = ["Parts"]

log = logging.getLogger(__name__)

#: For calls of the report service that are under way at the end; sidecars send again what was not answered.
REPORT_GRACE = 0.3
WATCH_GRACE = 1.0


class Parts:
    """See the module."""

    def __init__(
        self,
        settings: OperatorSettings,
        api: GuardedApi,
        metrics: Metrics,
        health: Health,
        decisions: Decisions,
        kinds: Sequence[Kind],
        end: Callable[[str, int], None],
    ) -> None:
        """`api` is what all writes go through; `end(why, code)` ends the process."""
        self._settings, self._metrics, self._health, self._end = settings, metrics, health, end
        self.view = View()
        self.registry = Registry(api, self.view)
        controller = Controller(api, self.view, self.registry, settings.render, time.time)
        self.workers = Workers(controller.run_pass, threads=settings.workers, passed=self._passed)
        self.registry.on_change = self.workers.wake
        feed = Feed(self.view, metrics.facts, decisions, self.workers.wake)
        self._resync = Resync(
            api,
            feed,
            kinds=kinds,
            namespaces=settings.watch_namespaces,
            seconds=settings.resync_seconds,
            wake_all=self.workers.wake_all,
        )
        self.watches = Watches(kinds, settings.watch_namespaces, relisted=self._resync.ask)
        self._shell = Shell(feed, self.watches, kinds=kinds, namespaces=settings.watch_namespaces)
        names = names_of([settings.coordinator_host])
        self._certificates = Certificates(api, settings.namespace, settings.cert_secret, names, time.time)
        self._certificates.on_trust = self.registry.trust
        self._authenticator = TokenAuthenticator(api, settings.render.audience)
        self._reports: Server | None = None
        metrics.queue, metrics.watches = health.queue, health.watches = self.workers.state, self.watches.ages

    def start(self) -> int:
        """Read the cluster, then look after it; the number of jobs. Raises ApiError: nothing was started, try again."""
        self._certificates.refresh()
        jobs = self._resync.load()
        # Jobs are known before reports are taken, and looked at before pods could report to them.
        self._serve()
        self.workers.start()
        self._resync.start()
        self._shell.start(self._watches_ended)
        return jobs

    def stop(self, seconds: float) -> bool:
        """Finish the passes at hand, at most `seconds`; whether they ended. Reports are answered until then."""
        self._shell.stop()
        self._resync.stop()
        finished = self.workers.stop(seconds)
        if self._reports is not None:
            self._reports.stop(REPORT_GRACE)
        self._shell.join(WATCH_GRACE)
        return finished

    def _serve(self) -> None:
        s = self._settings
        address = f"[{s.bind}]:{s.report_port}" if ":" in s.bind else f"{s.bind}:{s.report_port}"
        if self._reports is None:
            self._reports = serve_cluster(self.registry, address, self._certificates, self._authenticator, time.time)
            self._metrics.reports, self._metrics.pacer = self._reports.counters.totals, self._reports.pacer
            self._health.reports_quiet = self._reports.quiet

    def _passed(self, key: JobKey, result: str, seconds: float) -> None:
        self._metrics.passed(result, seconds)

    def _watches_ended(self) -> None:
        if self._shell.error is not None:
            self._end(f"a watch ended: {self._shell.error}", 1)
