"""Shows results: a table in the terminal, plots as PNG, and the generated part of docs/performance.md."""

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path

from bench.results import PEERS

__all__ = ["WORKLOADS", "markdown", "plot", "show", "write_docs"]

#: In the order of the tables.
WORKLOADS = ("W4", "W2", "W1", "W3")
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
NAMES = {
    "decode": "pyarrow's decode (W3: and Pillow's), nothing delivered",
    "lanefeed": "Lanefeed",
    "tdnodes": "torchdata.nodes",
    "spdl": "SPDL, arena",
    "sdl": "StatefulDataLoader",
    "torchdl": "DataLoader, whole row groups",
    "wds": "WebDataset",
    "mosaic": "MosaicML Streaming",
    "lit": "LitData",
    "hf": "HF datasets, mapped",
    "fkat": "fkat, with our reader",
}
#: A peer that may be ahead: why, and what would change it. Shown beside a ratio below 1.
WHY = {
    "hf": "it maps Arrow files that somebody decoded before (2.3 times the bytes on disk; no rows are shuffled, only "
    "runs of a batch). From the decoded cache, which Lanefeed fills by itself, ours is {cache} times as fast",
    "lit": "it reads chunks that were decoded when they were written, within the training loop; ours decodes. From "
    "the decoded cache ours is {cache} times as fast",
    "tdnodes": "its batches are views of a decoded row group: rows are not shuffled, nothing is copied. A shuffle of "
    "rows costs a copy; from the decoded cache ours is {cache} times as fast",
    "spdl": "its batches are slices of a decoded row group: rows are not shuffled. A shuffle of rows costs a copy; "
    "from the decoded cache ours is {cache} times as fast",
}
#: On W3 both sides decode with Pillow, which takes all of the time.
WHY_IMAGES = "both decode with the same library on the same cores, which takes all of the time"
UNKNOWN = "no reason is known, it was never ahead before; `python -m bench.flame` says where our time goes"
#: (name of a number, what it is, goal in words, whether the value meets it)
GOALS = {
    "first_epoch_ratio.W4": ("of pyarrow's decode rate, same threads, shuffle on", ">= 0.95", lambda v: v >= 0.95),
    "first_epoch_ratio.W2": ("of pyarrow's decode rate, 73 columns", ">= 0.95", lambda v: v >= 0.95),
    "first_epoch_ratio.W1": ("of pyarrow's decode rate, documents packed", ">= 0.95", lambda v: v >= 0.95),
    "first_epoch_ratio.W3": ("of the rate of its own decoder of images", ">= 0.95", lambda v: v >= 0.95),
    "trainer_cpu_us.W4": ("us of trainer CPU in next() per batch", "<= 20", lambda v: v <= 20),
    "trainer_cpu_us.matrices.W2": (
        "the same of 73 columns, as two matrices and a label",
        "<= 20",
        lambda v: v <= 20,
    ),
    "trainer_cpu_us.W2": ("the same of 73 columns, each looked at", "<= 20", lambda v: v <= 20),
    "stall_percent.busy.W4": ("% waiting, 2 ms steps that hold the GIL", "<= 0.5", lambda v: v <= 0.5),
    "stall_percent.sleep.W4": ("% waiting, 2 ms steps that sleep", "<= 0.5", lambda v: v <= 0.5),
    "first_batch_s.cold": ("s from open() to the first batch, cold", "<= 1", lambda v: v <= 1),
    "first_batch_s.resume": ("s from open() to the first batch, half an epoch in", "<= 1", lambda v: v <= 1),
    "first_batch_s.warm": ("s from connect() to the first batch, the sidecar runs", "<= 0.1", lambda v: v <= 0.1),
    "first_batch_s.warm_resume": ("the same, resumed half an epoch in", "<= 0.1", lambda v: v <= 0.1),
    "index_footers_s": ("s to index 100,000 Parquet footers", "<= 60", lambda v: v <= 60),
    "ranks2_cpu_ratio": ("CPU of 2 ranks on one sidecar, of 1 for the same bytes", "< 1.1", lambda v: v < 1.1),
    "s3_ratio": ("of a store's bandwidth reaches batches, 50 ms a request", ">= 0.9", lambda v: v >= 0.9),
    "cache_mb_s.W4": ("MB/s of later epochs, from the decoded cache", ">= 3000", lambda v: v >= 3000),
    "cache_mb_s.W2": ("MB/s of later epochs, from the decoded cache", ">= 2000", lambda v: v >= 2000),
    "cache_mb_s.W1": ("MB/s of later epochs, from the decoded cache", ">= 3000", lambda v: v >= 3000),
    "batches_per_s.cache.W4": ("batches a second from the decoded cache", ">= 35000", lambda v: v >= 35000),
    "cache_ratio.W4": ("of pyarrow's decode rate, from the decoded cache", ">= 1", lambda v: v >= 1),
    "cache_ratio.W2": ("of pyarrow's decode rate, from the decoded cache", ">= 1", lambda v: v >= 1),
    "cache_first_epoch_ratio.W4": ("first epoch with an empty cache, of that without", ">= 0.97", lambda v: v >= 0.97),
    "resume_exact": ("1: the resume goes on with the very same batches", "= 1", lambda v: v == 1),
    "sidecar_rss_over_budget_mb": ("MiB of RSS above arena + read-ahead budget", "<= 200", lambda v: v <= 200),
    "rss_growth_mb.10min": ("MiB of growth in 10 minutes of reading", "<= 16", lambda v: v <= 16),
}


