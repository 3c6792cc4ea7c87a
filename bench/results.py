"""From raw runs to the flat numbers of latest.json, and the guard against getting slower. Pure: no process, no clock.

A run is one process's result; a round holds one run of every key. A ratio is taken within a round, then the median
over rounds, because the machine drifts by more between rounds than within one.
"""

from collections.abc import Mapping, Sequence
from statistics import median

__all__ = ["GUARDED", "PEERS", "Rounds", "behind", "flatten", "guard", "others", "ratio_keys", "runs_of"]

Run = Mapping[str, float]
#: Key of a run ("lanefeed.W4", "decode.W4", "busy.tdnodes.W4") -> its runs, one per round.
Rounds = Mapping[str, Sequence[Run]]

PEERS = ("tdnodes", "spdl", "sdl", "torchdl", "wds", "mosaic", "lit", "hf", "fkat")
#: Numbers with these first words are guarded: half of the committed value is a failure where higher is better, twice
#: of it where lower is.
GUARDED = ("first_epoch_ratio", "peer_ratio")
GUARDED_LOWER = ("cpu_per_gb_ratio", "ranks2_cpu_ratio")
#: First words of what a full run measures (a part of the word is enough): what it does not find this time is gone.
MEASURED = (
    "first_",
    "cpu_per_gb_ratio",
    "trainer_cpu_us",
    "trainer_process_cpu_us",
    "mb_s",
    "cache_",
    "batches_per_s",
    "peer_",
    "stall_",
    "ranks2_",
    "index_footers_",
    "s3_",
    "noise",
    "resume_exact",
)


def _values(rounds: Rounds, key: str, what: str) -> list[float]:
    return [run[what] for run in rounds.get(key, ()) if what in run]


def _ratios(rounds: Rounds, key: str, base: str, what: str = "mb_s") -> list[float]:
    pairs = zip(_values(rounds, key, what), _values(rounds, base, what), strict=False)
    return [ours / theirs for ours, theirs in pairs]


def _put(numbers: dict[str, float], name: str, values: Sequence[float], digits: int = 3) -> None:
    """Keep the median, and the spread (max - min) beside it where there are several values."""
    if not values:
        return
    numbers[name] = round(median(values), digits)
    if len(values) > 1:
        numbers[f"spread.{name}"] = round(max(values) - min(values), digits)


def _workload(numbers: dict[str, float], rounds: Rounds, name: str) -> None:
    ours = f"lanefeed.{name}"
    _put(numbers, f"first_epoch_ratio.{name}", _ratios(rounds, ours, f"decode.{name}"))
    _put(numbers, f"cpu_per_gb_ratio.{name}", _ratios(rounds, ours, f"decode.{name}", "cpu_s_per_gb"))
    _put(numbers, f"trainer_cpu_us.{name}", _values(rounds, ours, "next_cpu_us"), 2)
    _put(numbers, f"trainer_cpu_us.matrices.{name}", _values(rounds, f"matrices.{name}", "next_cpu_us"), 2)
    _put(numbers, f"trainer_process_cpu_us.{name}", _values(rounds, ours, "process_cpu_us"), 2)
    cached = f"cached.{name}"
    _put(numbers, f"cache_mb_s.{name}", _values(rounds, cached, "mb_s"), 1)
    _put(numbers, f"batches_per_s.cache.{name}", _values(rounds, cached, "batches_s"), 0)
    _put(numbers, f"cache_ratio.{name}", _ratios(rounds, cached, f"decode.{name}"))
    _put(numbers, f"cache_first_epoch_ratio.{name}", _ratios(rounds, f"caching.{name}", ours))
    for loader in ("decode", "lanefeed", *PEERS):
        _put(numbers, f"mb_s.{loader}.{name}", _values(rounds, f"{loader}.{name}", "mb_s"), 1)
    for peer in PEERS:
        _put(numbers, f"peer_ratio.{peer}.{name}", _ratios(rounds, ours, f"{peer}.{name}"))
        _put(numbers, f"peer_cache_ratio.{peer}.{name}", _ratios(rounds, cached, f"{peer}.{name}"))
    for step in ("busy", "sleep"):
        _put(numbers, f"stall_percent.{step}.{name}", _values(rounds, f"{step}.lanefeed.{name}", "stall_percent"))
        opened = _values(rounds, f"{step}.lanefeed.{name}", "stall_with_columns_percent")
        _put(numbers, f"stall_with_columns_percent.{step}.{name}", opened)
        _put(numbers, f"trainer_cpu_us.{step}.{name}", _values(rounds, f"{step}.lanefeed.{name}", "next_cpu_us"), 2)
        for peer in PEERS:
            stalls = _values(rounds, f"{step}.{peer}.{name}", "stall_percent")
            _put(numbers, f"peer_stall_percent.{peer}.{step}.{name}", stalls)


