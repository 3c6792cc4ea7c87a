"""Typed edges of the wire protocol: versions, names of environment variables, and the JSON documents in it.

Used by trainer, sidecar and control plane alike, so that no name is spelled twice.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lanefeed_core.layout import Column
from lanefeed_core.stream import StreamSpec

__all__ = [
    "CONTROL_TOKEN_NAME",
    "CONTROL_TRUST_NAME",
    "ENV_CONTROL_DIR",
    "ENV_COORDINATOR",
    "ENV_FLUSH",
    "ENV_JOB",
    "ENV_JOB_UID",
    "ENV_PLAN_GENERATION",
    "ENV_POD_INDEX",
    "ENV_POD_UID",
    "ENV_RUN_DIR",
    "ENV_SHM_ROOT",
    "ENV_TERMINATION_LOG",
    "ENV_WORLD",
    "LEAVE_PATH",
    "MAX_MESSAGE_BYTES",
    "PROTOCOL_VERSION",
    "SOCKET_NAME",
    "TOKEN_METADATA",
    "TOKEN_NAME",
    "StreamInfo",
]

#: Version of lanefeed.proto and of the arena; trainer and sidecar must agree.
PROTOCOL_VERSION = 2

#: Folder that the pod's containers share (tmpfs): socket, token, arena.
ENV_RUN_DIR = "LANEFEED_RUN_DIR"
#: Name of the job, for messages.
ENV_JOB = "LANEFEED_JOB"
ENV_PLAN_GENERATION = "LANEFEED_PLAN_GENERATION"
#: Index of the pod and number of ranks, for trainers that torchrun did not start.
ENV_POD_INDEX = "LANEFEED_POD_INDEX"
ENV_WORLD = "LANEFEED_WORLD_SIZE"
#: Where `lanefeed.open` and the local runner make run folders (default /dev/shm).
ENV_SHM_ROOT = "LANEFEED_SHM_ROOT"

#: In a cluster: who this pod and its job are. Our containers know by the pod's UID that they are in one.
ENV_POD_UID = "LANEFEED_POD_UID"
ENV_JOB_UID = "LANEFEED_JOB_UID"
#: gRPC target of the report service, for the indexer; sidecars find it in their configuration.
ENV_COORDINATOR = "LANEFEED_COORDINATOR"
#: Folder with who we are to the report service (CONTROL_TOKEN_NAME) and how we know it (CONTROL_TRUST_NAME).
ENV_CONTROL_DIR = "LANEFEED_CONTROL_DIR"
CONTROL_TOKEN_NAME = "token"
CONTROL_TRUST_NAME = "ca.crt"
#: Seconds that a sidecar which is told to end may take to hand over its last commits.
ENV_FLUSH = "LANEFEED_FLUSH_SECONDS"
#: Where the kubelet reads a container's last words (default /dev/termination-log).
ENV_TERMINATION_LOG = "LANEFEED_TERMINATION_LOG"

#: Of the sidecar's HTTP server: the kubelet's hook before it ends the trainer (`?seconds=N&job=UID`).
LEAVE_PATH = "/leave"
SOCKET_NAME = "feed.sock"
#: File with the per-pod token, mode 0640; sent as gRPC metadata under TOKEN_METADATA.
TOKEN_NAME = "token"
TOKEN_METADATA = "lanefeed-token"

#: Frames are signalled, not sent: a message above this is a mistake or an attack.
MAX_MESSAGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a rank must know of its stream, sent once in the handshake as JSON."""

    job: str
    manifest: str
    rows: int
    spec: StreamSpec
    columns: tuple[Column, ...]
    steps_per_epoch: int
    #: Epochs to run; 0: no end (Continuous runs end by max_steps).
    epochs: int
    #: Steps to run in all; 0: no limit of its own.
    max_steps: int
    rank_batch: int
    plan_generation: int

    @property
    def total_steps(self) -> int:
        """Total steps at which the stream ends; 0: never."""
        by_epochs = self.epochs * self.steps_per_epoch
        return min(by_epochs or self.max_steps, self.max_steps or by_epochs)

    def to_json(self) -> str:
        """The document's text."""
        return json.dumps(
            {
                "job": self.job,
                "manifest": self.manifest,
                "rows": self.rows,
                "spec": self.spec.to_dict(),
                "columns": [c.to_dict() for c in self.columns],
                "steps_per_epoch": self.steps_per_epoch,
                "epochs": self.epochs,
                "max_steps": self.max_steps,
                "rank_batch": self.rank_batch,
                "plan_generation": self.plan_generation,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "StreamInfo":
        """The inverse of `to_json`."""
        data: Mapping[str, Any] = json.loads(text)
        return cls(
            **{
                **data,
                "spec": StreamSpec.from_dict(data["spec"]),
                "columns": tuple(Column.from_dict(c) for c in data["columns"]),
            }
        )
