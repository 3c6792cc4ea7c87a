"""Says which modules are longer than 400 lines, and which files name a package registry's host; exits 1 if any."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 400
#: Spelled in parts, so that this file does not name one.
HOSTS = re.compile("|".join(["pypi" + r"\.org", r"pytho" + r"nhosted", "registry" + r"\.npmjs", "ghcr" + r"\.io"]))


def main() -> None:
    """Look at every file that git knows."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    wrong = []
    for name in filter(None, listed):
        path = ROOT / name
        if not path.is_file() or path.suffix in {".png", ".bin"}:
            continue
        text = path.read_text(errors="replace")
        if HOSTS.search(text):
            wrong.append(f"{name} names a package registry's host")
        lines = len(text.splitlines())
        if path.suffix == ".py" and "_pb2" not in name and lines > LIMIT:
            wrong.append(f"{name} has {lines} lines: split it ({LIMIT} at most)")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(listed) - 1} files: no module over {LIMIT} lines, no registry host named")


if __name__ == "__main__":
    main()
