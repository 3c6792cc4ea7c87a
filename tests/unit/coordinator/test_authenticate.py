"""TokenReview's memory: how long an answer counts, what is never accepted, and that it is bounded."""

import base64
import json
import threading

import pytest

from lanefeed_operator.coordinator import authenticate
from lanefeed_operator.coordinator.authenticate import Caller, TokenAuthenticator
from lanefeed_operator.coordinator.rejected import Rejected
from lanefeed_operator.kube.api import Forbidden, TokenOwner, Unreachable
from support.kube_store import KubeStore

AUDIENCE = "lanefeed.dev/coordinator"


class Api(KubeStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.fault: Exception | None = None

    def token_owner(self, token: str, audience: str) -> TokenOwner | None:
        assert audience == AUDIENCE
        self.asked.append(token)
        if self.fault is not None:
            raise self.fault
        return self.tokens.get(token)


class Gate:
    """An authenticator, its API and its time."""

    def __init__(self) -> None:
        self.api, self.now = Api(), 1000.0
        self.it = TokenAuthenticator(self.api, AUDIENCE, lambda: self.now, lambda: self.now)

    def pod(self, token: str, uid: str = "u1") -> str:
        self.api.tokens[token] = TokenOwner("team", "trainer", "pod-0", uid)
        return token


def jwt(end: float) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": end}).encode()).decode().rstrip("=")
    return f"e30.{body}.sig"


def test_an_answer_counts_for_60_seconds_and_is_then_asked_for_again() -> None:
    gate = Gate()
    token = gate.pod("t")
    assert gate.it.known(token) is None
    assert gate.it.review(token) == Caller("team", "u1")
    gate.now += 59.9
    assert gate.it.known(token) == Caller("team", "u1")
    gate.now += 0.2
    assert gate.it.known(token) is None
    del gate.api.tokens[token]
    with pytest.raises(Rejected, match="refuses the token"):
        gate.it.review(token)
    with pytest.raises(Rejected, match="refuses the token"):
        gate.it.known(token)
    assert len(gate.api.asked) == 2


def test_a_refusal_counts_for_10_seconds() -> None:
    gate = Gate()
    for _ in range(3):
        with pytest.raises(Rejected) as caught:
            gate.it.review("t")
        assert caught.value.result == "unauthenticated"
    assert gate.api.asked == ["t"]
    gate.now += 10.1
    gate.pod("t")
    assert gate.it.review("t").pod_uid == "u1"


@pytest.mark.parametrize("fault", [Unreachable("no answer"), Forbidden("no right to create tokenreviews")])
def test_what_cannot_be_asked_is_unavailable_and_never_accepted(fault: Exception) -> None:
    gate = Gate()
    token = gate.pod("t")
    gate.it.review(token)
    gate.now += 61
    gate.api.fault = fault
    for _ in range(2):
        assert gate.it.known(token) is None
        with pytest.raises(Rejected) as caught:
            gate.it.review(token)
        assert caught.value.result == "unavailable"
        assert str(fault) in str(caught.value)
    gate.api.fault = None
    assert gate.it.review(token).pod_uid == "u1"


def test_an_outage_is_said_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    gate.api.fault = Unreachable("no answer")
    for n in range(100):
        with pytest.raises(Rejected):
            gate.it.review(f"t{n}")
        gate.now += 1.0
    assert [r.levelname for r in caplog.records] == ["WARNING"] * 4


def test_a_tokens_own_end_counts() -> None:
    gate = Gate()
    token = gate.pod(jwt(1000.0 + 20))
    gate.it.review(token)
    gate.now += 19.9
    assert gate.it.known(token) is not None
    gate.now += 0.2
    assert gate.it.known(token) is None


def test_many_pods_are_asked_for_at_a_bounded_rate() -> None:
    gate = Gate()
    for n in range(4000):
        gate.it.review(gate.pod(f"t{n}", f"u{n}"))
    gate.now += 100
    gate.it.review(gate.pod("late", "late"))
    gate.now += 150
    assert gate.it.known("late") is not None, "4000 pods at 20 reviews a second: 200 s"
    gate.now += 60
    assert gate.it.known("late") is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticate, "MAX_KNOWN", 50)
    monkeypatch.setattr(authenticate, "MAX_REFUSED", 50)
    gate = Gate()
    for n in range(500):
        gate.it.review(gate.pod(f"t{n}"))
        with pytest.raises(Rejected):
            gate.it.review(f"wrong-{n}")
    assert gate.it.size == 50
    assert len(gate.it._refused) == 50


def test_old_answers_go_when_new_ones_come() -> None:
    gate = Gate()
    for n in range(1000):
        gate.it.review(gate.pod(f"t{n}"))
        gate.now += 1.0
    assert gate.it.size < 130


def test_tokens_are_kept_as_hashes_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    secret = gate.pod("very-secret-token")
    gate.it.review(secret)
    gate.api.fault = Unreachable("no answer")
    with pytest.raises(Rejected):
        gate.it.review("other-secret-token")
    assert "secret-token" not in repr(gate.it.__dict__) + caplog.text


def test_many_threads_ask_for_many_tokens() -> None:
    gate = Gate()
    tokens = [gate.pod(f"t{n}", f"u{n}") for n in range(200)]
    wrong: list[str] = []

    def work() -> None:
        for n, token in enumerate(tokens):
            if gate.it.review(token).pod_uid != f"u{n}":
                wrong.append(token)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert gate.it.size == 200
