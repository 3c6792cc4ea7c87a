"""The real cluster of a test session: how it is started, what can be done to it, and how to ask it something.

Made once by conftest. What it does goes through ../shared/kube's scripts (LANEFEED_KUBE names another folder that has
them); what it asks goes straight to the API server, since polling by kubectl would cost more CPU than the jobs.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import urllib3
import yaml

__all__ = ["ROOT", "Cluster", "wait"]

ROOT = Path(__file__).resolve().parents[2]
KUBE = Path(os.environ.get("LANEFEED_KUBE", ROOT.parent / "shared" / "kube"))
IMAGES = {name: f"kube.test/lanefeed-{name}:dev" for name in ("operator", "sidecar", "trainer")}
#: Programs, and the packages that have them.
PACKAGES = {"curl": "curl", "make": "make", "prometheus": "prometheus", "promtool": "prometheus"}
#: Where the operator and its release live.
SYSTEM = "lanefeed-system"
RELEASE = "lanefeed"
NODES = 3

#: Times of what a wait is given on a machine of two idle cores. Only one that fails takes that long.
PATIENCE = 2.5

Object = dict[str, Any]


def wait(done: Callable[[], Any], seconds: float, what: str, every: float = 0.25) -> Any:
    """Poll until `done` is true and give what it gave. An API server that does not answer is waited for."""
    seconds *= PATIENCE
    end = time.monotonic() + seconds
    while True:
        error: object = ""
        try:
            if found := done():
                return found
        except (urllib3.exceptions.HTTPError, LookupError) as failed:
            error = f" (last: {failed!r})"
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:.0f} s for {what}{error}")
        time.sleep(every)


class Cluster:
    """See the module."""

    def __init__(self, state: Path) -> None:
        """`state`: where the cluster keeps everything (KUBE_STATE)."""
        self.state = state
        #: What pods and this machine share, as one volume: data, checkpoints. One folder a namespace below it.
        self.shared = Path(tempfile.mkdtemp(prefix="lanefeed-e2e-", dir="/var/tmp"))
        self.shared.chmod(0o755)
        # Not marked as a process of this test run: the cluster outlives tests.
        hidden = ("LANEFEED_", "KUBECONFIG")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self.env |= {"KUBE_STATE": str(state), "KUBECONFIG": str(state / "admin.conf")}
        self.env["PATH"] = f"{state / 'bin'}:{os.environ['PATH']}"
        self._pool: urllib3.PoolManager | None = None
        self._lock = threading.Lock()

    # ---- life ------------------------------------------------------------------------------------------------------

    def up(self, nodes: int) -> None:
        """Start it anew."""
        self.script("down")
        self.script("up", str(nodes), seconds=600)

    def down(self) -> None:
        """End it and remove what it shared with pods."""
        self.script("down")
        shutil.rmtree(self.shared, ignore_errors=True)

    def build(self) -> None:
        """The images, from this working tree; Debian's packages that scripts of ../shared/kube do not bring."""
        missing = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
        if missing:
            apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
            # A mirror that does not answer now may do so a moment later; what is in the lists already may be enough.
            for pause in (0, 10, 30, 60):
                time.sleep(pause)
                self.run([*apt, "update", "-qq"], seconds=300, check=False)
                self.run([*apt, "install", "-y", "-qq", "--no-install-recommends", *missing], seconds=600, check=False)
                if all(shutil.which(program) for program in PACKAGES):
                    break
            still = sorted(program for program in PACKAGES if shutil.which(program) is None)
            assert not still, f"apt-get could not install {missing}: there is no {still}"
        self.script("base-image", seconds=600)
        self.run(["make", "images", "BASE=kube.test/python:3.11"], seconds=1200, cwd=ROOT)

    def load(self) -> None:
        """The images into all nodes."""
        for name in IMAGES:
            self.script("image", str(ROOT / ".images" / f"{name}.tar"), seconds=300)

    def kueue(self) -> None:
        """Kueue, on node1: its webhooks are asked for every Job, whoever takes away another node."""
        for node in range(2, NODES + 1):
            self.kubectl("cordon", f"node{node}")
        self.script("kueue", seconds=600)
        for node in range(2, NODES + 1):
            self.kubectl("uncordon", f"node{node}")

    def install(self, *options: str, command: str = "install") -> None:
        """The chart, as docs/install.md says; images and CPU are those of this machine."""
        values = {
            "image.registry": "kube.test",
            "image.tag": "dev",
            "sidecarImage.registry": "kube.test",
            "sidecarImage.tag": "dev",
            "sidecar.cpu": "50m",
            "resources.requests.cpu": "50m",
            # Nodes are taken away; the operator is killed by tests of its own.
            "nodeSelector.kubernetes\\.io/hostname": "node1",
        }
        settings = [f"--set={key}={value}" for key, value in values.items()]
        chart = str(ROOT / "charts" / "lanefeed")
        base = [
            "helm",
            command,
            RELEASE,
            chart,
            "--namespace",
            SYSTEM,
            "--create-namespace",
            "--wait",
            "--timeout=300s",
        ]
        self.run([*base, *settings, *options], seconds=330)

    # ---- commands --------------------------------------------------------------------------------------------------

    def script(self, name: str, *args: str, seconds: float = 300) -> str:
        """A script of ../shared/kube."""
        return self.run([str(KUBE / name), *args], seconds=seconds)

    def run(
        self, command: list[str], *, stdin: str = "", seconds: float = 180, cwd: Path | None = None, check: bool = True
    ) -> str:
        """A command against the cluster; its output. Fails with all that it said."""
        done = subprocess.run(
            command, input=stdin, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)[:300]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def kubectl(self, *args: str, stdin: str = "", seconds: float = 180, check: bool = True) -> str:
        """`kubectl`."""
        return self.run(["kubectl", *args], stdin=stdin, seconds=seconds, check=check)

    def apply(self, *objects: Object) -> None:
        """`kubectl apply`."""
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(yaml.safe_dump(o) for o in objects))

    # ---- questions -------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Object:
        """GET of an API path. KeyError where there is nothing."""
        answer = self._connection().request("GET", self._host + path, timeout=30.0, retries=2)
        if answer.status == 404:
            raise KeyError(path)
        if answer.status != 200:
            raise urllib3.exceptions.HTTPError(f"{path}: {answer.status} {answer.data[:300]!r}")
        return dict(json.loads(answer.data))

    def _connection(self) -> urllib3.PoolManager:
        with self._lock:
            if self._pool is None:
                config = yaml.safe_load((self.state / "admin.conf").read_text())
                user, server = config["users"][0]["user"], config["clusters"][0]["cluster"]
                self._host = server["server"]
                files = {}
                for name, text in (
                    ("ca", server["certificate-authority-data"]),
                    ("crt", user["client-certificate-data"]),
                    ("key", user["client-key-data"]),
                ):
                    files[name] = self.shared / f"admin.{name}"
                    files[name].touch(mode=0o600)
                    files[name].write_bytes(base64.b64decode(text))
                self._pool = urllib3.PoolManager(
                    maxsize=16, ca_certs=str(files["ca"]), cert_file=str(files["crt"]), key_file=str(files["key"])
                )
            return self._pool

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        """Pods of a namespace."""
        return list(self.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"])

    def operator_pod(self) -> Object:
        """The running pod of the operator."""
        found = [
            pod
            for pod in self.pods(SYSTEM, "app.kubernetes.io/name=lanefeed")
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        if len(found) != 1:
            raise LookupError(f"{len(found)} running operators")
        return found[0]

    def operator_log(self) -> str:
        """What every operator of this session said: also those that ended."""
        files = sorted(self.state.glob(f"node*/pods/{SYSTEM}_*/*/*.log"))
        return "".join(file.read_text(errors="replace") for file in files)

    # ---- faults ----------------------------------------------------------------------------------------------------

    def kill(self, pod: Object, container: str) -> float:
        """SIGKILL to process 1 of a container; when."""
        at = time.time()
        self._task(pod, container, "kill", "-s", "SIGKILL")
        return at

    def process(self, pod: Object, container: str) -> int:
        """Process 1 of a container, as this machine numbers it."""
        return int(self._task(pod, container, "ps").splitlines()[1].split()[0])

    def _task(self, pod: Object, container: str, *command: str) -> str:
        """`ctr tasks` on the pod's node."""
        statuses = pod["status"].get("containerStatuses", []) + pod["status"].get("initContainerStatuses", [])
        found = next(status for status in statuses if status["name"] == container)
        socket = self.state / pod["spec"]["nodeName"] / "containerd.sock"
        task = found["containerID"].removeprefix("containerd://")
        return self.run(["ctr", "-a", str(socket), "-n", "k8s.io", "tasks", *command, task])

    def node(self, what: str, number: int) -> None:
        """crash, restore, freeze, thaw, cut or join a node."""
        self.script("node", what, str(number))

    def halt(self, name: str) -> Callable[[], None]:
        """SIGKILL to a process of the control plane (kube-apiserver, etcd); what starts it again as it was."""
        pid = int((self.state / "run" / f"{name}.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
        self._lib(f'stop "{name}" KILL')
        return lambda: self._lib('cd "$pki"; start "$@"', name, *command)

    def _lib(self, code: str, *args: str) -> None:
        """Code that uses what the scripts of ../shared/kube use."""
        self.run(["bash", "-c", f'. "{KUBE}/lib.sh"; {code}', "e2e", *args])
