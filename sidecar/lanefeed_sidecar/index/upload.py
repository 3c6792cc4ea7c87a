"""Hands an indexer's result to the operator: the manifest in pieces, or why there is none (Coordinator.PutManifest).

Called by `cli` in a cluster, where the indexer has no right on the API. An operator that is away is waited for, with
jitter, up to a deadline; an upload that broke off begins anew, so repeating one changes nothing.
"""

import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from lanefeed_core import wire
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar.errors import ConfigError, SidecarError, Unavailable
from lanefeed_sidecar.feed.messages import failure_message
from lanefeed_sidecar.report.channel import ControlChannel, explain

__all__ = ["FAILURE_SECONDS", "UPLOAD_SECONDS", "Uploader"]

log = logging.getLogger(__name__)

#: How long the operator may be away before the indexer gives up; its Job then starts another.
UPLOAD_SECONDS = 3600.0
#: A failure is also in the pod's termination message: it need not wait for the operator.
FAILURE_SECONDS = 30.0
#: One try: up to 16 MiB, and storing them in ConfigMaps.
CALL_SECONDS = 120.0
BACKOFF_SECONDS = (0.3, 10.0)
WORD_SECONDS = 30.0
PIECE_BYTES = 1 << 20
#: What the service takes at most; what fits into ConfigMaps is for the operator to say.
MAX_BYTES = 16 << 20
#: Answers that another try does not change.
_FINAL = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


@dataclass(frozen=True, slots=True)
class Uploader:
    """To whom, and as whom."""

    target: str
    job_uid: str
    pod_uid: str
    control: Path

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> "Uploader | None":
        """None outside of a cluster. Raises ConfigError where the environment says half of it."""
        target = env.get(wire.ENV_COORDINATOR, "")
        if not target:
            return None
        for name in (wire.ENV_JOB_UID, wire.ENV_POD_UID, wire.ENV_CONTROL_DIR):
            if not env.get(name):
                raise ConfigError(f"{wire.ENV_COORDINATOR} is set and {name} is not: the operator sets both")
        return cls(target, env[wire.ENV_JOB_UID], env[wire.ENV_POD_UID], Path(env[wire.ENV_CONTROL_DIR]))

    def put(self, data: bytes, digest: str, seconds: float = UPLOAD_SECONDS) -> None:
        """Return when the manifest is stored.

        Raises ConfigError where it is not wanted, Unavailable where nobody took it within `seconds`.
        """
        if len(data) > MAX_BYTES:
            raise ConfigError(
                f"the manifest takes {len(data)} bytes and {MAX_BYTES} can be handed over: use fewer, larger shards"
            )
        self._until_answered(lambda: self._pieces(data, digest), seconds, "the manifest")

    def put_failure(self, error: SidecarError, seconds: float = FAILURE_SECONDS) -> None:
        """Say why there is no manifest. Raises as `put`."""
        piece = self._first(failure=failure_message(error))
        self._until_answered(lambda: iter([piece]), seconds, "why there is no manifest")

    def _first(self, **fields: object) -> pb.ManifestPiece:
        return pb.ManifestPiece(protocol=wire.PROTOCOL_VERSION, job_uid=self.job_uid, pod_uid=self.pod_uid, **fields)  # type: ignore[arg-type]

    def _pieces(self, data: bytes, digest: str) -> Iterator[pb.ManifestPiece]:
        yield self._first(digest=digest, size=len(data), data=data[:PIECE_BYTES])
        for at in range(PIECE_BYTES, len(data), PIECE_BYTES):
            yield pb.ManifestPiece(data=data[at : at + PIECE_BYTES])

    def _until_answered(self, pieces: Callable[[], Iterator[pb.ManifestPiece]], seconds: float, what: str) -> None:
        """Send until somebody answers."""
        channel = ControlChannel(self.target, str(self.control / wire.CONTROL_TOKEN_NAME), self.control)
        begin, said, word = time.monotonic(), 0.0, ""
        pause, high = BACKOFF_SECONDS
        try:
            while True:
                why = self._try(channel, pieces, begin + seconds - time.monotonic(), what)
                if not why:
                    return
                # That our own time ran out says less than what was answered before.
                word = word if word and grpc.StatusCode.DEADLINE_EXCEEDED.name in why else why
                channel.failed()
                now = time.monotonic()
                if now - begin + pause >= seconds:
                    raise Unavailable(f"the operator at {self.target} did not take {what} within {seconds:g} s: {word}")
                if not said or now - said >= WORD_SECONDS:
                    said = now
                    log.warning("waiting for the operator at %s to take %s: %s", self.target, what, word)
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- jitter
                pause = min(high, 2 * pause)
        finally:
            channel.close()

    def _try(
        self, channel: ControlChannel, pieces: Callable[[], Iterator[pb.ManifestPiece]], left: float, what: str
    ) -> str:
        """Once; why nobody answered, "" where it was taken. Raises ConfigError where it never will be."""
        seconds = max(0.1, min(CALL_SECONDS, left))
        try:
            reply = channel.stub().PutManifest(pieces(), timeout=seconds, metadata=channel.metadata())
        except (grpc.RpcError, Unavailable) as error:
            if isinstance(error, grpc.Call) and error.code() in _FINAL:
                raise ConfigError(f"the operator at {self.target} refuses {what}: {error.details()}") from None
            return explain(error)
        if not reply.taken:
            raise ConfigError(f"the operator does not want {what}: {reply.reason}")
        return ""