def flatten(rounds: Rounds, workloads: Sequence[str]) -> dict[str, float]:
    """The flat object of numbers. Keys for which nothing was measured are absent."""
    numbers: dict[str, float] = {}
    for name in workloads:
        _workload(numbers, rounds, name)
    for start in ("cold", "resume", "warm", "warm_resume", "warm_seek"):
        _put(numbers, f"first_batch_s.{start}", _values(rounds, start, "first_from_open_s"))
        _put(numbers, f"first_batch_from_spawn_s.{start}", _values(rounds, start, "first_from_spawn_s"))
    _put(numbers, "ranks2_cpu_ratio", _ratios(rounds, "ranks2", "ranks1", "cpu_s_per_gb"))
    _put(numbers, "index_footers_s", _values(rounds, "footers", "seconds"), 1)
    _put(numbers, "index_footers_cpu_s", _values(rounds, "footers", "cpu_s"), 1)
    for key in ("s3_ratio", "s3_unhidden_ratio"):
        _put(numbers, key, _values(rounds, "s3", key))
    exact = _values(rounds, "resume", "exact")
    if exact:
        numbers["resume_exact"] = float(all(exact))
    noise = [run["foreign_cores"] for runs in rounds.values() for run in runs if "foreign_cores" in run]
    if noise:
        numbers["noise.foreign_cores_max"] = max(noise)
        numbers["noise.foreign_cores_median"] = round(median(noise), 3)
    return numbers


def others(committed: Mapping[str, float]) -> dict[str, float]:
    """The numbers that other commands measured (memory): a full run keeps them."""
    return {key: value for key, value in committed.items() if not key.removeprefix("spread.").startswith(MEASURED)}


def ratio_keys(numbers: Mapping[str, float]) -> list[str]:
    """The names of ratios, in a stable order."""
    return [key for key in numbers if key.partition(".")[0] in GUARDED]


def behind(numbers: Mapping[str, float], committed: Mapping[str, float]) -> dict[str, str]:
    """The figures that are worse than half of the committed ones, and that in words."""
    wrong = {}
    for key in numbers:
        before = committed.get(key)
        if before and key.partition(".")[0] in GUARDED_LOWER and numbers[key] > before * 2:
            wrong[key] = f"{key} is {numbers[key]:.3f} and was {before:.3f}: more than twice"
    for key in ratio_keys(numbers):
        before = committed.get(key)
        if before and numbers[key] < before / 2:
            wrong[key] = f"{key} is {numbers[key]:.3f} and was {before:.3f}: less than half"
    return wrong


def runs_of(figure: str) -> tuple[str, str]:
    """The keys of the two runs whose ratio a guarded figure is."""
    kind, _, rest = figure.partition(".")
    if kind == "ranks2_cpu_ratio":
        return "ranks1", "ranks2"
    if kind == "peer_ratio":
        return f"lanefeed.{rest.partition('.')[2]}", rest
    return f"lanefeed.{rest}", f"decode.{rest}"


def guard(numbers: Mapping[str, float], committed: Mapping[str, float]) -> list[str]:
    """What got worse than half of the committed value, in words; also a resume that is not exact."""
    wrong = list(behind(numbers, committed).values())
    if numbers.get("resume_exact", 1.0) != 1.0:
        wrong.append("a resume at half of the epoch did not give the batches that the saving run went on with")
    return wrong
