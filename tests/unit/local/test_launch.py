"""What a trainer is told, and the addresses that keep torchrun's ranks in the order of pods."""

import os
import sys
from pathlib import Path

import pytest

from lanefeed_operator.api.load import load_job
from lanefeed_operator.local import rundir
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.local.launch import data_env, expand, pod_address, trainer_command, trainer_env
from lanefeed_operator.local.runfolder import make_run_dir
from unit.local.test_store import YAML


def env(index: int = 1, yaml: str = YAML) -> dict[str, str]:
    return trainer_env(
        load_job(yaml), uid="u", generation=4, index=index, replicas=2, port=1234, run_dir=Path("/dev/shm/x")
    )


def test_addresses_sort_as_text_in_the_order_of_pods() -> None:
    addresses = [pod_address(index) for index in range(10_000)]
    assert sorted(addresses) == addresses
    assert len(set(addresses)) == 10_000
    with pytest.raises(LocalError, match="10,000 replicas"):
        pod_address(10_000)


def test_torchrun_and_lanefeed_find_their_variables() -> None:
    got = env()
    assert got["PET_RDZV_ID"] == "u-4"
    assert got["PET_RDZV_ENDPOINT"] == "127.1.100.100:1234"
    assert (got["PET_NNODES"], got["PET_NODE_RANK"], got["PET_NPROC_PER_NODE"]) == ("2", "1", "1")
    assert got["PET_LOCAL_ADDR"] == "127.1.100.101"
    assert "is_host=false" in got["PET_RDZV_CONF"]
    assert "is_host=true" in env(0)["PET_RDZV_CONF"]
    assert (got["LANEFEED_RUN_DIR"], got["LANEFEED_JOB"], got["LANEFEED_WORLD_SIZE"]) == ("/dev/shm/x", "tiny", "2")
    assert (got["LANEFEED_PLAN_GENERATION"], got["LANEFEED_POD_INDEX"], got["A"]) == ("4", "1", "x")
    assert got["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_references_expand_as_in_a_cluster() -> None:
    known = {"A": "1", "B": "2"}
    assert expand("$(A)-$(B) $(C) $$(A) $A", known) == "1-2 $(C) $(A) $A"
    container = load_job(YAML.replace("[python, train.py]", "[sh, -c, '$(A) $$']")).spec.template.trainer
    assert trainer_command(container, known) == ["sh", "-c", "1 $"]


def test_sidecar_and_indexer_get_how_stores_are_reached_as_in_a_cluster() -> None:
    secret = "{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}"
    written = "{name: A, value: h}, {name: AWS_ENDPOINT_URL, value: 'http://$(A)'}, " + secret
    yaml = YAML.replace("{name: A, value: x}", written)
    assert data_env(load_job(yaml)) == {"AWS_ENDPOINT_URL": "http://h"}
    # What a Secret holds in a cluster is here what the user's shell has: it is not hidden by an empty text.
    assert "HF_TOKEN" not in env(yaml=yaml)


def test_a_root_that_is_too_long_for_sockets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("LANEFEED_SHM_ROOT", str(long))
    with pytest.raises(LocalError, match=r"is too long: .* the limit is 107; set LANEFEED_SHM_ROOT"):
        rundir.job_root("abcdefgh")
    monkeypatch.setenv("LANEFEED_SHM_ROOT", str(tmp_path / "nothing"))
    with pytest.raises(LocalError, match="is not a folder"):
        rundir.job_root("abcdefgh")


def test_a_root_on_a_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 0:5 / {tmp_path}/shm rw - tmpfs tmpfs rw\n")
    monkeypatch.setattr("lanefeed_core.tmpfs.MOUNTS", str(mounts))
    assert f"the run folder {tmp_path}/x is on ext4, not in tmpfs" in rundir.on_disk(tmp_path / "x")
    assert rundir.on_disk(tmp_path / "shm" / "x") == ""
    monkeypatch.setattr("lanefeed_core.tmpfs.MOUNTS", str(tmp_path / "nothing"))
    assert rundir.on_disk(tmp_path / "x") == ""


def test_run_folders_are_private_and_swept(shm_root: Path) -> None:
    root = rundir.job_root("abcdefgh")
    rundir.make_job_root(root)
    try:
        assert root.stat().st_mode & 0o777 == 0o700
        keep, gone = (rundir.pod_run_dir(root, 1, index, uid) for index, uid in ((0, "a" * 32), (1, "b" * 32)))
        for folder in (keep, gone):
            make_run_dir(folder, "token")
            assert folder.stat().st_mode & 0o777 == 0o750
            assert (folder / "token").stat().st_mode & 0o777 == 0o640
            assert len((folder / "token").read_text()) == 64
        assert rundir.sweep(root, {keep.name}) == [gone.name]
    finally:
        rundir.sweep(root, set())
        root.rmdir()
        root.parent.rmdir()
