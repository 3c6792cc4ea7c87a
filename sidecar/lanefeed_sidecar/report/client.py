"""Reports to the control plane, in a thread of their own and never in the way of data.

Sent every `report_seconds`, or as seldom as the control plane asks for, and at once on news (attach, commit, end,
failure). Everything in a report is a state, not an event, except commits, which are repeated until they are
acknowledged; so a lost report costs nothing. Failures back off with jitter. At the end, commits that wait are sent
until they are acknowledged or the time is over.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from lanefeed_core.podconfig import PodConfig
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.wire import PROTOCOL_VERSION
from lanefeed_sidecar import failpoints
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.podenv import control_dir
from lanefeed_sidecar.report.channel import ControlChannel, explain
from lanefeed_sidecar.report.commits import CommitLog

__all__ = ["ReportSource", "Reporter"]

log = logging.getLogger(__name__)

#: Deadline of one call: the control plane may hold an answer until a commit is persisted (1 s).
CALL_SECONDS = 5.0
BACKOFF_SECONDS = (0.1, 2.0)
#: Over a network, where thousands of pods may have lost one control plane.
FAR_BACKOFF_SECONDS = (0.2, 5.0)
#: At the end: between two tries to have the last commits acknowledged.
LAST_BACKOFF_SECONDS = (0.1, 1.0)
#: The longest pace that a control plane may ask for: a stop must reach trainers in time.
MAX_INTERVAL_SECONDS = 60.0
#: Shards set aside: how often they are repeated, how many there are in a report at most, and how much is said of each.
QUARANTINED_SECONDS = 60.0
MAX_QUARANTINED = 1024
MAX_REASON = 500
#: News wait this long for more of it.
GATHER_SECONDS = 0.005


class ReportSource(Protocol):
    """What a report is made of, and who takes the answer: the hub."""

    fenced: bool

    def rank_reports(self) -> list[pb.RankReport]:
        """Ranks that attached in this session."""

    def failures(self) -> list[pb.Failure]:
        """Failures of this session."""

    def fence(self, reason: str) -> None:
        """This pod was replaced."""

    def stop_at(self, stop: pb.StopAt) -> None:
        """Ranks are to leave at one step."""

    def committed(self, last: pb.Committed) -> None:
        """What was accepted last."""

    def refused(self, reasons: list[str]) -> None:
        """Commits were refused."""


class Reporter:
    """Sends the pod's reports until `close`."""

    def __init__(
        self,
        config: PodConfig,
        session: str,
        commits: CommitLog,
        *,
        ready: Callable[[], bool],
    ) -> None:
        """Nothing is sent before `start`."""
        self._config, self._session, self._commits = config, session, commits
        self._ready = ready
        self.quarantined: tuple[tuple[str, str], ...] = ()
        self.metrics_address = ""
        self.source: ReportSource | None = None
        #: Failures before there is a source: why the sidecar cannot start.
        self.early: list[pb.Failure] = []
        self.sent = self.failed = 0
        #: Number of the report that was made last.
        self.sequence = 0
        self._interval = config.report_seconds
        #: When shards set aside are reported again.
        self._quarantined_at = 0.0
        #: Whether the last report counted.
        self._accepted = False
        self._said = ""
        self._cond = threading.Condition()
        self._news = False
        self._closing = 0.0
        self._call: Any = None
        token = config.coordinator_token_path
        self._channel = ControlChannel(config.coordinator, token, control_dir(token))
        self._backoff = BACKOFF_SECONDS if config.coordinator.startswith("unix:") else FAR_BACKOFF_SECONDS
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def start(self) -> None:
        """Begin to report; once."""
        if self._thread.ident is None:
            self._thread.start()

    def wake(self) -> None:
        """There is news: report at once, unless the control plane is being waited for."""
        with self._cond:
            self._news = True
            self._cond.notify_all()

    def close(self, seconds: float) -> None:
        """Send a last report, and again until no commit waits, within `seconds`; then end."""
        with self._cond:
            self._closing = time.monotonic() + seconds
            # Its answer may come meanwhile.
            call = self._call
            if call is not None:
                call.cancel()
            self._cond.notify_all()
        if self._thread.ident is None:
            self._send_last()
        else:
            self._thread.join(seconds + 0.2)
        self._channel.close()

    # ---- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.0
        low, high = self._backoff
        while not self._closing:
            done = self._send(CALL_SECONDS)
            pause = 0.0 if done else min(high, max(low, 2 * pause))
            self._wait(_jittered(pause), never=self._fenced)
        self._send_last()

    @property
    def _fenced(self) -> bool:
        return self.source is not None and self.source.fenced

    def _wait(self, pause: float, *, never: bool) -> None:
        """Until news or the next report is due; after a failure at least `pause`; fenced: until `close`."""
        with self._cond:
            if pause:
                self._cond.wait_for(lambda: self._closing, pause)
            else:
                seconds = self._interval * random.uniform(0.9, 1.1)  # noqa: S311 -- jitter
                self._cond.wait_for(lambda: self._closing or (self._news and not never), seconds)
                while never and not self._closing:
                    self._cond.wait(5.0)
            if self._news and not self._closing:
                self._cond.wait_for(lambda: self._closing, GATHER_SECONDS)
            self._news = False

    def _send_last(self) -> None:
        """Until the last report counted and no commit waits, or the time is over."""
        pause, high = LAST_BACKOFF_SECONDS
        while (left := self._closing - time.monotonic()) > 0 and not self._fenced:
            if self._send(min(left, CALL_SECONDS)) and self._accepted and not len(self._commits):
                return
            time.sleep(max(0.0, min(_jittered(pause), self._closing - time.monotonic())))
            pause = min(high, 2 * pause)

    def _send(self, seconds: float) -> bool:
        """One report and its answer; False if the control plane could not be reached."""
        try:
            batch = self._commits.batch()
            request = self._request([p.message for p in batch])
            failpoints.hit("report.before")
            # Created under the lock so that `close` can cancel it.
            with self._cond:
                stub, metadata = self._channel.stub(), self._channel.metadata()
                self._call = stub.Report.future(request, timeout=seconds, metadata=metadata)
            reply = self._call.result()
            self._take(reply, [p.number for p in batch])
        except (grpc.RpcError, grpc.FutureCancelledError, SidecarError, OSError) as error:
            self.failed += 1
            self._channel.failed()
            self._say(
                f"the control plane at {self._config.coordinator} cannot be reached ({explain(error)}): training goes "
                "on"
            )
            return False
        finally:
            self._call = None
        self.sent += 1
        self._channel.worked()
        return True

    def _request(self, commits: list[pb.RankCommit]) -> pb.ReportRequest:
        config, source = self._config, self.source
        self.sequence += 1
        return pb.ReportRequest(
            protocol=PROTOCOL_VERSION,
            job_uid=config.job_uid,
            pod_index=config.pod_index,
            pod_uid=config.pod_uid,
            plan_generation=config.plan.generation,
            session=self._session,
            sequence=self.sequence,
            ranks=source.rank_reports() if source else [],
            commits=commits,
            failures=[*self.early, *(source.failures() if source else [])],
            quarantined=self._quarantined(),
            metrics_address=self.metrics_address,
            ready=self._ready(),
        )

    def _quarantined(self) -> list[pb.Quarantined]:
        """Shards set aside, now and then: they do not change, there may be many, and a control plane may be new."""
        if time.monotonic() < self._quarantined_at:
            return []
        return [pb.Quarantined(path=p, reason=why[:MAX_REASON]) for p, why in self.quarantined[:MAX_QUARANTINED]]

    def _take(self, reply: pb.ReportReply, numbers: list[int]) -> None:
        source = self.source
        self._accepted = not reply.fenced and not reply.reason
        if self._accepted and time.monotonic() >= self._quarantined_at:
            self._quarantined_at = time.monotonic() + QUARANTINED_SECONDS
        wanted = reply.next_report_seconds
        self._interval = max(self._config.report_seconds, min(wanted, MAX_INTERVAL_SECONDS) if wanted > 0 else 0.0)
        if reply.fenced:
            if source is not None:
                source.fence(reply.reason)
            self._say(f"fenced: {reply.reason}")
            return
        self._say(f"the control plane does not take reports: {reply.reason}" if reply.reason else "")
        self._commits.acknowledge(numbers[: reply.commits_taken])
        if source is None:
            return
        if reply.refused:
            log.error("the control plane refused commits: %s", "; ".join(reply.refused))
            source.refused(list(reply.refused))
        if reply.HasField("stop_at"):
            source.stop_at(reply.stop_at)
        if reply.HasField("last_commit"):
            source.committed(reply.last_commit)

    def _say(self, text: str) -> None:
        """Log a state once, not at every report."""
        if text != self._said:
            if text:
                log.warning("%s", text)
            else:
                log.info("the control plane takes reports again")
            self._said = text


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter
