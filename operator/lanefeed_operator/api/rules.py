"""Rules that span several fields of a job. `load` runs them; in a cluster CEL says the same (design section 6).

Each message names the field, the value and the way out.
"""

import re
from collections.abc import Iterator
from typing import Any

from lanefeed_core.errors import StreamError
from lanefeed_core.slices import World
from lanefeed_operator.api.spec import API_VERSION, KIND, TRAINER, Boundary, Job, Layout, Provider, Spec
from lanefeed_operator.errors import Problem

__all__ = ["MAX_NAME", "check", "reaches_data", "reserved"]

#: `<name>-<plan generation>-<pod index>` must fit a host name of 63.
MAX_NAME = 45
#: Exit code of lanefeed.Stopped.
STOPPED = 75
_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")

_RESERVED = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX"}
_RESERVED_PREFIXES = ("LANEFEED_", "PET_", "TORCHELASTIC_")
#: Ours, but for users to set (docs/protocol.md, Environment).
_FOR_USERS = {"LANEFEED_SHM_ROOT", "LANEFEED_ATTACH_SECONDS"}
_FOR_USERS_PREFIX = "LANEFEED_READ_"
#: How a store is reached, and with which keys (docs/remote-data.md).
_DATA_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "HF_", _FOR_USERS_PREFIX)
_DATA_NAMES = {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE"}


def check(job: Job) -> list[Problem]:
    """Every broken rule."""
    spec = job.spec
    rules = (_size, _stream, _data, _packed, _cache, _gang, _template)
    return [*_identity(job), *(problem for rule in rules for problem in rule(spec))]


def reserved(name: str) -> bool:
    """Whether an environment variable is the control plane's to set."""
    if name in _FOR_USERS or name.startswith(_FOR_USERS_PREFIX):
        return False
    return name in _RESERVED or name.startswith(_RESERVED_PREFIXES)


def reaches_data(name: str) -> bool:
    """Whether an environment variable of the trainer says how a store is reached: who reads the data gets it too."""
    return name in _DATA_NAMES or name.startswith(_DATA_PREFIXES)


def _identity(job: Job) -> Iterator[Problem]:
    if job.api_version != API_VERSION:
        yield Problem("apiVersion", f"is {job.api_version!r}: this Lanefeed knows {API_VERSION}")
    if job.kind != KIND:
        yield Problem("kind", f"is {job.kind!r}: it must be {KIND}")
    name = job.metadata.name
    if len(name) > MAX_NAME:
        yield Problem("metadata.name", f"{name!r} has {len(name)} characters: at most {MAX_NAME} fit into pod names")
    elif not _NAME.match(name):
        yield Problem(
            "metadata.name",
            f"{name!r} is not a DNS name: use lower case letters, digits and -, beginning with a letter",
        )


def _cache(spec: Spec) -> Iterator[Problem]:
    cache = spec.sidecar.cache
    if not cache.volume:
        return
    if not cache.size:
        yield Problem("spec.sidecar.cache.size", f"is 0 and cache.volume is {cache.volume!r}: say how much it may take")
    extra = spec.template.spec.model_extra or {}
    known = [str(v.get("name", "")) for v in extra.get("volumes") or () if isinstance(v, dict)]
    if cache.volume not in known:
        has = f"which has {', '.join(known)}" if known else "which has none"
        yield Problem(
            "spec.sidecar.cache.volume",
            f"is {cache.volume!r}: it must be a volume of spec.template.spec.volumes, {has}",
        )


def _size(spec: Spec) -> Iterator[Problem]:
    elastic, replicas = spec.elastic, spec.replicas
    if elastic.max_replicas is not None and elastic.max_replicas < elastic.min_replicas:
        yield Problem(
            "spec.elastic.maxReplicas",
            f"is {elastic.max_replicas}, below elastic.minReplicas {elastic.min_replicas}: raise it",
        )
    elif replicas < elastic.min_replicas:
        yield Problem(
            "spec.replicas", f"is {replicas}, below elastic.minReplicas {elastic.min_replicas}: raise it or lower that"
        )
    elif elastic.max_replicas is not None and replicas > elastic.max_replicas:
        yield Problem(
            "spec.replicas", f"is {replicas}, above elastic.maxReplicas {elastic.max_replicas}: lower it or raise that"
        )
    try:
        World(spec.world, spec.allow_uneven).check(spec.batching.global_batch_size)
    except StreamError as error:
        yield Problem("spec.batching.globalBatchSize", str(error).removeprefix("batching.globalBatchSize "))


def _stream(spec: Spec) -> Iterator[Problem]:
    if spec.epoch_boundary is Boundary.CONTINUOUS and not spec.max_steps:
        yield Problem(
            "spec.maxSteps",
            "is not set and epochBoundary is Continuous, which has no last epoch: say how many steps to run",
        )
    lanes, size = spec.batching.lanes, spec.batching.global_batch_size
    if lanes is not None and lanes > size:
        yield Problem(
            "spec.batching.lanes", f"is {lanes}, above globalBatchSize {size}: use at most {size}, or leave it out"
        )


def _data(spec: Spec) -> Iterator[Problem]:
    if not spec.data.uris or not all(uri.strip() for uri in spec.data.uris):
        yield Problem(
            "spec.data.uri", "is empty: name a file, a folder, a glob such as data/*.parquet, or a list of them"
        )
    twice = sorted({name for name in spec.data.columns if spec.data.columns.count(name) > 1})
    if twice:
        yield Problem("spec.data.columns", f"names {', '.join(twice)} more than once: name each column once")
    images = [image.column for image in spec.data.images]
    for number, name in enumerate(images):
        where = f"spec.data.images[{number}].column"
        if images.index(name) < number:
            yield Problem(where, f"is {name!r}, which another entry has: name each column once")
        elif spec.data.columns and name not in spec.data.columns:
            yield Problem(where, f"is {name!r}, which data.columns does not name: add it there, or take it out here")


def _packed(spec: Spec) -> Iterator[Problem]:
    packed, layout = spec.batching.packed, spec.batching.layout
    if layout is Layout.PACKED and packed is None:
        yield Problem("spec.batching.packed", "is not set and layout is Packed: say at least packed.sequenceLength")
    if layout is not Layout.PACKED and packed is not None:
        yield Problem("spec.batching.packed", f"is set and layout is {layout}: set layout to Packed, or leave it out")
    if layout is Layout.PACKED and spec.data.columns:
        yield Problem(
            "spec.data.columns",
            f"names {', '.join(spec.data.columns)} and batching.layout is Packed, which delivers tokens alone: leave "
            "it out, and name their column in batching.packed.column",
        )


def _gang(spec: Spec) -> Iterator[Problem]:
    base, gang = "spec.scheduling.gang", spec.scheduling.gang
    if gang.queue and gang.provider is not Provider.VOLCANO:
        yield Problem(f"{base}.queue", "is Volcano's: set provider to Volcano, or leave it out (Kueue goes by a label)")
    if gang.timeout_seconds is not None and gang.provider is not Provider.COSCHEDULING:
        yield Problem(f"{base}.timeoutSeconds", "is coscheduling's: set provider to Coscheduling, or leave it out")
    if gang.min_available is not None and gang.provider is Provider.NONE:
        yield Problem(f"{base}.provider", "is None and minAvailable is set: say who starts the gang")
    if STOPPED in spec.failure_policy.non_retryable_exit_codes:
        yield Problem(
            "spec.failurePolicy.nonRetryableExitCodes",
            f"has {STOPPED}, with which trainers leave after a checkpoint (lanefeed.Stopped): take it out",
        )


def _template(spec: Spec) -> Iterator[Problem]:
    pod, base = spec.template.spec, "spec.template.spec"
    names = [container.name for container in pod.containers]
    if names.count(TRAINER) != 1:
        found = f"the containers are {', '.join(names)}" if names else "there are none"
        yield Problem(f"{base}.containers", f"needs one container named {TRAINER!r}, which trains; {found}")
    else:
        yield from _trainer(spec, f"{base}.containers[{names.index(TRAINER)}]")
    extra: dict[str, Any] = pod.model_extra or {}
    if extra.get("restartPolicy", "Never") != "Never":
        yield Problem(
            f"{base}.restartPolicy",
            f"is {extra['restartPolicy']!r}: leave it out or set Never; pods are replaced by the job",
        )
    for kind in ("initContainers", "volumes"):
        for number, item in enumerate(extra.get(kind) or []):
            name = str(item.get("name", "")) if isinstance(item, dict) else ""
            if name.startswith("lanefeed-"):
                yield Problem(f"{base}.{kind}[{number}].name", f"is {name!r}: names that begin with lanefeed- are ours")


def _trainer(spec: Spec, base: str) -> Iterator[Problem]:
    trainer = spec.template.trainer
    if not trainer.command and not trainer.args and not trainer.image:
        yield Problem(f"{base}.command", "is not set: say what trains, e.g. [torchrun, train.py]")
    for number, variable in enumerate(trainer.env):
        if reserved(variable.name):
            yield Problem(
                f"{base}.env[{number}].name",
                f"is {variable.name!r}, which the control plane sets: rename it, or read that value in the trainer",
            )
