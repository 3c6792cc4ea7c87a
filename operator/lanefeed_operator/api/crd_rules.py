"""What the schema says beyond single fields: CEL rules for all that is static, and bounds. Data; read by `crd`.

The rules say what `rules.check` says on one machine; two are only here, since they need the object's former self
(immutability) or a cluster (reserved volumes). Every list, map and string under a rule has a bound: the API server
estimates a rule's cost from those, and refuses the whole definition where it is too high. That is also why messages
about numbers do not show them: the server holds `string(number)` to be of any length.
"""

from collections.abc import Iterator
from typing import Any

from lanefeed_operator.api import rules
from lanefeed_operator.api.rules import MAX_NAME
from lanefeed_operator.api.spec import TRAINER

__all__ = ["BOUNDS", "RULES", "Rule"]

Rule = dict[str, Any]

_NEW = "start a new job for another one"
_LENGTH = "the length of the stream, which is agreed on at the start,"


def _rule(rule: str, message: str, *, expression: str = "", field: str = "", reason: str = "FieldValueInvalid") -> Rule:
    """A CEL rule. `expression` makes the message with the values in it; `message` is its fallback."""
    found: Rule = {"rule": rule, "message": message, "reason": reason}
    if expression:
        found["messageExpression"] = expression
    if field:
        found["fieldPath"] = field
    return found


def _frozen(name: str, what: str = "the order of samples") -> Rule:
    return _rule("self == oldSelf", f"{name} cannot change, {what} depends on it: {_NEW}")


def _reserved(variable: str) -> str:
    """CEL: whether an environment variable is the operator's to set."""

    def listed(names: set[str]) -> str:
        return "[" + ", ".join(f"'{name}'" for name in sorted(names)) + "]"

    starts = " || ".join(f"{variable}.startsWith('{prefix}')" for prefix in rules._RESERVED_PREFIXES)
    return (
        f"({variable} in {listed(rules._RESERVED)} || (("
        + starts
        + f") && !{variable}.startsWith('{rules._FOR_USERS_PREFIX}') && !({variable} in {listed(rules._FOR_USERS)})))"
    )


def _ours(container: str) -> Iterator[Rule]:
    yield _rule(
        f"!has(self.{container}) || self.{container}.all(x, !x.name.startsWith('lanefeed-'))",
        f"names in {container} that begin with lanefeed- are the operator's: rename them",
        field=f".{container}",
    )


