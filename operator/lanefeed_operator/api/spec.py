"""The typed ShardedTrainingJob: what a user may write. `load` reads it, `rules` holds what spans several fields.

Camel case in YAML, snake case in Python; unknown fields are refused, but in the pod template, where Kubernetes' own
are preserved. Read by reconcile and the shells; imports no shell.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from lanefeed_core.images import ImageColumn
from lanefeed_core.packing import MAX_SEQUENCE, PackingRequest
from lanefeed_operator.api.base import Model
from lanefeed_operator.api.images import Image
from lanefeed_operator.api.quantity import format_bytes, parse_bytes
from lanefeed_operator.api.status import Status

__all__ = [
    "API_VERSION",
    "KIND",
    "Batching",
    "Boundary",
    "Bytes",
    "Cache",
    "Completion",
    "Container",
    "Corrupt",
    "Data",
    "Digest",
    "Elastic",
    "EnvVar",
    "FailurePolicy",
    "Format",
    "Gang",
    "Job",
    "LastBatch",
    "Layout",
    "Metadata",
    "PackMode",
    "Packed",
    "PodSpec",
    "Provider",
    "Scheduling",
    "Shuffle",
    "Sidecar",
    "Spec",
    "Template",
    "TemplateMeta",
    "Uneven",
]

API_VERSION = "lanefeed.dev/v1alpha1"
KIND = "ShardedTrainingJob"

#: Name of the container in the template that trains.
TRAINER = "trainer"

#: Bytes; a Kubernetes quantity in YAML.
Bytes = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes, return_type=str)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class Preserving(BaseModel):
    """Base of the pod template's parts: what we do not know is kept as it was written."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel, populate_by_name=True, frozen=True)


class Format(StrEnum):
    """Format of the shards; Auto goes by their names and first bytes."""

    AUTO = "Auto"
    PARQUET = "Parquet"
    ARROW = "Arrow"


class Corrupt(StrEnum):
    """What a shard that fails its check does: end the job, or be set aside, counted and listed."""

    FAIL = "Fail"
    QUARANTINE = "Quarantine"


class Digest(StrEnum):
    """When whole-file digests are checked: where the whole shard is read anyway, always, or never."""

    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


class LastBatch(StrEnum):
    """What becomes of the N mod G samples at an epoch's end (Aligned)."""

    DROP = "Drop"
    PARTIAL = "Partial"
    PAD = "Pad"


class Uneven(StrEnum):
    """Whether rank batches may differ by one sample (ranks do not divide globalBatchSize)."""

    FORBID = "Forbid"
    ALLOW = "Allow"


class Boundary(StrEnum):
    """Whether epochs end at a step of their own, or lanes run on with no seam."""

    ALIGNED = "Aligned"
    CONTINUOUS = "Continuous"


class Layout(StrEnum):
    """What a sample is: a row, or a sequence that documents are packed into."""

    ROWS = "Rows"
    PACKED = "Packed"


class PackMode(StrEnum):
    """Documents end to end, cut where a sequence is full; or fitted to each other, cut only where they must be."""

    CONCAT = "Concat"
    BEST_FIT = "BestFit"


class Completion(StrEnum):
    """When the job is done: every rank's stream has ended too, or the children's exit code 0 alone."""

    STREAM_END = "StreamEnd"
    ON_EXIT = "OnExit"


class Elastic(Model):
    """How the number of pods may change."""

    min_replicas: Count = 1
    max_replicas: Count | None = None
    #: A pod on an unreachable node is fenced and replaced after this; 0: never.
    node_lost_seconds: Natural = 300
    #: Where a pod finds no place for this long, go on with fewer (down to minReplicas); 0: never.
    shrink_after_seconds: Natural = 0
    #: How long ranks may take to write a checkpoint and leave before a resize, suspend or restart.
    stop_grace_seconds: Natural = 60


class Provider(StrEnum):
    """Who starts the pods of a plan all at once: nobody, Volcano, or the coscheduling plugin."""

    NONE = "None"
    VOLCANO = "Volcano"
    COSCHEDULING = "Coscheduling"


class Gang(Model):
    """All pods of a plan start together, or none does; a PodGroup is made for every plan generation."""

    provider: Provider = Provider.NONE
    #: Pods that must find a place before any starts. Left out: all of the plan.
    min_available: Count | None = None
    #: Volcano's queue. Left out: its default.
    queue: str = ""
    #: How long coscheduling holds places for a group that is not whole. Left out: the scheduler's default.
    timeout_seconds: Count | None = None


class Scheduling(Model):
    """How pods are placed. Kueue needs nothing here: label the job with kueue.x-k8s.io/queue-name."""

    gang: Gang = Field(default_factory=Gang)


class FailurePolicy(Model):
    """Which ends of the trainer fail the job at once."""

    #: Exit codes of the trainer that no restart mends: the job fails at the first one. 0 and 75 cannot be among them.
    non_retryable_exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(default_factory=list)


