"""Prometheus' discovery of pods, for Debian's Prometheus, which is built without kubernetes_sd.

`serve` answers as an http_sd endpoint with the targets and labels that kubernetes_sd (role pod) would find, so that a
real Prometheus tries the chart's relabelling. tests/chart/test_on_cluster.py compares it with an implementation that is
not ours (Debian's vmagent, which has kubernetes_sd).
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from lanefeed_operator.kube.api import PODS
from lanefeed_operator.kube.client import connect

__all__ = ["META", "pod_targets", "serve"]

META = "__meta_kubernetes_"


def pod_targets(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """A target for each declared port of each container, init containers too; none while the pod has no address."""
    meta, status = pod["metadata"], pod.get("status") or {}
    address = status.get("podIP")
    if not address:
        return []
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    common = {
        META + "namespace": meta["namespace"],
        META + "pod_name": meta["name"],
        META + "pod_uid": meta["uid"],
        META + "pod_ip": address,
        META + "pod_host_ip": status.get("hostIP", ""),
        META + "pod_node_name": pod["spec"].get("nodeName", ""),
        META + "pod_phase": status.get("phase", ""),
        META + "pod_ready": conditions.get("Ready", "Unknown").lower(),
    }
    for kind in ("labels", "annotations"):
        for key, value in (meta.get(kind) or {}).items():
            name = "".join(c if c.isascii() and c.isalnum() else "_" for c in key)
            common[f"{META}pod_{kind[:-1]}_{name}"] = value
            common[f"{META}pod_{kind[:-1]}present_{name}"] = "true"
    found = []
    for field, init in (("containers", "false"), ("initContainers", "true")):
        for container in pod["spec"].get(field) or ():
            own = {
                META + "pod_container_name": container["name"],
                META + "pod_container_image": container["image"],
                META + "pod_container_init": init,
            }
            for port in container.get("ports") or [None]:
                labels, target = {**common, **own}, address
                if port:
                    target = f"{address}:{port['containerPort']}"
                    labels[META + "pod_container_port_name"] = port.get("name", "")
                    labels[META + "pod_container_port_number"] = str(port["containerPort"])
                    labels[META + "pod_container_port_protocol"] = port.get("protocol", "TCP")
                found.append({"targets": [target], "labels": labels})
    return found


@contextmanager
def serve(kubeconfig: Path) -> Iterator[str]:
    """The address of an endpoint `?selector=LABELS`, for http_sd_configs."""
    client = connect(kubeconfig=str(kubeconfig))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            selector = parse_qs(urlparse(self.path).query).get("selector", [""])[0]
            pods = client.list(PODS, labels=selector)
            body = json.dumps([target for pod in pods for target in pod_targets(pod)]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
