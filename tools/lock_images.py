"""Writes into images/IMAGE.lock the sha256 of each wheel: `python tools/lock_images.py [--add] operator sidecar`.

pip then takes no other file under that name and version (hash-checking mode), whatever a registry or a mirror says.
Run it after a version was raised. Hashes are those of this architecture and Python; --add keeps those that are there,
for another architecture. The example trainer's lock has none: builds of torch of one version differ by where they come.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINE = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?P<rest>.*)$")


def main() -> None:
    """Each image that is named."""
    images = [one for one in sys.argv[1:] if one != "--add"]
    if not images:
        sys.exit(__doc__)
    for image in images:
        lock = ROOT / f"images/{image}.lock"
        comments, wanted = read(lock.read_text())
        if "--add" not in sys.argv:
            wanted = {name: (version, set()) for name, (version, _) in wanted.items()}
        found = hashes(wanted)
        missing = sorted(set(wanted) - set(found))
        if missing:
            sys.exit(f"images/{image}.lock: no wheel came for {', '.join(missing)}")
        lock.write_text(text(comments, wanted, found))
        print(f"images/{image}.lock: {len(found)} wheels")


def read(lock: str) -> tuple[list[str], dict[str, tuple[str, set[str]]]]:
    """Comments, and name -> (version, hashes that are known)."""
    comments: list[str] = []
    wanted: dict[str, tuple[str, set[str]]] = {}
    for line in lock.replace("\\\n", " ").splitlines():
        match = _LINE.match(line)
        if match:
            known = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", match["rest"]))
            wanted[match["name"]] = (match["version"], known)
        elif line.strip():
            comments.append(line)
    return comments, wanted


def hashes(wanted: dict[str, tuple[str, set[str]]]) -> dict[str, str]:
    """Name -> sha256 of the wheel that pip takes for this machine."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = [f"{name}=={version}" for name, (version, _) in wanted.items()]
        options = ["--no-deps", "--only-binary", ":all:", "--dest", folder]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *options, *pinned], check=True)
        files = {_plain(file.name.split("-")[0]): file for file in Path(folder).glob("*.whl")}
        return {
            name: hashlib.sha256(files[_plain(name)].read_bytes()).hexdigest()
            for name in wanted
            if _plain(name) in files
        }


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def text(comments: list[str], wanted: dict[str, tuple[str, set[str]]], found: dict[str, str]) -> str:
    """The lock file."""
    lines = list(comments)
    for name, (version, known) in wanted.items():
        all_ = [f"    --hash=sha256:{one}" for one in sorted(known | {found[name]})]
        lines.append(" \\\n".join([f"{name}=={version}", *all_]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
