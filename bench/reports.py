"""What the report service costs: CPU a report, memory a connection and a rank, the rate that one process takes.

    python bench/reports.py [--clients 200] [--seconds 10] [--connections 1000]

The service runs in this process, over TLS, with an API server in memory; sidecars are in another process. CPU is read
from the process's own clock, so a busy machine changes the rate and hardly the cost. Writes results/reports.json.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import grpc
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from lanefeed_core.proto import lanefeed_pb2 as pb  # noqa: E402
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc  # noqa: E402
from lanefeed_core.wire import TOKEN_METADATA  # noqa: E402
from lanefeed_operator.coordinator.core import Coordinator  # noqa: E402
from lanefeed_operator.coordinator.reports import PodReport, RankReport  # noqa: E402
from lanefeed_operator.kube.api import TokenOwner  # noqa: E402
from support.report_bed import LANES, Bed, jwt  # noqa: E402

RANKS = 64


def main() -> None:
    """Measure, print, write."""
    args = arguments()
    if args.child:
        asyncio.run(child(args))
        return
    found = {"core": core(), "service": service(args)}
    text = json.dumps(found, indent=1)
    (ROOT / "bench/results/reports.json").write_text(text + "\n")
    print(text)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--child", default="")
    parser.add_argument("--what", default="report")
    return parser.parse_args()


def core(jobs: int = 40) -> dict[str, float]:
    """The core alone: bytes a rank, and microseconds a report."""
    gc.collect()
    tracemalloc.start()
    cores = [begun(job) for job in range(jobs)]
    for sequence in range(1, 25):
        for job, one in enumerate(cores):
            for rank in range(RANKS):
                one.report(values(job, rank, sequence), 1000.0 + sequence / 2)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    reports = [(cores[job], values(job, rank, 100)) for job in range(jobs) for rank in range(RANKS)]
    before = time.process_time()
    for one, report in reports:
        one.report(report, 2000.0)
    cost = (time.process_time() - before) / len(reports)
    return {"bytes_a_rank": round(held / jobs / RANKS), "us_a_report": round(cost * 1e6, 1)}


def begun(job: int) -> Coordinator:
    """A job's coordinator, its pods expected."""
    made = Coordinator(f"job-{job}", LANES, 10**9)
    made.new_plan(1, RANKS, 1)
    for rank in range(RANKS):
        made.expect(1, rank, uid(job, rank))
    return made


def uid(job: int, rank: int) -> str:
    """A UID as long as a real one."""
    return f"{job:08}-0000-0000-0000-{rank:012}"


def values(job: int, rank: int, sequence: int) -> PodReport:
    """A report of progress."""
    life = RankReport(rank, 0, False, 10 + sequence, True, wait_seconds=sequence + 0.5, step_seconds=sequence + 1.5)
    address, session = f"10.1.{job % 255}.{rank}:9404", f"{job:016}{rank:016}"
    return PodReport(
        f"job-{job}", rank, uid(job, rank), 1, session, sequence, (life,), metrics_address=address, ready=True
    )


def service(args: argparse.Namespace) -> dict[str, float]:
    """Over TLS."""
    bed = Bed()
    count = max(args.clients, args.connections)
    tokens = []
    for number in range(count):
        job, rank = divmod(number, RANKS)
        if rank == 0:
            bed.job(f"j{job}", world=RANKS).core.on_progress = lambda: None
        tokens.append(jwt(str(number)))
        bed.api.tokens[tokens[-1]] = TokenOwner("team", "trainer", "pod", f"j{job}-p{rank}")
    bed.up()
    try:
        task = {"port": bed.port, "trust": bed.certificates.trust, "tokens": tokens}
        path = ROOT / f"bench/results/.reports-{bed.port}.json"
        path.write_text(json.dumps(task))
        try:
            return {**rate(args, path), **memory(args, path)}
        finally:
            path.unlink()
    finally:
        bed.down()


