"""What the containers that read data (sidecar, indexer) get of the trainer's: mounts, and how stores are reached."""

from typing import Any

import pytest

from lanefeed_operator.api.spec import Job
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import indexer
from unit.render.objects import SETTINGS, everything
from unit.render.test_pods import container, make

FROM_SECRET = {"secretKeyRef": {"name": "keys", "key": "x"}}


def readers(job: Job) -> dict[str, dict[str, Any]]:
    """The containers that read data: the sidecar, and the indexer."""
    objects = everything(job)
    before: dict[str, Any] = objects["indexer"]["spec"]["template"]["spec"]["containers"][0]
    return {"pods": container(objects["pods"]["spec"]["template"]["spec"], c.SIDECAR), "indexer": before}


def test_the_sidecar_sees_the_trainers_data_read_only_and_of_its_environment_how_stores_are_reached() -> None:
    mounts = [
        {"name": "data", "mountPath": "/data", "subPath": "train"},
        {"name": "data", "mountPath": "/mine", "subPathExpr": "$(MINE)"},
    ]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}]
    keys = [{"name": "AWS_ACCESS_KEY_ID", "value": "id"}, {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": FROM_SECRET}]
    written = [{"name": "SECRET", "value": "x"}, *keys, {"name": "WANDB_API_KEY", "valueFrom": FROM_SECRET}]
    bare = make(pod={"volumes": volumes}, volumeMounts=mounts)
    job = make(pod={"volumes": volumes}, volumeMounts=mounts, env=written, envFrom=[{"secretRef": {"name": "all"}}])
    for name in ("pods", "indexer"):
        own = readers(job)[name]
        assert own["volumeMounts"][0] == {"name": "data", "mountPath": "/data", "subPath": "train", "readOnly": True}
        assert "/mine" not in {m["mountPath"] for m in own["volumeMounts"]}
        # As written: the operator reads no Secret.
        assert own["env"] == [*readers(bare)[name]["env"], *keys]
        assert "envFrom" not in own


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        *((name, True) for name in ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ACCOUNT", "HF_TOKEN", "SSL_CERT_FILE")),
        *((name, True) for name in ("GOOGLE_APPLICATION_CREDENTIALS", "LANEFEED_READ_REQUESTS")),
        *((name, True) for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")),
        *((name, False) for name in ("MY_AWS_KEY", "AWS", "Https_Proxy", "FTP_PROXY", "LANEFEED_SHM_ROOT", "PATH")),
        *((name, False) for name in ("LD_PRELOAD", "PYTHONPATH", "HTTP_PROXY_USER", "SSL_CERT_FILES", "hf_token")),
    ],
)
def test_which_variables_reach_sidecar_and_indexer(name: str, copied: bool) -> None:
    job = make(env=[{"name": name, "value": "x"}])
    for own in readers(job).values():
        assert (name in {item["name"] for item in own["env"]}) is copied


def test_reserved_names_of_a_stored_job_do_not_reach_them() -> None:
    job = make(env=[{"name": "LANEFEED_COORDINATOR", "value": "evil:1"}, {"name": "LANEFEED_POD_UID", "value": "x"}])
    own = indexer(job, SETTINGS)["spec"]["template"]["spec"]["containers"][0]
    assert [item["name"] for item in own["env"]].count("LANEFEED_COORDINATOR") == 1
    assert {"name": "LANEFEED_COORDINATOR", "value": SETTINGS.coordinator} in own["env"]


def test_what_a_copied_value_refers_to_comes_with_it_in_the_trainers_order() -> None:
    written = [
        {"name": "HOST", "value": "$(ZONE).store"},  # before ZONE: Kubernetes leaves it as it is, and so do we
        {"name": "ZONE", "valueFrom": FROM_SECRET},
        {"name": "OTHER", "value": "$(SECRET)"},
        {"name": "SECRET", "value": "x"},
        {"name": "AWS_ENDPOINT_URL", "value": "https://$(HOST):$(LANEFEED_POD_INDEX)/$$(SECRET)"},
    ]
    for name, own in readers(make(env=written)).items():
        assert [item["name"] for item in own["env"][-3:]] == ["HOST", "ZONE", "AWS_ENDPOINT_URL"], name
        assert not {"OTHER", "SECRET"} & {item["name"] for item in own["env"]}


def test_files_with_keys_are_mounted_where_the_variables_say() -> None:
    volumes = [{"name": "keys", "secret": {"secretName": "keys"}}]
    written = [
        {"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/var/keys/gcp.json"},
        {"name": "AWS_SHARED_CREDENTIALS_FILE", "value": "/var/keys/aws"},
        {"name": "SSL_CERT_FILE", "value": "/var/keys/ca.crt"},
    ]
    job = make(pod={"volumes": volumes}, volumeMounts=[{"name": "keys", "mountPath": "/var/keys"}], env=written)
    for own in readers(job).values():
        assert {"name": "keys", "mountPath": "/var/keys", "readOnly": True} in own["volumeMounts"]
        assert own["env"][-3:] == written
