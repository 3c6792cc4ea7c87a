"""A sidecar that is started before its configuration: it waits for it, and for nobody who is gone."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lanefeed_sidecar import early
from lanefeed_sidecar.errors import ConfigError


def test_it_waits_until_the_file_is_there(tmp_path: Path) -> None:
    began = time.monotonic()
    threading.Timer(0.1, (tmp_path / "pod.json").write_text, ("{}",)).start()
    early.await_file(tmp_path / "pod.json", os.getppid(), seconds=60)
    assert time.monotonic() - began >= 0.1


def test_a_file_that_never_comes_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration appeared at .*pod.json within 0.1 s"):
        early.await_file(tmp_path / "pod.json", os.getppid(), seconds=0.1)


def test_a_sidecar_whose_starter_is_killed_ends(tmp_path: Path) -> None:
    # The starter prints the sidecar's pid and waits to be killed.
    config, log = str(tmp_path / "x"), str(tmp_path / "log")
    starter = (
        "import os, subprocess, sys, time\n"
        "run = [sys.executable, '-m', 'lanefeed_sidecar', '--await', str(os.getpid())]\n"
        f"p = subprocess.Popen([*run, '--config', {config!r}], stderr=open({log!r}, 'wb'))\n"
        "print(p.pid, flush=True); time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        time.sleep(0.5)
        process.kill()
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:3]:
        assert time.monotonic() < end, f"sidecar {pid} lives on without its starter"
        time.sleep(0.05)
    assert "whoever started this sidecar has ended" in (tmp_path / "log").read_text()
