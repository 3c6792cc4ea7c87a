"""Indexing 100,000 Parquet footers on a local disk: `python -m bench.footers SPAWNED JSON`, a job of `bench.run`.

The files are W4's own shards, each under many names (hard links), so that 700 GB of data set take no room and every
footer is a real one. What is timed is the command a user runs, from its start to its end; the footers are in the page
cache, and files of this size are not hashed (`digest: Auto`).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import measure as m
from bench import workloads

__all__ = ["linked", "time_index"]

FILES = 100_000
INDEX_SECONDS = 400.0
#: Files of a folder.
FOLDER = 10_000


def linked(sources: list[str], target: Path, count: int) -> Path:
    """`target` with `count` names for the `sources`, in folders; made anew unless it was finished before."""
    done = target.with_name(target.name + ".done")
    made = json.dumps([count, [os.stat(path).st_ino for path in sources]])
    if done.exists() and done.read_text() == made:
        return target
    done.unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    for number in range(count):
        folder = target / f"{number // FOLDER:03d}"
        if number % FOLDER == 0:
            folder.mkdir(parents=True)
        os.link(sources[number % len(sources)], folder / f"{number:06d}.parquet")
    done.write_text(made)
    return target


def time_index(folder: Path) -> dict[str, float]:
    """Seconds and CPU seconds of the index command, and the manifest's size."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "manifest.bin"
        command = [sys.executable, "-m", "lanefeed_sidecar", "index", "--out", str(out), "--", str(folder)]
        noise, cpu, start = m.Noise.now(), os.times(), time.monotonic()
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=INDEX_SECONDS)
        wall, after = time.monotonic() - start, os.times()
        used = after.children_user + after.children_system - cpu.children_user - cpu.children_system
        return {"seconds": wall, "cpu_s": used, "manifest_bytes": out.stat().st_size, **m.noise_since(noise, used)}


def main() -> None:
    """Link, index, say."""
    request = json.loads(sys.argv[2])
    count = int(request["options"].get("files", FILES))
    folder = linked(workloads.files("W4"), workloads.data_root() / "footers" / str(count), count)
    print("RESULT " + json.dumps({**time_index(folder), "files": count}), flush=True)


if __name__ == "__main__":
    main()
