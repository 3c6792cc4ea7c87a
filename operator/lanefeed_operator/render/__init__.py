"""Kubernetes objects of a job, as plain dicts: pure functions of job, plan, manifest and the operator's settings.

Called by the cluster shell, which applies what they return and nothing else. Opens nothing, asks no clock, knows no
client: two calls with the same arguments return equal objects, so that a repeated create is a no-op.
"""

from lanefeed_operator.render.errors import RenderError
from lanefeed_operator.render.group import pod_group
from lanefeed_operator.render.indexer import indexer
from lanefeed_operator.render.plan import manifest_maps, plan_map, pod_config
from lanefeed_operator.render.pods import indexed_job
from lanefeed_operator.render.service import service, trust_map
from lanefeed_operator.render.settings import Settings
from lanefeed_operator.render.sizes import Sizes, sizes

__all__ = [
    "RenderError",
    "Settings",
    "Sizes",
    "indexed_job",
    "indexer",
    "manifest_maps",
    "plan_map",
    "pod_config",
    "pod_group",
    "service",
    "sizes",
    "trust_map",
]
