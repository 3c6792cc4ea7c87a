"""What `helm test` runs, in the operator's own image: metrics answer, and the report service speaks TLS.

Arguments: host, report port, metrics port. The Service may need a few seconds after an install.
"""

import socket
import ssl
import sys
import time
import urllib.request

DEADLINE = time.monotonic() + 30


def metrics(host: str, port: int) -> str:
    """The operator's version, from its metrics."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = [line for line in text.splitlines() if line.startswith("lanefeed_operator_build_info{")]
    if not found:
        raise OSError(f"{host}:{port}/metrics has no lanefeed_operator_build_info: is that the operator?")
    return found[0]


def report(host: str, port: int) -> str:
    """The report service's TLS version. Who it is, sidecars check with the CA in their pods; here it is spoken to."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, port), timeout=5) as plain, context.wrap_socket(plain) as secure:
        if secure.selected_alpn_protocol() != "h2":
            raise OSError(f"{host}:{port} speaks TLS but no HTTP/2: is that the report service?")
        return str(secure.version())


def main() -> None:
    """Ask each until it answers or the time is over."""
    host, report_port, metrics_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for what, ask, port in (("metrics", metrics, metrics_port), ("report service", report, report_port)):
        while True:
            try:
                print(f"{what} at {host}:{port}: {ask(host, port)}", flush=True)
                break
            except OSError as error:
                if time.monotonic() > DEADLINE:
                    sys.exit(f"{what} at {host}:{port} does not answer: {error}; see `kubectl logs deployment/...`")
                time.sleep(1)


if __name__ == "__main__":
    main()
