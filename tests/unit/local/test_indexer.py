"""The indexer as a process: one that was killed says nothing about the data and is run again."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lanefeed_operator.local import indexer
from lanefeed_operator.local.errors import LocalError

#: Dies by SIGKILL as often as asked, counting in a file; then answers.
SCRIPT = """
import json, os, pathlib, sys
count = pathlib.Path(sys.argv[1]); n = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (n + 1))
if n < int(sys.argv[2]): os.kill(os.getpid(), 9)
print(json.dumps({"runs": n + 1}))
"""


def _kills(monkeypatch: pytest.MonkeyPatch, count: Path, times: int) -> None:
    def command(_: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", SCRIPT, str(count), str(times)]

    monkeypatch.setattr(indexer, "command", command)


def test_a_killed_indexer_is_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _kills(monkeypatch, tmp_path / "n", 2)
    assert indexer.index([]) == {"runs": 3}


def test_one_that_is_always_killed_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _kills(monkeypatch, tmp_path / "n", 1000)
    with pytest.raises(LocalError, match=r"the indexer ended with -9 and said nothing"):
        indexer.index([])
    assert len((tmp_path / "n").read_text()) == indexer.KILLED_TRIES
