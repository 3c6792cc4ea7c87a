"""Sidecars that die, hang or speak another protocol: the trainer waits with a deadline and says what it waits for."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lanefeed
from lanefeed_core import manifest_codec
from lanefeed_core.cursor import Cursor
from lanefeed_core.plan import Plan
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.stream import StreamSpec
from lanefeed_core.wire import PROTOCOL_VERSION
from lanefeed_sidecar.index import build_manifest
from support.badinput import SMALL, folder, read, sidecar_pid


@pytest.fixture
def run_dir(shm_root: Path) -> Iterator[Path]:
    made = shm_root / "pod"
    made.mkdir(mode=0o750)
    yield made
    shutil.rmtree(made)


def connected(run_dir: Path, seconds: float = 1.0, **options: Any) -> lanefeed.Loader:
    return lanefeed.connect(
        run_dir=str(run_dir), tensors="numpy", rank=0, world=1, attach_timeout=seconds, stall_timeout=seconds, **options
    )


def test_outside_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANEFEED_RUN_DIR", raising=False)
    with pytest.raises(lanefeed.NotConnected, match=r"LANEFEED_RUN_DIR is not set.*run job.yaml.*lanefeed\.open"):
        lanefeed.connect()


def test_no_sidecar_ever_comes(run_dir: Path) -> None:
    with connected(run_dir) as loader, pytest.raises(lanefeed.AttachTimeout) as caught:
        next(iter(loader))
    assert str(caught.value) == (
        f"no sidecar answered within 1 s: there is no {run_dir}/token yet. Look at the sidecar's log; "
        "attach_timeout= or LANEFEED_ATTACH_SECONDS sets how long to wait"
    )


def impatient(loader: lanefeed.Loader, seconds: float) -> None:
    """From now on: the first batch of a sidecar that has just started may take longer."""
    loader._stream._stall_seconds = seconds


def test_it_hangs_while_it_is_attached_to(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanefeed._local.sidecar.STOP_SECONDS", 100.0)
    with lanefeed.open(folder(tmp_path / "d"), run_dir=run_dir, **SMALL) as loader:
        len(loader)
        os.kill(int((run_dir / "sidecar.pid").read_text()), signal.SIGSTOP)
        with (
            connected(run_dir, plan_generation=1) as late,
            pytest.raises(
                lanefeed.AttachTimeout, match=r"within 1 s: the sidecar .*(has not answered|does not answer).*Look at"
            ),
        ):
            next(iter(late))
        began = time.monotonic()
    assert time.monotonic() - began < 90, "closing woke it to end"


def test_it_hangs_while_it_feeds(tmp_path: Path, shm_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    uri = folder(tmp_path / "d", files=2, rows=8000)
    with lanefeed.open(uri, **SMALL) as loader:
        batches = iter(loader)
        next(batches)
        impatient(loader, 1.0)
        os.kill(sidecar_pid(shm_root), signal.SIGSTOP)
        with pytest.raises(lanefeed.SidecarLost) as caught:
            for _ in batches:
                pass
        text = str(caught.value)
        assert re.match(r"no word from the sidecar for \d+ s\. step \d+: waiting for \d+ s; frame ", text), text
        assert text.endswith("Look at the sidecar's log; stall_timeout= sets how long to wait")


def test_every_ten_seconds_a_word(
    tmp_path: Path, shm_root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the ten seconds made one: what is waited for is in the log long before the deadline."""
    monkeypatch.setattr("lanefeed._stream.WORD_SECONDS", 0.6)
    monkeypatch.setattr("lanefeed._client.client.WORD_SECONDS", 0.3)
    with (
        caplog.at_level(logging.WARNING, "lanefeed"),
        lanefeed.open(folder(tmp_path / "d", rows=8000), **SMALL) as loader,
    ):
        batches = iter(loader)
        dict(next(batches))
        impatient(loader, 2.0)
        os.kill(sidecar_pid(shm_root), signal.SIGSTOP)
        with pytest.raises(lanefeed.SidecarLost):
            loader._commits.commit("ckpt/1", 1.0)
        with pytest.raises(lanefeed.SidecarLost):
            for _ in batches:
                pass
    words = [r.getMessage() for r in caplog.records]
    assert "waiting for the sidecar to take the commit of step 1: it does not answer" in words
    assert any(w.startswith("step ") and ": waiting for " in w for w in words), words


