"""A sidecar on this machine, for `lanefeed.open`: indexes, starts, shares, revives and ends it.

`open` makes one `LocalSidecar` a loader; the client calls `ensure` before it attaches. Whichever rank comes first
starts the process, under a lock in the run folder; the last one to leave ends it. If it dies, the next attach starts it
again. Nothing of the sidecar is imported here: it is another process, with other dependencies.
"""

import hashlib
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import asdict
from pathlib import Path

from lanefeed._env import Place
from lanefeed._local.dataset import Dataset
from lanefeed._local.folder import PREFIX, RunFolder, reclaim, shm_root, warn_on_disk
from lanefeed._local.named import NamedFolder
from lanefeed.errors import LanefeedError, SidecarError, UsageError, by_kind, from_core
from lanefeed_core import manifest_codec
from lanefeed_core.cursor import Cursor, SavedState
from lanefeed_core.errors import CoreError
from lanefeed_core.manifest import Manifest
from lanefeed_core.plan import Plan
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.stream import StreamSpec, default_lanes, default_window

__all__ = ["ENDLESS", "PLAN_GENERATION", "LocalSidecar"]

log = logging.getLogger("lanefeed")

#: `epochs=None`: more than anybody reads.
ENDLESS = 1_000_000_000
PLAN_GENERATION = 1
#: A sidecar that dies more often than this is not started again.
MAX_RESTARTS = 10
START_SECONDS = 60.0
INDEX_SECONDS = 600.0
#: A line says what is waited for this often.
WORD_SECONDS = 10.0
STOP_SECONDS = 8.0

_open_keys: list[str] = []
_keys_lock = threading.Lock()
#: Sidecars that this process has started and let go of.
_children: "list[subprocess.Popen[bytes]]" = []