_RANKS = "self.replicas * self.ranksPerReplica"
_SIZE = "self.batching.globalBatchSize"
_ROOT = [
    _rule(
        f"size(self.metadata.name) <= {MAX_NAME}",
        f"metadata.name has more than {MAX_NAME} characters: shorten it, pod names are made from it",
    ),
    _rule(
        # A longer one is the rule's above: this one is only asked where it is cheap.
        f"size(self.metadata.name) > {MAX_NAME} || self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name is not a DNS label: use lower case letters, digits and -, beginning with a letter",
    ),
]
_SPEC = [
    _rule(
        f"{_RANKS} <= {_SIZE}",
        "batching.globalBatchSize is smaller than the ranks (replicas x ranksPerReplica): use fewer ranks or a larger "
        "global batch",
        field=".batching.globalBatchSize",
    ),
    _rule(
        f"self.batching.uneven == 'Allow' || {_RANKS} < 1 || {_RANKS} > {_SIZE} || {_SIZE} % ({_RANKS}) == 0",
        "batching.globalBatchSize is not a multiple of the ranks (replicas x ranksPerReplica): set batching.uneven to "
        "Allow, or use a number of ranks that divides it",
        field=".batching.globalBatchSize",
    ),
    _rule(
        "self.replicas >= self.elastic.minReplicas",
        "replicas is below elastic.minReplicas: raise it or lower that",
        field=".replicas",
    ),
    _rule(
        "!has(self.elastic.maxReplicas) || self.replicas <= self.elastic.maxReplicas",
        "replicas is above elastic.maxReplicas: lower it or raise that",
        field=".replicas",
    ),
    _rule(
        "self.epochBoundary != 'Continuous' || self.maxSteps > 0",
        "maxSteps is not set and epochBoundary is Continuous, which has no last epoch: say how many steps to run",
        field=".maxSteps",
        reason="FieldValueRequired",
    ),
    _rule(
        "self.batching.layout != 'Packed' || !has(self.data.columns) || size(self.data.columns) == 0",
        "data.columns is set and batching.layout is Packed, which delivers tokens alone: leave it out, and name their "
        "column in batching.packed.column",
        field=".data.columns",
    ),
]
_BATCHING = [
    _rule(
        "!has(self.lanes) || self.lanes <= self.globalBatchSize",
        "lanes is above globalBatchSize: use at most that many, or leave it out",
        field=".lanes",
    ),
    _rule(
        "self.globalBatchSize == oldSelf.globalBatchSize",
        f"batching.globalBatchSize cannot change, the order of samples depends on it: {_NEW}",
        field=".globalBatchSize",
    ),
    _rule(
        "self.lastBatch == oldSelf.lastBatch",
        f"batching.lastBatch cannot change, the length of an epoch depends on it: {_NEW}",
        field=".lastBatch",
    ),
    _rule(
        # On the parent: a rule on the field itself is not asked when the field is added or taken away.
        "has(self.lanes) == has(oldSelf.lanes) && (!has(self.lanes) || self.lanes == oldSelf.lanes)",
        f"batching.lanes cannot change, the order of samples depends on it: {_NEW}",
        field=".lanes",
    ),
    _rule(
        "(self.layout == 'Packed') == has(self.packed)",
        "packed is set and layout is Rows, or layout is Packed and packed is not set: set both, or neither",
        field=".packed",
    ),
    _rule(
        "self.layout == oldSelf.layout && has(self.packed) == has(oldSelf.packed) && "
        "(!has(self.packed) || self.packed == oldSelf.packed)",
        f"batching.layout and batching.packed cannot change, what a sample is depends on them: {_NEW}",
        field=".packed",
    ),
]
_POD = [
    _rule(
        f"self.containers.exists_one(c, c.name == '{TRAINER}')",
        f"containers needs exactly one named {TRAINER}, which trains: name it so",
        field=".containers",
    ),
    _rule(
        "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        "restartPolicy must be Never or left out: pods are replaced by the job",
        field=".restartPolicy",
    ),
    *_ours("containers"),
    *_ours("initContainers"),
    *_ours("volumes"),
]
_CONTAINER = [
    _rule(
        f"self.name != '{TRAINER}' || !has(self.env) || self.env.all(e, !{_reserved('e.name')})",
        "env sets a variable of the operator (LANEFEED_*, PET_*, TORCHELASTIC_*, RANK, WORLD_SIZE, LOCAL_RANK, "
        "MASTER_ADDR, MASTER_PORT, JOB_COMPLETION_INDEX): rename it, or read that value in the trainer",
        expression=f"'env sets ' + self.env.filter(e, {_reserved('e.name')})[0].name + "
        "', which the operator sets: rename it, or read that value in the trainer'",
        field=".env",
    ),
    _rule(
        f"self.name != '{TRAINER}' || (has(self.command) && size(self.command) > 0) || "
        "(has(self.args) && size(self.args) > 0) || (has(self.image) && size(self.image) > 0)",
        "command is not set: say what trains, e.g. [torchrun, train.py]",
        reason="FieldValueRequired",
    ),
    _rule(
        # One machine needs none, so the model does not ask for it.
        "has(self.image) && size(self.image) > 0",
        "image is not set: say which image has the command in it",
        reason="FieldValueRequired",
    ),
    _rule(
        "!has(self.volumeMounts) || self.volumeMounts.all(m, !m.name.startsWith('lanefeed-'))",
        "volumeMounts that begin with lanefeed- are the operator's: mount a volume of your own",
        field=".volumeMounts",
    ),
]

