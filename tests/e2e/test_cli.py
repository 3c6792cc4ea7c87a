"""The commands against a cluster, as a user runs them: `lanefeed status|plan|top|verify -n NAMESPACE`."""

import re
import subprocess
import sys
from pathlib import Path

from e2e.cluster import Cluster, wait
from e2e.job import STEPS_PER_EPOCH, Job
from e2e.lifetime import job
from e2e.scenarios import scenario

MIDDLE = 42
COMMAND = Path(sys.executable).parent / "lanefeed"


def lanefeed(made: Job, *args: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command, with the job's namespace and the cluster's kubeconfig."""
    done = subprocess.run(
        [str(COMMAND), *args, "-n", made.namespace],
        env=made.cluster.env,
        cwd=made.folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def said(made: Job, *args: str) -> str:
    """stdout of a command that must end well."""
    code, out, err = lanefeed(made, *args)
    assert code == 0, f"lanefeed {' '.join(args)}: exit code {code}\n{out}{err}"
    return out


@scenario("calm")
def test_the_commands_and_the_time_to_live(cluster: Cluster) -> None:
    """In mid-training, at the end, and after ttlSecondsAfterFinished has removed the job and all that it had."""
    with job(cluster, "asked", epochs=2) as made:
        # Not on the node that other scenarios take away.
        made.spec["template"] = {"spec": made.pod(nodes=("node1", "node2"))}
        made.apply()
        made.reaches(MIDDLE, seconds=120)
        at = made.step()
        while_it_trains(made, at)
        made.completes()
        when_it_is_done(made)
        made.patch(ttlSecondsAfterFinished=1)
        wait(lambda: gone(made), 90, "the finished job and its children to be removed")
        code, out, err = lanefeed(made, "verify", made.name)
        assert code == 2, f"{code}: {out}{err}"
        assert f"there is no ShardedTrainingJob '{made.name}' in namespace {made.namespace}" in err, err


def while_it_trains(made: Job, at: int) -> None:
    """Names, numbers and words of a job that runs."""
    total = 2 * STEPS_PER_EPOCH
    text = said(made, "status", made.name)
    assert re.search(rf"^job +{made.name}\s", text), text
    assert re.search(r"\nstate +Running\s", text), text
    assert re.search(r"pods +2 ready of 2, 2 wanted", text), text
    step = re.search(rf"step +(\d+) of {total} ", text)
    assert step, text
    assert at <= int(step[1]) < STEPS_PER_EPOCH, text
    assert f"namespace {made.namespace}" in text
    text = said(made, "plan", made.name)
    assert f"{made.name}, epoch 0: 2 pods x 1 ranks" in text, text
    assert "4,211 samples in 7 shards; 14 lanes" in text, text
    text = said(made, "plan", made.name, "--replicas", "3")
    assert "simulated: 3 pods x 1 ranks" in text, text
    text = said(made, "top")
    assert re.search(rf"{made.name} +Running +2/2 ", text), text
    text = said(made, "top", made.name, "--interval", "0.5")
    assert [int(pod) for pod in re.findall(r"^ +(\d) +1 +\d+ ", text, re.MULTILINE)] == [0, 1], text
    text = said(made, "verify", made.name)
    assert "no epoch is finished yet" in text, text
    code, out, err = lanefeed(made, "status", "nobody")
    assert code == 2, f"{code}: {out}{err}"
    assert "no ShardedTrainingJob 'nobody'" in err, err
    assert made.name in err, "it names those that there are"


def when_it_is_done(made: Job) -> None:
    """The ledger of both epochs."""
    text = said(made, "verify", made.name)
    assert "2 epochs proven: every sample used exactly once" in text, text
    assert f"step {2 * STEPS_PER_EPOCH} of {2 * STEPS_PER_EPOCH}" in text, text
    assert re.search(r"\nstate +Complete\s", said(made, "status", made.name))
    assert "no sidecar answers" in said(made, "top", made.name, "--interval", "0.2")


def gone(made: Job) -> bool:
    """The job, and all that the operator made for it."""
    base, labels = f"/namespaces/{made.namespace}", f"?labelSelector=lanefeed.dev/job={made.name}"
    paths = [
        f"/apis/lanefeed.dev/v1alpha1{base}/shardedtrainingjobs",
        f"/apis/batch/v1{base}/jobs{labels}",
        *(f"/api/v1{base}/{kind}{labels}" for kind in ("pods", "configmaps", "services")),
    ]
    return not any(made.cluster.get(path)["items"] for path in paths)
