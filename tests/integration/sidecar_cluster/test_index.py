"""The indexer of a cluster: its manifest arrives whole, once, whatever the operator is doing; so do its failures."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_core import manifest_codec
from lanefeed_sidecar.errors import ConfigError, Unavailable
from lanefeed_sidecar.index.upload import PIECE_BYTES, Uploader
from support.feed_client import eventually
from support.report_tls import ReportService
from unit.render.objects import manifest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        pq.write_table(pa.table({"x": list(range(10 * number, 10 * number + 10))}), folder / f"{number}.parquet")
    return folder


def start(service: ReportService, data: Path, log: Path, **env: str) -> "subprocess.Popen[str]":
    log.touch()
    named = {"LANEFEED_TERMINATION_LOG": str(log), **service.environment(), **env}
    return subprocess.Popen(
        [sys.executable, "-m", "lanefeed_sidecar", "index", "--json", "--on-corrupt", "Fail", "--", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **named},
    )


def end(process: "subprocess.Popen[str]", code: int) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, (out, err)
    return err


def uploader(service: ReportService) -> Uploader:
    made = Uploader.from_environment(service.environment())
    assert made is not None
    return made


def test_the_manifest_arrives_though_the_operator_came_late(service: ReportService, data: Path, tmp_path: Path) -> None:
    service.job.broken = 2
    process = start(service, data, tmp_path / "log")
    time.sleep(1.5)
    assert process.poll() is None, "it waits"
    service.up()
    err = end(process, 0)
    assert f"waiting for the operator at {service.target} to take the manifest: UNAVAILABLE" in err
    ((pod, digest, encoded),) = service.job.manifests
    assert pod == "pod-1"
    found = manifest_codec.decode(encoded)
    assert (found.digest, found.rows, len(found.shards)) == (digest, 30, 3)
    assert (tmp_path / "log").read_text() == ""


def test_bad_data_ends_with_2_a_line_and_a_word_to_the_operator(
    service: ReportService, data: Path, tmp_path: Path
) -> None:
    service.up()
    (data / "1.parquet").write_bytes(b"PAR1 no more")
    err = end(start(service, data, tmp_path / "log"), 2)
    line = err.strip().splitlines()[-1]
    assert line.startswith(f"DataError: {data}/1.parquet")
    assert "remove or rewrite it, or set data.onCorrupt to Quarantine" in line
    assert (tmp_path / "log").read_text() == line
    ((pod, kind, message, retryable),) = service.job.failures
    assert (pod, kind, retryable) == ("pod-1", "DataError", False)
    assert line == f"DataError: {message}"
    assert not service.job.manifests


def test_a_manifest_that_is_not_wanted_ends_with_2_and_the_reason(
    service: ReportService, data: Path, tmp_path: Path
) -> None:
    service.job.refuse = "the job is bound to manifest 1234: restore the files"
    service.up()
    end(start(service, data, tmp_path / "log"), 2)
    assert (tmp_path / "log").read_text() == (
        "ConfigError: the operator does not want the manifest: the job is bound to manifest 1234: restore the files"
    )


def test_half_an_environment_is_refused(service: ReportService, data: Path, tmp_path: Path) -> None:
    err = end(start(service, data, tmp_path / "log", LANEFEED_JOB_UID=""), 2)
    assert err.strip() == (
        "ConfigError: LANEFEED_COORDINATOR is set and LANEFEED_JOB_UID is not: the operator sets both"
    )


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for a signal."""
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("SigCgt:"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_it_leaves_at_once_when_told_to(service: ReportService, data: Path, tmp_path: Path) -> None:
    """As process 1 of a container it would otherwise hold its pod for the whole grace time."""
    process = start(service, data, tmp_path / "log")
    with eventually() as check:
        check(lambda: catches(process.pid, signal.SIGTERM))
    process.send_signal(signal.SIGTERM)
    end(process, 128 + signal.SIGTERM)


def test_many_pieces_are_one_manifest(service: ReportService) -> None:
    service.up()
    data = os.urandom(3 * PIECE_BYTES + 17)
    uploader(service).put(data, "digest")
    assert service.job.manifests == [("pod-1", "digest", data)]
    with pytest.raises(ConfigError, match=r"takes 16777217 bytes and 16777216 can be handed over: use fewer, larger"):
        uploader(service).put(bytes((16 << 20) + 1), "digest")


def test_an_operator_that_restarts_in_the_middle_gets_it_from_the_start(service: ReportService) -> None:
    service.up()
    taken: list[str] = []
    begun, first = threading.Event(), service.job.put_manifest

    def slow(*args: Any) -> str:
        taken.append("tried")
        begun.set()
        if len(taken) == 1:
            time.sleep(1.0)
            raise RuntimeError("killed while it stored")
        return first(*args)

    service.job.put_manifest = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: uploader(service).put(b"x" * 2_000_000, "d", 60))
    thread.start()
    assert begun.wait(60)
    service.down()
    service.up()
    thread.join(60)
    assert not thread.is_alive()
    assert service.job.manifests == [("pod-1", "d", b"x" * 2_000_000)]
    assert len(taken) == 2


def test_nobody_there_and_a_pod_that_is_another(service: ReportService) -> None:
    with pytest.raises(Unavailable, match=r"did not take the manifest within 3 s: UNAVAILABLE"):
        uploader(service).put(b"x", "d", 3.0)
    service.up()
    service.token.write_text("pod:other")
    with pytest.raises(ConfigError, match=r"refuses the manifest: the token is of pod other and the message says pod"):
        uploader(service).put(b"x", "d", 60.0)
    service.token.write_text("nonsense")
    with pytest.raises(Unavailable, match=r"within 5 s: UNAUTHENTICATED: the token is refused"):
        uploader(service).put(b"x", "d", 5.0)


def test_a_ca_that_comes_late_or_is_another(service: ReportService) -> None:
    service.up()
    service.ca.unlink()
    with pytest.raises(Unavailable, match=r"there is no CA to trust: .*ca.crt: No such file"):
        uploader(service).put(b"x", "d", 1.0)
    threading.Timer(1.0, service.publish).start()
    uploader(service).put(b"x", "d", 60.0)
    service.rotate()
    with pytest.raises(Unavailable, match="within 5 s: UNAVAILABLE"):
        uploader(service).put(b"y", "d", 5.0)
    with eventually() as check:
        service.publish()
        uploader(service).put(b"z", "d", 60.0)
        check(lambda: [m[2] for m in service.job.manifests] == [b"x", b"z"])


def test_of_a_real_manifest_the_bytes_are_the_manifests(service: ReportService) -> None:
    service.up()
    made = manifest(2000)
    uploader(service).put(manifest_codec.encode(made), made.digest)
    assert manifest_codec.decode(service.job.manifests[0][2]) == made
