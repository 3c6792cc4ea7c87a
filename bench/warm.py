"""The first batch from a sidecar that runs already: `python -m bench.warm SPAWNED JSON`, a job of `bench.run`.

A sidecar of its own process is started and left alone until it has nothing more to do; then a trainer (this process,
torch imported) connects. The request's `mode`: `warm` begins where the data begin; `warm_resume` loads a state half an
epoch in, where the plan begins too, as the operator writes it from a job's last commit; `warm_seek` loads that state,
but the sidecar waits at the beginning: a window per lane has to be decoded.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import measure as m
from bench import workloads
from bench.pods import manifest_of, pod, usual_spec

__all__: list[str] = []

START_SECONDS = 120.0
#: A sidecar is warm when it used no more than a tick of CPU in each of so many looks: one that is starved by others
#: gets more.
QUIET_SECONDS, LOOKS = 0.3, 4


def _config(name: str, threads: int, folder: Path, *, resumed: bool) -> tuple[Any, dict[str, Any]]:
    """The pod configuration that `lanefeed.open` would write for one rank, and a state half an epoch on."""
    from lanefeed_core import manifest_codec
    from lanefeed_core.cursor import Cursor, SavedState

    workload = workloads.WORKLOADS[name]
    manifest = manifest_of(workload)
    (folder / "manifest.bin").write_bytes(manifest_codec.encode(manifest))
    spec = usual_spec(manifest, workload.batch, 512 << 20)
    half = Cursor(0, workload.batches_per_epoch // 2)
    config = pod(
        spec,
        start=half if resumed else None,
        epochs=1000,
        manifest_path=str(folder / "manifest.bin"),
        run_dir=str(folder),
        decode_threads=threads,
        owner_pid=os.getpid(),
    )
    return config, SavedState(manifest.digest, spec, half).to_dict()


@contextmanager
def _sidecar(config: Any, folder: Path) -> Iterator[int]:
    """A sidecar that is ready and has come to rest; its pid."""
    (folder / "pod.json").write_text(config.to_json())
    command = [sys.executable, "-m", "lanefeed_sidecar", "--config", str(folder / "pod.json")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _await_rest(process, folder)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_rest(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    end = time.monotonic() + START_SECONDS
    used, quiet = -1.0, 0
    while process.poll() is None and time.monotonic() < end:
        ready, before, used = _is_ready(folder), used, m.tree_cpu([process.pid])
        quiet = quiet + 1 if ready and used - before < 1.5 / m.TICKS else 0
        if quiet == LOOKS:
            return
        time.sleep(QUIET_SECONDS)
    last = (folder / "log").read_text(errors="replace")[-1500:]
    raise SystemExit(f"waited {START_SECONDS:g} s for the sidecar to be ready and at rest; it said:\n{last}")


def _is_ready(folder: Path) -> bool:
    try:
        address = (folder / "metrics.addr").read_text().strip()
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as answer:
            return int(answer.status) == 200
    except (OSError, ValueError):
        return False


def measure(request: dict[str, Any]) -> dict[str, float]:
    """Seconds from `lanefeed.connect()` to the first batch."""
    import lanefeed

    with tempfile.TemporaryDirectory(dir=os.environ.get("LANEFEED_SHM_ROOT", "/dev/shm")) as made:
        folder = Path(made)
        mode = request["mode"]
        config, state = _config(
            request["workload"], request["options"]["threads"], folder, resumed=mode == "warm_resume"
        )
        with _sidecar(config, folder) as pid:
            noise, cpu, opened = m.Noise.now(), m.tree_cpu([os.getpid(), pid]), time.monotonic()
            loader = lanefeed.connect(
                run_dir=made, rank=0, world=1, plan_generation=config.plan.generation, tensors="torch"
            )
            if mode != "warm":
                loader.load_state_dict(state)
            batch = next(batch for _ in loader.epochs() for batch in loader)
            m.touch(batch)
            seconds = time.monotonic() - opened
            around = m.noise_since(noise, m.tree_cpu([os.getpid(), pid]) - cpu)
            del batch
            loader.close()
    return {"first_from_open_s": seconds, **around}


def main() -> None:
    """One start."""
    import torch  # noqa: F401  # every trainer has it imported before it connects

    print("RESULT " + json.dumps(measure(json.loads(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
