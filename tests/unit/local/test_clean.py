"""`--fresh` ends what an earlier run left, also where its `status.yaml` cannot be used."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lanefeed_operator.local import procs, rundir, yamlio
from lanefeed_operator.local.clean import end_pods
from lanefeed_operator.local.poddoc import save_doc
from lanefeed_operator.local.store import JobStore
from unit.local.pods import make_doc, wait_for


class Left:
    """What a runner that is gone left: a pod's process, its document, its tmpfs."""

    def __init__(self, folder: Path) -> None:
        self.store = JobStore(folder)
        self.uid = str(uuid.uuid4())
        self.root = rundir.job_root(self.uid)
        rundir.make_job_root(self.root)
        (self.root / "1-0-abcdef01").mkdir()
        (self.root / "coordinator.sock").touch()
        pod = self.store.pods / "1-0"
        pod.mkdir(parents=True)
        save_doc(make_doc(pod, self.root, ["true"], job_uid=self.uid))
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | {procs.JOB_UID_MARK: self.uid}
        )
        wait_for(lambda: list(procs.marked(procs.JOB_UID_MARK, self.uid)))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Left]]:
    made: list[Left] = []

    def one(name: str) -> Left:
        made.append(Left(tmp_path / name))
        return made[-1]

    yield one
    for left in made:
        left.close()
        rundir.sweep(left.root, set())
        if left.root.is_dir():
            (left.root / "coordinator.sock").unlink(missing_ok=True)
            left.root.rmdir()
    for left in made[:1]:
        left.root.parent.rmdir()


@pytest.mark.parametrize("status", [b"spec: [", b"5", b"\xff\x00", b"metadata: {uid: ../../..}\nspec: 3\n", None])
def test_pods_end_whatever_has_become_of_the_status(make: Callable[[str], Left], status: bytes | None) -> None:
    left, other = make("job"), make("other")
    if status is not None:
        left.store.status_file.write_bytes(status)
    end_pods(left.store)
    assert left.process.wait(60) == -9
    assert list(procs.marked(procs.JOB_UID_MARK, left.uid)) == []
    assert not left.root.exists()
    assert other.process.poll() is None
    assert other.root.exists()


def test_a_status_of_another_shape_still_names_the_job(make: Callable[[str], Left]) -> None:
    left = make("job")
    (left.store.pods / "1-0" / "spec.json").write_text("{")
    left.store.status_file.write_text(yamlio.dump({"metadata": {"uid": left.uid}, "spec": "of another version"}))
    end_pods(left.store)
    assert left.process.wait(60) == -9
    assert not left.root.exists()
