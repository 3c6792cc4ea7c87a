"""The decoded cache of a job: a disk of the pod's own, or a volume that jobs of the node share."""

from typing import Any

import pytest

from lanefeed_core.podconfig import PodConfig
from lanefeed_operator.api import rules
from lanefeed_operator.render import constants as c
from unit.render.objects import everything
from unit.render.test_pods import container, make, pod_of

SHARED = {"name": "nvme", "hostPath": {"path": "/mnt/nvme/lanefeed"}}


def config(changes: dict[str, Any], pod: dict[str, Any] | None = None) -> PodConfig:
    return PodConfig.from_json(everything(make(changes, pod))["plan"]["data"][c.POD_FILE])


def mounts(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["mountPath"]: mount for mount in container(pod, c.SIDECAR)["volumeMounts"]}


def test_no_cache_unless_it_has_a_size() -> None:
    assert c.CACHE_PATH not in mounts(pod_of(make()))
    assert (config({}).cache_dir, config({}).cache_bytes) == ("", 0)


def test_a_cache_of_the_pods_own_is_bounded_and_writable() -> None:
    wanted = {"sidecar": {"cache": {"size": "100Gi"}}}
    pod = pod_of(make(wanted))
    assert mounts(pod)[c.CACHE_PATH] == {"name": "lanefeed-cache", "mountPath": c.CACHE_PATH}
    volume = next(v for v in pod["volumes"] if v["name"] == "lanefeed-cache")
    assert volume == {"name": "lanefeed-cache", "emptyDir": {"sizeLimit": "105Gi"}}
    found = config(wanted)
    assert (found.cache_dir, found.cache_bytes) == ("/var/cache/lanefeed/decoded", 100 << 30)


def test_a_volume_of_the_template_is_used_as_it_is() -> None:
    wanted = {"sidecar": {"cache": {"size": "1Gi", "volume": "nvme"}}}
    pod = pod_of(make(wanted, {"volumes": [SHARED]}))
    assert mounts(pod)[c.CACHE_PATH]["name"] == "nvme"
    assert [v["name"] for v in pod["volumes"]].count("nvme") == 1
    assert "lanefeed-cache" not in [v["name"] for v in pod["volumes"]]
    assert c.CACHE_PATH not in {m["mountPath"] for m in container(pod, c.TRAINER).get("volumeMounts", [])}


@pytest.mark.parametrize(
    ("cache", "path", "text"),
    [
        ({"size": "1Gi", "volume": "other"}, "spec.sidecar.cache.volume", "which has nvme"),
        ({"volume": "nvme"}, "spec.sidecar.cache.size", "say how much it may take"),
    ],
)
def test_a_cache_that_cannot_be_says_what_to_change(cache: dict[str, Any], path: str, text: str) -> None:
    job = make({"sidecar": {"cache": cache}}, {"volumes": [SHARED]})
    found = {problem.path: problem.message for problem in rules.check(job)}
    assert text in found[path]
