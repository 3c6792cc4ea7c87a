"""Where the time goes, as flame graphs: `python -m bench.flame W4` (needs `pip install py-spy` and root, or its own).

Starts one reader with its sidecar (`bench.bed`), waits until both are warm, samples them for some seconds while they
run at full speed, and writes results/flame-W4.svg, plus a table of the deepest Python functions on stdout. Only what
is on a CPU counts. py-spy sees Python frames; what pyarrow, NumPy or the kernel do stands below the line that called
them. `--perf` adds what perf says of native functions.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

from bench import decoded, workloads
from bench import measure as m
from bench.bed import Point, running
from bench.sweeps import SWEEPS

__all__ = ["Node", "folded", "render", "shares"]

RESULTS = Path(__file__).resolve().parent / "results"
WIDTH, ROW = 1180, 16
#: Narrower than this share is not drawn.
LEAST = 0.003
COLORS = {"sidecar": ("#7fb3c8", "#5f9cb5"), "trainer": ("#e3b27a", "#d69a55")}


@dataclass(slots=True)
class Node:
    """A frame of the merged stacks."""

    name: str
    count: int = 0
    below: "dict[str, Node]" = field(default_factory=dict)

    def add(self, stack: list[str], count: int) -> None:
        """Count a stack below this frame."""
        self.count += count
        if stack:
            self.below.setdefault(stack[0], Node(stack[0])).add(stack[1:], count)


def folded(text: str, process: str) -> Iterator[tuple[list[str], int]]:
    """py-spy's raw lines as stacks that begin with the process and the thread's name."""
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_short(frame) for frame in stack.split(";")]
        frames = [frame for frame in frames if frame and not frame.startswith("process ")]
        yield [process, *frames], int(count)


def _short(frame: str) -> str:
    """Without what every thread begins with, and without numbers of threads and lines."""
    name, _, place = frame.partition(" (")
    if name.startswith("thread"):
        label = place.split(": ")[-1].strip('")') if "(" in frame else frame.split(": ")[-1].strip('"')
        return label.rstrip("0123456789-_") or "thread"
    if place.startswith(("threading.py", "concurrent/futures", "<frozen runpy")) or name == "<module>":
        return ""
    file = place.rstrip(")").split(":")[0]
    return f"{name} ({'/'.join(file.split('/')[-2:])})" if file else name


def shares(stacks: list[tuple[list[str], int]]) -> list[tuple[float, str, str]]:
    """(share of all samples, process, deepest Python function), largest first."""
    total = sum(count for _, count in stacks)
    found: Counter[tuple[str, str]] = Counter()
    for stack, count in stacks:
        found[stack[0], stack[-1]] += count
    return [(count / total, *key) for key, count in found.most_common()]


def render(stacks: list[tuple[list[str], int]], title: str) -> str:
    """A flame graph as SVG: the root at the top, titles on hover, nothing that runs."""
    root = Node(title)
    for stack, count in stacks:
        root.add(stack, count)
    boxes: list[str] = []
    depth = _draw(root, 0.0, 0, root.count, "", boxes)
    height = (depth + 1) * ROW + 6
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{WIDTH}" height="{height}" fill="white"/>'
    )
    return "\n".join([head, *boxes, "</svg>\n"])


def _draw(node: Node, left: float, depth: int, total: int, process: str, boxes: list[str]) -> int:
    """The node and what is below it; the deepest level that was drawn."""
    width, share = WIDTH * node.count / total, node.count / total
    process = node.name if depth == 1 else process
    fill = COLORS[process][depth % 2] if process in COLORS else "#d9d9d9"
    text = escape(node.name[: int(width / 6.1)]) if width > 24 else ""
    boxes.append(
        f'<g><title>{escape(node.name)}: {share:.1%}</title><rect x="{left:.1f}" y="{depth * ROW + 3}" '
        f'width="{max(0.4, width - 0.5):.1f}" height="{ROW - 1}" fill="{fill}"/>'
        f'<text x="{left + 2:.1f}" y="{depth * ROW + 14}">{text}</text></g>'
    )
    deepest = depth
    for below in sorted(node.below.values(), key=lambda child: -child.count):
        if below.count / total >= LEAST:
            deepest = max(deepest, _draw(below, left, depth + 1, total, process, boxes))
        left += WIDTH * below.count / total
    return deepest


def _sample(pids: dict[str, int], seconds: float, rate: int, spy: str) -> list[tuple[list[str], int]]:
    """Both processes at once."""
    with tempfile.TemporaryDirectory() as scratch:
        running_spies = []
        for process, pid in pids.items():
            command = [spy, "record", "--nonblocking", "--threads", "-r", str(rate), "-d", f"{seconds:g}", "-f", "raw"]
            out = Path(scratch) / process
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            running_spies.append(subprocess.Popen([*command, "-o", str(out), "-p", str(pid)], **quiet))  # type: ignore[call-overload]
        for each in running_spies:
            each.wait(seconds + 30)
        return [one for process in pids for one in folded((Path(scratch) / process).read_text(), process)]


def _perf(pids: dict[str, int], seconds: float) -> str:
    """perf's flat list of native functions of both, or why there is none."""
    perf = shutil.which("perf")
    if perf is None:
        return "perf is not installed"
    with tempfile.TemporaryDirectory() as scratch:
        data, ids = f"{scratch}/data", ",".join(map(str, pids.values()))
        record = [perf, "record", "-q", "-F", "499", "-p", ids, "-o", data, "--", "sleep", f"{seconds:g}"]
        subprocess.run(record, check=True, stderr=subprocess.DEVNULL)
        show = [perf, "report", "-i", data, "--stdio", "--percent-limit", "0.7", "-q", "--sort"]
        parts = [
            subprocess.run([*show, by], check=True, capture_output=True, text=True) for by in ("dso", "dso,symbol")
        ]
        lines = [line.rstrip(" -") for part in parts for line in part.stdout.splitlines()]
        return "\n".join(line[:160] for line in lines)


