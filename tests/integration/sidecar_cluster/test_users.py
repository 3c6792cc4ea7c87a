"""Two users in one pod: the kubelet's folder is root's and open to all, the group is what sidecar and trainer share.

oauth2-proxy#2141: a socket that others of the group may not write to refuses them.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.feed_pod import Pod
from support.uids import REPOSITORY, command_as

SIDECAR, TRAINER, GROUP, FS_GROUP = 65532, 4711, 65532, 7777
TRAIN = """
import json, sys
import lanefeed
loader = lanefeed.connect(rank=0, world=1, tensors="numpy", run_dir=sys.argv[1], plan_generation=1, attach_timeout=30)
ids = {}
for _ in loader.epochs():
    for batch in loader:
        batch["x"][:] += 0
        ids[batch.step] = batch.ids.tolist()
        if loader.step == 7:
            loader.commit("ckpt/7")
print(json.dumps(ids))
"""


class UserPod(Pod):
    """A pod whose sidecar has a user of its own, in a folder as the kubelet makes it."""

    def __init__(self, home: Path, folder: Path, uid: int, gid: int, groups: tuple[int, ...]) -> None:
        super().__init__(home, folder)
        self.config = replace(self.config, run_dir=str(folder))
        self.who = (uid, gid, groups)

    def spawn(self, env: dict[str, str] | None = None, **changes: object) -> "subprocess.Popen[bytes]":
        file = self.tmp_path / "config.json"
        file.write_text(replace(self.config, **changes).to_json())
        engine = REPOSITORY / "tests" / "support" / "feed_engine.py"
        command = command_as(*self.who, [sys.executable, str(engine), "--config", str(file)])
        paths = {"PYTHONPATH": str(REPOSITORY / "tests"), "PYTHONDONTWRITEBYTECODE": "1"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env={**os.environ, **paths, **(env or {})})
        return self.process

    def train(self, uid: int, gid: int, *groups: int) -> "subprocess.CompletedProcess[str]":
        command = command_as(uid, gid, groups, [sys.executable, "-c", TRAIN, str(self.run_dir)])
        return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ})


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="lf-users-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def empty_dir(home: Path, mode: int, group: int) -> Path:
    """An emptyDir as the kubelet makes it: root's."""
    folder = home / "run"
    folder.mkdir()
    os.chown(folder, 0, group)
    folder.chmod(mode)
    return folder


def modes(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        entry.name.partition("-")[0]: (entry.stat().st_gid, stat.S_IMODE(entry.stat().st_mode))
        for entry in folder.iterdir()
    }


def check(pod: UserPod, group: int) -> None:
    """A trainer of another user works with the group, and is told what is missing without it."""
    pod.start()
    found = modes(pod.run_dir)
    assert found["feed.sock"] == (group, 0o660)
    assert found["arena"] == (group, 0o660)
    assert found["token"] == (group, 0o640)
    assert not any(mode & 0o007 for _, mode in found.values()), found
    done = pod.train(TRAINER, TRAINER, group)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {str(step): ids for step, ids in pod.expected().items()}
    stranger = pod.train(TRAINER, TRAINER)
    assert stranger.returncode == 1
    assert "cannot read" in stranger.stderr
    assert "the trainer's user must be in the group of the run folder" in stranger.stderr
    assert pod.terminate() == 0
    assert set(modes(pod.run_dir)) <= {"token", "commits.jsonl", "book.json", "ranks.json", "sidecar.pid"}


def test_an_open_folder_of_roots_and_a_shared_supplementary_group(home: Path) -> None:
    """What render makes: no fsGroup, the sidecar's own group is a supplementary one of the trainer."""
    pod = UserPod(home, empty_dir(home, 0o777, 0), SIDECAR, GROUP, ())
    try:
        check(pod, GROUP)
    finally:
        pod.close()


def test_a_users_fs_group_makes_the_folder_set_gid(home: Path) -> None:
    pod = UserPod(home, empty_dir(home, 0o2777, FS_GROUP), SIDECAR, GROUP, (FS_GROUP,))
    try:
        check(pod, FS_GROUP)
    finally:
        pod.close()


def test_a_second_life_of_the_same_user_takes_the_folder_over(home: Path) -> None:
    pod = UserPod(home, empty_dir(home, 0o777, 0), SIDECAR, GROUP, ())
    try:
        pod.start()
        token = (pod.run_dir / "token").read_text()
        children = Path(f"/proc/{pod.process.pid}/cmdline").read_bytes() if pod.process else b""
        assert b"feed_engine" in children, "exec, no shell between"
        pod.kill()
        pod.start()
        assert (pod.run_dir / "token").read_text() == token, "trainers that wait have read it"
        assert pod.train(TRAINER, TRAINER, GROUP).returncode == 0
    finally:
        pod.close()


def test_a_folder_that_the_sidecar_may_not_write_to_says_so(home: Path) -> None:
    pod = UserPod(home, empty_dir(home, 0o750, 0), SIDECAR, GROUP, ())
    try:
        assert pod.spawn().wait(60) == 2
        assert "cannot be written: Permission denied" in pod.last_line()
    finally:
        pod.close()
