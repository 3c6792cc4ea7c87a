"""The report service's own certificate authority: what to make, and when. Time is an argument; all but keys is pure.

A new authority is trusted everywhere long before anything is signed with it, and an old one until it has expired, so a
sidecar that knows either goes on at any moment of a rotation:

    trusted   AAAAAAAAAAAAAAAAAAAAAAAAAAAA            A is 365 days old at its end
    trusted                       BBBBBBBBBBBBBBB...  B is made when two thirds of A's life are over
    signing   AAAAAAAAAAAAAAAAAAAAAAAA BBBBBBBBBB...  the server's certificate is signed with B a day later

Names are only ever added: a running job's pods dial the name that was in its plan, which never changes.

`certstore` keeps the result in a Secret and calls `renewed` again and again.
"""

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "Decision", "Lifetimes", "Material", "check", "decide", "names_of", "renewed"]


#: Names that were the service's once and that plans may still hold: three changes of a Service's name, of three forms.
FORMER_NAMES = 9


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long things last, in seconds; both are replaced when two thirds of their life are over."""

    authority: float = 365 * 86400.0
    server: float = 90 * 86400.0
    #: Between trusting a new authority and signing with it: pods must have heard of it.
    overlap: float = 86400.0
    #: Certificates begin this long before they are made: clocks differ.
    backdate: float = 3600.0


@dataclass(frozen=True, slots=True)
class Authority:
    """One authority: PEM texts. `made`, `end`: seconds since 1970."""

    certificate: str
    key: str
    made: float
    end: float


@dataclass(frozen=True, slots=True)
class Material:
    """All there is: authorities by age, the newest last, and the server's certificate."""

    authorities: tuple[Authority, ...]
    certificate: str
    key: str
    made: float
    end: float
    names: tuple[str, ...]
    #: Index of the authority that signed the certificate.
    signer: int

    @property
    def trust(self) -> str:
        """Every authority that a client shall trust, as one PEM text."""
        return "".join(authority.certificate for authority in self.authorities)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to change. `reason`: "" where nothing is."""

    reason: str = ""
    new_authority: bool = False
    new_certificate: bool = False
    #: Authorities to forget, by index.
    drop: tuple[int, ...] = ()


def names_of(hosts: Iterable[str], cluster_domain: str = "cluster.local") -> tuple[str, ...]:
    """The names that a certificate must carry: `hosts`, and of a Service's name every form that a pod may use.

    >>> names_of(["lanefeed.system.svc"])
    ('lanefeed.system', 'lanefeed.system.svc', 'lanefeed.system.svc.cluster.local')
    """
    found: set[str] = set()
    for host in hosts:
        short = host.removesuffix(f".{cluster_domain}").removesuffix(".svc")
        is_service = short != host
        forms = (short, f"{short}.svc", f"{short}.svc.{cluster_domain}") if is_service else (host,)
        found.update(form for form in forms if form)
    return tuple(sorted(found))


def decide(have: Material | None, names: Sequence[str], now: float, lifetimes: Lifetimes) -> Decision:
    """What to change at `now` so that whoever trusts what was published before goes on."""
    if have is None or not have.authorities:
        return Decision("there is no certificate yet", new_authority=True, new_certificate=True)
    newest = have.authorities[-1]
    if all(authority.end <= now for authority in have.authorities):
        why = "every authority has expired (the operator was away for long)"
        return Decision(why, True, True, tuple(range(len(have.authorities))))
    drop = tuple(i for i, a in enumerate(have.authorities) if a.end <= now)
    aged = now >= newest.made + lifetimes.authority * 2 / 3
    signer = _signer(have.authorities, now, lifetimes)
    why = _renewal(have, names, now, signer, lifetimes)
    if not _begun_by(newest.made, now, lifetimes):
        return Decision(f"the authority begins {_ahead(newest.made, now)}: a new one is made", True, bool(why), drop)
    if aged:
        return Decision("the authority is aging: its successor is made known", True, bool(why), drop)
    if why:
        return Decision(why, False, True, drop)
    return Decision("an expired authority is forgotten", drop=drop) if drop else Decision()


def _renewal(have: Material, names: Sequence[str], now: float, signer: int, lifetimes: Lifetimes) -> str:
    """Why the server's certificate must be made anew; "" if it need not."""
    if now >= have.end:
        return "the certificate has expired"
    if not _begun_by(have.made, now, lifetimes):
        return f"the certificate begins {_ahead(have.made, now)}"
    if now >= have.made + (have.end - have.made) * 2 / 3:
        return "the certificate is aging"
    if not set(names) <= set(have.names):
        return f"the service's names are {', '.join(sorted(names))}"
    if have.signer != signer:
        return "the new authority is known everywhere by now"
    return ""


