"""The document that a sidecar starts from: one pod's part of one plan.

Written by the control plane (the operator as a ConfigMap, the local runner and `lanefeed.open` as a file), read by the
sidecar. Everything that the sidecar does follows from it, the manifest, and what trainers say.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lanefeed_core.errors import CoreError
from lanefeed_core.images import ImageColumn, image_columns
from lanefeed_core.plan import Plan
from lanefeed_core.stream import StreamSpec

__all__ = ["ConfigError", "PodConfig"]

CONFIG_VERSION = 1


class ConfigError(CoreError):
    """A pod configuration that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class PodConfig:
    """One pod's configuration. Sizes are bytes; 0 lets the sidecar choose.

    pod_index -1 and pod_uid "" stand for the sidecar's own, from its environment: the operator writes one document for
    all pods of a plan.
    """

    job: str
    job_uid: str
    pod_index: int
    pod_uid: str
    plan: Plan
    spec: StreamSpec
    #: Epochs to run (Aligned); 0 with Continuous, where max_steps ends the job.
    epochs: int = 1
    max_steps: int = 0
    #: File with the manifest (manifest_codec), or, where that is not there, its pieces beside it: .0000, .0001, ...
    manifest_path: str
    #: Digest that it must have; "": any.
    manifest_digest: str = ""
    #: Columns to deliver, in this order; empty: all.
    columns: tuple[str, ...] = ()
    #: Binary columns that are delivered as pixels.
    images: tuple[ImageColumn, ...] = ()
    #: Folder in tmpfs that the pod's containers share: feed.sock, token and the arena.
    run_dir: str
    read_ahead_bytes: int = 512 << 20
    decode_threads: int = 0
    slots: int = 8
    slot_bytes: int = 0
    #: Folder of the decoded cache, on a local disk, and the bytes that it may take; "" or 0: there is none.
    cache_dir: str = ""
    cache_bytes: int = 0
    #: TCP port of /metrics, /healthz and /readyz; 0: any free one, written to run_dir/metrics.addr.
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"
    #: gRPC target of the control plane's Coordinator ("unix:/..." or "host:port"); empty: there is none.
    coordinator: str = ""
    coordinator_token_path: str = ""
    report_seconds: float = 0.5
    #: What the control plane had accepted when the plan was made.
    last_commit_step: int = 0
    last_commit_name: str = ""
    last_commit_generation: int = 0
    #: The sidecar ends when this process is gone (lanefeed.open); 0: never.
    owner_pid: int = 0
    #: Free form, for tests: faults to plant. Never set in production.
    faults: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The document's text."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data |= {"version": CONFIG_VERSION, "plan": self.plan.to_dict(), "spec": self.spec.to_dict()}
        data |= {"columns": list(self.columns), "faults": dict(self.faults)}
        # Left out where there are none: documents, and their digests, stay what they were.
        images = [image.to_dict() for image in data.pop("images")]
        data |= {"images": images} if images else {}
        return json.dumps(data, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "PodConfig":
        """The inverse of `to_json`. Raises ConfigError naming what is wrong."""
        try:
            data = json.loads(text)
            version = data.pop("version", None)
            if version != CONFIG_VERSION:
                raise ConfigError(f"pod configuration version {version!r} is unknown: this one knows {CONFIG_VERSION}")
            data["plan"] = Plan.from_dict(data["plan"])
            data["spec"] = StreamSpec.from_dict(data["spec"])
            data["columns"] = tuple(data["columns"])
            data["images"] = image_columns(data.get("images", ()))
            return cls(**data)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            what = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"the pod configuration cannot be read: {what}") from None
