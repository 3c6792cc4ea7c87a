from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("protocol", "rank", "world", "plan_generation", "state_json", "resume_at", "resuming", "pid", "version", "peek", "session", "held", "board")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    PLAN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    RESUME_AT_FIELD_NUMBER: _ClassVar[int]
    RESUMING_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    BOARD_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    rank: int
    world: int
    plan_generation: int
    state_json: str
    resume_at: int
    resuming: bool
    pid: int
    version: str
    peek: bool
    session: str
    held: _containers.RepeatedScalarFieldContainer[int]
    board: bool
    def __init__(self, protocol: _Optional[int] = ..., rank: _Optional[int] = ..., world: _Optional[int] = ..., plan_generation: _Optional[int] = ..., state_json: _Optional[str] = ..., resume_at: _Optional[int] = ..., resuming: bool = ..., pid: _Optional[int] = ..., version: _Optional[str] = ..., peek: bool = ..., session: _Optional[str] = ..., held: _Optional[_Iterable[int]] = ..., board: bool = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("session", "arena_path", "arena_bytes", "slot_bytes", "slots", "stream_json", "start", "last_commit", "board_offset", "board_life")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ARENA_PATH_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    STREAM_JSON_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_FIELD_NUMBER: _ClassVar[int]
    BOARD_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BOARD_LIFE_FIELD_NUMBER: _ClassVar[int]
    session: str
    arena_path: str
    arena_bytes: int
    slot_bytes: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    stream_json: str
    start: int
    last_commit: Committed
    board_offset: int
    board_life: int
    def __init__(self, session: _Optional[str] = ..., arena_path: _Optional[str] = ..., arena_bytes: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., stream_json: _Optional[str] = ..., start: _Optional[int] = ..., last_commit: _Optional[_Union[Committed, _Mapping]] = ..., board_offset: _Optional[int] = ..., board_life: _Optional[int] = ...) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("begin", "progress")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    progress: Progress
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("session", "rank")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    session: str
    rank: int
    def __init__(self, session: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("released", "consumed", "wait_seconds", "step_seconds", "copied_batches", "finished", "stop_wanted")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    STOP_WANTED_FIELD_NUMBER: _ClassVar[int]
    released: _containers.RepeatedScalarFieldContainer[int]
    consumed: int
    wait_seconds: float
    step_seconds: float
    copied_batches: int
    finished: bool
    stop_wanted: bool
    def __init__(self, released: _Optional[_Iterable[int]] = ..., consumed: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., step_seconds: _Optional[float] = ..., copied_batches: _Optional[int] = ..., finished: bool = ..., stop_wanted: bool = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("frames", "stop_at", "end", "failure", "committed")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    STOP_AT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    stop_at: StopAt
    end: bool
    failure: Failure
    committed: Committed
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., stop_at: _Optional[_Union[StopAt, _Mapping]] = ..., end: bool = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("slot", "sequence", "first_step", "steps", "rows", "blocks", "ids_offset", "mask_offset", "sums", "samples", "epoch", "global_samples", "epoch_sums")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    IDS_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MASK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SUMS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    sequence: int
    first_step: int
    steps: int
    rows: int
    blocks: _containers.RepeatedCompositeFieldContainer[Block]
    ids_offset: int
    mask_offset: int
    sums: _containers.RepeatedScalarFieldContainer[int]
    samples: int
    epoch: int
    global_samples: int
    epoch_sums: _containers.RepeatedCompositeFieldContainer[EpochSum]
    def __init__(self, slot: _Optional[int] = ..., sequence: _Optional[int] = ..., first_step: _Optional[int] = ..., steps: _Optional[int] = ..., rows: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[Block, _Mapping]]] = ..., ids_offset: _Optional[int] = ..., mask_offset: _Optional[int] = ..., sums: _Optional[_Iterable[int]] = ..., samples: _Optional[int] = ..., epoch: _Optional[int] = ..., global_samples: _Optional[int] = ..., epoch_sums: _Optional[_Iterable[_Union[EpochSum, _Mapping]]] = ...) -> None: ...

class EpochSum(_message.Message):
    __slots__ = ("step", "epoch", "count", "total")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    count: int
    total: int
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., count: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("values", "offsets", "validity", "starts")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    VALIDITY_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    values: int
    offsets: int
    validity: int
    starts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[int] = ..., offsets: _Optional[int] = ..., validity: _Optional[int] = ..., starts: _Optional[_Iterable[int]] = ...) -> None: ...

