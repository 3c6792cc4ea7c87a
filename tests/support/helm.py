"""Helm and promtool for tests: found, or unpacked from ../shared/kube, or a reason why not.

In CI (`CI=true`) a tool that is missing fails the test: a chart that nobody rendered must not look tested. With
LANEFEED_SKIP_E2E too, where there is no ../shared/kube, it is skipped.
"""

import atexit
import functools
import lzma
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/lanefeed"
#: The oldest Kubernetes that the chart takes is 1.33.6; this is the one of ../shared/kube.
KUBE_VERSION = "1.34.4"
NAMESPACE = "lanefeed-system"


@functools.cache
def helm() -> str:
    """Path of the program."""
    state = Path(os.environ.get("KUBE_STATE", "/tmp/kube"))
    for found in (os.environ.get("HELM"), shutil.which("helm"), state / "bin/helm"):
        if found and Path(found).exists():
            return str(found)
    packed = ROOT.parent / "shared/kube/bin/helm.xz"
    if not packed.exists():
        missing(f"there is no helm on the PATH, in {state}/bin, nor {packed}")
    folder = tempfile.mkdtemp(prefix="lanefeed-helm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = Path(folder) / "helm"
    with lzma.open(packed) as source, program.open("wb") as target:
        shutil.copyfileobj(source, target)
    program.chmod(0o755)
    return str(program)


@functools.cache
def promtool() -> str:
    """Path of the program."""
    return shutil.which("promtool") or missing("there is no promtool: install Debian's package prometheus")


def missing(reason: str) -> Any:
    """Skip; fail in CI."""
    if os.environ.get("CI") and not os.environ.get("LANEFEED_SKIP_E2E"):
        pytest.fail(reason)
    pytest.skip(reason)


def run(*arguments: str, text: str | None = None, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    """A command with its output."""
    return subprocess.run(arguments, input=text, capture_output=True, text=True, timeout=timeout, check=False)


def template(*arguments: str, values: dict[str, Any] | None = None, release: str = "lf") -> list[dict[str, Any]]:
    """What the chart renders, hooks too. Fails the test with helm's words."""
    done = try_template(*arguments, values=values, release=release)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def try_template(
    *arguments: str, values: dict[str, Any] | None = None, release: str = "lf", version: str = KUBE_VERSION
) -> subprocess.CompletedProcess[str]:
    """As `template`, failures too."""
    text = yaml.safe_dump(values or {})
    common = ("-n", NAMESPACE, "--kube-version", version, "-f", "-")
    return run(helm(), "template", release, str(CHART), *common, *arguments, text=text)


def one(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The object of this kind (and of this name's end)."""
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(name)]
    assert len(found) == 1, f"{len(found)} of {kind} {name}: {[o['metadata']['name'] for o in found]}"
    return found[0]
