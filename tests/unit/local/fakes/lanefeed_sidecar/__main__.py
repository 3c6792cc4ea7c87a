"""`python -m lanefeed_sidecar --config FILE`: ready, or as FAKE_SIDECAR says: exit2, crash-once, never-ready."""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        mode = os.environ.get("FAKE_SIDECAR", "")
        ready = self.path == "/readyz" and mode != "never-ready"
        self.send_response(200 if ready else 503)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    config = json.loads(Path(sys.argv[2]).read_text())
    run_dir = Path(config["run_dir"])
    mode = os.environ.get("FAKE_SIDECAR", "")
    if mode == "exit2":
        print("ConfigError: the arena needs 9 GiB and readAheadBytes allows 1", file=sys.stderr)
        sys.exit(2)
    once = run_dir / "crashed"
    if mode == "crash-once" and not once.exists():
        once.touch()
        sys.exit(1)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    temporary = run_dir / "metrics.tmp"
    temporary.write_text(f"127.0.0.1:{server.server_port}")
    temporary.replace(run_dir / "metrics.addr")
    (run_dir / "feed.sock").touch()
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()


if __name__ == "__main__":
    main()
