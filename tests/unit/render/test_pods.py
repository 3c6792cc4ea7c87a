"""The Indexed Job and its pods: who restarts what, who may what, and what of the user's is kept."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lanefeed_operator.api.load import load_job
from lanefeed_operator.api.rules import MAX_NAME, reserved
from lanefeed_operator.api.spec import Job
from lanefeed_operator.local.launch import torch_env, trainer_env
from lanefeed_operator.reconcile.failures import Verdict, verdict
from lanefeed_operator.reconcile.types import EXIT_STOPPED
from lanefeed_operator.render import RenderError, names
from lanefeed_operator.render import constants as c
from unit.crd.wrong import good
from unit.render.objects import SETTINGS, everything
from unit.render.restricted import breaks

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(ROOT.glob("examples/*/*.yaml"))


def make(changes: dict[str, Any] | None = None, pod: dict[str, Any] | None = None, **trainer: Any) -> Job:
    """The good job with a changed spec, pod and trainer; unchecked, as a stored one may be older than a rule."""
    document = copy.deepcopy(good())
    document["metadata"] |= {"uid": "u-1", "namespace": "team"}
    document["spec"] |= changes or {}
    spec = document["spec"]["template"]["spec"]
    spec |= pod or {}
    spec["containers"][0] |= trainer
    return Job.model_validate(document)


def pods(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = everything(job)["pods"]
    return found


def pod_of(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = pods(job)["spec"]["template"]["spec"]
    return found


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return next(x for x in [*pod["containers"], *pod["initContainers"]] if x["name"] == name)


def env(pod: dict[str, Any], name: str = c.TRAINER) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container(pod, name)["env"]}


# ---- the Job ---------------------------------------------------------------------------------------------------


def test_the_job_controller_gets_the_restart_ladder() -> None:
    spec = pods(make({"replicas": 4, "maxRestarts": 7}))["spec"]
    del spec["template"]
    assert spec == {
        "completionMode": "Indexed",
        "completions": 4,
        "parallelism": 4,
        "podReplacementPolicy": "Failed",
        "backoffLimitPerIndex": 7,
        "maxFailedIndexes": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "Ignore",
                    "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [EXIT_STOPPED]},
                },
            ]
        },
    }


def test_codes_that_no_restart_mends_fail_the_job_at_once() -> None:
    job = make({"failurePolicy": {"nonRetryableExitCodes": [42, 3, 42]}})
    assert pods(job)["spec"]["podFailurePolicy"]["rules"][-1] == {
        "action": "FailJob",
        "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [3, 42]},
    }
    for code in range(256):
        end = verdict(code, 0, 3, hopeless=job.spec.failure_policy.non_retryable_exit_codes)
        assert (end.verdict is Verdict.FAIL) == (code in (3, 42))


def test_what_the_job_ignores_is_what_the_local_shell_does_not_count() -> None:
    ignored = {75}
    for code in range(1, 256):
        end = verdict(code, 0, 3)
        assert (end.verdict is Verdict.REPLACE and not end.counts) == (code in ignored)


def test_rules_on_exit_codes_name_a_container_since_the_sidecars_are_looked_at_too() -> None:
    objects = everything(make())
    for name in ("pods", "indexer"):
        rules = objects[name]["spec"]["podFailurePolicy"]["rules"]
        asked = [rule["onExitCodes"] for rule in rules if "onExitCodes" in rule]
        assert asked
        assert all(rule["containerName"] in (c.TRAINER, c.INDEXER) for rule in asked)
        assert objects[name]["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_suspend_is_the_queues_and_queue_labels_go_to_the_job_alone() -> None:
    job = make()
    meta = job.metadata.model_copy(
        update={
            "labels": {"kueue.x-k8s.io/queue-name": "gpus", "team": "a"},
            "annotations": {"kueue.x-k8s.io/podset-required-topology": "rack", "other": "x"},
        }
    )
    made = pods(job.model_copy(update={"metadata": meta}))
    assert "suspend" not in made["spec"]
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert "team" not in made["metadata"]["labels"]
    template = made["spec"]["template"]["metadata"]
    assert "kueue.x-k8s.io/queue-name" not in template["labels"]
    assert template["annotations"]["kueue.x-k8s.io/podset-required-topology"] == "rack"
    assert "other" not in template["annotations"]


def test_where_kueue_may_admit_fewer_pods_completions_follow() -> None:
    job = make()
    assert not any("kueue" in key for key in pods(job)["metadata"]["annotations"])
    meta = job.metadata.model_copy(update={"annotations": {c.MIN_PARALLELISM: "1"}})
    assert pods(job.model_copy(update={"metadata": meta}))["metadata"]["annotations"][c.EQUAL_COMPLETIONS] == "true"


def test_children_go_with_their_job_and_say_whose_they_are() -> None:
    for name, made in everything(make(), generation=3).items():
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["kind"]) == ("u-1", True, "ShardedTrainingJob")
        assert "finalizers" not in made["metadata"]
        assert made["metadata"]["namespace"] == "team"
        assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "lanefeed"
        assert made["metadata"]["annotations"]["lanefeed.dev/job-uid"] == "u-1"
        per_plan = name in ("plan", "pods")
        assert made["metadata"]["labels"].get("lanefeed.dev/plan-generation") == ("3" if per_plan else None)


def test_the_same_job_is_rendered_the_same_and_nothing_is_shared_or_changed() -> None:
    job = make(pod={"volumes": [{"name": "v", "emptyDir": {}}]})
    before = job.model_dump_json()
    one, two = everything(job), everything(job)
    assert one == two
    one["pods"]["spec"]["template"]["spec"]["volumes"][0]["emptyDir"]["medium"] = "Memory"
    one["pods"]["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]["drop"].append("X")
    assert everything(job) == two
    assert job.model_dump_json() == before


# ---- names -----------------------------------------------------------------------------------------------------


def test_the_longest_names_fit() -> None:
    job, generation, index = "a" * MAX_NAME, names.MAX_GENERATION, 9999
    host = names.pod_host(job, generation, "ns", index).partition(".")[0]
    assert len(host) <= 63
    # What the Job controller adds for the pod's own name, which is a label too.
    assert len(names.pods_name(job, generation)) <= 63 - len("-9999")
    assert len(names.service_name(job)) <= 63
    assert len({names.pods_name("a", 1), names.indexer_name("a"), names.pods_name("a", 11)}) == 3


def test_longer_ones_are_refused() -> None:
    with pytest.raises(RenderError, match=r"metadata\.name: 'a+' has 46 characters: at most 45"):
        names.service_name("a" * 46)
    with pytest.raises(RenderError, match="start a new job"):
        names.pods_name("a", 1_000_000)


def test_the_plan_generation_is_in_host_and_id_of_the_rendezvous() -> None:
    variables = env(everything(make(), generation=7)["pods"]["spec"]["template"]["spec"])
    assert variables["PET_RDZV_ENDPOINT"] == "good-7-0.good.team.svc:29500"
    assert variables["PET_RDZV_ID"] == "u-1-7"
    service = everything(make())["service"]
    assert service["metadata"]["name"] == pod_of(make())["subdomain"] == "good"
    assert service["spec"]["publishNotReadyAddresses"] is True
    labels = pods(make())["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert all(isinstance(port["targetPort"], int) for port in service["spec"]["ports"])


# ---- environment -----------------------------------------------------------------------------------------------


def test_trainers_are_told_what_the_local_shell_tells_them(tmp_path: Path) -> None:
    job = make({"ranksPerReplica": 2})
    local = torch_env(job, uid="u-1", generation=1, index=1, replicas=2, port=29500)
    local |= trainer_env(job, uid="u-1", generation=1, index=1, replicas=2, port=29500, run_dir=tmp_path)
    variables = env(pod_of(job))
    assert {name for name in local if reserved(name) or name.startswith("TORCH_")} == variables.keys()
    same = ["PET_NNODES", "PET_NPROC_PER_NODE", "PET_MAX_RESTARTS", "PET_RDZV_ID", "LANEFEED_WORLD_SIZE"]
    assert {name: local[name] for name in same} == {name: variables[name] for name in same}
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    assert variables["LANEFEED_POD_INDEX"] == variables["PET_NODE_RANK"] == index


def test_variables_are_defined_before_they_are_referred_to() -> None:
    job = make(env=[{"name": "MINE", "value": "$(LANEFEED_POD_INDEX)"}])
    listed = [item["name"] for item in container(pod_of(job), c.TRAINER)["env"]]
    assert listed[-1] == "MINE"
    assert listed.index("LANEFEED_POD_INDEX") < listed.index("PET_LOCAL_ADDR")


def test_reserved_variables_and_paths_are_refused() -> None:
    with pytest.raises(RenderError, match="sets PET_NNODES, which the operator sets"):
        pods(make(env=[{"name": "PET_NNODES", "value": "3"}]))
    with pytest.raises(RenderError, match="/var/run/lanefeed/x, which is the operator's"):
        pods(make(volumeMounts=[{"name": "v", "mountPath": "/var/run/lanefeed/x"}]))
    for part in ("initContainers", "volumes"):
        with pytest.raises(RenderError, match=f"{part}: has 'lanefeed-token'"):
            pods(make(pod={part: [{"name": "lanefeed-token"}]}))
    with pytest.raises(RenderError, match="volumeMounts: has 'lanefeed-token'"):
        pods(make(volumeMounts=[{"name": "lanefeed-token", "mountPath": "/t"}]))


# ---- sidecar ---------------------------------------------------------------------------------------------------


def test_the_sidecar_is_a_native_one_behind_the_users_init_containers() -> None:
    pod = pod_of(make(pod={"initContainers": [{"name": "fetch", "image": "f"}]}))
    assert [x["name"] for x in pod["initContainers"]] == ["fetch", c.SIDECAR]
    own = container(pod, c.SIDECAR)
    assert own["restartPolicy"] == "Always"
    assert own["startupProbe"]["httpGet"] == {"path": "/readyz", "port": 9404}
    assert own["ports"] == [{"name": "feed-metrics", "containerPort": 9404}]
    assert len(own["ports"][0]["name"]) <= 15
    assert own["securityContext"]["readOnlyRootFilesystem"]


def test_the_token_is_in_the_sidecar_alone() -> None:
    pod = pod_of(make(pod={"initContainers": [{"name": "fetch", "image": "f"}]}))
    holders = [
        x["name"]
        for x in [*pod["containers"], *pod["initContainers"]]
        for mount in x.get("volumeMounts", [])
        if mount["name"] == c.TOKEN_VOLUME
    ]
    assert holders == [c.SIDECAR]
    (volume,) = [v for v in pod["volumes"] if v["name"] == c.TOKEN_VOLUME]
    token = volume["projected"]["sources"][0]["serviceAccountToken"]
    assert token["audience"] == SETTINGS.audience
    assert token["expirationSeconds"] >= 600  # the API's own minimum


def test_every_mount_has_its_volume() -> None:
    for path in EXAMPLES:
        objects = everything(load_job(path.read_text(), path))
        for name in ("pods", "indexer"):
            pod = objects[name]["spec"]["template"]["spec"]
            volumes = [v["name"] for v in pod["volumes"]]
            assert len(set(volumes)) == len(volumes)
            for x in [*pod["containers"], *pod.get("initContainers", [])]:
                mounts = [m["mountPath"] for m in x["volumeMounts"]]
                assert len(set(mounts)) == len(mounts)
                assert {m["name"] for m in x["volumeMounts"]} <= set(volumes)


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({"hostNetwork": True}, "ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "None"}, "None"),
        ({"hostNetwork": False}, None),
        ({}, None),
    ],
)
def test_pods_on_their_nodes_network_find_services_by_name(given: dict[str, Any], policy: str | None) -> None:
    assert pod_of(make(pod=given)).get("dnsPolicy") == policy


# ---- security --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_examples_pass_the_restricted_standard(path: Path) -> None:
    objects = everything(load_job(path.read_text(), path))
    for name in ("pods", "indexer"):
        assert breaks(objects[name]["spec"]["template"]["spec"]) == []


def test_the_standards_oracle_bites() -> None:
    privileged = make(securityContext={"privileged": True})
    assert "trainer may gain privileges" in breaks(pod_of(privileged))
    assert breaks(pod_of(make(securityContext={"runAsUser": 0}))) == ["trainer may run as root"]
    assert breaks(pod_of(make(pod={"hostNetwork": True}))) == ["hostNetwork is set"]
    paths = [{"name": "h", "hostPath": {"path": "/"}}]
    assert breaks(pod_of(make(pod={"volumes": paths}))) == ["volume h is hostPath"]


def test_what_the_user_says_of_users_stays() -> None:
    pod = pod_of(make(pod={"securityContext": {"runAsUser": 1000, "fsGroup": 7, "supplementalGroups": [5]}}))
    assert pod["securityContext"]["fsGroup"] == 7
    assert pod["securityContext"]["supplementalGroups"] == [5, 65532]
    # It may read what the trainer may.
    assert container(pod, c.SIDECAR)["securityContext"]["runAsUser"] == 1000
    root = pod_of(make(securityContext={"runAsUser": 0}))
    assert container(root, c.TRAINER)["securityContext"]["runAsNonRoot"] is False
    assert container(root, c.SIDECAR)["securityContext"]["runAsUser"] == 65532


def test_nothing_is_chowned_and_the_group_is_shared() -> None:
    pod = pod_of(make())
    assert "fsGroup" not in pod["securityContext"]
    shared = pod["securityContext"]["supplementalGroups"]
    assert shared == [container(pod, c.SIDECAR)["securityContext"]["runAsGroup"]]


# ---- what is kept ----------------------------------------------------------------------------------------------


def test_what_we_do_not_name_is_kept_as_written() -> None:
    kept = {"priorityClassName": "high", "fieldOfTomorrow": {"snake_case": [1], "B": None}, "schedulerName": "volcano"}
    pod = pod_of(make(pod=kept, resources={"limits": {"nvidia.com/gpu": 1}}, tomorrow={"a_b": 1}))
    assert {key: pod[key] for key in kept} == kept
    trainer = container(pod, c.TRAINER)
    assert trainer["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert trainer["tomorrow"] == {"a_b": 1}


def test_grace_and_host_names() -> None:
    assert pod_of(make({"elastic": {"stopGraceSeconds": 90}}))["terminationGracePeriodSeconds"] == 100
    assert pod_of(make(pod={"terminationGracePeriodSeconds": 5}))["terminationGracePeriodSeconds"] == 5
    assert "hostname" not in pod_of(make(pod={"hostname": "me"}))


def test_the_trainer_is_not_signalled_before_its_ranks_could_leave() -> None:
    pod = pod_of(make({"elastic": {"stopGraceSeconds": 90}}))
    hook = {"httpGet": {"path": "/leave?seconds=90&job=u-1", "port": 9404}}
    assert container(pod, c.TRAINER)["lifecycle"] == {"preStop": hook}
    assert pod["terminationGracePeriodSeconds"] > 90
    assert "lifecycle" not in container(pod, c.SIDECAR)
    short = container(pod_of(make(pod={"terminationGracePeriodSeconds": 30})), c.TRAINER)["lifecycle"]
    assert short["preStop"]["httpGet"]["path"] == "/leave?seconds=20&job=u-1"
    started = {"exec": {"command": ["x"]}}
    both = container(pod_of(make(lifecycle={"postStart": started})), c.TRAINER)["lifecycle"]
    assert both["postStart"] == started
    assert "preStop" in both
    own = {"preStop": {"sleep": {"seconds": 5}}}
    assert container(pod_of(make(lifecycle=own)), c.TRAINER)["lifecycle"] == own


def test_labels_of_ours_cannot_be_taken() -> None:
    document = copy.deepcopy(good())
    document["spec"]["template"]["metadata"] = {
        "labels": {"lanefeed.dev/job": "other", "lanefeed.dev/mine": "x", "team": "a"},
        "annotations": {"lanefeed.dev/job-uid": "other", "prometheus.io/scrape": "false"},
    }
    meta = pods(load_job(json.dumps(document)))["spec"]["template"]["metadata"]
    assert meta["labels"]["lanefeed.dev/job"] == "good"
    assert meta["labels"]["team"] == "a"
    assert "lanefeed.dev/mine" not in meta["labels"]
    assert meta["annotations"]["lanefeed.dev/job-uid"] == ""
    assert meta["annotations"]["prometheus.io/scrape"] == "false"


def test_objects_are_plain_data() -> None:
    for made in everything(make()).values():
        assert yaml.safe_load(yaml.safe_dump(made)) == made == json.loads(json.dumps(made))


# ---- indexer ---------------------------------------------------------------------------------------------------


def test_the_indexer_runs_where_and_as_whom_trainers_do() -> None:
    placed = {"serviceAccountName": "s", "nodeSelector": {"a": "b"}, "imagePullSecrets": [{"name": "p"}]}
    # Who takes rights away from the trainer does not mean the indexer to have them.
    placed |= {"automountServiceAccountToken": False, "hostUsers": False}
    data = {"uri": ["/data/$(x)", "-d"], "columns": ["x"], "onCorrupt": "Quarantine"}
    job = make({"data": data}, pod=placed, workingDir="/w")
    spec = everything(job)["indexer"]["spec"]
    pod = spec["template"]["spec"]
    assert {key: pod[key] for key in placed} == placed
    args = pod["containers"][0]["args"]
    assert args == [
        *("--out", "/tmp/manifest", "--json", "--digest", "Auto", "--on-corrupt", "Quarantine"),
        *("--columns", "x", "--base", "/w", "--", "/data/$$(x)", "-d"),
    ]
    assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [2]
    # Headless service and HPA must not take it for a trainer.
    assert spec["template"]["metadata"]["labels"]["lanefeed.dev/role"] == "indexer"
