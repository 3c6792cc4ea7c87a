"""What `lanefeed top` makes of two scrapes: rates, the share of waiting, and what to look at next."""

import pytest

from lanefeed_operator.cli.figures import Figures, Reading

BASE = {
    "lanefeed_samples_total": 1000.0,
    "lanefeed_read_bytes_total": 5e6,
    'lanefeed_total_step{rank="0"}': 10.0,
    'lanefeed_total_step{rank="1"}': 12.0,
    'lanefeed_rank_attached{rank="0"}': 1.0,
    'lanefeed_trainer_wait_seconds_total{rank="0"}': 1.0,
    'lanefeed_trainer_step_seconds_total{rank="0"}': 9.0,
    "lanefeed_decode_seconds_total": 4.0,
    "lanefeed_decode_cpu_seconds_total": 4.0,
    'lanefeed_stage_wait_seconds_total{stage="decode",on="budget"}': 0.0,
    "lanefeed_session_start_time_seconds": 100.0,
}


def reading(at: float, **more: float) -> Reading:
    values = dict(BASE)
    for name, value in more.items():
        found = [key for key in values if key.startswith(f"lanefeed_{name}")]
        values[found[0] if found else f"lanefeed_{name}"] = value
    return Reading.parse("".join(f"{key} {value}\n" for key, value in values.items()), at)


def test_rates_are_of_the_time_between_two_readings() -> None:
    found = Figures.between(reading(50), reading(52, samples_total=1400, read_bytes_total=9e6))
    assert (found.samples_per_second, found.read_bytes_per_second) == (200.0, 2e6)
    assert (found.ranks, found.step) == (2, 10)


def test_a_new_session_of_the_sidecar_counts_from_its_start() -> None:
    found = Figures.between(reading(50), reading(52, session_start_time_seconds=200, samples_total=10))
    assert found.samples_per_second == 0.0
    assert found.stall_percent == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"trainer_step_seconds_total": 11.0}, "training: the data keeps up"),
        ({"rank_attached": 0.0}, "no trainer is attached"),
        ({"fenced": 1.0}, "fenced"),
        ({"decode_seconds_total": 6.0, "decode_cpu_seconds_total": 6.0}, "100 % decoding"),
        ({"decode_seconds_total": 6.0, "decode_cpu_seconds_total": 4.2}, "90 % reading"),
        ({"stage_wait_seconds_total": 2.0}, "100 % waiting for room: raise sidecar.readAheadBytes"),
        ({}, "nothing: no stage of the sidecar moved"),
    ],
)
def test_the_verdict_names_what_to_look_at(more: dict[str, float], words: str) -> None:
    if "trainer_step_seconds_total" not in more:
        more = {**more, "trainer_wait_seconds_total": 2.0}
    assert words in Figures.between(reading(50), reading(52, **more)).verdict
