"""The kernel kills a sidecar for want of memory: it starts again in place, and no batch is another one."""

import subprocess
import sys
from pathlib import Path

from e2e.cluster import Cluster, Object
from e2e.lifetime import job
from e2e.scenarios import scenario

MIDDLE = 42
#: Joins the cgroup whose folder it is given, and takes memory until nothing is left there.
HOG = """
import os, sys, time
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
taken = []
while True:
    taken.append(bytearray(os.urandom(1 << 20) * 16))
"""


@scenario("calm")
def test_a_sidecar_out_of_memory(cluster: Cluster) -> None:
    """Its cgroup runs full and the kernel picks the sidecar: OOMKilled, one restart, nothing else happens."""
    with job(cluster, "oom", epochs=2) as made:
        made.spec["template"] = {"spec": made.pod(nodes=("node1", "node2"))}
        made.apply()
        made.reaches(MIDDLE, seconds=120)
        victim = made.living()[1]
        fill(cluster, victim)
        made.wait(lambda: made.sidecar_restarts(victim) >= 1, 60, "the sidecar's restart")
        made.wait(lambda: last_end(made.pods()[1]) == "OOMKilled", 30, "the kubelet to say OOMKilled")
        made.reaches(MIDDLE + 40)
        status = made.completes()
        assert status["restarts"]["failures"] == 0
        assert victim["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in made.pods()}


def fill(cluster: Cluster, pod: Object) -> None:
    """Fill the sidecar's cgroup, with the sidecar as the kernel's first choice."""
    pid = cluster.process(pod, "lanefeed-sidecar")
    folder = memory_cgroup(pid)
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    with subprocess.Popen([sys.executable, "-c", HOG, str(folder)], stderr=subprocess.DEVNULL) as hog:
        try:
            for _ in range(1200):
                if not Path(f"/proc/{pid}").exists() or hog.poll() is not None:
                    break
                try:
                    hog.wait(timeout=0.1)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            hog.kill()
    assert not Path(f"/proc/{pid}").exists(), "the kernel chose another process"


def memory_cgroup(pid: int) -> Path:
    """The folder of a process's memory cgroup, of version 1 or 2."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    return Path("/sys/fs/cgroup") / path.lstrip("/")


def last_end(pod: Object) -> str:
    """Why the sidecar ended last."""
    states = pod["status"]["initContainerStatuses"]
    state = next(s for s in states if s["name"] == "lanefeed-sidecar")
    return str(state.get("lastState", {}).get("terminated", {}).get("reason", ""))