def _rows(numbers: Mapping[str, float]) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for key, (what, goal, met) in GOALS.items():
        if key in numbers:
            rows.append((key, what, f"{numbers[key]:g}", goal, "yes" if met(numbers[key]) else "NO"))
    for key, value in numbers.items():
        if key.startswith("peer_ratio."):
            _, peer, workload = key.split(".")
            rows.append(
                (key, f"times {NAMES[peer]} on {workload}", f"{value:.2f}", "> 1", "yes" if value > 1 else "NO")
            )
    return rows


def show(numbers: Mapping[str, float]) -> None:
    """Print the table of goals and ratios."""
    from rich.console import Console
    from rich.table import Table

    table = Table("number", "what it is", "value", "spread", "goal", "met")
    for key, what, value, goal, met in _rows(numbers):
        spread = numbers.get(f"spread.{key}")
        table.add_row(key, what, value, "" if spread is None else f"{spread:g}", goal, met)
    Console(width=130).print(table)


def markdown(numbers: Mapping[str, float]) -> str:
    """The tables of docs/performance.md."""
    lines = ["| number | what it is | value | spread of rounds | goal | met |", "|---|---|---|---|---|---|"]
    for key, what, value, goal, met in _rows(numbers):
        spread = numbers.get(f"spread.{key}")
        lines.append(f"| `{key}` | {what} | {value} | {'' if spread is None else f'{spread:g}'} | {goal} | {met} |")
    shown = [w for w in WORKLOADS if any(f"mb_s.{loader}.{w}" in numbers for loader in NAMES)]
    rates = "".join(f" {w} MB/s | ours / theirs |" for w in shown)
    lines += [
        "",
        f"| loader |{rates} W4 waiting: 2 ms sleep / 2 ms holding the GIL |",
        "|---|" + "---|---|" * len(shown) + "---|",
    ]
    lines += [row for loader in NAMES if (row := _loader_row(numbers, loader, shown))]
    cached = [f"{numbers[k]:.0f}" if (k := f"cache_mb_s.{w}") in numbers else "-" for w in shown]
    lines.append("| Lanefeed, from its decoded cache |" + "".join(f" {rate} | - |" for rate in cached) + " - |")
    behind = list(_behind(numbers))
    return "\n".join(lines + ([""] if behind else []) + behind)


def _loader_row(numbers: Mapping[str, float], loader: str, shown: Sequence[str]) -> str:
    """One loader's line; "" where it was not measured."""
    rates = [numbers.get(f"mb_s.{loader}.{workload}") for workload in shown]
    if not any(rates):
        return ""
    ratios = [numbers.get(f"peer_ratio.{loader}.{workload}") for workload in shown]
    prefix = "stall_percent" if loader == "lanefeed" else f"peer_stall_percent.{loader}"
    stalls = [numbers.get(f"{prefix}.{step}.W4") for step in ("sleep", "busy")]
    waits = "-" if stalls == [None, None] else " / ".join("-" if s is None else f"{s:.2f} %" for s in stalls)
    cells = "".join(
        f" {'-' if rate is None else f'{rate:.0f}'} | {'-' if ratio is None else f'{ratio:.2f}'} |"
        for rate, ratio in zip(rates, ratios, strict=True)
    )
    return f"| {NAMES[loader]} |{cells} {waits} |"


