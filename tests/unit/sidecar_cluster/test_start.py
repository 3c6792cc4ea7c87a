"""What a sidecar makes of its pod: the environment, the configuration of all pods, the manifest in pieces."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lanefeed_core import manifest_codec
from lanefeed_core.errors import ManifestError
from lanefeed_core.podconfig import PodConfig
from lanefeed_operator.render import constants as c
from lanefeed_operator.render.plan import CHUNK_BYTES
from lanefeed_sidecar import podenv
from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.manifest_file import read_manifest
from unit.render.objects import everything, manifest
from unit.render.test_pods import make

POD = {"LANEFEED_POD_INDEX": "1", "LANEFEED_POD_UID": "uid-of-pod"}


def mounted(folder: Path, **job: Any) -> PodConfig:
    """The ConfigMaps of a rendered job as a pod sees them, pieces as links like in a projected volume."""
    objects = everything(make(job))
    real = folder / "..2026_11_30"
    real.mkdir(parents=True)
    for name, made in objects.items():
        if name.startswith("manifest-"):
            for key, text in made["binaryData"].items():
                (real / key).write_bytes(base64.b64decode(text))
                (folder / key).symlink_to(Path(real.name) / key)
    config = PodConfig.from_json(objects["plan"]["data"][c.POD_FILE])
    return replace(config, manifest_path=str(folder / c.MANIFEST_CHUNK))


def test_a_rendered_job_is_what_a_sidecar_starts_from(tmp_path: Path) -> None:
    config = mounted(tmp_path / "m", replicas=2)
    assert (config.pod_index, config.pod_uid) == (-1, "")
    own = podenv.complete(config, POD)
    assert (own.pod_index, own.pod_uid) == (1, "uid-of-pod")
    assert replace(own, pod_index=-1, pod_uid="") == config
    assert read_manifest(Path(own.manifest_path), own.manifest_digest) == manifest()
    assert podenv.control_dir(config.coordinator_token_path, {}) == Path(c.CONTROL_PATH)
    names = {item["name"] for item in everything(make())["indexer"]["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert {"LANEFEED_JOB_UID", "LANEFEED_POD_UID", "LANEFEED_COORDINATOR", "LANEFEED_CONTROL_DIR"} <= names


def test_a_local_configuration_is_left_as_it_is(tmp_path: Path) -> None:
    config = replace(mounted(tmp_path / "m"), pod_index=0, pod_uid="local")
    assert podenv.complete(config, {}) is config
    assert podenv.complete(config, POD) is config


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "LANEFEED_POD_INDEX is '': set it from the annotation batch.kubernetes.io/job-completion-index"),
        ({"LANEFEED_POD_INDEX": "x"}, "LANEFEED_POD_INDEX is 'x'"),
        ({"LANEFEED_POD_INDEX": "2"}, "is 2 and the plan has 2 pods: this pod is of another plan"),
        ({"LANEFEED_POD_INDEX": "1"}, "LANEFEED_POD_UID is not set: set it from the field metadata.uid"),
    ],
)
def test_an_environment_that_does_not_say_who_we_are(tmp_path: Path, env: dict[str, str], said: str) -> None:
    config = mounted(tmp_path / "m", replicas=2)
    with pytest.raises(ConfigError) as caught:
        podenv.complete(config, env)
    assert said in str(caught.value)


def test_where_last_words_go_and_how_long_they_may_take(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {"LANEFEED_TERMINATION_LOG": str(log)}
    assert podenv.termination_log(env | POD) is None, "the kubelet makes the file"
    log.touch()
    assert podenv.termination_log(env | POD) == log
    assert podenv.termination_log(env) is None, "outside of a cluster nobody reads it"
    assert podenv.flush_seconds(0.8, {}) == 0.8
    assert podenv.flush_seconds(0.8, {"LANEFEED_FLUSH_SECONDS": "10"}) == 10
    for bad in ("soon", "-1", "nan", "inf"):
        with pytest.raises(ConfigError, match="must be a number of seconds from 0 to 3600"):
            podenv.flush_seconds(0.8, {"LANEFEED_FLUSH_SECONDS": bad})


# ---- the manifest ----------------------------------------------------------------------------------------------


def pieces(folder: Path, size: int = 100) -> Path:
    """A manifest in many small pieces."""
    data = manifest_codec.encode(manifest(500))
    folder.mkdir()
    for number, at in enumerate(range(0, len(data), size)):
        (folder / f"manifest.{number:04}").write_bytes(data[at : at + size])
    return folder / "manifest"


def test_pieces_are_joined_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = pieces(tmp_path / "m")
    for noise in ("manifest.txt", "manifest.00000", "other.0000", "..data"):
        (tmp_path / "m" / noise).write_bytes(b"noise")
    assert read_manifest(path, manifest(500).digest) == manifest(500)
    assert CHUNK_BYTES < 1 << 20


def test_a_gap_a_missing_end_and_another_manifest_are_told_apart(tmp_path: Path) -> None:
    path = pieces(tmp_path / "m")
    digest, last = manifest(500).digest, sorted((tmp_path / "m").iterdir())[-1]
    text = last.read_bytes()
    last.unlink()
    with pytest.raises(ManifestError, match=r"m/manifest \(\d+ pieces, \d+ bytes\): the manifest is truncated"):
        read_manifest(path, digest)
    last.write_bytes(text)
    with pytest.raises(ManifestError, match=f"has digest {digest} and this plan is for 1234: it is another dataset's"):
        read_manifest(path, "1234")
    gone = tmp_path / "m" / "manifest.0003"
    gone.unlink()
    with pytest.raises(ConfigError, match=r"pieces up to \.\d{4} and none is \.0003: restore the ConfigMaps"):
        read_manifest(path, digest)
    gone.write_bytes(b"\0" * 100)
    with pytest.raises(ManifestError, match="the manifest is damaged"):
        read_manifest(path, digest)


def test_no_manifest_at_all(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"manifest cannot be read: No such file or directory \(nor .*manifest.0000\)"
    ):
        read_manifest(tmp_path / "manifest")
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_manifest(tmp_path / "gone" / "manifest")