def _begun_by(made: float, now: float, lifetimes: Lifetimes) -> bool:
    """Whether clients whose clocks are right take what was made at `made`: ours may have been ahead then."""
    return made - lifetimes.backdate <= now


def _ahead(made: float, now: float) -> str:
    return f"{(made - now) / 3600:.1f} h from now (the clock was ahead when it was made)"


def _signer(authorities: Sequence[Authority], now: float, lifetimes: Lifetimes) -> int:
    """The newest authority that pods know of by now; else the oldest one that still lives, and lives already."""
    known = [i for i, a in enumerate(authorities) if now >= a.made + lifetimes.overlap and a.end > now]
    living = [i for i, a in enumerate(authorities) if a.end > now]
    begun = [i for i in living if _begun_by(authorities[i].made, now, lifetimes)]
    return known[-1] if known else (begun or living)[0]


def _with_former(names: Sequence[str], have: Material | None) -> tuple[str, ...]:
    """`names`, then those that the service had before: pods of plans of that time verify the name that they dial."""
    former = [name for name in (have.names if have else ()) if name not in names]
    return (*names, *former[:FORMER_NAMES])


def renewed(have: Material | None, names: Sequence[str], now: float, lifetimes: Lifetimes) -> tuple[Material, str]:
    """(What there shall be at `now`, why it differs from `have`, "" where it does not)."""
    decision = decide(have, names, now, lifetimes)
    if have is not None and not decision.reason:
        return have, ""
    before = have.authorities if have else ()
    kept = [a for i, a in enumerate(before) if i not in decision.drop]
    if decision.new_authority:
        kept.append(_make_authority(now, lifetimes))
    if have is None or decision.new_certificate:
        return _signed(tuple(kept), _with_former(names, have), now, lifetimes), decision.reason
    signer = kept.index(before[have.signer])
    made = Material(tuple(kept), have.certificate, have.key, have.made, have.end, have.names, signer)
    return made, decision.reason


# ---- making ----------------------------------------------------------------------------------------------------


def _make_authority(now: float, lifetimes: Lifetimes) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"lanefeed report service {_time(now):%Y-%m-%d}")])
    end = now + lifetimes.authority
    made = (
        _begun(name, name, key.public_key(), now, end, lifetimes)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(_pem(made), _key_pem(key), now, end)


def _signed(authorities: tuple[Authority, ...], names: Sequence[str], now: float, lifetimes: Lifetimes) -> Material:
    signer = _signer(authorities, now, lifetimes)
    by = authorities[signer]
    ca = x509.load_pem_x509_certificate(by.certificate.encode())
    ca_key = _load_key(by.key)
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + lifetimes.server, by.end)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lanefeed report service")])
    made = (
        _begun(subject, ca.subject, key.public_key(), now, end, lifetimes)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return Material(authorities, _pem(made), _key_pem(key), now, end, tuple(names), signer)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, end: float, lifetimes: Lifetimes
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now - lifetimes.backdate))
        .not_valid_after(_time(end))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


def _load_key(text: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(text.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not on an elliptic curve")
    return key


# ---- checking --------------------------------------------------------------------------------------------------


def check(material: Material) -> None:
    """Raise ValueError where keys and certificates do not belong together: somebody changed the Secret."""
    for what, certificate, key in (
        *((f"authority {i}", a.certificate, a.key) for i, a in enumerate(material.authorities)),
        ("certificate", material.certificate, material.key),
    ):
        held = x509.load_pem_x509_certificate(certificate.encode()).public_key()
        if held != _load_key(key).public_key():
            raise ValueError(f"the {what} and its key do not belong together")
    server = x509.load_pem_x509_certificate(material.certificate.encode())
    signer = x509.load_pem_x509_certificate(material.authorities[material.signer].certificate.encode())
    try:
        server.verify_directly_issued_by(signer)
    except InvalidSignature:
        raise ValueError(f"authority {material.signer} did not sign the certificate") from None