_GANG = [
    _rule(
        "!has(self.queue) || size(self.queue) == 0 || self.provider == 'Volcano'",
        "queue is Volcano's: set provider to Volcano, or leave it out (for Kueue label the job)",
        field=".queue",
    ),
    _rule(
        "!has(self.timeoutSeconds) || self.provider == 'Coscheduling'",
        "timeoutSeconds is coscheduling's: set provider to Coscheduling, or leave it out",
        field=".timeoutSeconds",
    ),
    _rule(
        "!has(self.minAvailable) || self.provider != 'None'",
        "minAvailable is set and provider is None: say who starts the gang, Volcano or Coscheduling",
        field=".provider",
    ),
]

#: Path in the schema ("" is the root, [] the items of a list) -> its rules.
RULES: dict[str, list[Rule]] = {
    "": _ROOT,
    "spec": _SPEC,
    "spec.data": [
        _frozen("data"),
        _rule(
            "!has(self.images) || !has(self.columns) || size(self.columns) == 0 || "
            "self.images.all(i, i.column in self.columns)",
            "images names a column that columns does not: add it there",
            field=".images",
        ),
    ],
    "spec.data.images": [
        _rule(
            "self.all(x, self.exists_one(y, y.column == x.column))",
            "images names a column twice: name it once",
        )
    ],
    "spec.data.columns": [
        _rule(
            "self.all(x, self.exists_one(y, y == x))", "columns names one of them more than once: name each column once"
        )
    ],
    "spec.batching": _BATCHING,
    "spec.shuffle": [_frozen("shuffle")],
    "spec.epochs": [_frozen("epochs", _LENGTH)],
    "spec.maxSteps": [_frozen("maxSteps", _LENGTH)],
    "spec.epochBoundary": [_frozen("epochBoundary")],
    "spec.elastic": [
        _rule(
            "!has(self.maxReplicas) || self.maxReplicas >= self.minReplicas",
            "elastic.maxReplicas is below elastic.minReplicas: raise it",
            field=".maxReplicas",
        )
    ],
    "spec.failurePolicy.nonRetryableExitCodes": [
        _rule(
            "!(75 in self)",
            "nonRetryableExitCodes has 75, with which trainers leave at a stop (lanefeed.Stopped): take it out",
        )
    ],
    "spec.scheduling.gang": _GANG,
    "spec.managedBy": [_rule("self == oldSelf", f"managedBy cannot change while the job lives: {_NEW}")],
    "spec.template.spec": _POD,
    "spec.template.spec.containers[]": _CONTAINER,
}

_NAMED: dict[str, Any] = {
    "type": "array",
    "maxItems": 128,
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "maxLength": 253, "description": "Name."}},
        "x-kubernetes-preserve-unknown-fields": True,
    },
}
_AMOUNTS: dict[str, Any] = {
    "type": "object",
    "maxProperties": 32,
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": 64,
        "x-kubernetes-int-or-string": True,
    },
}
_DIGEST = {"maxLength": 64}
_TIME = {"maxLength": 64}

