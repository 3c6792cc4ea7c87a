"""Whatever a valid job says, Kubernetes takes what is made of it: types, names, references."""

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lanefeed_operator.api.load import load_job
from lanefeed_operator.api.rules import MAX_NAME
from lanefeed_operator.api.spec import Job, Provider
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import names, pod_group
from unit.render import podgroups
from unit.render.objects import everything
from unit.render.restricted import breaks
from unit.render.strict import faults
from unit.render.test_pods import make

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = st.from_regex(rf"\A[a-z]([-a-z0-9]{{0,{MAX_NAME - 2}}}[a-z0-9])?\Z")
LABEL = st.from_regex(r"\A[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?\Z")
KEYS = st.from_regex(r"\A([a-z]{1,8}\.[a-z]{1,3}/)?[a-z]([-a-z0-9]{0,10}[a-z0-9])?\Z")
QUANTITY = st.sampled_from(["1", "500m", "2", "4Gi", "8G", "1.5", 3])
ENV = st.from_regex(r"\A[A-Z][A-Z0-9_]{0,12}\Z").map(lambda name: f"MY_{name}")
CONTAINER = st.text(LETTERS, min_size=1, max_size=20)


@st.composite
def resources(draw: st.DrawFn) -> dict[str, Any]:
    limits = draw(st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), QUANTITY, max_size=3))
    requests = {key: value for key, value in limits.items() if draw(st.booleans())}
    return {key: value for key, value in (("limits", limits), ("requests", requests)) if value}


