"""A Kubernetes API server of a test's own: etcd and kube-apiserver on free ports, nothing else; no root needed.

Real resourceVersions, watches, validation and audit log; no controllers, no nodes, so nothing else writes. It can be
killed and started again, and stopped (SIGSTOP) while its connections stay open. Programs are those of ../shared/kube.
"""

import contextlib
import datetime
import ipaddress
import json
import lzma
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lanefeed_operator.api import crd
from lanefeed_operator.kube.api import ApiError, Kind
from lanefeed_operator.kube.client import Client, connect
from support.ports import free_port

__all__ = ["CRDS", "USERS", "ApiServer", "program", "until"]

ROOT = Path(__file__).resolve().parents[2]
CRDS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
#: Runs kube-apiserver as often as it is killed, while there is no file `down`; ends with the test process. So a server
#: that was started again is no process that a test left behind.
LOOP = """
while kill -0 $PPID; do
  if [ -e down ]; then sleep 0.05; continue; fi
  setpriv --pdeathsig KILL ./kube-apiserver "$@" &
  echo $! > pid
  wait $!
done
"""
#: Each has a kubeconfig of its own: the audit log tells them apart.
USERS = ("admin", "one", "two")
START_SECONDS = 150.0


def until(what: str, check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until `check` gives something true, and give it."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)
    return found


def program(folder: Path) -> Path:
    """kubelite, which is etcd, kube-apiserver and more by the name that it is called by; skips where there is none."""
    state = Path(os.environ.get("KUBE_STATE", "/tmp/kube")) / "bin/kubelite"
    if state.exists():
        return state
    packed = ROOT.parent / "shared/kube/bin/kubelite.xz"
    if not packed.exists():
        reason = f"there is no Kubernetes: neither {state} nor {packed}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    found = folder / "kubelite"
    with lzma.open(packed) as source, found.open("wb") as target:
        while block := source.read(1 << 20):
            target.write(block)
    found.chmod(0o755)
    return found


class ApiServer:
    """See the module. Use `running`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._etcd_port, self._peer_port, self.port = (free_port() for _ in range(3))
        kubelite = program(folder)
        for name in ("etcd", "kube-apiserver"):
            (folder / name).symlink_to(kubelite)
        self._files()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._crd = False
        self.audit = folder / "audit.log"

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path) -> Iterator["ApiServer"]:
        """A server with the CRD and namespaces a and b."""
        server = cls(folder)
        try:
            server._start_etcd()
            server.start()
            server.apply_crd()
            for name in ("a", "b"):
                server.api().create(NAMESPACES, "", {"metadata": {"name": name}})
            yield server
        finally:
            server.close()

    def kubeconfig(self, user: str = "admin") -> Path:
        """For one of USERS; all may do everything."""
        return self.folder / f"{user}.conf"

    def api(self, user: str = "admin") -> Client:
        """A client; its errors tell."""
        return connect(kubeconfig=str(self.kubeconfig(user)))

    # ---- what a test does to it --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start kube-apiserver, also after `kill`, and wait until it is ready."""
        (self.folder / "down").unlink(missing_ok=True)
        if "loop" not in self._processes:
            self._run("loop", "bash", "-c", LOOP, "loop", *self._arguments())
        until("the API server", self._ready, START_SECONDS)
        if self._crd:
            until("the CRD to be served", self._serves_crd)

    def _arguments(self) -> list[str]:
        f = self.folder
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={f}/server.crt",
            f"--tls-private-key-file={f}/server.key",
            f"--token-auth-file={f}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.99.0.0/24",
            "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://test",
            f"--service-account-key-file={f}/server.key",
            f"--service-account-signing-key-file={f}/server.key",
            f"--audit-policy-file={f}/policy.yaml",
            f"--audit-log-path={self.audit}",
            "--shutdown-delay-duration=0",
        ]

    def kill(self) -> None:
        """As a power cut does; it stays away until `start`."""
        (self.folder / "down").touch()
        self._signal(signal.SIGKILL)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It says nothing; its connections stay open."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / "pid").read_text()), number)

    def new_token(self, user: str) -> None:
        """The user's token of before is refused from the next `start` on; its kubeconfig has the new one."""
        tokens = self.folder / "tokens.csv"
        for file in (tokens, self.kubeconfig(user)):
            file.write_text(file.read_text().replace(f"token-{user}", f"token-new-{user}"))

    def apply_crd(self) -> None:
        """The CRD, served."""
        self.api().create(CRDS, "", crd.definition())
        self._crd = True
        until("the CRD to be served", self._serves_crd)

    def remove_crd(self) -> None:
        """The CRD and all jobs."""
        self._crd = False
        found = self.api().get(CRDS, "", f"{crd.PLURAL}.lanefeed.dev")
        self.api().delete(CRDS, "", found["metadata"]["name"], uid=found["metadata"]["uid"])

    def writes(self, user: str) -> list[dict[str, Any]]:
        """What a user wrote with success, by the audit log, the oldest first; events for people and leases left out."""
        found = []
        for line in self.audit.read_text().splitlines():
            entry = json.loads(line)
            ref = entry.get("objectRef") or {}
            kept = ref.get("resource") not in ("events", "leases", "tokenreviews")
            done = (entry.get("responseStatus") or {}).get("code", 500) < 300
            dry = "dryRun" in entry["requestURI"]
            if entry["user"]["username"] == user and kept and done and not dry:
                found.append({"verb": entry["verb"], "at": entry["stageTimestamp"], **ref})
        return found

    def close(self) -> None:
        """The end."""
        if "loop" in self._processes:
            self.kill()
        for process in self._processes.values():
            process.kill()
            process.wait(60)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._run(
            "etcd",
            str(self.folder / "etcd"),
            f"--data-dir={self.folder}/data",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        )

    def _run(self, name: str, *command: str) -> None:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("LANEFEED_")}
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environ)

    def _ready(self) -> bool:
        try:
            self.api().list(NAMESPACES)
        except ApiError:
            return False
        return True

    def _serves_crd(self) -> bool:
        try:
            self.api().list(Kind("lanefeed.dev", "v1alpha1", crd.PLURAL, crd.KIND))
        except ApiError:
            return False
        return True

    def _files(self) -> None:
        """Keys, users, policy."""
        certificate, key = _self_signed()
        (self.folder / "server.crt").write_bytes(certificate)
        (self.folder / "server.key").write_bytes(key)
        (self.folder / "tokens.csv").write_text("".join(f'token-{u},{u},{u},"system:masters"\n' for u in USERS))
        for user in USERS:
            cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": f"{self.folder}/server.crt"}
            document = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": f"token-{user}"}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "current-context": "test",
            }
            self.kubeconfig(user).write_text(yaml.safe_dump(document))
        rules = [
            {"level": "Metadata", "verbs": ["create", "update", "patch", "delete"], "omitStages": ["RequestReceived"]},
            {"level": "None"},
        ]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        (self.folder / "policy.yaml").write_text(yaml.safe_dump(policy))


def _self_signed() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), private
