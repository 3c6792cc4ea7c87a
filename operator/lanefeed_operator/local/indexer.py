"""Has the sidecar index a dataset, as a process of its own, and reads the result. Decides nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lanefeed_core import manifest_codec
from lanefeed_core.errors import ManifestError
from lanefeed_core.images import image_options
from lanefeed_core.manifest import Manifest
from lanefeed_operator.api.spec import Job
from lanefeed_operator.local import procs
from lanefeed_operator.local.errors import DatasetChanged, Interrupted, LocalError
from lanefeed_operator.local.launch import data_env
from lanefeed_operator.local.store import FOLDER
from lanefeed_operator.reconcile.plans import info_of
from lanefeed_operator.reconcile.types import ManifestInfo

__all__ = ["Indexer", "check_unchanged", "index", "read_manifest", "trial"]

#: Reading all footers (and, for a digest, all bytes) may take this long.
INDEX_SECONDS = 3600.0
#: How often one that is waited for looks whether the user has had enough.
POLL_SECONDS = 0.1


def arguments(job: Job, out: Path) -> list[str]:
    """The indexer's arguments for a job: relative URIs begin at the folder of the job's YAML."""
    data = job.spec.data
    options = ["--out", str(out), "--digest", data.digest.value, "--on-corrupt", data.on_corrupt.value]
    if data.columns:
        options += ["--columns", ",".join(data.columns)]
    options += job.spec.batching.packing_options
    options += image_options(data.image_columns)
    folder = job.metadata.annotations.get(FOLDER)
    if folder:
        options += ["--base", folder]
    return [*options, "--", *data.uris]


#: An indexer that signals end so often in a row is not going to finish here.
KILLED_TRIES = 5


def command(options: Sequence[str]) -> list[str]:
    """The indexer's whole command line."""
    return [sys.executable, "-m", "lanefeed_sidecar", "index", *options]


def read_manifest(file: Path) -> Manifest:
    """A manifest file. Raises LocalError where it cannot be read."""
    try:
        return manifest_codec.decode(file.read_bytes())
    except (OSError, ManifestError) as error:
        raise LocalError(f"{file}: {error}; restore it, or begin anew with `lanefeed run --fresh`") from None


class Indexer:
    """One run of the indexer in the background, for BuildManifest."""

    def __init__(self, job: Job, out: Path) -> None:
        """Start it; `out` appears whole at its end."""
        self.out = out
        self._began = time.monotonic()
        self._errors = out.with_suffix(".log")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command(arguments(job, out)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **data_env(job)},
                start_new_session=True,
                # An orphan of a killed runner must not replace a manifest that the next one has frozen. Only a
                # system call runs between fork and exec.
                preexec_fn=procs.die_with_parent,
            )

    def poll(self) -> ManifestInfo | None:
        """None while it runs. Exit code 2 is the data's or the user's fault; anything else may be tried again."""
        code = self._process.poll()
        if code is None:
            if time.monotonic() - self._began < INDEX_SECONDS:
                return None
            self.stop()
            return ManifestInfo(error=_too_long(INDEX_SECONDS), retryable=False)
        if code:
            return ManifestInfo(error=_reason(self._errors.read_text(errors="replace"), code), retryable=code != 2)
        try:
            return info_of(read_manifest(self.out))
        except LocalError as error:
            return ManifestInfo(error=str(error), retryable=True)

    def stop(self) -> None:
        """End it now."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _never() -> bool:
    return False


def index(
    options: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    seconds: float = INDEX_SECONDS,
    stopped: Callable[[], bool] = _never,
) -> dict[str, Any]:
    """Run the indexer to its end and return its JSON report. Raises LocalError with its own words.

    `env` is added to this process's environment. One that a signal ended (the machine's memory, a careless kill) says
    nothing about the data: it is run again. Once `stopped` says so it is killed: Interrupted.
    """
    for _ in range(KILLED_TRIES):
        code, out, err = _run(command(["--json", *options]), {**os.environ, **(env or {})}, seconds, stopped)
        if code >= 0:
            break
    if code:
        raise LocalError(_reason(err.decode(errors="replace"), code))
    report: dict[str, Any] = json.loads(out)
    return report


def _run(run: list[str], env: dict[str, str], seconds: float, stopped: Callable[[], bool]) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr. Raises LocalError after `seconds`, Interrupted."""
    end = time.monotonic() + seconds
    with subprocess.Popen(
        run,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        # Ctrl-C is for us, who then end it: its own last words would be taken for the data's fault.
        start_new_session=True,
        preexec_fn=procs.die_with_parent,
    ) as process:
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=POLL_SECONDS)
                    return process.returncode, out, err
                except subprocess.TimeoutExpired:
                    if stopped():
                        raise Interrupted("stopped while the dataset was read: run it again to go on") from None
                    if time.monotonic() > end:
                        raise LocalError(_too_long(seconds)) from None
        except BaseException:
            process.kill()
            raise


def trial(options: Sequence[str], *, seconds: float) -> dict[str, Any]:
    """Have the sidecar read a dataset for a while (`lanefeed_sidecar.trial`); what it found. Raises LocalError."""
    run = [sys.executable, "-m", "lanefeed_sidecar", "trial", *options]
    try:
        done = subprocess.run(run, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise LocalError(f"the trial gave no result within {seconds:.0f} s: is the storage there?") from None
    if done.returncode:
        raise LocalError(_reason(done.stderr.decode(errors="replace"), done.returncode))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _too_long(seconds: float) -> str:
    return f"indexing took longer than {seconds:.0f} s: is the storage there? Index fewer files, or nearer to the data"


def _reason(stderr: str, code: int) -> str:
    lines = [line.rpartition("\r")[2] for line in stderr.strip().split("\n") if line.strip()]
    if not lines:
        return f"the indexer ended with {code} and said nothing"
    kind, _, text = lines[-1].partition(": ")
    return text if kind.isidentifier() and text else lines[-1]


def check_unchanged(job: Job, frozen: Manifest, scratch: Path, *, stopped: Callable[[], bool] = _never) -> None:
    """Raise DatasetChanged where the files are no longer those that the job was bound to; Interrupted as `index`."""
    try:
        index(arguments(job, scratch), env=data_env(job), stopped=stopped)
        now = read_manifest(scratch)
    finally:
        scratch.unlink(missing_ok=True)
    if now.digest == frozen.digest:
        return
    what = frozen.diff(now) or f"digest {now.digest}, not {frozen.digest}"
    raise DatasetChanged(
        f"the dataset of job {job.metadata.name} has changed since the job began: {what}. The order of samples would "
        "change: restore the files, or begin anew with `lanefeed run --fresh`"
    )
