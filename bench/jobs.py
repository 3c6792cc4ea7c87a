"""What `make bench` runs: each job is one cold process; which of them there are, and which fit into the time.

Called by `bench.run`, which starts them. Ours and the limits come first in importance, then the peers' rates, then what
peers do beside a training step: where time is short, a round leaves out from the end.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench import decoded, peer_data
from bench.adapters.peer import peers_folder
from bench.install_peers import peers_python
from bench.one import Request

__all__ = ["PEER_OPTIONS", "Job", "Wanted", "fitting", "make_jobs", "single_jobs", "why_left_out"]

#: The best options of each peer in ../shared/research/peer-bench.md, for {threads} cores.
PEER_OPTIONS: dict[str, dict[str, Any]] = {
    "tdnodes": {"threads": "{threads}"},
    "spdl": {"where": "arena", "threads": "{threads}", "whole": 1},
    "sdl": {"workers": "{threads}", "stateful": 1},
    "torchdl": {"workers": "{threads}", "whole": 1, "prefetch": 2},
    "wds": {"workers": "{threads}"},
    "mosaic": {"workers": "{threads}"},
    "lit": {"workers": 0},
    "hf": {"style": "slice", "workers": 0},
    "fkat": {"style": "well", "shards": 2, "tensors": 1},
}
#: Where they differ.
OPTIONS_OF: dict[tuple[str, str], dict[str, Any]] = {
    ("lit", "W2"): {"workers": "{threads}"},
    # Its own decoder needs FFmpeg's libraries, and is no faster.
    ("spdl", "W3"): {"where": "main", "threads": "{threads}", "native": False},
}
#: Not measured, and why.
LEFT_OUT = {
    ("sdl", "W2"): "24 ms a batch of 73 tensors: it would say nothing that W4 does not",
    ("wds", "W2"): "a tar file of 4 million samples is not what its users would make of a table",
    ("sdl", "W3"): "Pillow in its workers takes the time, as in the DataLoader's",
    **{
        (
            peer,
            "W3",
        ): "it would read the same JPEGs out of files of its own, and decode them with Pillow as the others do"
        for peer in ("wds", "mosaic", "lit", "hf", "fkat")
    },
}
#: Of pixels: the cache is as good as the disk, which is not what is measured here.
UNCACHED = ("W3",)
#: Windows of all lanes end together, which for images takes half a second: a measuring window holds many.
WINDOWS = {"W3": 4.0}
STEP_MS = 2.0
#: Seconds that a job is taken to need before it has run.
GUESS_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class Job:
    """One process to run in each round."""

    key: str
    request: Request
    python: str = sys.executable
    module: str = "bench.one"
    #: What is left out last has 0.
    rank: int = 0

    @property
    def ours(self) -> bool:
        """Whether it runs in our own environment: it must not fail."""
        return self.python == sys.executable


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for."""

    workloads: Sequence[str]
    seconds: float
    threads: int
    quick: bool
    state_path: str


def make_jobs(wanted: Wanted) -> list[Job]:
    """The jobs of one round."""
    base = Request(loader="lanefeed", workload="W4", seconds=wanted.seconds, options={"threads": wanted.threads})
    jobs = [*_rates(base, wanted), *_starts(base, wanted)]
    if not wanted.quick:
        jobs += [*_ranks(base), *_peers(base, wanted)]
    return jobs


def _rates(base: Request, wanted: Wanted) -> Iterator[Job]:
    for name in wanted.workloads:
        here = replace(base, workload=name, seconds=_seconds(base, name))
        yield Job(f"decode.{name}", replace(here, loader="decode"), module="bench.limits")
        yield Job(f"lanefeed.{name}", here)
        if not wanted.quick and name not in UNCACHED:
            cached = {**base.options, "cache_dir": str(decoded.filled(name)), "cache_bytes": decoded.BYTES}
            yield Job(f"cached.{name}", replace(here, options=cached))
            yield Job(f"caching.{name}", replace(here, options={**cached, "cache_dir": decoded.FRESH}))
    if not wanted.quick and "W2" in wanted.workloads:
        yield Job("matrices.W2", replace(base, workload="W2", options={**base.options, "matrices": True}))
    for step in ("busy", "sleep"):
        yield Job(f"{step}.lanefeed.W4", replace(base, step=step, step_ms=STEP_MS))


def _starts(base: Request, wanted: Wanted) -> Iterator[Job]:
    yield Job("cold", replace(base, mode="first"))
    yield Job("resume", replace(base, mode="resume", state_path=wanted.state_path))
    yield Job("warm", replace(base, mode="warm"), module="bench.warm")
    if not wanted.quick:
        for mode in ("warm_resume", "warm_seek"):
            yield Job(mode, replace(base, mode=mode), module="bench.warm")


def _ranks(base: Request) -> Iterator[Job]:
    """One rank and two on one sidecar, each with W4's batch: the same lanes and the same decoding for both."""
    for ranks in (1, 2):
        options = {**base.options, "ranks": ranks, "lanes": 16, "tensors": "torch"}
        yield Job(f"ranks{ranks}", replace(base, options=options), module="bench.bed")


def _peers(base: Request, wanted: Wanted) -> Iterator[Job]:
    if not peers_folder().exists():
        return
    for number, peer in enumerate(PEER_OPTIONS):
        python = str(peers_python(peer) or "")
        for name in wanted.workloads:
            if not why_left_out(peer, name):
                options, seconds = _options(peer, name, wanted.threads), _seconds(base, name)
                request = replace(base, loader=peer, workload=name, options=options, seconds=seconds)
                yield Job(f"{peer}.{name}", request, python, rank=1 + (number > 3))
        for step in ("busy", "sleep"):
            if not why_left_out(peer, "W4"):
                options = _options(peer, "W4", wanted.threads)
                request = replace(base, loader=peer, options=options, step=step, step_ms=STEP_MS)
                rank = 3 + (number > 3) + (step == "sleep")
                yield Job(f"{step}.{peer}.W4", request, python, rank=rank)


def _seconds(base: Request, name: str) -> float:
    return base.seconds * WINDOWS.get(name, 1.0)


def _options(peer: str, name: str, threads: int) -> dict[str, Any]:
    options = OPTIONS_OF.get((peer, name), PEER_OPTIONS[peer])
    return {key: threads if value == "{threads}" else value for key, value in options.items()}


def why_left_out(peer: str, name: str) -> str:
    """Why a peer is not measured on a workload; "" where it is."""
    if (peer, name) in LEFT_OUT:
        return LEFT_OUT[peer, name]
    if not peers_folder().exists():
        return f"the shared adapters are not at {peers_folder()}: set LANEFEED_PEERS"
    if peers_python(peer) is None:
        return "it is not installed: make bench-peers says why"
    if peer_data.missing(peer, name):
        return f"its {peer_data.FORMATS[peer][0]} files are not made: make bench-peers"
    return ""


def single_jobs() -> list[Job]:
    """What is long and steady, and runs once: footers, and the store behind a proxy."""
    base = Request(loader="lanefeed", workload="W4")
    return [Job("footers", base, module="bench.footers"), Job("s3", base, module="bench.remote")]


def fitting(jobs: Sequence[Job], took: Mapping[str, float], seconds: float) -> list[Job]:
    """The jobs of a round that fit into `seconds`, by how long each `took`; the least important go first."""
    kept = sorted(jobs, key=lambda job: job.rank)
    while kept and kept[-1].rank and sum(took.get(job.key, GUESS_SECONDS) for job in kept) > seconds:
        kept.pop()
    keys = {job.key for job in kept}
    return [job for job in jobs if job.key in keys]