class LocalSidecar:
    """One loader's hold on a sidecar of this machine. Thread safe."""

    def __init__(self, dataset: Dataset, place: Place, run_dir: Path | None) -> None:
        """No I/O but the look for the sidecar's package. Raises UsageError if that is missing."""
        for name in ("lanefeed_sidecar", "pyarrow"):
            if importlib.util.find_spec(name) is None:
                raise UsageError(
                    f"lanefeed.open starts a sidecar on this machine, and its package {name} is not installed: "
                    "pip install 'lanefeed[sidecar]'"
                )
        self._dataset = dataset
        self._place = place
        self._given_dir = run_dir
        self._lanes, self._window = dataset.lanes, dataset.window
        self._begin = Cursor()
        self._resolved: StreamSpec | None = None
        #: The folder is named by lanes and window too: the plain one has a sidecar with others.
        self._apart = False
        self._lock = threading.RLock()
        self._folder: RunFolder | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._key = ""
        self._pid = os.getpid()

    # ---- for the client ----------------------------------------------------------------------------------------

    def ensure(self) -> Path:
        """A living or starting sidecar; its run folder. Raises what it said when it cannot run."""
        with self._lock:
            while True:
                folder = self._folder = self._folder or self._join()
                if self._process is not None and self._process.poll() is None:
                    return folder.path
                if not folder.has_sidecar():
                    with folder.starting():
                        if not folder.has_sidecar():
                            self._start(folder)
                self._resolved = self._resolved or _spec_in(folder.path)
                if self._apart or self._resolved is None or self._wants(self._resolved):
                    return folder.path
                # A sidecar of these ranks is warm, but with other lanes than the state's that is to be loaded.
                self.release()
                self._apart = True

    def _wants(self, spec: StreamSpec) -> bool:
        return (self._lanes or spec.lanes, self._window or spec.window) == (spec.lanes, spec.window)

    def adopt(self, state: SavedState) -> bool:
        """Lanes and window that nobody gave come from a state that is to be loaded: its order is theirs.

        True where a sidecar with others was running: it is left.
        """
        with self._lock:
            # Where the sidecar reads ahead from its first moment on.
            self._begin = state.cursor
            if self._dataset.lanes is None:
                self._lanes = state.spec.lanes
            if self._dataset.window is None:
                self._window = state.spec.window
            if self._resolved is None or self._wants(self._resolved):
                return False
            self.release()
            self._apart = True
            return True

    def release(self) -> None:
        """Leave the run folder; the last one ends the sidecar and removes the folder."""
        with self._lock:
            folder, self._folder = self._folder, None
            if folder is None or os.getpid() != self._pid:
                return
            with _keys_lock:
                _open_keys.remove(self._key)
            self._resolved = None
            last = folder.leave()
            process, self._process = self._process, None
            if process is not None:
                _children.append(process)
            _reap(_end(folder) if last else 0)
            if last:
                folder.done(remove=self._given_dir is None)

    def reset(self) -> bool:
        """End the sidecar, so that the next one begins anew; False where other ranks share it."""
        if self._place.local_world > 1:
            return False
        self.release()
        return True

    # ---- the run folder ----------------------------------------------------------------------------------------

    def _join(self) -> RunFolder:
        shared = self._place.together
        identity = {
            "dataset": asdict(self._dataset),
            "apart": [self._lanes, self._window] if self._apart else [],
            "world": self._place.world,
            "pod": self._place.pod,
            "owner": os.getppid() if shared else os.getpid(),
            "run": os.environ.get("TORCHELASTIC_RUN_ID", "") if shared else "",
            "user": os.getuid(),
        }
        with _keys_lock:
            for number in range(1000):
                text = json.dumps([identity, number], sort_keys=True)
                key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
                if key not in _open_keys:
                    break
            _open_keys.append(key)
        self._key = key
        try:
            if self._given_dir is not None:
                return NamedFolder(self._given_dir, self._life(), kept=shared, end=_end)
            root = shm_root()
            reclaim(root)
            return RunFolder(root / f"{PREFIX}{key}")
        except BaseException:
            with _keys_lock:
                _open_keys.remove(key)
            raise

    def _life(self) -> str:
        """What a life of a folder that the user named is about; the same for all ranks that share it."""
        shared = self._place.together
        run = [os.getppid(), os.environ.get("TORCHELASTIC_RUN_ID", "")] if shared else []
        return json.dumps([self._dataset.wanted(), self._place.world, self._place.pod, run], sort_keys=True)

    def _start(self, folder: RunFolder) -> None:
        if self._process is not None:
            self._restarts += 1
            reason = _last_line(folder.path / "sidecar.log")
            if self._process.returncode == 2:
                raise _error(reason)
            if self._restarts > MAX_RESTARTS:
                raise SidecarError(f"the sidecar ended {self._restarts} times, the last time with: {reason}")
            log.warning("the sidecar ended with code %s and is started again: %s", self._process.returncode, reason)
        else:
            warn_on_disk(folder.path)
        path = folder.path / "pod.json"
        path.unlink(missing_ok=True)
        # It loads its libraries while the dataset is indexed, then waits for its configuration.
        process = _spawn(path, folder.path / "sidecar.log")
        try:
            config = self._config(folder.path, self._index(folder.path))
            whole = path.with_suffix(".new")
            whole.write_text(config.to_json())
            whole.replace(path)
        except BaseException:
            process.kill()
            process.wait()
            raise
        self._process = process
        self._await_lock(folder, process)

    def _await_lock(self, folder: RunFolder, process: "subprocess.Popen[bytes]") -> None:
        """Until the sidecar holds its folder, so that no other rank starts a second one."""
        end = time.monotonic() + START_SECONDS
        while not folder.has_sidecar():
            if process.poll() is not None:
                if process.returncode == 2:
                    raise _error(_last_line(folder.path / "sidecar.log"))
                return
            if time.monotonic() > end:
                process.kill()
                raise SidecarError(
                    f"the sidecar did not start within {START_SECONDS:g} s; see {folder.path}/sidecar.log"
                )
            time.sleep(0.01)

    # ---- manifest and configuration ----------------------------------------------------------------------------

    def _index(self, run_dir: Path) -> Manifest:
        path = run_dir / "manifest.bin"
        if not path.exists():
            dataset = self._dataset
            _run_indexer(dataset.index_command(path), f"the footers of {', '.join(dataset.uris)}")
        try:
            return manifest_codec.decode(path.read_bytes())
        except CoreError as error:
            raise from_core(error) from None

    def _config(self, run_dir: Path, manifest: Manifest) -> PodConfig:
        dataset, place = self._dataset, self._place
        try:
            lanes = self._lanes or default_lanes(
                global_batch_size=dataset.global_batch_size, ranks=place.world, row_groups=manifest.num_row_groups
            )
            window = self._window or default_window(
                lanes=lanes, row_bytes=dataset.row_bytes(manifest), budget_bytes=dataset.read_ahead_bytes
            )
            spec = StreamSpec(
                seed=dataset.seed,
                global_batch_size=dataset.global_batch_size,
                lanes=lanes,
                window=window,
                shuffle=dataset.shuffle,
                last_batch=dataset.last_batch,
            )
            plan = Plan(
                generation=PLAN_GENERATION,
                replicas=place.world // place.local_world,
                ranks_per_replica=place.local_world,
                start=self._begin,
                allow_uneven=dataset.uneven,
            )
            plan.check(dataset.global_batch_size)
        except CoreError as error:
            raise from_core(error) from None
        self._resolved = spec
        return PodConfig(
            job=f"open-{self._key}",
            job_uid=self._key,
            pod_index=place.pod,
            pod_uid=uuid.uuid4().hex,
            plan=plan,
            spec=spec,
            epochs=ENDLESS if dataset.epochs is None else dataset.epochs,
            manifest_path=str(run_dir / "manifest.bin"),
            columns=dataset.columns,
            images=dataset.images,
            run_dir=str(run_dir),
            read_ahead_bytes=dataset.read_ahead_bytes,
            decode_threads=dataset.decode_threads,
            slots=dataset.slots,
            slot_bytes=dataset.slot_bytes,
            cache_dir=dataset.cache_dir,
            cache_bytes=dataset.cache_bytes if dataset.cache_dir else 0,
            # torchrun's agent outlives its workers. Otherwise the one who starts the sidecar: where others share it and
            # go on without that one, they start it again.
            owner_pid=os.getppid() if place.together else os.getpid(),
        )


