"""Wrong manifests: a change of a good one, and what the API server has to say about it (on_server)."""

import copy
from collections.abc import Callable
from typing import Any

__all__ = ["CHANGES", "WRONG", "good"]

Document = dict[str, Any]


def good() -> Document:
    """A job that is accepted."""
    return {
        "apiVersion": "lanefeed.dev/v1alpha1",
        "kind": "ShardedTrainingJob",
        "metadata": {"name": "good"},
        "spec": {
            "replicas": 2,
            "data": {"uri": "/data", "columns": ["x", "y"]},
            "batching": {"globalBatchSize": 32},
            "template": {"spec": {"containers": [{"name": "trainer", "image": "a", "command": ["b"]}]}},
        },
    }


def _set(path: str, value: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        node: Any = document
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        for part in parents:
            node = node[part] if isinstance(part, int) else node.setdefault(part, {})
        node[last] = value

    return change


def changed(path: str, value: Any) -> Document:
    """The good job with a value put at a path."""
    document = copy.deepcopy(good())
    _set(path, value)(document)
    return document


_TRAINER = "spec.template.spec.containers.0"

#: name -> (path, value, words that the refusal must have: the field, and the remedy).
WRONG: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "ranks": ("spec.replicas", 64, ("spec.batching.globalBatchSize", "smaller than the ranks", "use fewer ranks")),
    "uneven": (
        "spec.replicas",
        3,
        ("spec.batching.globalBatchSize", "not a multiple of the ranks", "batching.uneven to Allow"),
    ),
    "below": ("spec.elastic", {"minReplicas": 4}, ("spec.replicas", "below elastic.minReplicas", "raise it")),
    "above": ("spec.elastic", {"maxReplicas": 1}, ("spec.replicas", "above elastic.maxReplicas", "lower it")),
    "bounds": (
        "spec.elastic",
        {"minReplicas": 2, "maxReplicas": 1},
        ("spec.elastic.maxReplicas", "below elastic.minReplicas", "raise it"),
    ),
    "endless": ("spec.epochBoundary", "Continuous", ("spec.maxSteps", "say how many steps to run")),
    "lanes": ("spec.batching.lanes", 64, ("spec.batching.lanes", "above globalBatchSize", "leave it out")),
    "long-name": ("metadata.name", "a" * 46, ("metadata.name", "more than 45", "shorten it")),
    "bad-name": ("metadata.name", "1a", ("metadata.name", "not a DNS label", "beginning with a letter")),
    "enum": ("spec.batching.lastBatch", "drop", ("spec.batching.lastBatch", "Drop", "Partial", "Pad")),
    "unknown": ("spec.batching.globalBatchsize", 3, ("globalBatchsize", "unknown field")),
    "quantity": ("spec.sidecar.readAheadBytes", "512 MB", ("spec.sidecar.readAheadBytes", "should match")),
    "zero": ("spec.replicas", 0, ("spec.replicas", "greater than or equal to 1")),
    "twice": ("spec.data.columns", ["x", "x"], ("spec.data.columns", "more than once", "name each column once")),
    "no-uri": ("spec.data", {}, ("spec.data.uri", "Required value")),
    "empty-uri": ("spec.data.uri", "", ("spec.data.uri", "at least 1")),
    "no-trainer": (f"{_TRAINER}.name", "train", ("spec.template.spec.containers", "named trainer")),
    "env": (f"{_TRAINER}.env", [{"name": "PET_NNODES", "value": "1"}], ("PET_NNODES", "env", "rename it")),
    "restart": ("spec.template.spec.restartPolicy", "Always", ("restartPolicy", "Never or left out")),
    "volume": ("spec.template.spec.volumes", [{"name": "lanefeed-run"}], ("volumes", "lanefeed-", "rename them")),
    "steal": (
        f"{_TRAINER}.volumeMounts",
        [{"name": "lanefeed-token", "mountPath": "/t"}],
        ("volumeMounts", "lanefeed-", "of your own"),
    ),
    "no-image": (
        f"{_TRAINER}",
        {"name": "trainer", "command": ["x"]},
        ("spec.template.spec.containers[0]", "image is not set"),
    ),
    "string": ("spec.replicas", "2", ("spec.replicas", "must be of type integer")),
    "negative-seed": ("spec.shuffle.seed", -1, ("spec.shuffle.seed", "greater than or equal to 0")),
    "no-epochs": ("spec.epochs", 0, ("spec.epochs", "greater than or equal to 1")),
    "one-slot": ("spec.sidecar.slots", 1, ("spec.sidecar.slots", "greater than or equal to 2")),
    "no-batching": ("spec.batching", {}, ("spec.batching.globalBatchSize", "Required value")),
    "no-containers": ("spec.template.spec.containers", [], ("spec.template.spec.containers", "at least 1 items")),
    "many-columns": ("spec.data.columns", [f"c{n}" for n in range(257)], ("spec.data.columns", "at most 256 items")),
    "long-token": ("spec.restartToken", "x" * 65, ("spec.restartToken", "may not be more than 64")),
    "negative-ttl": (
        "spec.ttlSecondsAfterFinished",
        -1,
        ("spec.ttlSecondsAfterFinished", "greater than or equal to 0"),
    ),
    "no-deadline": ("spec.activeDeadlineSeconds", 0, ("spec.activeDeadlineSeconds", "greater than or equal to 1")),
    "gang-none": (
        "spec.scheduling.gang.minAvailable",
        2,
        ("spec.scheduling.gang.provider", "provider is None", "Volcano or Coscheduling"),
    ),
    "gang-queue": (
        "spec.scheduling.gang",
        {"provider": "Coscheduling", "queue": "q"},
        ("spec.scheduling.gang.queue", "Volcano's", "label the job"),
    ),
    "gang-timeout": (
        "spec.scheduling.gang",
        {"provider": "Volcano", "timeoutSeconds": 5},
        ("spec.scheduling.gang.timeoutSeconds", "coscheduling's", "leave it out"),
    ),
    "gang-who": ("spec.scheduling.gang.provider", "Kueue", ("spec.scheduling.gang.provider", "Volcano")),
    "code-75": (
        "spec.failurePolicy.nonRetryableExitCodes",
        [75],
        ("spec.failurePolicy.nonRetryableExitCodes", "has 75", "take it out"),
    ),
    "code-0": (
        "spec.failurePolicy.nonRetryableExitCodes",
        [0],
        ("spec.failurePolicy.nonRetryableExitCodes[0]", "greater than or equal to 1"),
    ),
    "packed-how": ("spec.batching.layout", "Packed", ("spec.batching.packed", "packed is not set", "set both")),
    "packed-rows": (
        "spec.batching.packed",
        {"sequenceLength": 8},
        ("spec.batching.packed", "layout is Rows", "set both, or neither"),
    ),
    "packed-columns": (
        "spec.batching",
        {"globalBatchSize": 32, "layout": "Packed", "packed": {"sequenceLength": 8}},
        ("spec.data.columns", "delivers tokens alone", "batching.packed.column"),
    ),
    "packed-length": (
        "spec.batching",
        {"globalBatchSize": 32, "layout": "Packed", "packed": {"sequenceLength": 0}},
        ("spec.batching.packed.sequenceLength", "greater than or equal to 1"),
    ),
    "packed-mode": (
        "spec.batching",
        {"globalBatchSize": 32, "layout": "Packed", "packed": {"sequenceLength": 8, "mode": "Best"}},
        ("spec.batching.packed.mode", "Concat", "BestFit"),
    ),
    "image-unnamed": (
        "spec.data.images",
        [{"column": "z", "height": 8, "width": 8}],
        ("spec.data.images", "names a column that columns does not", "add it there"),
    ),
    "image-twice": (
        "spec.data.images",
        [{"column": "x", "height": 8, "width": 8}, {"column": "x", "height": 9, "width": 8}],
        ("spec.data.images", "names a column twice", "name it once"),
    ),
    "image-resize": (
        "spec.data.images",
        [{"column": "x", "height": 8, "width": 8, "resize": "Crop"}],
        ("spec.data.images[0].resize", "CenterCrop", "Stretch", "None"),
    ),
    "image-size": (
        "spec.data.images",
        [{"column": "x", "height": 0, "width": 8}],
        ("spec.data.images[0].height", "greater than or equal to 1"),
    ),
    "long-manager": ("spec.managedBy", "x" * 64, ("spec.managedBy", "may not be more than 63")),
    "init": ("spec.template.spec.initContainers", [{"name": "lanefeed-sidecar"}], ("initContainers", "rename them")),
}