class StopAt(_message.Message):
    __slots__ = ("step", "reason")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    step: int
    reason: str
    def __init__(self, step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "retryable")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    retryable: bool
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., retryable: bool = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("step", "name", "plan_generation")
    STEP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    step: int
    name: str
    plan_generation: int
    def __init__(self, step: _Optional[int] = ..., name: _Optional[str] = ..., plan_generation: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("session", "rank", "plan_generation", "commit")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PLAN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    session: str
    rank: int
    plan_generation: int
    commit: RankCommit
    def __init__(self, session: _Optional[str] = ..., rank: _Optional[int] = ..., plan_generation: _Optional[int] = ..., commit: _Optional[_Union[RankCommit, _Mapping]] = ...) -> None: ...

class RankCommit(_message.Message):
    __slots__ = ("rank", "start", "stop", "name", "ledger_json")
    RANK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEDGER_JSON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    start: int
    stop: int
    name: str
    ledger_json: str
    def __init__(self, rank: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., name: _Optional[str] = ..., ledger_json: _Optional[str] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("accepted", "reason")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    def __init__(self, accepted: bool = ..., reason: _Optional[str] = ...) -> None: ...

class ManifestPiece(_message.Message):
    __slots__ = ("protocol", "job_uid", "pod_uid", "digest", "size", "data", "failure")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job_uid: str
    pod_uid: str
    digest: str
    size: int
    data: bytes
    failure: Failure
    def __init__(self, protocol: _Optional[int] = ..., job_uid: _Optional[str] = ..., pod_uid: _Optional[str] = ..., digest: _Optional[str] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class ManifestReply(_message.Message):
    __slots__ = ("taken", "reason")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    taken: bool
    reason: str
    def __init__(self, taken: bool = ..., reason: _Optional[str] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("protocol", "job_uid", "pod_index", "pod_uid", "plan_generation", "session", "sequence", "ranks", "commits", "failures", "quarantined", "metrics_address", "ready")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    POD_INDEX_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    PLAN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job_uid: str
    pod_index: int
    pod_uid: str
    plan_generation: int
    session: str
    sequence: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankReport]
    commits: _containers.RepeatedCompositeFieldContainer[RankCommit]
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    quarantined: _containers.RepeatedCompositeFieldContainer[Quarantined]
    metrics_address: str
    ready: bool
    def __init__(self, protocol: _Optional[int] = ..., job_uid: _Optional[str] = ..., pod_index: _Optional[int] = ..., pod_uid: _Optional[str] = ..., plan_generation: _Optional[int] = ..., session: _Optional[str] = ..., sequence: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankReport, _Mapping]]] = ..., commits: _Optional[_Iterable[_Union[RankCommit, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., quarantined: _Optional[_Iterable[_Union[Quarantined, _Mapping]]] = ..., metrics_address: _Optional[str] = ..., ready: bool = ...) -> None: ...

class RankReport(_message.Message):
    __slots__ = ("rank", "started", "started_from_state", "consumed", "attached", "ended", "wait_seconds", "step_seconds", "rank_batch")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FROM_STATE_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RANK_BATCH_FIELD_NUMBER: _ClassVar[int]
    rank: int
    started: int
    started_from_state: bool
    consumed: int
    attached: bool
    ended: bool
    wait_seconds: float
    step_seconds: float
    rank_batch: int
    def __init__(self, rank: _Optional[int] = ..., started: _Optional[int] = ..., started_from_state: bool = ..., consumed: _Optional[int] = ..., attached: bool = ..., ended: bool = ..., wait_seconds: _Optional[float] = ..., step_seconds: _Optional[float] = ..., rank_batch: _Optional[int] = ...) -> None: ...

class Quarantined(_message.Message):
    __slots__ = ("path", "reason")
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    path: str
    reason: str
    def __init__(self, path: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("fenced", "reason", "commits_taken", "stop_at", "last_commit", "refused", "next_report_seconds")
    FENCED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COMMITS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    STOP_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NEXT_REPORT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    fenced: bool
    reason: str
    commits_taken: int
    stop_at: StopAt
    last_commit: Committed
    refused: _containers.RepeatedScalarFieldContainer[str]
    next_report_seconds: float
    def __init__(self, fenced: bool = ..., reason: _Optional[str] = ..., commits_taken: _Optional[int] = ..., stop_at: _Optional[_Union[StopAt, _Mapping]] = ..., last_commit: _Optional[_Union[Committed, _Mapping]] = ..., refused: _Optional[_Iterable[str]] = ..., next_report_seconds: _Optional[float] = ...) -> None: ...