def test_a_commit_that_nobody_confirms(tmp_path: Path, shm_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanefeed._commits.Commits.commit.__defaults__", (1.0,))
    with lanefeed.open(folder(tmp_path / "d"), **SMALL) as loader:
        dict(next(iter(loader)))
        os.kill(sidecar_pid(shm_root), signal.SIGSTOP)
        with pytest.raises(lanefeed.SidecarLost) as caught:
            loader.commit("ckpt/1")
    text = str(caught.value)
    assert text.startswith("the commit of step 1 was not confirmed within 1 s; ")
    assert text.endswith("The checkpoint itself is fine: a restart may load it")


def test_it_dies_again_and_again(tmp_path: Path, shm_root: Path) -> None:
    """Every sidecar that starts is killed: the trainer ends at its deadline and says what it waited for."""
    uri = folder(tmp_path / "d", rows=100_000)
    done = threading.Event()

    def kill() -> None:
        while not done.wait(0.005):
            try:
                os.kill(sidecar_pid(shm_root), signal.SIGKILL)
            except (ValueError, OSError):
                continue

    killer = threading.Thread(target=kill)
    with lanefeed.open(uri, **SMALL) as loader:
        batches = iter(loader)
        next(batches)
        impatient(loader, 1.0)
        killer.start()
        try:
            with pytest.raises(lanefeed.SidecarError) as caught:
                for _ in batches:
                    pass
        finally:
            done.set()
            killer.join()
    text = str(caught.value)
    assert re.match(r"no word from the sidecar for \d+ s\. step |the sidecar ended 11 times", text), text
    assert "connection refused: nobody listens" in text or "yet" in text or "ended" in text or "lost" in text, text


OTHER = """
import sys
import lanefeed_core.wire as wire
wire.PROTOCOL_VERSION = int(sys.argv[1])
from lanefeed_sidecar.main import main
sys.exit(main(sys.argv[2:]))
"""


def test_it_speaks_another_protocol(tmp_path: Path, run_dir: Path) -> None:
    """The production sidecar, as an image of another version would bring it."""
    manifest = build_manifest([str(folder(tmp_path / "d"))]).manifest
    (tmp_path / "manifest.bin").write_bytes(manifest_codec.encode(manifest))
    config = PodConfig(
        job="demo",
        job_uid="uid",
        pod_index=0,
        pod_uid="pod",
        plan=Plan(1, 1, 1, Cursor()),
        spec=StreamSpec(seed=0, global_batch_size=8, lanes=2, window=256),
        epochs=1,
        manifest_path=str(tmp_path / "manifest.bin"),
        run_dir=str(run_dir),
        slots=4,
        slot_bytes=1 << 16,
        read_ahead_bytes=32 << 20,
        decode_threads=1,
    )
    (tmp_path / "config.json").write_text(config.to_json())
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", OTHER, str(PROTOCOL_VERSION + 1), "--config", str(tmp_path / "config.json")]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, env=env, stderr=log) as process:
        try:
            with (
                connected(run_dir, 60.0, plan_generation=1) as loader,
                pytest.raises(lanefeed.ProtocolMismatch) as caught,
            ):
                next(iter(loader))
        finally:
            process.terminate()
    text = str(caught.value)
    assert f"speaks protocol {PROTOCOL_VERSION} and this sidecar {PROTOCOL_VERSION + 1}: install the same" in text


def test_a_configuration_that_is_none(tmp_path: Path, run_dir: Path) -> None:
    """A sidecar that cannot start says why in its last line, with exit code 2: no restart mends it."""
    config = {"version": 1, "job": "demo"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "lanefeed_sidecar", "--config", str(tmp_path / "config.json")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ConfigError: the pod configuration cannot be read: the field 'plan' is missing"
    assert "Traceback" not in done.stderr


def test_after_it_all_a_good_loader_works(tmp_path: Path, shm_root: Path) -> None:
    assert read(folder(tmp_path / "d")) == 64
    assert list(shm_root.glob("lanefeed-open-*")) == []
