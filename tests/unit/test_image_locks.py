"""images/*.lock name versions and hashes, so that an image holds what was looked at, whatever a registry says."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _tool():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("lock_images", ROOT / "tools/lock_images.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("image", ["operator", "sidecar"])
def test_every_package_has_a_version_and_a_hash(image: str) -> None:
    lock = (ROOT / f"images/{image}.lock").read_text()
    _, wanted = _tool().read(lock)
    assert len(wanted) >= 12
    assert [name for name, (_, hashes) in wanted.items() if not hashes] == []
    # pip checks hashes of all or of none: a line that is read by nobody here would turn checking off, or the build.
    assert all(
        re.match(r"#|[A-Za-z0-9._-]+==\S+ \\$|    --hash=sha256:[0-9a-f]{64}( \\)?$", x) for x in lock.splitlines()
    )


def test_a_lock_is_written_as_it_was_read_and_another_machine_adds_its_own() -> None:
    tool, one, two = _tool(), "1" * 64, "2" * 64
    comments, wanted = tool.read("# why\na==1\nb-c==2 \\\n    --hash=sha256:" + two + "\n")
    assert wanted == {"a": ("1", set()), "b-c": ("2", {two})}
    made = tool.text(comments, wanted, {"a": one, "b-c": one})
    assert tool.read(made) == (["# why"], {"a": ("1", {one}), "b-c": ("2", {one, two})})
    assert tool.text(*tool.read(made), {"a": one, "b-c": two}) == made
