"""What a release of the operator puts into every pod, besides the job itself. Set from the chart's values, once."""

from dataclasses import dataclass

from lanefeed_operator.render.constants import AUDIENCE, METRICS_PORT, RENDEZVOUS_PORT

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one operator."""

    #: Image of sidecar and indexer where a job names none; released with the operator.
    sidecar_image: str
    #: host:port of the report service.
    coordinator: str
    image_pull_policy: str = "IfNotPresent"
    audience: str = AUDIENCE
    metrics_port: int = METRICS_PORT
    rendezvous_port: int = RENDEZVOUS_PORT
    #: User of the sidecar; None where the cluster assigns one (OpenShift).
    sidecar_user: int | None = 65532
    #: Group that trainer and sidecar share, where a job names none; None where the cluster assigns one.
    shared_group: int | None = 65532
    #: CPU that each sidecar asks for; a job may say otherwise.
    sidecar_cpu: str = "500m"
