"""Makes the peers' own environment: `make bench-peers`. Never the product's: their pins must not touch ours."""

import os
import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["peers_python", "peers_venv"]

TORCH = "torch==2.13.0"
PACKAGES = ["numpy", "pyarrow", "torchdata", "spdl-core", "spdl-io"]
#: They come with a peer, cannot load beside the CPU build of torch, and W2 and W4 need neither.
UNWANTED = ["torchvision", "torchaudio"]


def peers_venv() -> Path:
    """$LANEFEED_PEERS_VENV, by default ~/.cache/lanefeed-bench/peers-venv."""
    return Path(os.environ.get("LANEFEED_PEERS_VENV", "~/.cache/lanefeed-bench/peers-venv")).expanduser()


def peers_python() -> Path | None:
    """The interpreter of the peers' environment, or None where it was not made."""
    python = peers_venv() / "bin" / "python"
    return python if (peers_venv() / ".installed").exists() else None


def main() -> None:
    """Make the environment; a second call repairs it."""
    target = peers_venv()
    print(f"peers' environment: {target}")
    venv.create(target, with_pip=True)
    pip = [str(target / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    constraints = target / "constraints.txt"
    constraints.write_text(TORCH + "\n")
    # torch first and pinned, so that no later resolve pulls a CUDA build.
    subprocess.run([*pip, "install", TORCH], check=True)
    subprocess.run([*pip, "install", "-c", str(constraints), *PACKAGES], check=True)
    subprocess.run([*pip, "uninstall", "-y", *UNWANTED], check=True)
    subprocess.run([*pip, "list"], check=True, stdout=(target / "versions.txt").open("w"))
    (target / ".installed").touch()
    print(f"installed: {' '.join(PACKAGES)}; versions in {target / 'versions.txt'}", file=sys.stderr)


if __name__ == "__main__":
    main()