def _spawn(config: Path, log_file: Path) -> "subprocess.Popen[bytes]":
    """A sidecar that will serve what `config` says once that is there."""
    with log_file.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "lanefeed_sidecar", "--await", str(os.getpid()), "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C belongs to the trainer, which ends the sidecar when it leaves.
            start_new_session=True,
        )


def _end(folder: RunFolder) -> int:
    """End the folder's sidecar, whoever has started it; its pid, 0 if there was none."""
    ended = 0
    for sign in (signal.SIGTERM, signal.SIGKILL):
        pid = folder.sidecar_pid()
        if not pid:
            break
        try:
            os.kill(pid, sign)
            # One that was stopped would not hear of it.
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            break
        ended = pid
        end = time.monotonic() + STOP_SECONDS
        while folder.has_sidecar() and time.monotonic() < end:
            time.sleep(0.01)
    return ended


def _reap(pid: int) -> None:
    """Collect the sidecars that this process has started and that have ended; `pid` is ending just now."""
    for process in list(_children):
        if process.pid == pid:
            try:
                process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        if process.poll() is not None:
            _children.remove(process)


def _spec_in(run_dir: Path) -> StreamSpec | None:
    """The stream of a sidecar that another rank has started."""
    try:
        return PodConfig.from_json((run_dir / "pod.json").read_text()).spec
    except (OSError, CoreError):
        return None


def _run_indexer(command: list[str], what: str) -> None:
    """Run it to its end, with a word every 10 seconds. Raises the error that its last line names."""
    began = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        while True:
            try:
                _, stderr = process.communicate(timeout=WORD_SECONDS)
                break
            except subprocess.TimeoutExpired:
                taken = time.monotonic() - began
                if taken > INDEX_SECONDS:
                    process.kill()
                    raise SidecarError(
                        f"reading {what} took longer than {INDEX_SECONDS:g} s: is the storage there? Run `lanefeed "
                        "index` on them to see"
                    ) from None
                log.warning("reading %s since %.0f s", what, taken)
            except BaseException:
                process.kill()
                raise
    if process.returncode:
        lines = stderr.decode(errors="replace").strip().splitlines()
        raise _error(lines[-1] if lines else f"the indexer ended with code {process.returncode}")


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"


def _error(line: str) -> LanefeedError:
    """The error for a last line of the form "Kind: text"."""
    kind, colon, text = line.partition(": ")
    if colon and kind == "ConfigError":
        return UsageError(text)
    return by_kind(kind, text) if colon and kind.isidentifier() else SidecarError(line)
