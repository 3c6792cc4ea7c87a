"""Certificates: what is made when, whoever trusted yesterday's file goes on today, and the Secret between operators."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from lanefeed_operator.coordinator.certificates import (
    FORMER_NAMES,
    Lifetimes,
    Material,
    check,
    decide,
    names_of,
    renewed,
)
from lanefeed_operator.coordinator.certstore import STATE, Certificates
from lanefeed_operator.errors import CoordinatorError
from lanefeed_operator.kube.api import SECRETS, Conflict, Forbidden, Unreachable
from support.kube_store import KubeStore

DAY = 86400.0
NOW = 1_800_000_000.0
LIFE = Lifetimes()
NAMES = names_of(["lanefeed.system.svc", "10.200.0.1"])


def trusts(bundle: str, material: Material, now: float) -> bool:
    """Whether a client that trusts `bundle` accepts the server at `now`: the chain, the times."""
    server = x509.load_pem_x509_certificate(material.certificate.encode())
    if not server.not_valid_before_utc.timestamp() <= now < server.not_valid_after_utc.timestamp():
        return False
    for ca in x509.load_pem_x509_certificates(bundle.encode()):
        lives = ca.not_valid_before_utc.timestamp() <= now < ca.not_valid_after_utc.timestamp()
        if ca.subject == server.issuer and lives:
            try:
                server.verify_directly_issued_by(ca)
            except Exception:
                continue
            return True
    return False


def signed_names(material: Material) -> set[str]:
    """The names and addresses that the certificate really carries, which must be those that `material` says."""
    server = x509.load_pem_x509_certificate(material.certificate.encode())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    assert found == set(material.names)
    return found


def test_names_of_a_service_in_every_form() -> None:
    assert names_of(["a.b.svc"]) == ("a.b", "a.b.svc", "a.b.svc.cluster.local")
    assert names_of(["a.b.svc.cluster.local", "10.0.0.1"]) == ("10.0.0.1", "a.b", "a.b.svc", "a.b.svc.cluster.local")
    assert names_of(["reports.example.org"]) == ("reports.example.org",)


def test_the_first_certificate_carries_names_and_addresses_and_is_an_end_entity() -> None:
    made, reason = renewed(None, NAMES, NOW, LIFE)
    assert reason == "there is no certificate yet"
    server = x509.load_pem_x509_certificate(made.certificate.encode())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "lanefeed.system.svc.cluster.local" in names.get_values_for_type(x509.DNSName)
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.200.0.1"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert trusts(made.trust, made, NOW)
    assert renewed(made, NAMES, NOW, LIFE) == (made, "")


def test_a_year_and_a_half_of_looking_daily_never_breaks_anybody_who_read_the_file_within_the_overlap() -> None:
    """Sidecars read the file again within minutes; the promise leaves them most of a day."""
    have: Material | None = None
    files: list[tuple[float, str]] = []
    reasons = []
    for day in range(560):
        now = NOW + day * DAY
        have, reason = renewed(have, NAMES, now, LIFE)
        check(have)
        reasons += [reason] if reason else []
        files = [f for f in files if now - f[0] < LIFE.overlap] + [(now, have.trust)]
        for read, bundle in files:
            assert trusts(bundle, have, now), f"day {day}: a file of {(now - read) / DAY} days ago"
        assert have.end - now > 20 * DAY, "renewed long before its end"
    assert sum("successor" in r for r in reasons) == 2
    assert sum("known everywhere" in r for r in reasons) >= 1
    assert any("expired authority is forgotten" in r or len(have.authorities) < 3 for r in reasons)


@given(st.lists(st.floats(min_value=0.01, max_value=120.0), min_size=1, max_size=12))
def test_whenever_the_operator_looks_the_file_of_its_last_look_stays_good_while_it_could(gaps: list[float]) -> None:
    now, (have, _) = NOW, renewed(None, NAMES, NOW, LIFE)
    for gap in gaps:
        old, now = have, now + gap * DAY
        have, _ = renewed(old, NAMES, now, LIFE)
        check(have)
        assert trusts(have.trust, have, now)
        if gap * DAY >= LIFE.overlap and have.signer >= len(old.authorities):
            continue
        living = [a for a in old.authorities if a.end > now]
        if living:
            assert trusts(old.trust, have, now)


def test_tooth_signing_with_a_new_authority_at_once_breaks_those_who_know_the_old_one() -> None:
    have, _ = renewed(None, NAMES, NOW, LIFE)
    later = NOW + 250 * DAY
    hasty, _ = renewed(replace(have, end=later), NAMES, later, replace(LIFE, overlap=0.0))
    assert trusts(hasty.trust, hasty, later)
    assert not trusts(have.trust, hasty, later)


def test_other_names_are_signed_at_once_by_the_same_authority() -> None:
    have, _ = renewed(None, NAMES, NOW, LIFE)
    other, reason = renewed(have, ("other.example.org",), NOW + 1, LIFE)
    assert "names are other.example.org" in reason
    assert other.authorities == have.authorities
    assert trusts(have.trust, other, NOW + 1)


def test_former_names_stay_for_the_pods_whose_plans_hold_them() -> None:
    have, _ = renewed(None, NAMES, NOW, LIFE)
    other, _ = renewed(have, ("other.example.org",), NOW + 1, LIFE)
    assert signed_names(other) == {"other.example.org", *NAMES}
    assert renewed(other, ("other.example.org",), NOW + 2, LIFE) == (other, "")
    assert renewed(other, NAMES, NOW + 2, LIFE) == (other, ""), "two operators in an upgrade do not take turns"
    aged, reason = renewed(other, ("other.example.org",), NOW + 70 * DAY, LIFE)
    assert "aging" in reason
    assert signed_names(aged) == signed_names(other), "a job may train for longer than a certificate lives"


def test_former_names_are_bounded_and_the_latest_stay() -> None:
    have, _ = renewed(None, ("host-0.example.org",), NOW, LIFE)
    for i in range(1, 30):
        have, _ = renewed(have, (f"host-{i}.example.org",), NOW + i, LIFE)
    assert signed_names(have) == {f"host-{i}.example.org" for i in range(29 - FORMER_NAMES, 30)}


@pytest.mark.parametrize("old", [False, True], ids=["all of the future", "beside an authority that was there"])
def test_what_was_made_while_the_clock_was_ahead_is_made_again(old: bool) -> None:
    have = renewed(None, NAMES, NOW - DAY, LIFE)[0] if old else None
    ahead = renewed(None, NAMES, NOW + DAY, LIFE)[0]
    if have is not None:
        ahead = replace(ahead, authorities=(*have.authorities, *ahead.authorities), signer=1)
    check(ahead)
    assert not trusts(ahead.trust, ahead, NOW)
    made, reason = renewed(ahead, NAMES, NOW, LIFE)
    assert "begins 24.0 h from now (the clock was ahead when it was made)" in reason
    check(made)
    assert trusts(made.trust, made, NOW)
    if have is not None:
        assert trusts(have.trust, made, NOW), "who knows the older authority goes on at once"
    assert renewed(made, NAMES, NOW + 1, LIFE) == (made, "")
    for day in range(4):
        made, _ = renewed(made, NAMES, NOW + day * DAY, LIFE)
        check(made)
        assert trusts(made.trust, made, NOW + day * DAY)


def test_a_certificate_alone_that_is_of_the_future_is_signed_again_by_the_same_authority() -> None:
    have, _ = renewed(None, NAMES, NOW, LIFE)
    ahead, _ = renewed(replace(have, end=NOW), NAMES, NOW + DAY, LIFE)
    made, reason = renewed(ahead, NAMES, NOW + 1, LIFE)
    assert "the certificate begins 24.0 h from now" in reason
    assert made.authorities == have.authorities
    assert trusts(have.trust, made, NOW + 1)


def test_a_clock_that_is_ahead_by_less_than_certificates_are_backdated_changes_nothing() -> None:
    have, _ = renewed(None, NAMES, NOW + LIFE.backdate - 1, LIFE)
    assert renewed(have, NAMES, NOW, LIFE) == (have, "")
    assert trusts(have.trust, have, NOW)


def test_after_years_away_everything_is_new() -> None:
    have, _ = renewed(None, NAMES, NOW, LIFE)
    decision = decide(have, NAMES, NOW + 900 * DAY, LIFE)
    assert decision.new_authority
    assert decision.drop == (0,)
    made, _ = renewed(have, NAMES, NOW + 900 * DAY, LIFE)
    assert len(made.authorities) == 1
    assert trusts(made.trust, made, NOW + 900 * DAY)


# ---- the Secret ------------------------------------------------------------------------------------------------


class Now:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def kept(store: KubeStore, clock: Callable[[], float]) -> Certificates:
    return Certificates(store, "system", "certs", NAMES, clock)


def data(store: KubeStore) -> dict[str, Any]:
    secret = store.get(SECRETS, "system", "certs")
    return {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}


def test_two_operators_and_a_restart_serve_the_same_certificate() -> None:
    store, clock = KubeStore(), Now()
    first, second = kept(store, clock), kept(store, clock)
    with pytest.raises(CoordinatorError, match="refresh"):
        _ = first.trust
    first.refresh()
    second.refresh()
    assert first.material == second.material
    texts = data(store)
    assert texts["ca.crt"] == first.trust
    assert texts["tls.crt"] == first.material.certificate
    writes = len(store.writes)
    assert first.refresh() == second.refresh() == ""
    assert len(store.writes) == writes


def test_a_rotation_is_told_and_the_other_operator_takes_it_over() -> None:
    store, clock = KubeStore(), Now()
    first, second = kept(store, clock), kept(store, clock)
    told: list[str] = []
    first.on_trust = second.on_trust = told.append
    first.refresh()
    second.refresh()
    clock.now += 250 * DAY
    assert "successor" in first.refresh()
    assert second.refresh() == "another operator renewed them"
    assert first.material == second.material
    assert told[2] == told[3] == first.trust
    assert first.trust.count("BEGIN CERTIFICATE") == 2
    clock.now += 1.5 * DAY
    assert "known everywhere" in first.refresh()
    assert len(told) == 4, "what is trusted did not change"


def test_a_lost_race_is_read_again() -> None:
    store, clock = KubeStore(), Now()
    first, second = kept(store, clock), kept(store, clock)
    first.refresh()
    second.refresh()
    clock.now += 250 * DAY
    patch, raced = store.patch, []

    def race(*args: Any, **more: Any) -> Any:
        if not raced:
            raced.append(1)
            second.refresh()
        return patch(*args, **more)

    store.patch = race  # type: ignore[method-assign]
    first.refresh()
    assert first.material == second.material


def test_a_secret_that_is_always_changed_is_an_error_with_its_name() -> None:
    store, clock = KubeStore(), Now()
    first = kept(store, clock)
    first.refresh()
    clock.now += 250 * DAY

    def refuse(*_args: Any, **_more: Any) -> Any:
        raise Conflict("changed")

    store.patch = refuse  # type: ignore[method-assign]
    with pytest.raises(CoordinatorError, match="Secret system/certs changed 5 times"):
        first.refresh()


def test_a_removed_secret_is_written_again_and_trust_goes_on() -> None:
    store, clock = KubeStore(), Now()
    first = kept(store, clock)
    first.refresh()
    trust = first.trust
    store.delete(SECRETS, "system", "certs", uid=store.get(SECRETS, "system", "certs")["metadata"]["uid"])
    assert "written again" in first.refresh()
    assert first.trust == trust == data(store)["ca.crt"]


def test_a_secret_that_is_gone_and_may_not_be_made_names_the_way_out() -> None:
    store = KubeStore()

    def before(verb: str, *_: Any) -> None:
        if verb == "create":
            raise Forbidden("secrets is forbidden")

    store.before = before
    with pytest.raises(Forbidden, match="Secret system/certs is not there: `helm upgrade` makes it again"):
        kept(store, Now()).refresh()


@pytest.mark.parametrize("damage", ["", "{", "other key", "version"])
def test_an_empty_or_damaged_secret_is_filled(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store, clock = KubeStore(), Now()
    meta = {"name": "certs", "namespace": "system"}
    other, _ = renewed(None, NAMES, NOW, LIFE)
    state: dict[str, Any] = {"version": 9 if damage == "version" else 1}
    if damage in {"other key", "version"}:
        strange = kept(KubeStore(), clock)
        strange.refresh()
        state |= {
            "authorities": [
                {"certificate": a.certificate, "key": a.key, "made": a.made, "end": a.end}
                for a in strange.material.authorities
            ],
            "certificate": strange.material.certificate,
            "key": other.key if damage == "other key" else strange.material.key,
            "made": NOW,
            "end": NOW + DAY,
            "names": list(NAMES),
            "signer": 0,
        }
        damage = json.dumps(state)
    body = {"metadata": meta, "data": {STATE: base64.b64encode(damage.encode()).decode()} if damage else None}
    store.create(SECRETS, "system", body)
    first = kept(store, clock)
    assert first.refresh()
    check(first.material)
    assert data(store)["ca.crt"] == first.trust
    if damage:
        assert "cannot be used and is written anew" in caplog.text


def test_an_api_server_that_is_away_is_said() -> None:
    store = KubeStore()

    def away(*_args: Any) -> None:
        raise Unreachable("no answer")

    store.before = away
    with pytest.raises(Unreachable):
        kept(store, Now()).refresh()
