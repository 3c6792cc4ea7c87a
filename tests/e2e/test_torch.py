"""The example as a user would run it: torchrun, two pods of two ranks, DistributedDataParallel, real Parquet."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from e2e.cluster import Cluster
from e2e.job import Job
from e2e.lifetime import job
from e2e.scenarios import scenario

DIMENSIONS, CLASSES = 32, 10


def points(folder: Path) -> None:
    """Points around ten centres, so that the model really learns something; shards of unequal size."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, DIMENSIONS), dtype=np.float32)
    for index, rows in enumerate((611, 402, 1003, 97, 687)):
        label = rng.integers(0, CLASSES, rows)
        x = centres[label] + rng.standard_normal((rows, DIMENSIONS), dtype=np.float32)
        columns = {"x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), DIMENSIONS), "label": label}
        pq.write_table(pa.table(columns), folder / f"{index:02d}.parquet", row_group_size=150)


@scenario("calm")
def test_the_example_trains_through_a_lost_pod_and_a_resize(cluster: Cluster) -> None:
    """A pod is deleted, then two pods of two ranks become one: the models' checkpoints saw every batch as it should."""
    with job(cluster, "torch", points, epochs=3, ranksPerReplica=2) as made:
        made.spec["template"] = {"spec": torchrun(made)}
        made.apply()
        made.wait(lambda: made.step() >= 20, 180, "a commit at step 20 or later")
        victim = made.living()[1]["metadata"]["name"]
        cluster.kubectl("-n", made.namespace, "delete", "pod", victim, "--wait=false")
        at = made.step()
        made.wait(lambda: made.step() >= at + 40, 180, "commits after the pod was deleted")
        made.scale(1)
        status = made.completes(240)
        assert status["plan"]["replicas"] == 1
        assert "epoch 2 done, loss" in trained(made)


def torchrun(made: Job) -> dict[str, object]:
    """The image's own command; checkpoints go to the shared folder."""
    pod = made.pod(nodes=("node1", "node2"))
    trainer = pod["containers"][0]
    del trainer["command"]
    variables = {"CHECKPOINTS": "/e2e/out", "CHECKPOINT_EVERY": "10", "STEP_SECONDS": "0.05", "RECORD_IDS": "1"}
    trainer["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    trainer["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"})
    trainer["resources"]["limits"]["memory"] = "2Gi"
    pod["volumes"].append({"name": "tmp", "emptyDir": {}})
    return pod


def trained(made: Job) -> str:
    """What the trainers of the last plan said."""
    logs = made.cluster.state.glob(f"node*/pods/{made.namespace}_*/trainer/*.log")
    return "".join(log.read_text() for log in logs)
