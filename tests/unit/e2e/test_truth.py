"""The trainer of the end-to-end tests has teeth: a batch that holds something else than it must is told apart."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


class Batch(dict[str, np.ndarray]):
    """As a loader gives them."""

    def __init__(self, ids: list[int], **columns: Any) -> None:
        super().__init__({name: np.asarray(values) for name, values in columns.items()})
        self.ids = np.asarray(ids)


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("CHAOS_OUT", str(tmp_path))
    monkeypatch.setenv("CHAOS_TRUTH", str(tmp_path / "truth"))
    (tmp_path / "truth").mkdir()
    return importlib.reload(importlib.import_module("support.chaos_trainer"))


def test_without_a_truth_the_id_is_the_samples_number(trainer: ModuleType) -> None:
    assert trainer.wrong(Batch([4, 2], id=[4, 2]), {}) == ""
    assert "column id of sample 2 (row 1) holds 3 instead of 2" in trainer.wrong(Batch([4, 2], id=[4, 3]), {})


def test_values_shapes_and_types_are_compared(trainer: ModuleType, tmp_path: Path) -> None:
    whole = np.arange(12, dtype=np.int32).reshape(6, 2)
    np.save(tmp_path / "truth" / "tokens.npy", whole)
    truth = trainer.truths()
    assert trainer.wrong(Batch([5, 0], tokens=whole[[5, 0]]), truth) == ""
    fault = trainer.wrong(Batch([5, 0], tokens=whole[[5, 1]]), truth)
    assert fault == "column tokens of sample 0 (row 1) holds [2, 3] instead of [0, 1]"
    wide = whole.astype(np.int64)
    assert "int64 (2, 2) and should be int32" in trainer.wrong(Batch([5, 0], tokens=wide[[5, 0]]), truth)
    assert "(2, 1) and should be int32 (2, 2)" in trainer.wrong(Batch([5, 0], tokens=whole[[5, 0], :1]), truth)
    with pytest.raises(KeyError, match="tokens"):
        trainer.wrong(Batch([5, 0], other=whole[[5, 0]]), truth)


def test_a_truth_that_is_not_there_is_no_pass(trainer: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"no \.npy file is there"):
        trainer.truths()