def _point(what: str) -> Point:
    name, _, value = what.partition("=")
    if value:
        return replace(SWEEPS[name].point(int(value)), tensors="torch")
    name, _, cached = name.partition("-")
    workload = workloads.WORKLOADS[name]
    workloads.ensure(name)
    workloads.warm(name)
    files = str(workloads.folder(name) / "*.parquet")
    cache = str(decoded.filled(name)) if cached == "cache" else ""
    return Point(files=files, batch=workload.batch, threads=os.cpu_count() or 1, tensors="torch", cache=cache)


def main() -> None:
    """Start, wait, sample, draw."""
    parser = argparse.ArgumentParser(description="Flame graph of sidecar and trainer at full speed.")
    parser.add_argument("what", nargs="?", default="W4", help="W4, W2, W4-cache, or a point of a sweep: columns=1")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--perf", action="store_true")
    args = parser.parse_args()
    spy = shutil.which("py-spy")
    if spy is None:
        sys.exit("py-spy is not on the PATH: pip install py-spy (it belongs to nobody's environment here)")
    with running(_point(args.what)) as readers:
        time.sleep(1.0)
        trainer = readers[0].pid
        pids = {"trainer": trainer, "sidecar": next(pid for pid in m.tree([trainer]) if pid != trainer)}
        stacks = _sample(pids, args.seconds, args.rate, spy)
        native = _perf(pids, args.seconds) if args.perf else ""
    out = RESULTS / f"flame-{args.what}.svg"
    out.write_text(render(stacks, f"{args.what} at full speed: CPU of sidecar and trainer"))
    for share, process, function in shares(stacks)[:40]:
        print(f"{share:6.1%} {process:8s} {function}")
    print(native)
    print(f"{out}: {sum(count for _, count in stacks)} samples, {out.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