#: name -> (path, value, words): refused as changes of a stored job.
CHANGES: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "data": ("spec.data.uri", "/other", ("spec.data", "cannot change", "start a new job")),
    "columns": ("spec.data.columns", ["y", "x"], ("spec.data", "cannot change")),
    "images": ("spec.data.images", [{"column": "x", "height": 8, "width": 8}], ("spec.data", "cannot change")),
    "size": ("spec.batching.globalBatchSize", 64, ("spec.batching.globalBatchSize", "cannot change")),
    "add-lanes": ("spec.batching.lanes", 16, ("spec.batching.lanes", "cannot change")),
    "packed": (
        "spec",
        good()["spec"]
        | {
            "data": {"uri": "/data"},
            "batching": {"globalBatchSize": 32, "layout": "Packed", "packed": {"sequenceLength": 8}},
        },
        ("spec.batching.packed", "batching.packed cannot change", "start a new job"),
    ),
    "seed": ("spec.shuffle.seed", 5, ("spec.shuffle", "cannot change")),
    "epochs": ("spec.epochs", 5, ("spec.epochs", "cannot change")),
    "manager": ("spec.managedBy", "kueue.x-k8s.io/multikueue", ("spec.managedBy", "cannot change", "start a new job")),
    "boundary": ("spec.maxSteps", 5, ("spec.maxSteps", "cannot change")),
}
