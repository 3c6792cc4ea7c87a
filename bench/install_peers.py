"""Makes the peers' own environments and data: `make bench-peers`. Never the product's: their pins must not touch ours.

Three environments, since MosaicML Streaming needs an older NumPy and fkat an older pyarrow than the rest. What cannot
be installed is named and left out; `peers_python` then says None for it, and `make bench` measures the others. Data in
the peers' own formats (6 GB, ten minutes with the installation) are made by `bench.peer_data` in these environments.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import peer_data, workloads  # noqa: E402

__all__ = ["ENVIRONMENTS", "installed", "peers_python", "peers_venv"]

TORCH = "torch==2.13.0"
#: Ending of the environment's folder -> peer -> what pip installs for it.
ENVIRONMENTS: dict[str, dict[str, list[str]]] = {
    "": {
        "tdnodes": ["numpy", "pillow", "pyarrow", "torchdata"],
        "sdl": ["torchdata"],
        "torchdl": ["numpy", "pillow", "pyarrow"],
        "spdl": ["spdl-core", "spdl-io"],
        "wds": ["webdataset"],
        "lit": ["litdata"],
        "hf": ["datasets"],
    },
    "-mds": {"mosaic": ["mosaicml-streaming", "pyarrow"]},
    "-fkat": {"fkat": ["fkat==0.1.2"]},
}
#: They come with a peer, cannot load beside the CPU build of torch, and the workloads need neither.
UNWANTED = ["torchvision", "torchaudio"]


def peers_venv(ending: str = "") -> Path:
    """$LANEFEED_PEERS_VENV, by default ~/.cache/lanefeed-bench/peers-venv; `ending` names one of the three."""
    home = Path(os.environ.get("LANEFEED_PEERS_VENV", "~/.cache/lanefeed-bench/peers-venv")).expanduser()
    return home.with_name(home.name + ending)


def _mark(ending: str, peer: str) -> Path:
    return peers_venv(ending) / f".installed-{peer}"


def peers_python(peer: str) -> Path | None:
    """The interpreter that has the peer, or None where it was not installed."""
    for ending, peers in ENVIRONMENTS.items():
        if peer in peers and _mark(ending, peer).exists():
            return peers_venv(ending) / "bin" / "python"
    return None


def installed() -> list[str]:
    """The peers that can be measured here."""
    return [peer for peers in ENVIRONMENTS.values() for peer in peers if peers_python(peer)]


def _environment(ending: str, peers: dict[str, list[str]]) -> None:
    target = peers_venv(ending)
    print(f"peers' environment: {target}", flush=True)
    venv.create(target, with_pip=True)
    pip = [str(target / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    constraints = target / "constraints.txt"
    constraints.write_text(TORCH + "\n")
    # torch first and pinned, so that no later resolve pulls a CUDA build.
    subprocess.run([*pip, "install", TORCH], check=True)
    for peer, packages in peers.items():
        _mark(ending, peer).unlink(missing_ok=True)
        if subprocess.run([*pip, "install", "-c", str(constraints), *packages], check=False).returncode:
            print(f"left out: {peer}, since pip could not install {' '.join(packages)} (see above)", flush=True)
            continue
        _mark(ending, peer).touch()
    subprocess.run([*pip, "uninstall", "-y", *UNWANTED], check=True)
    with (target / "versions.txt").open("w") as file:
        subprocess.run([*pip[:-1], "list"], check=True, stdout=file)


def _data(peer: str, stubs: Path) -> None:
    """The peer's files of each workload that are not there, made by its own writer."""
    form, names = peer_data.FORMATS[peer]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(stubs)])}
    for name in names:
        if peer_data.missing(peer, name):
            print(f"making {name} as {form}", flush=True)
            command = [str(peers_python(peer)), "-m", "bench.peer_data", form, name]
            if subprocess.run(command, env=env, cwd=ROOT, check=False).returncode:
                print(f"left out: {peer} on {name}, since its files could not be made (see above)", flush=True)


def main() -> None:
    """Make the environments and the data; a second call repairs them."""
    from bench.adapters.peer import peers_folder

    for ending, peers in ENVIRONMENTS.items():
        if "--data" not in sys.argv:
            _environment(ending, peers)
    for name in workloads.WORKLOADS:
        workloads.ensure(name)
    for peer in peer_data.FORMATS:
        if peers_python(peer):
            _data(peer, peers_folder() / "stubs")
    print(f"installed: {' '.join(installed())}; versions in versions.txt of each", file=sys.stderr)


if __name__ == "__main__":
    main()