#: Path in the schema -> what is added to it, or put there where the models have nothing.
BOUNDS: dict[str, dict[str, Any]] = {
    # The Job's own fields are int32.
    "spec.maxRestarts": {"maximum": 1_000_000, "format": "int32"},
    "spec.elastic.minReplicas": {"maximum": 10_000, "format": "int32"},
    "spec.elastic.maxReplicas": {"maximum": 10_000, "format": "int32"},
    "spec.elastic.stopGraceSeconds": {"maximum": 86_400 * 7, "format": "int32"},
    "spec.failurePolicy.nonRetryableExitCodes": {"maxItems": 32},
    "spec.scheduling.gang.minAvailable": {"maximum": 10_000, "format": "int32"},
    "spec.scheduling.gang.queue": {"maxLength": 253},
    "spec.scheduling.gang.timeoutSeconds": {"maximum": 86_400, "format": "int32"},
    "spec.sidecar.decodeThreads": {"maximum": 1024, "format": "int32"},
    "spec.data.uri": {"minLength": 1, "maxLength": 4096, "minItems": 1, "maxItems": 1024},
    # Not a set: sets are equal whatever their order, and columns come in this one.
    "spec.data.columns": {"maxItems": 256},
    "spec.data.columns[]": {"minLength": 1, "maxLength": 256},
    "spec.data.images": {"maxItems": 16},
    "spec.data.images[].column": {"minLength": 1, "maxLength": 256},
    # World size x ranks stays an int64 in the rules.
    "spec.batching.globalBatchSize": {"maximum": 1 << 30},
    "spec.batching.packed.column": {"maxLength": 256},
    "spec.sidecar.cache.volume": {"maxLength": 63},
    "spec.sidecar.image": {"minLength": 1, "maxLength": 512},
    "spec.sidecar.resources": {
        "x-kubernetes-preserve-unknown-fields": None,
        "properties": {
            "limits": {"description": "Most that the sidecar may use.", **_AMOUNTS},
            "requests": {"description": "What is reserved for the sidecar.", **_AMOUNTS},
        },
    },
    "spec.template.metadata.labels": {"maxProperties": 64},
    "spec.template.metadata.annotations": {"maxProperties": 256},
    "spec.template.metadata": {"x-kubernetes-preserve-unknown-fields": None},
    "spec.template.spec.containers": {"minItems": 1, "maxItems": 32},
    "spec.template.spec.containers[].name": {"maxLength": 63},
    "spec.template.spec.containers[].image": {"maxLength": 512},
    "spec.template.spec.containers[].command": {"maxItems": 1024},
    "spec.template.spec.containers[].args": {"maxItems": 4096},
    "spec.template.spec.containers[].env": {"maxItems": 512},
    "spec.template.spec.containers[].env[].name": {"maxLength": 128},
    "spec.template.spec.containers[].volumeMounts": {"description": "Volumes of the container.", **_NAMED},
    "spec.template.spec.initContainers": {
        "description": "Containers that run before; the sidecar comes after them.",
        **_NAMED,
        "maxItems": 32,
    },
    "spec.template.spec.volumes": {"description": "Volumes of the pod.", **_NAMED},
    "spec.template.spec.restartPolicy": {"description": "Never, or left out.", "type": "string", "maxLength": 16},
    # ---- status: what the operator writes fits, and nobody else can fill the store ----
    "status.state": {"maxLength": 32},
    "status.reason": {"maxLength": 128},
    "status.conditions": {"maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    "status.conditions[]": {"required": ["type", "status"]},
    "status.conditions[].type": {"maxLength": 128},
    "status.conditions[].status": {"enum": ["True", "False", "Unknown"]},
    "status.conditions[].reason": {"maxLength": 256},
    "status.conditions[].message": {"maxLength": 32768},
    "status.conditions[].lastTransitionTime": _TIME,
    "status.cursor.commit": {"maxLength": 1024},
    "status.plan.failures": {"maxProperties": 256},
    "status.plan.fenced": {"maxItems": 64},
    "status.plan.fenced[]": {"maxLength": 128},
    "status.plan.reason": {"maxLength": 256},
    "status.plan.restartToken": {"maxLength": 64},
    "status.plan.time": _TIME,
    "status.plan.finishedTime": _TIME,
    "status.plan.disagreeTime": _TIME,
    "status.stop.reason": {"maxLength": 256},
    "status.stop.outcome": {"maxLength": 1024},
    "status.stop.time": _TIME,
    "status.restarts.lastReason": {"maxLength": 1024},
    "status.restarts.lastTime": _TIME,
    "status.stream.manifest": _DIGEST,
    "status.stream.boundary": {"maxLength": 32},
    "status.stream.lastBatch": {"maxLength": 32},
    "status.ledger.epochs": {"maxItems": 64},
    "status.ledger.epochs[].digest": _DIGEST,
    "status.ledger.epochs[].expected": _DIGEST,
    "status.progress.ranks": {"maxItems": 128},
    "status.progress.time": _TIME,
    "status.failedToken": {"maxLength": 64},
    "status.startTime": _TIME,
    "status.completionTime": _TIME,
    "status.quarantined": {"maxItems": 32},
    "status.quarantined[]": {"maxLength": 8192},
    "status.selector": {"maxLength": 1024},
}
