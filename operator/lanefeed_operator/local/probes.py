"""Questions that a supervisor asks about its sidecar and the coordinator; each answers at once or within a second."""

import socket
from pathlib import Path

__all__ = ["METRICS_NAME", "flushed", "listening", "metrics_address", "metrics_text", "ready", "why_not_ready"]

METRICS_NAME = "metrics.addr"
COMMITS_NAME = "commits.jsonl"
TIMEOUT_SECONDS = 1.0


def metrics_address(run_dir: Path) -> str:
    """host:port of the sidecar's HTTP endpoints, "" before it has written it."""
    try:
        return (run_dir / METRICS_NAME).read_text().strip()
    except OSError:
        return ""


def _get(address: str, path: str) -> tuple[int, str]:
    """Status and body. By hand: http.client costs each supervisor a tenth of a second of its start."""
    host, _, port = address.rpartition(":")
    request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_SECONDS) as connection:
        connection.sendall(request.encode())
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body.decode(errors="replace")


def ready(run_dir: Path) -> bool:
    """Whether /readyz says 200."""
    address = metrics_address(run_dir)
    if not address:
        return False
    try:
        return _get(address, "/readyz")[0] == 200
    except (OSError, ValueError, IndexError):
        return False


def why_not_ready(run_dir: Path) -> str:
    """What /readyz says where it does not say 200; "" where nobody answers."""
    try:
        status, text = _get(metrics_address(run_dir), "/readyz")
    except (OSError, ValueError, IndexError):
        return ""
    return "" if status == 200 else text.strip()


def metrics_text(address: str) -> str:
    """/metrics as text; "" where nobody answers."""
    try:
        status, text = _get(address, "/metrics")
    except (OSError, ValueError, IndexError):
        return ""
    return text if status == 200 else ""


def flushed(run_dir: Path) -> bool:
    """Whether no commit waits to be acknowledged."""
    try:
        return (run_dir / COMMITS_NAME).stat().st_size == 0
    except FileNotFoundError:
        return True


def listening(path: str) -> bool:
    """Whether somebody answers on the Unix socket; True where there is none to ask."""
    if not path:
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(TIMEOUT_SECONDS)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