@st.composite
def containers(draw: st.DrawFn, name: str, volumes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "image": draw(st.sampled_from(["a", "r.example/x/y:1", "b@sha256:0"]))}
    if draw(st.booleans()):
        found["resources"] = draw(resources())
    names_ = draw(st.lists(ENV, unique=True, max_size=3))
    if names_:
        found["env"] = [{"name": one, "value": draw(st.text(max_size=5))} for one in names_]
    mounted = draw(st.lists(st.sampled_from(volumes), unique=True, max_size=3)) if volumes else []
    if mounted:
        found["volumeMounts"] = [
            {
                "name": one,
                "mountPath": f"/m/{one}" if number else draw(st.sampled_from(["/m", "/m/", "/tmp", "/tmp/"])),
                **draw(st.sampled_from([{}, {"readOnly": True}, {"subPath": "a/b"}])),
            }
            for number, one in enumerate(mounted)
        ]
    if draw(st.booleans()):
        found["securityContext"] = draw(st.sampled_from([{"runAsUser": 1000}, {}, {"readOnlyRootFilesystem": True}]))
    if draw(st.booleans()):
        found["lifecycle"] = {"postStart": {"exec": {"command": ["true"]}}}
    return found


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    volumes = draw(st.lists(CONTAINER, unique=True, max_size=3))
    kinds = st.sampled_from(
        [{"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "x"}}, {"secret": {"secretName": "s"}}]
    )
    others = [n for n in draw(st.lists(CONTAINER, unique=True, max_size=3)) if n != c.TRAINER]
    cut = draw(st.integers(0, len(others)))
    trainer = draw(containers(c.TRAINER, volumes)) | {"command": ["torchrun", "train.py"]}
    if draw(st.booleans()):
        trainer["workingDir"] = "/app"
    pod: dict[str, Any] = {
        "containers": [trainer, *(draw(containers(name, volumes)) for name in others[:cut])],
        "volumes": [{"name": name, **draw(kinds)} for name in volumes],
    }
    if others[cut:]:
        pod["initContainers"] = [draw(containers(name, volumes)) for name in others[cut:]]
    extra: dict[str, Any] = {
        "serviceAccountName": "x",
        "nodeSelector": {"gpu": "a"},
        "tolerations": [{"operator": "Exists"}],
        "imagePullSecrets": [{"name": "s"}],
        "priorityClassName": "high",
        "schedulerName": "other",
        "hostname": "mine",
        "securityContext": {"fsGroup": 7, "supplementalGroups": [5]},
        "terminationGracePeriodSeconds": draw(st.integers(0, 600)),
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        ],
        "restartPolicy": "Never",
    }
    return pod | {key: extra[key] for key in draw(st.sets(st.sampled_from(sorted(extra))))}


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    replicas, ranks = draw(st.sampled_from([1, 2, 3, 7, 16])), draw(st.integers(1, 8))
    gang = draw(st.sampled_from(list(Provider)))
    group: dict[str, Any] = {"provider": gang.value}
    if gang is not Provider.NONE and draw(st.booleans()):
        group["minAvailable"] = draw(st.integers(1, 2000))
    codes = st.lists(st.integers(1, 255).filter(lambda n: n != 75), max_size=5)
    uris = st.sampled_from(["/d", "$(X)/d", "-d", ["/a", "/b/*.parquet"]])
    size = replicas * ranks * draw(st.integers(1, 3))
    spec: dict[str, Any] = {
        "replicas": replicas,
        "ranksPerReplica": ranks,
        "elastic": {"stopGraceSeconds": draw(st.integers(0, 600))},
        "maxRestarts": draw(st.integers(0, 100)),
        "failurePolicy": {"nonRetryableExitCodes": draw(codes)},
        "scheduling": {"gang": group},
        "data": {"uri": draw(uris), "columns": draw(st.sampled_from([[], ["label"]]))},
        "batching": {"globalBatchSize": size, "uneven": "Allow", "lastBatch": "Pad"},
        "sidecar": {"slots": draw(st.integers(2, 16)), "readAheadBytes": draw(st.sampled_from(["64Mi", "1G", "4Gi"]))},
        "template": {"spec": draw(pods())},
    }
    if draw(st.booleans()):
        spec["sidecar"]["resources"] = {"requests": {"cpu": draw(QUANTITY)}}
    if draw(st.booleans()):
        spec["template"]["metadata"] = {
            "labels": draw(st.dictionaries(KEYS, LABEL, max_size=3)),
            "annotations": draw(st.dictionaries(KEYS, st.text(max_size=10), max_size=3)),
        }
    meta = {"name": draw(NAMES), "namespace": "team", "uid": "0f8fad5b-d9cb-469f-a165-70867728950e"}
    if draw(st.booleans()):
        meta["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
        meta["annotations"] = {c.MIN_PARALLELISM: "1"}
    document = {"apiVersion": "lanefeed.dev/v1alpha1", "kind": "ShardedTrainingJob", "metadata": meta, "spec": spec}
    return load_job(json.dumps(document))


# Not shrunk: jobs are large, and a fault names its field.
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(jobs(), st.integers(1, names.MAX_GENERATION))
def test_kubernetes_takes_whatever_is_made_of_a_valid_job(job: Job, generation: int) -> None:
    objects = everything(job, generation)
    for what, made in objects.items():
        assert faults(made) == [], what
    for what in ("pods", "indexer"):
        assert breaks(objects[what]["spec"]["template"]["spec"]) == [], what
    group = pod_group(job, objects["pods"])
    assert (group is None) is (job.spec.scheduling.gang.provider is Provider.NONE)
    if group is not None:
        assert 1 <= group["spec"]["minMember"] <= job.spec.replicas
        assert group["metadata"]["name"] == objects["pods"]["metadata"]["name"]
        assert podgroups.faults(job.spec.scheduling.gang.provider, group) == []
    assert len({(made["kind"], made["metadata"]["name"]) for made in objects.values()}) == len(objects)


@given(NAMES, st.integers(1, names.MAX_GENERATION), st.integers(0, 9999))
def test_names_always_fit(name: str, generation: int, index: int) -> None:
    assert len(f"{names.pods_name(name, generation)}-{index}") <= 63
    for made in (names.plan_map_name(name, generation), names.indexer_name(name), names.manifest_name(name, 10)):
        assert len(made) <= 63
    host = names.pod_host(name, generation, "n" * 63, index)
    assert all(len(part) <= 63 for part in host.split("."))
    assert len(host) <= 253 - len(".cluster.local")


def _planted(what: str, pod: dict[str, Any], spec: dict[str, Any]) -> None:
    if what == "unknown":
        pod["containers"][0]["imagePolicy"] = "x"
    elif what == "type":
        spec["parallelism"] = "2"
    elif what == "missing":
        del pod["containers"][0]["volumeMounts"][0]["mountPath"]
    elif what == "mount":
        pod["volumes"].pop()
    elif what == "twice":
        pod["volumes"].append(copy.deepcopy(pod["volumes"][0]))
    elif what == "codes":
        spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] = [75, 3]
    elif what == "container":
        spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"] = "x"
    elif what == "quantity":
        pod["initContainers"][0]["resources"]["limits"]["memory"] = "1 Gi"
    elif what == "limit":
        pod["initContainers"][0]["resources"]["limits"]["memory"] = "1Mi"


@pytest.mark.parametrize(
    "what", ["unknown", "type", "missing", "mount", "twice", "codes", "container", "quantity", "limit", "name", "label"]
)
def test_the_oracle_bites(what: str) -> None:
    made = everything(make())["pods"]
    assert faults(made) == []
    _planted(what, made["spec"]["template"]["spec"], made["spec"])
    if what == "name":
        made["metadata"]["name"] = "a" * 63
    elif what == "label":
        made["metadata"]["labels"]["x"] = "-"
    assert faults(made) != []
