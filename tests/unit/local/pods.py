"""Makes pods of plain commands, with the sidecar that is in `fakes`."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lanefeed_operator.local import poddoc, procs
from lanefeed_operator.local.poddoc import PodDoc, PodState, load_state, save_doc

FAKES = str(Path(__file__).parent / "fakes")
PYTHONPATH = os.pathsep.join([FAKES, *filter(None, sys.path)])


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> object:
    """The first true value of `what`."""
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.02)
    return value


def make_doc(folder: Path, run_root: Path, command: list[str], **changes: object) -> PodDoc:
    """A pod document, not written yet."""
    uid = str(uuid.uuid4())
    run_dir = run_root / uid[:8]
    doc = PodDoc(
        job="job",
        job_uid="job-uid",
        generation=1,
        index=0,
        uid=uid,
        folder=str(folder),
        run_dir=str(run_dir),
        token_name="token",
        config=json.dumps({"run_dir": str(run_dir)}),
        python=sys.executable,
        command=command,
        cwd=str(folder),
        env={},
        coordinator="",
        grace_seconds=60.0,
    )
    return replace(doc, **changes)


class RunningPod:
    """A supervisor process under test."""

    def __init__(self, doc: PodDoc, *, sidecar: str = "") -> None:
        self.doc = doc
        self.folder = Path(doc.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.json").write_text(doc.config)
        save_doc(doc)
        env = os.environ | {"PYTHONPATH": PYTHONPATH, "FAKE_SIDECAR": sidecar, procs.POD_MARK: doc.uid}
        command = [sys.executable, "-m", "lanefeed_operator.local.pod", str(self.folder), doc.uid]
        with (self.folder / "pod.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=env, start_new_session=True, stdout=log, stderr=log)

    @property
    def state(self) -> PodState:
        return load_state(self.folder) or PodState(uid="")

    def until(self, **wanted: object) -> PodState:
        """Wait until the state has these values."""
        wait_for(lambda: all(getattr(self.state, key) == value for key, value in wanted.items()))
        return self.state

    def end(self) -> PodState:
        """Wait for the supervisor's own end."""
        self.process.wait(60)
        return self.state

    def leftovers(self) -> list[int]:
        return list(procs.marked(procs.POD_MARK, self.doc.uid))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        procs.kill_marked(procs.POD_MARK, self.doc.uid)


__all__ = ["PYTHONPATH", "RunningPod", "make_doc", "poddoc", "wait_for"]
