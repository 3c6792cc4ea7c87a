"""Says which modules are longer than 400 lines, or name a package registry's host; exits 1 if any."""

import re
import subprocess
import sys
from pathlib import Path

LIMIT = 400
#: Spelled in parts, so that this file does not name one.
HOSTS = re.compile("|".join(["pypi" + r"\.org", "files" + r"\.pythonhosted", "registry" + r"\.npmjs", "ghcr" + r"\.io"]))


def main() -> None:
    """Look at every file that git knows."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    wrong = []
    for name in filter(None, listed):
        path = Path(name)
        if not path.exists() or path.suffix in {".png", ".bin"}:
            continue
        text = path.read_text(errors="replace")
        if HOSTS.search(text):
            wrong.append(f"{name} names a package registry's host")
        lines = text.count("\n")
        if path.suffix == ".py" and "_pb2" not in name and lines > LIMIT:
            wrong.append(f"{name} has {lines} lines: split it ({LIMIT} at most)")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(listed)} files: none over {LIMIT} lines")


if __name__ == "__main__":
    main()
