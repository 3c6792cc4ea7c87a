"""The life of a sidecar process: start in order, serve until a signal, the owner's end or a fatal error, stop in 2 s.

Called by `main`. Ready is local: plan checked, socket bound, engine started; it waits for no peer and no control plane.
In a cluster a kubelet starts it again whatever it ends with, so there a fatal error is no end: it stays, not ready,
says why to trainers and to the control plane, and waits to be told to end.
"""

import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from lanefeed_core.errors import CoreError
from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.process import hear_signals
from lanefeed_sidecar import failpoints, podenv
from lanefeed_sidecar.arena import Arena, RunFolder
from lanefeed_sidecar.errors import ArenaError, ConfigError, SidecarError, Unavailable
from lanefeed_sidecar.feed.commits import Committer
from lanefeed_sidecar.feed.hub import Hub
from lanefeed_sidecar.feed.leave import Leave
from lanefeed_sidecar.feed.messages import failure_message
from lanefeed_sidecar.feed.refusal import Refusal
from lanefeed_sidecar.feed.seams import FeedEngine
from lanefeed_sidecar.feed.server import FeedServer
from lanefeed_sidecar.feed.service import FeedService
from lanefeed_sidecar.feed.starts import RANKS_NAME
from lanefeed_sidecar.manifest_file import read_manifest
from lanefeed_sidecar.metrics.collector import ReportCounts, renderer
from lanefeed_sidecar.metrics.health import Health
from lanefeed_sidecar.metrics.http import MetricsServer
from lanefeed_sidecar.owner import Owner
from lanefeed_sidecar.pipeline.stats import Stats
from lanefeed_sidecar.report import CommitLog, LocalBook, Reporter, lastwords

__all__ = ["EXIT_FATAL", "EngineFactory", "exit_code", "run"]

log = logging.getLogger(__name__)

EXIT_FATAL = 2
#: A process that was told to end has so long (G9), besides its last reports; what is left then is cut off.
STOP_SECONDS = 1.1
#: For the last reports, where the environment allows no more, and where trainers wait for the next session.
LAST_REPORT_SECONDS = 0.8
#: After a fatal error trainers get so long to take it from their streams.
FATAL_SECONDS = 5.0
OWNER_POLL_SECONDS = 0.25

EngineFactory = Callable[[PodConfig, Manifest, Stats], FeedEngine]


def exit_code(error: Exception) -> int:
    """2 where no restart mends it, else 1."""
    if isinstance(error, ArenaError) and error.retryable:
        return 1
    if isinstance(error, CoreError):
        return EXIT_FATAL
    return EXIT_FATAL if type(error) is not SidecarError and not getattr(error, "retryable", False) else 1


def run(config: PodConfig, make_engine: EngineFactory) -> int:
    """Serve until told to end; the exit code. Raises SidecarError or CoreError where it cannot start."""
    failpoints.arm(config.faults)
    failpoints.arm_from_environment()
    sidecar = _Sidecar(config, make_engine)
    hear_signals((signal.SIGTERM, signal.SIGINT), sidecar.on_signal)
    try:
        sidecar.start()
        return sidecar.serve()
    except (SidecarError, CoreError) as error:
        sidecar.cannot_go_on(error)
        raise
    finally:
        sidecar.stop()


