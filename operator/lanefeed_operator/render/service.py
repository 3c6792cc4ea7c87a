"""The headless Service that gives pods their host names, and the ConfigMap with the report service's CA."""

from typing import Any

from lanefeed_operator.api.spec import Job
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import names
from lanefeed_operator.render.meta import metadata, selector
from lanefeed_operator.render.settings import Settings

__all__ = ["service", "trust_map"]


def service(job: Job, settings: Settings) -> dict[str, Any]:
    """One for the job's life. Not-ready pods are published: ranks must meet before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, names.service_name(job.metadata.name), "service"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(job),
            # Numbers, not names: ports of native sidecars are not found by name before Kubernetes 1.32.
            "ports": [
                {"name": "rendezvous", "port": settings.rendezvous_port, "targetPort": settings.rendezvous_port},
            ],
        },
    }


def trust_map(job: Job, ca: str) -> dict[str, Any]:
    """Not immutable and not in the plan: the CA is rotated while pods run. `ca`: PEM."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, names.trust_name(job.metadata.name), "trust"),
        "data": {c.TRUST_FILE: ca},
    }
