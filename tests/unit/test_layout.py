"""The shape of the repository: what `operator/` must not hold, module length, and who can be imported without what."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: What each package must do without, as an image that holds only that package does.
WITHOUT = {
    "lanefeed_core": ["torch", "pyarrow", "grpc", "pydantic", "yaml", "prometheus_client", "xxhash", "typer", "rich"],
    "lanefeed": ["torch", "pyarrow", "pydantic", "yaml", "prometheus_client", "xxhash", "typer", "rich"],
    "lanefeed_sidecar": ["torch", "pydantic", "yaml", "typer", "rich"],
    "lanefeed_operator": ["torch", "pyarrow", "xxhash", "prometheus_client"],
}

BLOCKER = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is blocked by this test", name=name)

BLOCKED = set(sys.argv[2].split(","))
sys.meta_path.insert(0, Blocker())
__import__(sys.argv[1])
"""

#: Each leaks one thing; the fixture in conftest.py must name it.
LEAKS = """
import os, subprocess, sys
from pathlib import Path

kept = []

def test_process():
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))

def test_orphan():
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(601)'])"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_file():
    Path(os.environ["LANEFEED_SHM_ROOT"], "leak").write_text("x")

def test_open_file():
    path = Path(os.environ["LANEFEED_SHM_ROOT"], "arena")
    kept.append(path.open("w"))
    path.unlink()

def test_descriptors():
    kept.extend(os.pipe() for _ in range(8))

def test_clean():
    pass
"""


def python(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python on `args`."""
    return subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, timeout=200)


def test_operator_is_the_standard_librarys() -> None:
    """Also with the repository's root first on the path."""
    done = python("-c", "import operator, os; print(operator.__file__ == os.__file__.replace('os.py', 'operator.py'))")
    assert done.stdout.strip() == "True", done.stdout + done.stderr


def test_operator_folder_holds_its_package_alone() -> None:
    """No __init__.py beside the package, no test or conftest anywhere below: either would shadow or confuse."""
    below = [p.relative_to(ROOT) for p in (ROOT / "operator").rglob("*.py")]
    tests = [p for p in below if re.fullmatch(r"conftest\.py|test_.*\.py|.*_test\.py", p.name)]
    outside = [p for p in below if p.parts[1] != "lanefeed_operator"]
    assert not tests
    assert not outside


def test_module_length_and_registry_hosts() -> None:
    """At most 400 lines a module; the index that pip uses is the environment's business."""
    done = python("tools/check_modules.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", sorted(WITHOUT))
def test_import_without_what_the_image_lacks(package: str) -> None:
    """Each package imports where only its own dependencies are installed."""
    done = python("-c", BLOCKER, package, ",".join(WITHOUT[package]))
    assert done.returncode == 0, done.stderr


def test_blocker_blocks() -> None:
    """The tooth of the test above."""
    done = python("-c", BLOCKER, "pyarrow", "pyarrow")
    assert done.returncode != 0
    assert "pyarrow is blocked by this test" in done.stderr


#: Reading the variable; giving it to a process that a test starts is another thing.
TAKES_KUBECONFIG = re.compile(r"""environ(\.get\(|\[)["']KUBECONFIG["']|getenv\(["']KUBECONFIG["']""")


def test_no_test_takes_the_cluster_of_whoever_runs_it() -> None:
    """`make test` on a platform engineer's machine must not make namespaces in production."""
    assert TAKES_KUBECONFIG.search('os.environ.get("KUBECONFIG", "/tmp/kube/admin.conf")')
    files = [file for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__)]
    assert [str(file) for file in files if TAKES_KUBECONFIG.search(file.read_text())] == []


def test_leftovers_are_found(tmp_path: Path) -> None:
    """The tooth of conftest.py: every planted leak is reported, and a clean test is not."""
    folder = tmp_path / "integration"
    folder.mkdir()
    guard = (ROOT / "tests" / "conftest.py").read_text()
    assert "\nGRACE_SECONDS = 30.0\n" in guard
    (tmp_path / "conftest.py").write_text(guard.replace("\nGRACE_SECONDS = 30.0\n", "\nGRACE_SECONDS = 0.2\n"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_leaks.py").write_text(LEAKS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA", "integration"]
    env = os.environ | {"COLUMNS": "1000"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as run:
        output = run.communicate(timeout=200)[0]
    errors = dict(re.findall(r"^ERROR \S+::test_(\w+) - (?:AssertionError: )?(.*)$", output, re.MULTILINE))
    assert set(errors) == {"process", "orphan", "file", "open_file", "descriptors"}, output
    assert "processes still run" in errors["process"]
    assert "processes still run" in errors["orphan"]
    assert "files left in tmpfs" in errors["file"]
    assert "still open" in errors["open_file"]
    assert "more descriptors than before" in errors["descriptors"]
    assert not Path(f"/dev/shm/lanefeed-test-{run.pid}").exists()
