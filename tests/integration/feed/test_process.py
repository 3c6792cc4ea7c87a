"""The process itself: exit codes and last lines, one sidecar a folder, the owner, small tmpfs, metrics and health."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lanefeed_core.board import board_bytes
from lanefeed_core.layout import HEADER_BYTES
from lanefeed_sidecar.main import MAX_OPEN_FILES
from support.feed_client import eventually
from support.feed_pod import Pod

MakePod = Callable[..., Pod]


def fails(pod: Pod, code: int, **fields: object) -> str:
    """Start, wait for the end, return the last line."""
    process = pod.spawn(**fields)  # type: ignore[arg-type]
    assert process.wait(60) == code, pod.text()
    return pod.last_line()


def test_wrong_configurations_end_with_2_and_a_last_line(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod()
    assert re.match(
        r"ConfigError: the manifest .*/gone cannot be read: No such file",
        fails(pod, 2, manifest_path=str(tmp_path / "gone")),
    )
    bad = tmp_path / "bad"
    bad.write_bytes(b"nonsense")
    assert f"ManifestError: the manifest {bad}: this is not a Lanefeed manifest" in fails(
        pod, 2, manifest_path=str(bad)
    )
    assert "ConfigError: run_dir /nowhere is not a folder" in fails(pod, 2, run_dir="/nowhere")
    assert "ConfigError: sidecar.slots is 1: it must be at least 2" in fails(pod, 2, slots=1)
    assert "ConfigError: faults names 'nonsense': the points are slot.mid_write" in fails(
        pod, 2, faults={"nonsense": "kill"}
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"metrics port 127.0.0.1:{port} cannot be used: Address already in use" in fails(
            pod, 2, metrics_port=port
        )


def test_a_configuration_that_is_none_says_so(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text, said in (
        ("{", "cannot be read"),
        ('{"version": 9}', "version 9 is unknown"),
        ('{"version": 1, "jobb": 2}', "cannot be read"),
    ):
        file.write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "lanefeed_sidecar", "--config", str(file)], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert said in done.stderr.strip().splitlines()[-1]
    done = subprocess.run(
        [sys.executable, "-m", "lanefeed_sidecar", "--config", str(tmp_path / "gone")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"ConfigError: the configuration {tmp_path}/gone cannot be read: No such file or directory\n",
    )


def test_a_second_sidecar_is_refused_and_the_first_is_unharmed(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod().start()
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=6)
    second = Pod(tmp_path, pod.run_dir)
    assert pod.process is not None
    said = f"SidecarError: another sidecar (pid {pod.process.pid}) is alive in {pod.run_dir}: end it first"
    assert fails(second, 1).startswith(said)
    client.run()
    assert client.ids == pod.expected()
    assert pod.ready()


def test_too_small_a_tmpfs_is_an_error_and_no_bus_error(make_pod: MakePod, tmp_path: Path) -> None:
    """Case 38."""
    folder = tmp_path / "shm"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        pod = Pod(tmp_path, folder, slot_bytes=1 << 20)
        line = fails(pod, 2)
        needed = HEADER_BYTES + 4 * (1 << 20) + board_bytes(4)
        assert line.startswith(f"ArenaError: the arena needs {needed} bytes (4 slots of 1048576 bytes)")
        assert "sizeLimit of the emptyDir" in line
        assert "sidecar.slots or sidecar.slotBytes" in line
        assert not list(folder.glob("arena-*"))
        pod.start(slot_bytes=64 << 10)
        assert pod.terminate() == 0
        pod.run_dir = tmp_path / "gone"
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_it_ends_when_its_owner_is_gone(make_pod: MakePod) -> None:
    owner = subprocess.Popen(["sleep", "100"])
    pod = make_pod(owner_pid=owner.pid).start()
    time.sleep(0.6)
    assert pod.process is not None
    assert pod.process.poll() is None
    owner.kill()
    assert pod.process.wait(60) == 0, "the owner is a zombie here, which is gone too"
    owner.wait()
    assert fails(pod, 0), "an owner that is gone at the start"


def test_metrics_are_for_strangers(make_pod: MakePod) -> None:
    pod = make_pod(ranks=2).start()
    for rank in range(2):
        client = pod.client(rank)
        client.attach()
        client.stream()
        client.run(until=9)
        client.commit()
    with pytest.raises(Exception, match=r"data-parallel ranks"):
        pod.client(0).attach(world=7)
    families = list(text_string_to_metric_families(pod.get("/metrics")[1]))
    for family in families:
        assert family.name.startswith("lanefeed_"), family.name
        assert len(family.documentation) > 15, f"{family.name} says nothing"
    names = {f.name for f in families}
    assert len(names) == len(families)
    assert names >= {
        "lanefeed_read_bytes",
        "lanefeed_rows_decoded",
        "lanefeed_decode_seconds",
        "lanefeed_frames_ready",
        "lanefeed_slots_free",
        "lanefeed_stage_wait_seconds",
        "lanefeed_trainer_wait_seconds",
        "lanefeed_trainer_step_seconds",
        "lanefeed_quarantined_shards",
        "lanefeed_cache_hits",
        "lanefeed_cursor",
        "lanefeed_errors",
        "lanefeed_commits",
        "lanefeed_report_failures",
        "lanefeed_fenced",
        "lanefeed_build_info",
        "lanefeed_session_start_time_seconds",
        "lanefeed_arena_bytes",
        "lanefeed_memory_bytes",
    }
    assert pod.metric("lanefeed_errors_total", kind="PlanMismatch") == 1
    assert pod.metric("lanefeed_commits_total") == 2
    assert pod.metric("lanefeed_cursor", rank="1", what="step") == 9
    assert pod.metric("lanefeed_total_step", rank="1") == 9
    assert pod.metric("lanefeed_memory_bytes", use="rss") > 1 << 20
    used = pod.metric("lanefeed_tmpfs_bytes", what="size") - pod.metric("lanefeed_tmpfs_bytes", what="free")
    assert used >= pod.metric("lanefeed_arena_bytes")
    assert pod.get("/healthz") == (200, "ok\n")
    assert pod.get("/elsewhere")[0] == 404


def test_not_ready_says_why(make_pod: MakePod) -> None:
    pod = make_pod()
    pod.start(env={"ENGINE_FAIL": "0:data"})
    client = pod.client()
    client.attach()
    with eventually() as check:
        check(lambda: pod.get("/readyz")[0] == 503)
    assert pod.get("/readyz")[1] == "DataError: shard part-0.parquet: bytes 0-100 fail their check; restore the file\n"
    assert pod.get("/healthz")[0] == 200


def test_a_stopped_process_leaves_no_thread_behind(make_pod: MakePod) -> None:
    pod = make_pod().start()
    assert pod.process is not None
    os.kill(pod.process.pid, signal.SIGSTOP)
    os.kill(pod.process.pid, signal.SIGTERM)
    os.kill(pod.process.pid, signal.SIGCONT)
    assert pod.process.wait(60) == 0


def test_it_may_open_more_files_than_a_container_runtime_allows(make_pod: MakePod) -> None:
    """A decode thread holds up to 96, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        pod = make_pod().start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert pod.process is not None
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    assert resource.prlimit(pod.process.pid, resource.RLIMIT_NOFILE)[0] == most