class _Sidecar:
    """Everything that one process holds, in the order in which it is made."""

    def __init__(self, config: PodConfig, make_engine: EngineFactory) -> None:
        self._config, self._make_engine = config, make_engine
        self._began = time.monotonic()
        self.health = Health()
        self.session = uuid.uuid4().hex
        self._stop = threading.Event()
        self._fatal: SidecarError | None = None
        self._why = "told to end"
        self._flush_seconds = podenv.flush_seconds(LAST_REPORT_SECONDS)
        self._stats = Stats()
        self._owner = Owner(config.owner_pid)
        self._folder: RunFolder | None = None
        self._http: MetricsServer | None = None
        self._commits: CommitLog | None = None
        self._reporter: Reporter | None = None
        self._engine: FeedEngine | None = None
        self._arena: Arena | None = None
        self._hub: Hub | None = None
        self._server: FeedServer | None = None

    def start(self) -> None:
        """Up to ready. Cheap checks first, so that a wrong configuration costs nobody a wait."""
        config = self._config
        self._folder = folder = RunFolder(config.run_dir)
        self._http = MetricsServer(config.metrics_host, config.metrics_port, self.health)
        folder.write_metrics_address(self._http.address)
        token = folder.token()
        self._commits = CommitLog(folder.path, config.plan.generation)
        self._reporter = self._make_reporter()
        self.health.waiting("starting: the manifest is being read")
        manifest = read_manifest(Path(config.manifest_path), config.manifest_digest)
        if self._reporter is not None:
            self._reporter.quarantined = manifest.quarantined
        self.health.waiting("starting: the engine is being made")
        self._engine = engine = self._make_engine(config, manifest, self._stats)
        self.health.waiting("starting: shared memory is being reserved")
        self._arena = arena = Arena(
            folder.arena(self.session),
            session=self.session,
            slots=config.slots * len(engine.ranks),
            slot_bytes=engine.slot_bytes,
            plan_generation=config.plan.generation,
            ranks=len(engine.ranks),
        )
        self._hub = hub = Hub(config, manifest, engine, arena, folder, session=self.session, stats=self._stats)
        committer = self._connect(hub, self._commits, engine)
        self._http.leave, self._http.leave_key = Leave(hub).wait, config.job_uid
        self._http.render = renderer(hub, self._stats, self._counts(committer, manifest))
        engine.start()
        self._read_ahead(engine, folder)
        self.health.waiting("starting: the socket is being bound")
        service = FeedService(hub, committer)
        self._server = FeedServer(service, folder.socket, token, ranks=len(hub.ranks), stats=self._stats)
        self._server.start()
        self.health.ready()
        if self._reporter is not None:
            self._reporter.start()
        log.info(
            "session %s is ready after %.2f s: ranks %s, %d slots of %d bytes, metrics at %s",
            self.session,
            time.monotonic() - self._began,
            list(hub.ranks),
            arena.slots,
            arena.slot_bytes,
            self._http.address,
        )

    def _read_ahead(self, engine: FeedEngine, folder: RunFolder) -> None:
        """Windows fill from where the plan begins while trainers import their libraries and load their checkpoints.

        Not after a restart of this process alone: trainers wait then, and say where they are.
        """
        if not (folder.path / RANKS_NAME).exists():
            start = self._config.plan.start.total_steps(engine.lanes.steps_per_epoch)
            for rank in engine.ranks:
                engine.seek(rank, start)

    def _connect(self, hub: Hub, commits: CommitLog, engine: FeedEngine) -> Committer:
        """Wire the hub to whoever keeps the book."""
        config, book = self._config, None
        hub.on_fatal = self.fail
        if self._reporter is not None:
            self._reporter.source = hub
            self._reporter.metrics_address = self._http.address if self._http else ""
            hub.on_news = self._reporter.wake
        elif config.plan.replicas == 1:
            book = LocalBook(
                Path(config.run_dir),
                engine.lanes,
                plan_generation=config.plan.generation,
                world=config.plan.world,
                total_steps=engine.total_steps,
            )
            hub.on_attach = lambda rank, start, resuming: book.attach(rank, start, resuming=resuming)
            hub.is_commit = book.knows
        else:
            log.warning(
                "no coordinator is configured for a job of %d pods: epochs are not proven", config.plan.replicas
            )
        committer = Committer(hub, commits, book)
        if book is not None:
            committer.settle(book)
        return committer

    def _make_reporter(self) -> Reporter | None:
        if not self._config.coordinator or self._commits is None:
            return None
        return Reporter(self._config, self.session, self._commits, ready=lambda: not self.health.reason)

    def _counts(self, committer: Committer, manifest: Manifest) -> ReportCounts:
        reporter, commits = self._reporter, self._commits
        return ReportCounts(
            started=time.time(),
            sent=lambda: reporter.sent if reporter else 0,
            failed=lambda: reporter.failed if reporter else 0,
            commits=lambda: committer.taken,
            waiting_commits=lambda: len(commits) if commits is not None else 0,
            quarantined=len(manifest.quarantined),
        )

    # ---- serve and stop ----------------------------------------------------------------------------------------

    def serve(self) -> int:
        """Until something ends it. Raises the fatal error, if that was it."""
        while not self._stop.wait(OWNER_POLL_SECONDS):
            if self._owner.gone():
                log.info("process %d, which started this sidecar, is gone", self._config.owner_pid)
                break
            if self._fatal is not None:
                self._linger()
                raise self._fatal
        return 0

    def _linger(self) -> None:
        """Let trainers take the error from their streams, and the control plane from a report."""
        deadline = time.monotonic() + FATAL_SECONDS
        quiet_since = time.monotonic()
        while time.monotonic() < deadline and not self._stop.wait(0.05):
            if self._hub is not None and any(life.streaming for life in self._hub.lives().values()):
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > 1.0:
                return

    def fail(self, error: SidecarError) -> None:
        """No restart of a trainer mends this. From any thread."""
        self.health.failed(f"{error.kind}: {error}")
        if self._fatal is None:
            self._fatal = error

    def on_signal(self, number: int) -> None:
        """SIGTERM and SIGINT end the process. Not for a handler: it takes locks, see `hear_signals`."""
        log.info("%s: stopping", signal.Signals(number).name)
        self._stop.set()

    def cannot_go_on(self, error: Exception) -> None:
        """The last report says why; in a cluster, stay and say so until told to end."""
        self._why = f"{_kind(error)}: {error}"
        self.health.failed(self._why)
        if self._reporter is None:
            return
        known = error if isinstance(error, SidecarError) else ConfigError(str(error))
        failure = failure_message(known)
        if self._hub is None or failure not in self._hub.failures():
            self._reporter.early.append(failure)
        if podenv.in_cluster() and exit_code(error) == EXIT_FATAL and not self._stop.is_set():
            self._reporter.start()
            self._stay(known)

    def _stay(self, error: SidecarError) -> None:
        log.error("%s; no restart mends this: waiting to be told to end", self._why)
        if self._server is None and self._folder is not None:
            try:
                server = FeedServer(
                    Refusal(error), self._folder.socket, self._folder.token(), ranks=1, stats=self._stats
                )
                server.start()
                self._server = server
            except ConfigError as also:
                log.warning("trainers cannot be told: %s", also)
        self._leave_last_words()
        while not self._stop.wait(OWNER_POLL_SECONDS) and not self._owner.gone():
            pass

    def stop(self) -> None:
        """Streams end, last reports go out, nothing is left in tmpfs but commits that wait."""
        begin = time.monotonic()
        self.health.failed("stopping")
        # Trainers that are streaming outlive this process: their next sidecar reads the commits, and they wait for it.
        lives = self._hub.lives().values() if self._hub else ()
        flush = min(self._flush_seconds, LAST_REPORT_SECONDS if any(life.streaming for life in lives) else 3600.0)
        seconds = flush + STOP_SECONDS
        watchdog = threading.Timer(seconds, _cut_off, args=(_code(self._fatal), seconds))
        watchdog.daemon = True
        watchdog.start()
        closed = self._hub.close(Unavailable("the sidecar is stopping")) if self._hub else []
        self._leave_last_words()
        if self._server is not None:
            self._server.stop(0.2)
        if self._reporter is not None:
            self._reporter.close(flush)
            self._leave_last_words()
        if self._engine is not None:
            self._engine.close()
        for life in closed:
            life.join(max(0.0, begin + seconds - 0.2 - time.monotonic()))
        if self._commits is not None:
            self._commits.close()
        if self._http is not None:
            self._http.close()
        if self._arena is not None:
            self._arena.close()
        if self._folder is not None:
            self._folder.close()
        watchdog.cancel()
        log.info("stopped after %.2f s", time.monotonic() - begin)

    def _leave_last_words(self) -> None:
        path, reporter, hub = podenv.termination_log(), self._reporter, self._hub
        if path is None or reporter is None:
            return
        waiting = self._commits.batch(1 << 20) if self._commits is not None else []
        words = lastwords.last_words(
            self._config,
            self.session,
            why=self._why,
            sequence=reporter.sequence,
            ranks=hub.rank_reports() if hub else (),
            commits=[pending.message for pending in waiting],
            failures=[*reporter.early, *(hub.failures() if hub else ())],
        )
        lastwords.write(path, words)


def _code(fatal: SidecarError | None) -> int:
    return 0 if fatal is None else exit_code(fatal)


def _kind(error: Exception) -> str:
    return error.kind if isinstance(error, SidecarError) else type(error).__name__


def _cut_off(code: int, seconds: float) -> None:
    """Something hangs at the end: the run folder is safe to leave, the next session reclaims it."""
    log.warning("did not stop within %.1f s: leaving", seconds)
    os._exit(code)
