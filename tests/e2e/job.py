"""One ShardedTrainingJob under test: its namespace, its trainer, what is done to it, and the proof at its end.

The trainer is tests/support/chaos_trainer.py: each rank keeps the ids that it saw in its checkpoints and runs no
further than the step that the test allows. Data and checkpoints lie in a folder of this machine that every node sees
(a PersistentVolume with hostPath; only for these tests, where all nodes are one machine).
"""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from chaos.chaos import GLOBAL_BATCH, make_dataset
from e2e.cluster import IMAGES, ROOT, Cluster, wait
from lanefeed_core.lanes import Lanes
from lanefeed_core.stream import StreamSpec
from support.chain import consumed

__all__ = ["STEPS_PER_EPOCH", "Job"]

Object = dict[str, Any]
SEED, LANES, WINDOW, ROWS = 5, 14, 64, 4211
STEPS_PER_EPOCH = -(-ROWS // GLOBAL_BATCH)
NEVER = 10**9


def small(folder: Path) -> None:
    """The dataset of most scenarios."""
    make_dataset(folder, rows=ROWS)


class Job:
    """See the module."""

    def __init__(self, cluster: Cluster, name: str, dataset: Callable[[Path], None] = small, **spec: Any) -> None:
        """Make namespace, volume and dataset; `spec` goes into the job's."""
        self.cluster, self.name, self.namespace = cluster, name, f"e2e-{name}"
        #: (when, what) for who wants to know where a scenario's time goes.
        self.timeline = [(time.time(), "begins")]
        self.folder = cluster.shared / name
        self.out = self.folder / "out"
        self.out.mkdir(parents=True)
        dataset(self.folder / "data")
        shutil.copy(ROOT / "tests" / "support" / "chaos_trainer.py", self.folder / "trainer.py")
        for path in (self.folder, self.out):
            path.chmod(0o777)
        self.epochs = int(spec.get("epochs", 1))
        self.labels: dict[str, str] = {}
        #: Samples of each shard, where they are not the rows of the files in their order.
        self.samples: list[int] = []
        self.spec = self._spec() | spec
        self._limit = threading.RLock()
        self.allow(0)
        self.remove(wait=True)
        cluster.apply(*self._surroundings())

    # ---- manifests -------------------------------------------------------------------------------------------------

    def _surroundings(self) -> list[Object]:
        """A namespace that admits restricted pods alone, and the shared folder as a volume."""
        restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
        size = {"storage": "1Gi"}
        volume = {
            "capacity": size,
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "hostPath": {"path": str(self.folder), "type": "Directory"},
            "claimRef": {"namespace": self.namespace, "name": "shared"},
        }
        claim = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": self.namespace,
            "resources": {"requests": size},
        }
        return [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": restricted}},
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self.namespace}, "spec": volume},
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "shared", "namespace": self.namespace},
                "spec": claim,
            },
        ]

    def _spec(self) -> Object:
        return {
            "replicas": 2,
            "maxRestarts": 20,
            "elastic": {"minReplicas": 1, "maxReplicas": 8, "stopGraceSeconds": 20, "nodeLostSeconds": 10},
            "data": {"uri": "/e2e/data"},
            "batching": {"globalBatchSize": GLOBAL_BATCH, "lastBatch": "Partial", "uneven": "Allow", "lanes": LANES},
            "shuffle": {"seed": SEED, "window": WINDOW},
            "sidecar": {"readAheadBytes": "64Mi", "decodeThreads": 1, "slots": 4},
            "template": {"spec": self.pod()},
        }

    def pod(self, *, nodes: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Object:
        """The pod that a user would write: `nodes` it may run on, spread evenly over them."""
        variables = {"CHAOS_OUT": "/e2e/out", "CHAOS_SLEEP": "0.02", "CHAOS_TIMES": "1"} | (env or {})
        lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        pod: Object = {
            "automountServiceAccountToken": False,
            "tolerations": [{"key": f"node.kubernetes.io/{what}", **lost} for what in ("not-ready", "unreachable")],
            "containers": [
                {
                    "name": "trainer",
                    "image": IMAGES["trainer"],
                    "command": ["python", "/e2e/trainer.py"],
                    "env": [{"name": key, "value": value} for key, value in variables.items()],
                    "securityContext": {"readOnlyRootFilesystem": True},
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
                    "volumeMounts": [{"name": "shared", "mountPath": "/e2e"}],
                }
            ],
            "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
        }
        if nodes:
            hosts = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
            required = {"nodeSelectorTerms": [{"matchExpressions": [hosts]}]}
            pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
            pod["topologySpreadConstraints"] = [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "DoNotSchedule",
                    # A node that is lost or drained is none to spread over.
                    "nodeTaintsPolicy": "Honor",
                    "labelSelector": {"matchLabels": {"lanefeed.dev/job": self.name, "lanefeed.dev/role": "pods"}},
                }
            ]
        return pod

    def manifest(self) -> Object:
        """What the user applies."""
        meta = {"name": self.name, "namespace": self.namespace, "labels": self.labels}
        return {
            "apiVersion": "lanefeed.dev/v1alpha1",
            "kind": "ShardedTrainingJob",
            "metadata": meta,
            "spec": self.spec,
        }

    # ---- what is done to it ----------------------------------------------------------------------------------------

    def apply(self) -> "Job":
        """`kubectl apply`, once its volume is bound: a pod that waits for one is an event of its own."""
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/shared"
        wait(lambda: self.cluster.get(path)["status"]["phase"] == "Bound", 60, f"the volume of {self.name}")
        self.cluster.apply(self.manifest())
        self.timeline.append((time.time(), "applied"))
        return self

    def allow(self, step: int) -> None:
        """Let trainers run up to `step`, or no further than that."""
        with self._limit:
            self.allowed = step
            temporary = self.out / "limit.tmp"
            temporary.write_text(str(step))
            temporary.replace(self.out / "limit")

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Trainers go on meanwhile, two steps a second: a job that stands still is not told from one that is lost."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(0.5):
                with self._limit:
                    self.allow(self.allowed + 1)

        thread = threading.Thread(target=run, name=f"moving {self.name}")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def patch(self, **spec: Any) -> None:
        """`kubectl patch` of the spec."""
        patch = json.dumps({"spec": spec})
        self.cluster.kubectl("-n", self.namespace, "patch", "stj", self.name, "--type=merge", "-p", patch)

    def scale(self, replicas: int) -> float:
        """`kubectl scale`; when."""
        at = time.time()
        self.cluster.kubectl("-n", self.namespace, "scale", f"stj/{self.name}", f"--replicas={replicas}")
        return at

    def remove(self, *, wait: bool = False) -> None:
        """The namespace and all in it."""
        how = [f"--wait={wait}".lower(), "--ignore-not-found", "--timeout=170s"]
        self.cluster.kubectl("delete", "namespace", self.namespace, *how)
        self.cluster.kubectl("delete", "pv", self.namespace, *how)

    # ---- questions -------------------------------------------------------------------------------------------------

    def object(self) -> Object:
        """The ShardedTrainingJob."""
        path = f"/apis/lanefeed.dev/v1alpha1/namespaces/{self.namespace}/shardedtrainingjobs/{self.name}"
        return self.cluster.get(path)

    def status(self) -> Object:
        """Its status, {} before there is one."""
        return dict(self.object().get("status") or {})

    def pods(self) -> list[Object]:
        """Pods that train, by index; those that end are among them."""
        found = self.cluster.pods(self.namespace, f"lanefeed.dev/job={self.name},lanefeed.dev/role=pods")
        return sorted(found, key=lambda pod: (index_of(pod), pod["metadata"]["creationTimestamp"]))

    def living(self) -> list[Object]:
        """Pods that run and were not asked to go."""
        return [
            p for p in self.pods() if p["status"]["phase"] == "Running" and "deletionTimestamp" not in p["metadata"]
        ]

    def sidecar_restarts(self, pod: Object) -> int:
        """How often the sidecar of a pod has begun again."""
        found = next(p for p in self.pods() if p["metadata"]["uid"] == pod["metadata"]["uid"])
        states = found["status"]["initContainerStatuses"]
        return next(int(s["restartCount"]) for s in states if s["name"] == "lanefeed-sidecar")

    def events(self) -> list[Object]:
        """Events about the job itself, oldest first."""
        found = self.cluster.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        own = [event for event in found if event["regarding"].get("kind") == "ShardedTrainingJob"]
        return sorted(own, key=lambda event: event.get("eventTime") or event["metadata"]["creationTimestamp"])

    def times(self) -> list[tuple[float, int, int, int]]:
        """(when, step, plan generation, rank) of every batch that a rank had."""
        found = []
        for file in self.out.glob("times-*.log"):
            rank = int(file.stem.split("-")[1])
            for line in file.read_text().splitlines():
                at, step, generation = line.split()
                found.append((float(at), int(step), int(generation), rank))
        return sorted(found)

    def step(self) -> int:
        """Total step that the slowest rank has committed."""
        return int((self.status().get("cursor") or {}).get("totalStep") or 0)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], Any], seconds: float, what: str) -> Any:
        """Until `done`; fails at once where the job Failed."""

        def look() -> Any:
            found = done()
            if not found and self.status().get("state") == "Failed":
                raise AssertionError(f"{self.name} failed while waiting for {what}: {self.told()}")
            return found

        try:
            found = wait(look, seconds, f"{self.name}: {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.told()}") from None
        self.timeline.append((time.time(), what))
        return found

    def reaches(self, step: int, seconds: float = 60) -> None:
        """Until `step` is committed by all ranks; they go on to the next commit at most (every 7 steps)."""
        self.allow(max(self.allowed, step + 8))
        self.wait(lambda: self.step() >= step, seconds, f"a commit at step {step} or later")

    def seen(self, step: int, seconds: float = 60, *, generation: int = 0, rank: int | None = None) -> None:
        """Until a rank has trained `step` (in this plan generation); asks no API server.

        Ranks may go on for a while: a stop is agreed on for a step that lies ahead of the fastest.
        """
        self.allow(max(self.allowed, step + 40))

        def done() -> bool:
            return any(s >= step and g >= generation and (rank is None or r == rank) for _, s, g, r in self.times())

        wait(done, seconds, f"{self.name}: step {step} of plan {generation}")
        self.timeline.append((time.time(), f"step {step} of plan {generation or 'any'} seen"))

    def leaves(self, seconds: float = 30) -> int:
        """Until a stop is agreed on, and its end; lets ranks go to its step and no further. The step.

        Ranks that wait for `limit` have no pace by which the operator could tell how far they will have come.
        """
        stop = self.wait(lambda: self.status().get("stop"), seconds, "a stop")
        self.allow(int(stop["step"]))
        self.wait(lambda: (self.status().get("stop") or {"done": True})["done"], 60, "the stop's end")
        return int(stop["step"])

    def completes(self, seconds: float = 120) -> Object:
        """Let it run to its end, and prove it."""
        self.allow(NEVER)
        self.wait(lambda: self.status().get("state") == "Complete", seconds, "Complete")
        self.exact()
        return self.status()

    # ---- proof -----------------------------------------------------------------------------------------------------

    def expected(self) -> list[list[int]]:
        """Ids of every global batch of an uninterrupted run, from the shards on disk and the core alone."""
        files = sorted((self.folder / "data").glob("*.parquet"))
        rows = self.samples or [pq.ParquetFile(file).metadata.num_rows for file in files]
        spec = StreamSpec(seed=SEED, global_batch_size=GLOBAL_BATCH, lanes=LANES, window=WINDOW, last_batch="Partial")
        lanes = Lanes(spec, rows)
        return [lanes.batch(e, s)[0].tolist() for e in range(self.epochs) for s in range(lanes.steps_per_epoch)]

    def exact(self) -> None:
        """Nothing lost, nothing repeated, every batch the uninterrupted run's; the ledger says the same."""
        status = self.status()
        same_batches(consumed(self.out, status["cursor"]["commit"]), self.expected())
        proven = status["ledger"]["epochs"]
        assert [proof["epoch"] for proof in proven] == list(range(self.epochs)), status["ledger"]
        assert all(proof["verified"] for proof in proven), status["ledger"]

    # ---- for people ------------------------------------------------------------------------------------------------

    def told(self) -> str:
        """State, conditions and last events in a few lines."""
        try:
            status, events = self.status(), self.events()[-12:]
        except Exception as error:
            return f"(the API server does not say: {error})"
        conditions = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])]
        notes = [f"{event['reason']}: {event.get('note', '')}" for event in events]
        brief = {key: status.get(key) for key in ("state", "cursor", "plan", "stop", "restarts", "replicas")}
        return "\n".join([json.dumps(brief), *conditions, *notes])

    def look(self, *args: str) -> str:
        """`kubectl` in the job's namespace: what a person sees; kept in .e2e/kubectl/NAME.txt."""
        said = self.cluster.kubectl("-n", self.namespace, *args)
        folder = ROOT / ".e2e" / "kubectl"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{self.name}.txt").open("a") as file:
            file.write(f"$ kubectl -n {self.namespace} {' '.join(args)}\n{said}\n")
        return said

    def collect(self, folder: Path) -> None:
        """What a person needs after a failure, into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        get = ["-n", self.namespace]
        commands = {
            "all.txt": [*get, "get", "stj,job,pod,service,configmap,event", "-o", "wide"],
            "job.yaml": [*get, "get", "stj", self.name, "-o", "yaml"],
            "describe.txt": [*get, "describe", "stj,job,pod"],
            "nodes.txt": ["get", "nodes", "-o", "wide"],
        }
        for name, command in commands.items():
            (folder / name).write_text(self.cluster.kubectl(*command, check=False))
        (folder / "operator.log").write_text(self.cluster.operator_log())
        for log in sorted(self.cluster.state.glob(f"node*/pods/{self.namespace}_*/*/*.log")):
            target = folder / "pods" / log.parents[1].name / f"{log.parent.name}.{log.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, target)
        with (folder / "steps.txt").open("w") as lines:
            for at, step, generation, rank in self.times():
                lines.write(f"{at:.3f} step {step} plan {generation} rank {rank}\n")


def index_of(pod: Object) -> int:
    """Completion index of a pod."""
    return int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])


def same_batches(got: list[list[int]], want: list[list[int]]) -> None:
    """List equality first, then what a reader wants to know: the first step that differs, what is lost or repeated."""
    if got == want:
        return
    first = next((k for k, (g, w) in enumerate(zip(got, want, strict=False)) if g != w), min(len(got), len(want)))
    flat_got, flat_want = [i for b in got for i in b], [i for b in want for i in b]
    lost = sorted(set(flat_want) - set(flat_got))[:20]
    raise AssertionError(
        f"{len(got)} global batches, {len(want)} expected; the first that differs is {first}: "
        f"{got[first : first + 1]} instead of {want[first : first + 1]}; "
        f"{len(flat_got)} samples, {len(flat_want)} expected; lost: {lost}"
    )
