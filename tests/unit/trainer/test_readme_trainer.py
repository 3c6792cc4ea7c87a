"""The README's trainer beside another rank of its own: both write a checkpoint of the same name, and it is whole."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

README = (Path(__file__).resolve().parents[3] / "README.md").read_text()


class Loader:
    """One step, after which all ranks are to leave."""

    last_commit, step, stop_requested, plan_generation = None, 500, True, 1

    def __init__(self, rank: int) -> None:
        self.rank, self.committed = rank, ""

    def epochs(self) -> range:
        return range(1)

    def __iter__(self) -> Any:
        return iter([{}])

    def state_dict(self) -> dict[str, Any]:
        return {}

    def commit(self, path: str) -> None:
        self.committed = path


def test_ranks_do_not_write_into_each_others_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    written: list[str] = []

    def save(_content: object, path: str) -> None:
        written.append(path)
        Path(path).write_text("whole")

    model = SimpleNamespace(state_dict=dict)
    for loader in (Loader(0), Loader(1)):
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(save=save))
        fake = SimpleNamespace(connect=lambda loader=loader: loader, Stopped=SystemExit)
        monkeypatch.setitem(sys.modules, "lanefeed", fake)
        with pytest.raises(SystemExit):
            exec(code, {"make_model": lambda: (model, None), "train": lambda *_: None})
        assert Path(loader.committed).read_text() == "whole"
        # A rank that is late, or ends here, leaves what was committed as it is: it writes elsewhere.
        assert loader.committed not in written
    assert len(set(written)) == 2, "a file for each rank"
