"""The dataset and the job of the simulation: the small stream of sim.pods as a manifest, and a spec for it."""

from functools import lru_cache
from typing import Any

from lanefeed_core import manifest_codec
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_operator.kube.api import Object
from lanefeed_operator.render.settings import Settings
from sim.pods import EPOCHS, ROWS, SIZE

NAMESPACE = "team"
SETTINGS = Settings(sidecar_image="example/lanefeed", coordinator="lanefeed.lanefeed-system.svc:9443")


@lru_cache
def manifest() -> tuple[Manifest, bytes]:
    """What the indexer finds, and the bytes that it uploads."""
    shards = tuple(Shard(f"part-{n}", 100, (int(rows),), (int(rows) * 8,), f"f{n}") for n, rows in enumerate(ROWS))
    found = Manifest(shards, (Field("label", "int64"),))
    return found, manifest_codec.encode(found)


def stj(name: str, last_batch: str, *, ranks: int, labels: dict[str, str], more: Any) -> Object:
    """A ShardedTrainingJob as a user applies it."""
    spec = {
        "ranksPerReplica": ranks,
        "maxRestarts": 1000,
        "data": {"uri": "x"},
        "batching": {"globalBatchSize": SIZE, "uneven": "Allow", "lanes": 6, "lastBatch": last_batch},
        "shuffle": {"seed": 9, "window": 8},
        "epochs": EPOCHS,
        "template": {"spec": {"containers": [{"name": "trainer", "image": "t", "command": ["x"]}]}},
        **more,
    }
    return {
        "apiVersion": "lanefeed.dev/v1alpha1",
        "kind": "ShardedTrainingJob",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": spec,
    }