def _behind(numbers: Mapping[str, float]) -> Iterator[str]:
    """A line for each row in which a peer is ahead: why, and what would change it."""
    for key, value in numbers.items():
        if key.startswith("peer_ratio.") and value < 1:
            _, peer, workload = key.split(".")
            cache = numbers.get(f"peer_cache_ratio.{peer}.{workload}")
            reason = WHY_IMAGES if workload == "W3" else WHY.get(peer, UNKNOWN)
            why = reason.format(cache="-" if cache is None else f"{cache:.1f}")
            yield f"* **{NAMES[peer]} on {workload}** ({value:.2f}): {why}."


def write_docs(path: Path, numbers: Mapping[str, float], note: str) -> None:
    """Replace the generated part of the page, between its two marks."""
    text = path.read_text()
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"{path} lacks the marks {BEGIN} and {END}: put them where the tables belong")
    path.write_text(f"{head}{BEGIN}\n{note}\n\n{markdown(numbers)}\n{END}{tail}")


def plot(numbers: Mapping[str, float], folder: Path, workloads: Sequence[str]) -> list[Path]:
    """ratios.png (rates as shares of pyarrow's decode) and stalls.png; the paths of what was written."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    written = [folder / "ratios.png"]
    figure, axes = plt.subplots(1, len(workloads), figsize=(5.2 * len(workloads), 4.2), layout="constrained")
    for axis, workload in zip([axes] if len(workloads) == 1 else axes, workloads, strict=True):
        ceiling = numbers.get(f"mb_s.decode.{workload}")
        loaders = [key for key in NAMES if key != "decode" and f"mb_s.{key}.{workload}" in numbers]
        shares = [_share(numbers, key, workload, ceiling) for key in loaders]
        bars = axis.barh(
            [NAMES[k] for k in loaders], shares, color=["#1f6f8b" if k == "lanefeed" else "#b8b8b8" for k in loaders]
        )
        axis.bar_label(bars, fmt="%.2f", padding=3)
        axis.axvline(1.0, color="#c0392b", linewidth=1, linestyle="--")
        axis.set(
            title=f"{workload}, first epoch",
            xlabel="share of pyarrow's own decode rate",
            xlim=(0, max([1.0, *shares]) * 1.18),
        )
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(written[0], dpi=110)
    plt.close(figure)
    written += _plot_stalls(numbers, folder)
    return written


def _share(numbers: Mapping[str, float], loader: str, workload: str, ceiling: float | None) -> float:
    """The loader's rate as a share of the decode rate, by ratios taken within rounds."""
    ours = numbers.get(f"first_epoch_ratio.{workload}", 0.0)
    if loader == "lanefeed" or not ceiling:
        return ours
    return ours / numbers.get(f"peer_ratio.{loader}.{workload}", float("inf"))


def _plot_stalls(numbers: Mapping[str, float], folder: Path) -> list[Path]:
    import matplotlib.pyplot as plt

    loaders = ["lanefeed", *PEERS]
    prefixes = {k: "stall_percent" if k == "lanefeed" else f"peer_stall_percent.{k}" for k in loaders}
    loaders = [k for k in loaders if f"{prefixes[k]}.busy.W4" in numbers]
    if not loaders:
        return []
    figure, axis = plt.subplots(figsize=(9.0, 4.6), layout="constrained")
    for offset, step, color in ((-0.2, "sleep", "#b8b8b8"), (0.2, "busy", "#1f6f8b")):
        values = [numbers.get(f"{prefixes[k]}.{step}.W4", float("nan")) for k in loaders]
        label = "step sleeps" if step == "sleep" else "step holds the GIL"
        bars = axis.barh([i + offset for i in range(len(loaders))], values, 0.38, label=label, color=color)
        axis.bar_label(bars, labels=["" if isnan(v) else f"{v:.2f}" for v in values], padding=3, fontsize=8)
    axis.set_yticks(range(len(loaders)), [NAMES[k] for k in loaders])
    axis.set(title="W4 with steps of 2 ms", xlabel="% of the time spent waiting for data")
    axis.margins(x=0.12)
    axis.invert_yaxis()
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "stalls.png", dpi=110)
    plt.close(figure)
    return [folder / "stalls.png"]
