"""The gRPC client against a scripted server: lost sessions, silence, refusals, misbehaving sidecars."""

import gc
import logging
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

import lanefeed
from lanefeed._client.session import Session
from lanefeed_core.proto import lanefeed_pb2 as pb
from support.scripted_server import Script, refuse


def connect(folder: Path, **kwargs: Any) -> lanefeed.Loader:
    kwargs = {"attach_timeout": 60.0, "stall_timeout": 60.0, "tensors": "numpy", **kwargs}
    return lanefeed.connect(run_dir=str(folder), rank=0, world=1, plan_generation=3, **kwargs)


def ids(batch: lanefeed.Batch) -> list[int]:
    assert batch["x"].tolist() == batch.ids.tolist()
    assert batch["t"].to_list() == [f"r{i}" for i in batch.ids.tolist()]
    return batch.ids.tolist()


def wait_for(done: Any, what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def read(loader: lanefeed.Loader) -> list[list[int]]:
    return [ids(b) for _ in loader.epochs() for b in loader]


def test_the_whole_stream_with_slots_reused(server: Script, folder: Path) -> None:
    with connect(folder) as loader:
        assert read(loader) == server.expected()
    wait_for(lambda: server.progress and server.progress[-1].finished, "the last progress")
    assert server.progress[-1].consumed == server.info.total_steps
    assert [(c.start, c.stop) for c in server.commits] == [(0, server.info.total_steps)]


def test_a_session_that_is_closed_before_its_stream_begins_is_a_lost_one(
    server: Script, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`close` right after `begin`: gRPC says ValueError then, which ended the client's thread with the arena mapped."""
    stream, closed = Session.stream, []

    def late(self: Session, *args: Any) -> Any:
        if not closed:
            closed.append(self.close())
        return stream(self, *args)

    monkeypatch.setattr(Session, "stream", late)
    with connect(folder) as loader:
        assert read(loader) == server.expected()
    assert closed
    assert "the client's thread failed" not in caplog.text


def test_kept_batches_never_change_though_slots_are_overwritten(server: Script, folder: Path) -> None:
    with connect(folder) as loader:
        with pytest.warns(lanefeed.KeptBatchesWarning):
            kept = [b for _ in loader.epochs() for b in loader]
        assert [ids(b) for b in kept] == server.expected()
    assert [ids(b) for b in kept] == server.expected()


@pytest.mark.filterwarnings("ignore::lanefeed.KeptBatchesWarning")
@pytest.mark.parametrize("times", [1, 4])
def test_a_lost_session_costs_nothing(server: Script, folder: Path, times: int) -> None:
    want, kept = server.expected(), []
    with connect(folder) as loader:
        for _ in loader.epochs():
            for batch in loader:
                kept.append(batch)
                if len(kept) % (len(want) // (times + 1)) == 0 and times:
                    times -= 1
                    server.stop()
                    server.start()
        assert [ids(b) for b in kept] == want
    resumed = [a for a in server.attaches if a.resuming]
    assert resumed
    assert all(a.resume_at > 0 and not a.state_json for a in resumed)


def test_a_stream_that_breaks_within_a_session_keeps_the_held_slots(server: Script, folder: Path) -> None:
    with connect(folder) as loader:
        it = iter(loader)
        first = next(it)
        wait_for(lambda: loader._feed.heard()[1].startswith("frame"), "frames")
        server.extra.put(None)
        wait_for(lambda: len(server.attaches) > 1, "another attach")
        assert server.attaches[-1].session == server.session
        assert 0 in server.attaches[-1].held
        rest = [ids(b) for b in it]
        assert [ids(first), *rest] == server.expected()[:10]


def test_loading_a_state_in_between_keeps_what_is_in_hand(folder: Path) -> None:
    server = Script(folder, slots=8)
    server.start()
    want = server.expected()
    with connect(folder) as loader:
        it = iter(loader)
        kept = [next(it) for _ in range(2)]
        state = loader.state_dict()
        kept += [next(it) for _ in range(3)]
        loader.load_state_dict(state)
        assert [ids(b) for b in loader] == want[2:10]
        assert [ids(b) for b in kept] == want[:5]
    server.stop()


def test_last_commit_is_known_before_anything_starts(server: Script, folder: Path) -> None:
    server.last_commit = pb.Committed(step=5, name="ckpt", plan_generation=2)
    loader = connect(folder)
    assert loader.last_commit == lanefeed.Commit(5, "ckpt", 2)
    assert len(loader) == 10
    assert loader.plan_generation == 3
    assert all(a.peek for a in server.attaches)
    loader.close()


def test_starting_at_zero_although_a_commit_exists_is_said(
    server: Script, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.last_commit = pb.Committed(step=5, name="ckpt", plan_generation=2)
    with connect(folder) as loader:
        next(iter(loader))
    assert "starts at step 0 although 'ckpt' was committed at step 5" in caplog.text


def test_stop_and_commits_come_with_the_stream(server: Script, folder: Path) -> None:
    with connect(folder) as loader:
        it = iter(loader)
        next(it)
        server.extra.put(pb.ServerMessage(stop_at=pb.StopAt(step=3, reason="resize")))
        server.extra.put(pb.ServerMessage(committed=pb.Committed(step=1, name="a", plan_generation=3)))
        wait_for(lambda: loader.last_commit is not None, "the commit")
        assert not loader.stop_requested
        next(it), next(it)
        assert loader.stop_requested
        assert loader.stop_reason == "resize"


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def test_no_sidecar_is_a_clear_error_in_time(folder: Path) -> None:
    loader = connect(folder, attach_timeout=0.3)
    began = time.monotonic()
    with pytest.raises(lanefeed.AttachTimeout, match=r"within 0.3 s: there is no .*token yet"):
        len(loader)
    assert time.monotonic() - began < 50
    loader.close()


def test_no_run_folder_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANEFEED_RUN_DIR", raising=False)
    with pytest.raises(lanefeed.NotConnected, match=r"lanefeed run job.yaml.*lanefeed.open"):
        lanefeed.connect()


def test_a_path_too_long_for_a_socket_says_so(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    (long / "token").write_text("t")
    with pytest.raises(lanefeed.NotConnected, match=r"has \d+ bytes and Unix sockets allow 107"):
        len(connect(long, attach_timeout=1))


def test_a_sidecar_that_comes_late_is_waited_for(folder: Path) -> None:
    server = Script(folder)
    timer = threading.Timer(0.4, server.start)
    timer.start()
    with connect(folder) as loader:
        assert len(loader) == 10
    timer.join()
    server.stop()


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("ProtocolMismatch", lanefeed.ProtocolMismatch),
        ("PlanMismatch", lanefeed.PlanMismatch),
        ("StateMismatch", lanefeed.StateMismatch),
        ("DataError", lanefeed.DataError),
        ("SomethingNew", lanefeed.SidecarError),
    ],
)
def test_refusals_come_at_once_in_the_sidecars_words(
    server: Script, folder: Path, kind: str, error: type[Exception]
) -> None:
    server.on_attach = lambda _, context: refuse(
        context, grpc.StatusCode.FAILED_PRECONDITION, kind, "the trainer speaks 9 and this sidecar 1"
    )
    began = time.monotonic()
    with pytest.raises(error, match="the trainer speaks 9 and this sidecar 1"):
        next(iter(connect(folder)))
    assert time.monotonic() - began < 50


def test_a_wrong_token_is_an_error_and_a_new_one_is_read(server: Script, folder: Path) -> None:
    (folder / "token").write_text("stale")
    threading.Timer(0.1, (folder / "token").write_text, (server.token,)).start()
    with connect(folder) as loader:
        assert len(loader) == 10
    (folder / "token").write_text("wrong")
    with pytest.raises(lanefeed.AuthError, match="the token is wrong"):
        len(connect(folder))


def test_a_failure_ends_the_stream_after_the_frames_in_hand(server: Script, folder: Path) -> None:
    server.pause_after = 2
    with connect(folder) as loader:
        it = iter(loader)
        next(it)
        assert server.paused.wait(60), "two frames"
        failure = pb.Failure(kind="DataError", message="shard 7.parquet: checksum", retryable=False)
        server.extra.put(pb.ServerMessage(failure=failure))
        got: list[int] = []
        with pytest.raises(lanefeed.DataError, match=r"shard 7.parquet: checksum"):
            got.extend(batch.step for batch in it)
        # One batch was taken before; two frames hold six.
        assert got == [1, 2, 3, 4, 5]
        with pytest.raises(lanefeed.DataError, match=r"shard 7.parquet"):
            next(iter(loader))


def test_a_silent_sidecar_is_an_error_with_its_last_word(server: Script, folder: Path) -> None:
    server.pause_after = 2
    loader = connect(folder)
    it = iter(loader)
    next(it)
    loader._stream._stall_seconds = 1.0
    began = time.monotonic()
    with pytest.raises(
        lanefeed.SidecarLost, match=r"no word from the sidecar for \d+ s. step \d+: waiting .*frame \d+ up to"
    ):
        for _ in it:
            pass
    assert time.monotonic() - began < 50
    loader.close()


def test_a_sidecar_that_does_not_come_back_is_an_error(server: Script, folder: Path) -> None:
    loader = connect(folder)
    it = iter(loader)
    next(it)
    loader._stream._stall_seconds = 1.0
    server.stop()
    with pytest.raises(lanefeed.SidecarLost, match=r"no word from the sidecar .* there is no"):
        for _ in it:
            pass
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 50
    server.start()


def test_a_wait_says_what_it_waits_for(
    server: Script, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lanefeed._stream as stream

    monkeypatch.setattr(stream, "WORD_SECONDS", 0.6)
    server.pause_after = 2
    with connect(folder) as loader, caplog.at_level(logging.WARNING):
        it = iter(loader)
        next(it)
        threading.Timer(2.0, server.paused.clear).start()
        for _ in it:
            pass
    assert "waiting for" in caplog.text
    assert "was the last to come" in caplog.text


def change(**fields: Any) -> Any:
    def changed(frame: pb.Frame) -> pb.Frame:
        if frame.sequence == 1:
            for name, value in fields.items():
                setattr(frame, name, value)
        return frame

    return changed


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (lambda f: None if f.sequence == 1 else f, "steps were left out or sent twice"),
        (change(first_step=0), "the sidecar sent steps 0..3 and step 3 is next"),
        (change(sequence=9), "holds frame 1 .* frame 9 .* used again too early"),
        (change(slot=99), "slot 99 lies outside"),
    ],
    ids=["gap", "repeat", "other frame", "no such slot"],
)
def test_a_sidecar_that_breaks_the_protocol_is_noticed(server: Script, folder: Path, script: Any, message: str) -> None:
    server.on_frame = script
    with connect(folder) as loader, pytest.raises(lanefeed.SidecarError, match=message):
        read(loader)


def test_a_commit_outlives_a_lost_session(server: Script, folder: Path) -> None:
    with connect(folder) as loader:
        it = iter(loader)
        next(it)
        server.stop()
        threading.Timer(0.5, server.start).start()
        loader.commit("a")
        assert [(c.start, c.stop, c.name) for c in server.commits] == [(0, 1, "a")]
        next(it)
        server.on_commit = lambda _m, _c: pb.CommitReply(accepted=False, reason="this process was replaced")
        with pytest.raises(lanefeed.CommitRefused, match="was replaced"):
            loader.commit("b")
        server.on_commit = lambda _m, _c: None


def test_a_commit_that_meets_a_session_being_closed_takes_the_next_one(
    server: Script, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = Session.commit, []

    def closing(self: Session, *args: Any) -> Any:
        tries.append(self)
        if len(tries) == 1:
            self.close()
        return real(self, *args)

    monkeypatch.setattr(Session, "commit", closing)
    with connect(folder) as loader:
        next(iter(loader))
        loader.commit("a")
        assert len(tries) >= 2
        assert [(c.start, c.stop, c.name) for c in server.commits] == [(0, 1, "a")]


def test_a_commit_that_nobody_takes_has_a_deadline(server: Script, folder: Path) -> None:
    loader = connect(folder)
    next(iter(loader))
    server.stop()
    with pytest.raises(lanefeed.SidecarLost, match=r"commit of step 1 was not confirmed within 0.5 s"):
        loader._commits.commit("a", 0.5)
    loader.close()
    server.start()


def test_closing_from_another_thread_ends_a_wait(server: Script, folder: Path) -> None:
    server.pause_after = 2
    loader = connect(folder)
    it = iter(loader)
    next(it)
    threading.Timer(0.3, loader.close).start()
    began = time.monotonic()
    with pytest.raises(lanefeed.NotConnected, match="was closed"):
        for _ in it:
            pass
    assert time.monotonic() - began < 50


def test_no_thread_is_left(server: Script, folder: Path) -> None:
    loader = connect(folder)
    next(iter(loader))
    assert any(t.name == "lanefeed-client" for t in threading.enumerate())
    del loader
    gc.collect()
    wait_for(lambda: not any(t.name == "lanefeed-client" for t in threading.enumerate()), "the thread's end")


def test_a_fork_in_the_trainer_does_no_harm(server: Script, folder: Path) -> None:
    """Such as another DataLoader's workers."""
    import os

    with connect(folder) as loader:
        got = []
        for batch in loader:
            got.append(ids(batch))
            pid = os.fork()
            if not pid:
                del batch
                gc.collect()
                os._exit(0)
            os.waitpid(pid, 0)
        assert got == server.expected()[:10]