class Data(Model):
    """What to read. `uri`: a file, folder, glob, or a list of them."""

    uri: str | list[str]
    format: Format = Format.AUTO
    columns: list[str] = Field(default_factory=list)
    images: list[Image] = Field(default_factory=list)
    on_corrupt: Corrupt = Corrupt.FAIL
    digest: Digest = Digest.AUTO

    @property
    def uris(self) -> tuple[str, ...]:
        """`uri` as a tuple."""
        return (self.uri,) if isinstance(self.uri, str) else tuple(self.uri)

    @property
    def image_columns(self) -> tuple[ImageColumn, ...]:
        """`images` as the core has them."""
        return tuple(image.core for image in self.images)


class Packed(Model):
    """Documents of tokens become sequences of one length; what each field does is in docs/packing.md."""

    column: str = ""
    sequence_length: Annotated[int, Field(ge=1, le=MAX_SEQUENCE)]
    eos_token: Annotated[int, Field(ge=0, le=1 << 53)] | None = None
    mode: PackMode = PackMode.CONCAT
    cross_document_mask: bool = False


class Batching(Model):
    """How samples become global batches. `lanes`: chosen at the first admission where left out."""

    global_batch_size: Count
    last_batch: LastBatch = LastBatch.DROP
    uneven: Uneven = Uneven.FORBID
    lanes: Count | None = None
    layout: Layout = Layout.ROWS
    packed: Packed | None = None

    @property
    def packing_options(self) -> tuple[str, ...]:
        """What the indexer is told of it."""
        packed = self.packed
        if packed is None:
            return ()
        return PackingRequest(
            packed.sequence_length, packed.column, packed.eos_token, packed.mode.value, packed.cross_document_mask
        ).options()


class Shuffle(Model):
    """The shuffle. `window` in rows: chosen at the first admission where left out."""

    enabled: bool = True
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    window: Count | None = None


class Cache(Model):
    """The decoded cache: row groups that are needed again are read back from a local disk. `size` 0: none."""

    size: Bytes = 0
    volume: str = ""


class Sidecar(Model):
    """The data plane of each pod. 0 lets the sidecar choose."""

    read_ahead_bytes: Bytes = 512 << 20
    decode_threads: Natural = 0
    slots: Annotated[int, Field(ge=2, le=1024)] = 8
    slot_bytes: Bytes = 0
    cache: Cache = Field(default_factory=Cache)
    image: str | None = None
    resources: dict[str, Any] = Field(default_factory=dict)


class EnvVar(Preserving):
    """One variable of the trainer's environment."""

    name: str
    value: str | None = None


class Container(Preserving):
    """A container of the pod template; locally only `trainer` is run, and its image is not used."""

    name: str
    image: str | None = None
    command: list[str] = Field(default_factory=list)
    args: list[str] = Field(default_factory=list)
    env: list[EnvVar] = Field(default_factory=list)
    working_dir: str | None = None


class PodSpec(Preserving):
    """The pod template's spec: containers are typed, the rest is Kubernetes' own."""

    containers: list[Container]


class TemplateMeta(Preserving):
    """Labels and annotations of the pods."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Template(Model):
    """The pod template."""

    metadata: TemplateMeta = Field(default_factory=TemplateMeta)
    spec: PodSpec

    @property
    def trainer(self) -> Container:
        """The container that trains (rules.py has checked that there is one)."""
        return next(c for c in self.spec.containers if c.name == TRAINER)


class Metadata(BaseModel):
    """Object metadata; what we do not use (managedFields, ...) is dropped."""

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, populate_by_name=True, frozen=True)

    name: str
    namespace: str = "default"
    uid: str = ""
    #: Number of the spec's version: counts up with each change of the spec (the API server, or the local shell).
    generation: int = 1
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Spec(Model):
    """What the user wants."""

    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    ranks_per_replica: Annotated[int, Field(ge=1, le=64)] = 1
    elastic: Elastic = Field(default_factory=Elastic)
    #: Failures of the program that each pod index may have in one plan generation.
    max_restarts: Natural = 3
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy)
    scheduling: Scheduling = Field(default_factory=Scheduling)
    data: Data
    batching: Batching
    shuffle: Shuffle = Field(default_factory=Shuffle)
    epochs: Count = 1
    #: Steps in all; 0: as many as the epochs have.
    max_steps: Natural = 0
    epoch_boundary: Boundary = Boundary.ALIGNED
    sidecar: Sidecar = Field(default_factory=Sidecar)
    completion: Completion = Completion.STREAM_END
    suspend: bool = False
    #: Any change of it makes a new plan generation from the last commit, also of a job that has failed.
    restart_token: Annotated[str, Field(max_length=64)] = ""
    #: Another controller that runs this job instead of this operator, e.g. kueue.x-k8s.io/multikueue. Cannot change.
    managed_by: Annotated[str, Field(max_length=63)] = ""
    active_deadline_seconds: Count | None = None
    ttl_seconds_after_finished: Natural | None = None
    template: Template

    @property
    def world(self) -> int:
        """Ranks in all, at the wanted size."""
        return self.replicas * self.ranks_per_replica

    @property
    def allow_uneven(self) -> bool:
        """batching.uneven, as the plan wants it."""
        return self.batching.uneven is Uneven.ALLOW


class Job(Model):
    """A ShardedTrainingJob. Make it with `load.load_job`, which checks all of it and names every fault."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata
    spec: Spec
    status: Status | None = None
