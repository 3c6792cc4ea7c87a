"""Asks a real API server: `KUBECONFIG=... python tests/unit/crd/on_server.py`, kubectl on the PATH; 1 on a fault.

Applies the CRD, reads `kubectl explain`, has every example and every rendered object dry-run by the server (pods
against the pod security standard `restricted`), sees wrong manifests and forbidden changes refused in the words of
`wrong`, and a full status stored as it was written. PodGroups are dry-run by the definitions of the schedulers that the
cluster has, else by ours (unit.render.podgroups), which are taken away again.
Leaves the CRD behind, and no object of it. Not a test of its own: the e2e suite calls it.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / part) for part in ("operator", "trainer_lib", "tests")]

from lanefeed_operator.api import crd  # noqa: E402
from lanefeed_operator.api.load import load_job  # noqa: E402
from lanefeed_operator.api.spec import Provider  # noqa: E402
from lanefeed_operator.render import pod_group  # noqa: E402
from unit.crd.statuses import full_status  # noqa: E402
from unit.crd.wrong import CHANGES, WRONG, changed, good  # noqa: E402
from unit.render import podgroups  # noqa: E402
from unit.render.objects import everything  # noqa: E402

NAMESPACE = "crd-check"
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
FOREIGN = {"managedBy": "lanefeed.dev/nobody"}
faults: list[str] = []


def kubectl(*arguments: str, document: Any = None) -> tuple[int, str]:
    """Exit code and all output."""
    text = None if document is None else json.dumps(document)
    found = subprocess.run(
        ["kubectl", *arguments], input=text, capture_output=True, text=True, timeout=100, check=False
    )
    return found.returncode, found.stdout + found.stderr


def need(what: str, *arguments: str, document: Any = None, words: tuple[str, ...] = (), refused: bool = False) -> str:
    """One call that must be accepted (or refused), with these words in its answer."""
    code, text = kubectl(*arguments, document=document)
    missing = [word for word in words if word not in text]
    if (code != 0) is not refused or missing or (not refused and "Warning" in text):
        faults.append(f"{what}: exit code {code}, missing {missing}:\n{text}")
        print("FAULT", faults[-1], flush=True)
    return text


def main() -> None:
    """All of it."""
    server_side = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    dry = ("apply", "--dry-run=server", "--server-side", "--validate=strict", "-n", NAMESPACE, "-f", "-")
    need("CRD", *server_side, document=crd.definition(), words=("serverside-applied",))
    if faults:
        sys.exit("the server does not take the CRD")
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=90s")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    namespace["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    need("namespace", *server_side, document=namespace)
    deadline = time.monotonic() + 60
    while kubectl("get", "stj")[0] and time.monotonic() < deadline:
        # Discovery follows a moment after the condition.
        time.sleep(0.2)
    need("wait", "wait", "--for=condition=established", "--timeout=60s", f"crd/{crd.PLURAL}.lanefeed.dev")
    code, text = kubectl("get", "crd", f"{crd.PLURAL}.lanefeed.dev", "-o", "json")
    conditions = json.loads(text)["status"]["conditions"] if code == 0 else []
    faults.extend(f"not structural: {c['message']}" for c in conditions if c["type"] == "NonStructuralSchema")
    for path in ("spec", "spec.batching", "spec.sidecar.readAheadBytes", "status.ledger.epochs"):
        print(need("explain", "explain", f"stj.{path}", words=("DESCRIPTION",)))
    try:
        _accepted(server_side, dry)
        _groups(dry)
        _refused()
        _status()
    finally:
        # An operator on this cluster would take the nonsense in its status for a job.
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    if faults:
        sys.exit(f"{len(faults)} faults")
    print("no fault")


def _accepted(server_side: tuple[str, ...], dry: tuple[str, ...]) -> None:
    for file in sorted(ROOT.glob("examples/*/*.yaml")):
        job = load_job(file.read_text(), file)
        given = json.loads(job.model_dump_json(by_alias=True, exclude_unset=True))
        given |= {"apiVersion": job.api_version, "kind": job.kind}
        given["metadata"].pop("namespace", None)
        if not job.spec.template.trainer.image:
            need(f"{file}", *dry, document=given, words=("image is not set",), refused=True)
            continue
        stored = need(f"{file}", *dry, "-o", "json", document=given)
        if not faults:
            load_job(stored)  # what the server fills in is what the models say
        meta = job.metadata.model_copy(update={"namespace": NAMESPACE, "uid": UID})
        for name, made in everything(job.model_copy(update={"metadata": meta})).items():
            need(f"{file.name} {name}", *dry, document=made)
            if made["kind"] == "Job":
                template = made["spec"]["template"]
                pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", **template["metadata"]}}
                pod["spec"].pop("serviceAccountName", None)
                pod["spec"].pop("priorityClassName", None)
                need(f"{file.name} {name} pod", *dry, document=pod)
    # An operator on this cluster leaves it alone.
    need("good", *server_side, "-n", NAMESPACE, document=good() | {"spec": good()["spec"] | FOREIGN})
    need("scale", "scale", "stj/good", "--replicas=4", "-n", NAMESPACE, words=("scaled",))
    need("scale back", "scale", "stj/good", "--replicas=2", "-n", NAMESPACE, words=("scaled",))
    need("scale wrong", "scale", "stj/good", "--replicas=3", "-n", NAMESPACE, words=("not a multiple",), refused=True)
    print(need("get", "get", "stj", "-n", NAMESPACE, words=("STATE", "REASON", "STALL%", "AGE")))


def _groups(dry: tuple[str, ...]) -> None:
    """A gang of each kind: its PodGroup, and its pods' Job."""
    for provider in (Provider.VOLCANO, Provider.COSCHEDULING):
        definition = podgroups.definition(provider)
        name, own = f"crd/{definition['metadata']['name']}", False
        if kubectl("get", name)[0]:
            need(f"{name}", "create", "-f", "-", document=definition)
            own = True
        try:
            need(f"{name} wait", "wait", "--for=condition=established", "--timeout=60s", name)
            deadline = time.monotonic() + 60
            while kubectl("get", definition["metadata"]["name"], "-n", NAMESPACE)[0] and time.monotonic() < deadline:
                time.sleep(0.2)
            job = load_job(
                json.dumps(good() | {"spec": good()["spec"] | {"scheduling": {"gang": {"provider": provider}}}})
            )
            meta = job.metadata.model_copy(update={"namespace": NAMESPACE, "uid": UID})
            pods = everything(job.model_copy(update={"metadata": meta}))["pods"]
            group = pod_group(job.model_copy(update={"metadata": meta}), pods)
            need(f"{provider} group", *dry, document=group, words=("serverside-applied",))
            need(f"{provider} pods", *dry, document=pods)
            bad = {**(group or {}), "spec": {"minMember": 1, "nobodysField": 1}}
            need(f"{provider} wrong", *dry, document=bad, words=("nobodysField",), refused=True)
        finally:
            if own:
                kubectl("delete", name, "--timeout=60s")


