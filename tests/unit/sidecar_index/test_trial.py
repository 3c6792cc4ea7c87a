"""The trial run: its numbers are those of the data, and its advice follows from where the time goes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from lanefeed_operator.cli.main import app
from lanefeed_operator.local.errors import LocalError
from lanefeed_sidecar import trial
from lanefeed_sidecar.pipeline.engine import Engine
from support.images import write_images
from support.token_files import write_documents
from support.worlds import make_rows

EVEN = {"decode_cpu": 0.5, "decode_waiting": 0.0, "opening": 0.0, "scatter": 0.1}


@pytest.mark.parametrize(
    ("shares", "busy", "again", "wanted"),
    [
        ({}, 0.95, 0, "decoding"),
        ({"decode_waiting": 0.8}, 0.3, 0, "storage"),
        ({"decode_waiting": 0.8}, 0.95, 0, "decoding"),
        ({"decode_cpu": 0.9}, 0.3, 0, "threads"),
        ({"opening": 0.7}, 0.9, 0, "opening"),
        ({}, 0.95, 50, "memory"),
    ],
)
def test_what_limits_follows_from_where_the_time_goes(
    shares: dict[str, float], busy: float, again: int, wanted: str
) -> None:
    code, advice = trial.limit({**EVEN, **shares}, busy, again=again, groups=100)
    assert code == wanted
    assert advice


def test_a_trial_of_real_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = make_rows(tmp_path, [300, 200])
    # Next to no time: at least a frame is counted all the same.
    assert trial.main(["--batch", "10", "--seconds", "0.001", "--threads", "1", str(uri)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples_per_second"] > 0
    # Two columns: int64, and four float32.
    assert found["bytes_per_second"] == pytest.approx(found["samples_per_second"] * 24)
    # Not 1 at most: a decode that had begun before the window, on a machine that stood still, counts in it.
    assert all(share >= 0 for share in found["shares"].values())
    assert found["limit"] in {"decoding", "storage", "threads", "opening", "memory"}


def test_the_first_frame_counts_neither_as_time_nor_as_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of its own: the first frame takes 1,000 seconds of it, each other one a second."""
    uri, clock, fill = make_rows(tmp_path, [300, 200]), [0.0], Engine.fill

    def slow(engine: Engine, *args: Any, **named: Any) -> Any:
        clock[0] += 1.0 if clock[0] else 1000.0
        return fill(engine, *args, **named)

    monkeypatch.setattr(Engine, "fill", slow)
    monkeypatch.setattr(trial, "time", SimpleNamespace(monotonic=lambda: clock[0], process_time=lambda: 0.0))
    assert trial.main(["--batch", "10", "--seconds", "3", "--threads", "1", str(uri)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seconds"], found["first_batch_seconds"]) == (3.0, 1000.0)


def test_the_command_says_it_in_words(tmp_path: Path) -> None:
    uri = make_rows(tmp_path, [300])
    done = CliRunner().invoke(app, ["bench", str(uri), "--global-batch-size", "10", "--seconds", "0.5"])
    assert done.exit_code == 0, done.output
    assert "samples/s" in done.output
    assert "a second of 10 samples" in done.output
    assert "limit: " in done.output


def test_images_are_decoded_in_the_trial(tmp_path: Path) -> None:
    write_images(tmp_path, [(60, 20)])
    wanted = ["bench", str(tmp_path), "--global-batch-size", "10", "--seconds", "0.5", "--columns", "image"]
    done = CliRunner().invoke(app, [*wanted, "--image", "image=20x30"])
    assert done.exit_code == 0, done.output
    assert "limit: " in done.output
    for text, why in (("image=20", "COLUMN=HEIGHTxWIDTH"), ("image=20x0", "width of column 'image' is 0")):
        with pytest.raises(LocalError, match=why):
            CliRunner().invoke(app, [*wanted, "--image", text], catch_exceptions=False)


def test_no_files_is_an_error_with_the_pattern(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"matches no file"):
        CliRunner().invoke(app, ["bench", str(tmp_path / "*.parquet")], catch_exceptions=False)


def test_the_command_packs_documents(tmp_path: Path) -> None:
    write_documents(tmp_path / "a.parquet", [[7] * 90] * 400, group=40)
    options = ["--global-batch-size", "10", "--seconds", "0.5", "--sequence-length", "50", "--eos-token", "1"]
    done = CliRunner().invoke(app, ["bench", str(tmp_path), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "limit:" in done.output
    done = CliRunner().invoke(app, ["index", str(tmp_path), "--sequence-length", "50", "--pack-mode", "BestFit"])
    assert "BestFit, sequences of 50 tokens" in done.output
    with pytest.raises(LocalError, match="give --sequence-length too"):
        CliRunner().invoke(app, ["index", str(tmp_path), "--eos-token", "1"], catch_exceptions=False)