def run_child(args: argparse.Namespace, path: Path, what: str) -> subprocess.Popen[str]:
    """Sidecars in a process of their own."""
    sizes = ["--clients", str(args.clients), "--connections", str(args.connections), "--seconds", str(args.seconds)]
    command = [sys.executable, __file__, "--child", str(path), "--what", what, *sizes]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def rate(args: argparse.Namespace, path: Path) -> dict[str, float]:
    """Sidecars that report as fast as they are answered."""
    with run_child(args, path, "report") as process:
        assert process.stdout is not None
        process.stdout.readline()
        before, began = time.process_time(), time.monotonic()
        done = json.loads(process.stdout.readline())
        cpu, wall = time.process_time() - before, time.monotonic() - began
    return {
        "clients": args.clients,
        "reports_a_second": round(done["reports"] / wall),
        "cpu_us_a_report": round(cpu / done["reports"] * 1e6),
        "latency_ms_p50": done["p50"],
        "latency_ms_p99": done["p99"],
    }


def memory(args: argparse.Namespace, path: Path) -> dict[str, float]:
    """Connections that have reported once and then say nothing."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    cpu = time.process_time()
    with run_child(args, path, "connect") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        cpu = time.process_time() - cpu
        held = psutil.Process().memory_info().rss - before
        process.stdin.write("\n")
        process.stdin.close()
    return {
        "connections": args.connections,
        "kib_a_connection": round(held / args.connections / 1024, 1),
        "cpu_ms_a_connection_and_first_report": round(cpu / args.connections * 1e3, 2),
    }


# ---- sidecars --------------------------------------------------------------------------------------------------


async def child(args: argparse.Namespace) -> None:
    """Connect, then report or wait."""
    task = json.loads(Path(args.child).read_text())
    trust = grpc.ssl_channel_credentials(task["trust"].encode())
    count = args.clients if args.what == "report" else args.connections
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.secure_channel(f"127.0.0.1:{task['port']}", trust, options=options) for _ in range(count)]
    sidecars = [Sidecar(n, channel, task["tokens"][n]) for n, channel in enumerate(channels)]
    for low in range(0, count, 50):
        await asyncio.gather(*(sidecar.say() for sidecar in sidecars[low : low + 50]))
    print("connected", flush=True)
    if args.what == "connect":
        await asyncio.to_thread(sys.stdin.readline)
    else:
        until = time.monotonic() + args.seconds
        for sidecar in sidecars:
            sidecar.times.clear()
        await asyncio.gather(*(sidecar.run(until) for sidecar in sidecars))
        times = sorted(t for sidecar in sidecars for t in sidecar.times)
        p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
        print(json.dumps({"reports": len(times), "p50": round(p50 * 1e3, 1), "p99": round(p99 * 1e3, 1)}), flush=True)
    for channel in channels:
        await channel.close()


class Sidecar:
    """One pod's reports."""

    def __init__(self, number: int, channel: Any, token: str) -> None:
        """Not connected yet."""
        self.job, self.rank = divmod(number, RANKS)
        self.stub, self.metadata = rpc.CoordinatorStub(channel), ((TOKEN_METADATA, token),)
        self.sequence, self.times = 0, list[float]()

    async def say(self) -> None:
        """One report."""
        self.sequence += 1
        pod = f"j{self.job}-p{self.rank}"
        request = pb.ReportRequest(protocol=1, job_uid=f"j{self.job}", pod_index=self.rank, pod_uid=pod)
        request.plan_generation, request.session, request.sequence = 1, pod * 3, self.sequence + time.time_ns()
        request.ranks.add(rank=self.rank, consumed=min(self.sequence, 30), attached=True)
        began = time.monotonic()
        reply = await self.stub.Report(request, timeout=30, metadata=self.metadata)
        assert not reply.reason, reply.reason
        self.times.append(time.monotonic() - began)

    async def run(self, until: float) -> None:
        """As fast as answers come, but no faster than the service lets one pod."""
        while time.monotonic() < until:
            began = time.monotonic()
            await self.say()
            await asyncio.sleep(max(0.0, 0.025 - (time.monotonic() - began)))


if __name__ == "__main__":
    main()