def _refused() -> None:
    create = ("create", "--dry-run=server", "--validate=strict", "-n", NAMESPACE, "-f", "-")
    replace = ("replace", "--dry-run=server", "--validate=strict", "-n", NAMESPACE, "-f", "-")
    for name, (path, value, words) in WRONG.items():
        document = changed(path, value)
        if not name.endswith("name"):
            document["metadata"]["name"] = f"wrong-{name}"
        print(f"{name}: {need(name, *create, document=document, words=words, refused=True).strip()}")
    for name, (path, value, words) in CHANGES.items():
        document = changed(path, value)
        document["spec"] = FOREIGN | document["spec"]
        text = need(name, *replace, document=document, words=words, refused=True)
        print(f"{name}: {text.strip()}")


def _status() -> None:
    """A status with everything in it is stored as it was written: nothing pruned, nothing refused."""
    wanted = full_status().to_dict() | {"selector": "lanefeed.dev/job=good"}
    patch = ("patch", "stj/good", "-n", NAMESPACE, "--subresource=status", "--type=merge", "-o", "json", "-p")
    stored = json.loads(need("status", *patch, json.dumps({"status": wanted})))["status"]
    if stored != wanted:
        faults.append(f"the status was changed by the server: {set(wanted) ^ set(stored) or 'in its depth'}")
    need(
        "scale status",
        "get",
        "--raw",
        f"/apis/lanefeed.dev/v1alpha1/namespaces/{NAMESPACE}/{crd.PLURAL}/good/scale",
        words=('"selector":"lanefeed.dev/job=good"',),
    )


if __name__ == "__main__":
    main()
