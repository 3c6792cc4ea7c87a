"""The process itself: a thread that it cannot do without takes it along, and a signal ends it."""

import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lanefeed_operator.kube.api import Forbidden, Kind
from lanefeed_operator.runtime import main as main_module
from lanefeed_operator.runtime.main import FAILED, Process
from lanefeed_operator.runtime.settings import PREFIX, OperatorSettings, read
from support.kube_store import KubeStore
from support.told import Told

ENVIRONMENT = {PREFIX + "SIDECAR_IMAGE": "sidecar:1", PREFIX + "NAMESPACE": "ours"}


class NoTimer:
    """Instead of the one that would end the test run."""

    def __init__(self, *_: Any) -> None:
        self.daemon = False

    def start(self) -> None:
        pass


@pytest.mark.parametrize(("name", "ends"), [("pass-3", True), ("resync", True), ("grpc-poller", False)])
def test_a_thread_that_breaks_ends_the_process_where_it_is_needed(
    name: str, ends: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process(read(ENVIRONMENT))
    monkeypatch.setattr(threading, "excepthook", process.broke)

    def work() -> None:
        raise KeyError("an object without a name")

    thread = threading.Thread(target=work, name=name)
    with monkeypatch.context() as without, caplog.at_level(logging.ERROR):
        without.setattr(threading, "Timer", NoTimer)
        thread.start()
        thread.join(60)
    assert process._stop.is_set() is ends
    assert process._code == (FAILED if ends else 0)
    assert f"thread {name} broke" in caplog.text
    assert "an object without a name" in caplog.text


@pytest.fixture
def handlers() -> Iterator[None]:
    """Afterwards signals do what they did."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_handler_of_a_signal_takes_no_lock(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread may hold the lock of the event that it waits for, and of the log."""
    told, timed = Told(), threading.Event()

    class Timer(NoTimer):
        def start(self) -> None:
            timed.set()

    def run(process: Process) -> int:
        process._stop = told
        signal.raise_signal(signal.SIGTERM)
        assert told.wait(60)
        assert timed.wait(60), "whatever hangs, the process ends"
        return process._code

    monkeypatch.setattr(Process, "run", run)
    monkeypatch.setattr(main_module.logs, "setup", lambda **_: None)
    # `main` sets it.
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(threading, "Timer", Timer)
    assert main_module.main((), ENVIRONMENT) == 0
    assert told.by == ["signals"]


class Leads:
    """A lease that is held."""

    def valid(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Made:
    """Instead of Parts."""

    def __init__(self, settings: OperatorSettings, *_: object) -> None:
        self.namespaces = settings.watch_namespaces

    def start(self) -> int:
        raise Forbidden("jobs is forbidden")


@pytest.mark.parametrize(("before", "after", "watched"), [("", "b", ("a",)), ("b", "", ("a", "b"))])
def test_a_standby_that_takes_over_asks_anew_which_namespaces_there_are(
    before: str, after: str, watched: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, refused, made = KubeStore(), {before}, list[Made]()

    def ask(_verb: str, _kind: Kind, namespace: str, _name: str) -> None:
        if namespace in refused - {""}:
            raise Forbidden(f"forbidden in {namespace}")

    def lead(self: Process, _client: object) -> bool:
        refused.clear()
        refused.add(after)
        self._leader = Leads()  # type: ignore[assignment]
        return True

    store.before = ask
    monkeypatch.setattr(Process, "_await_lead", lead)
    monkeypatch.setattr(Process, "_load", lambda _self, _client, parts: made.append(parts))
    monkeypatch.setattr(main_module, "Parts", Made)
    process = Process(read(dict(ENVIRONMENT) | {PREFIX + "WATCH_NAMESPACES": "a,b"}), store)  # type: ignore[arg-type]
    process._work()
    assert [parts.namespaces for parts in made] == [watched]


@pytest.mark.parametrize(("namespaces", "refused", "code"), [("", "b", 0), ("a,b", "b", FAILED), ("a,b", "c", 0)])
def test_a_namespace_that_goes_while_all_is_listed_begins_the_process_anew(
    namespaces: str, refused: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And any other right that is missing, as that on the certificate's Secret, is waited for."""

    def ask(_verb: str, _kind: Kind, namespace: str, _name: str) -> None:
        if namespace == refused:
            raise Forbidden(f"forbidden in {namespace}")

    environment = dict(ENVIRONMENT) | ({PREFIX + "WATCH_NAMESPACES": namespaces} if namespaces else {})
    process, store = Process(read(environment)), KubeStore()
    store.before = ask
    monkeypatch.setattr(threading, "Timer", NoTimer)
    monkeypatch.setattr(process, "_say_waiting", lambda *_: process._stop.set())
    assert process._load(store, Made(process._settings)) is None  # type: ignore[arg-type]
    assert process._code == code
