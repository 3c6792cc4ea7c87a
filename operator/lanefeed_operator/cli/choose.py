"""Which place a command means: this machine's state folder or a cluster.

A YAML file means this machine. `-n` or `--context` mean the cluster, as does being called as `kubectl lanefeed`.
Otherwise a job that was run here is meant, and if there is none, the cluster that kubectl would ask.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lanefeed_operator.cli.cluster import ClusterPlace, ClusterUnavailable, connect
from lanefeed_operator.cli.common import is_file, locate
from lanefeed_operator.cli.places import LocalPlace, Place
from lanefeed_operator.local.errors import UnknownJob

__all__ = ["Context", "Namespace", "choose", "in_cluster"]

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The job is in this namespace of the cluster.")
]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]


def in_cluster(namespace: str | None, context: str | None) -> bool:
    """Whether a cluster is meant for sure."""
    return bool(namespace or context) or Path(sys.argv[0]).name.startswith("kubectl-")


def choose(job: str, state_dir: Path | None, namespace: str | None, context: str | None) -> Place:
    """The job's place. Raises UnknownJob, ClusterUnavailable."""
    if in_cluster(namespace, context):
        return _cluster(job, namespace, context)
    try:
        return LocalPlace(locate(job, state_dir))
    except UnknownJob as error:
        if is_file(job) or state_dir is not None:
            raise
        try:
            return _cluster(job, None, None)
        except ClusterUnavailable as away:
            raise UnknownJob(f"{error} (nor can a cluster be asked: {away})") from None


def _cluster(job: str, namespace: str | None, context: str | None) -> Place:
    api, own, cluster = connect(context)
    return ClusterPlace(api, namespace or own, job, cluster)
