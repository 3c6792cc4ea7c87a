"""Packed documents end to end: every token of an epoch once, whatever the world sizes, kills and resumes."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lanefeed
from lanefeed.testing import assert_exact_resume
from lanefeed_core.packing import BEST_FIT, CONCAT, MODES
from support.token_files import Lists, write_documents
from support.worlds import world

EOS = 9
OPTIONS: dict[str, Any] = {
    "global_batch_size": 12,
    "epochs": 1,
    "last_batch": "Partial",
    "uneven": True,
    "read_ahead_bytes": 32 << 20,
    "decode_threads": 1,
    "slots": 4,
}

Token = tuple[int, int]


def corpus(folder: Path, seed: int = 3) -> list[list[int]]:
    """Three files; a token says its document and place (document * 1000 + place + 10). Some documents are empty."""
    rng = np.random.default_rng(seed)
    documents: list[list[int]] = []
    for number, rows in enumerate((150, 40, 101)):
        mine: Lists = []
        for length in np.minimum(400, np.exp(rng.normal(3, 1.2, rows))).astype(int).tolist():
            length = 0 if rng.random() < 0.05 else length
            at = len(documents)
            documents.append([at * 1000 + place + 10 for place in range(length)])
            mine.append(None if length == 0 and rng.random() < 0.5 else documents[-1])
        write_documents(folder / f"{number}.parquet", mine, group=32)
    return documents


def tokens_of(parts: Iterable[Any]) -> list[list[int]]:
    """The real tokens of each sequence of a step, rank by rank; checks shapes and padding."""
    found = []
    for part in parts:
        tokens, lengths = np.asarray(part["tokens"]), np.asarray(part["lengths"])
        assert (tokens.dtype, lengths.dtype) == (np.int32, np.int32)
        assert tokens.shape[0] == len(lengths) == len(part.ids)
        for row, length in zip(tokens, lengths.tolist(), strict=True):
            assert (row[length:] == EOS).all()
            found.append(row[:length].tolist())
    return found


def run(loaders: list[lanefeed.Loader], steps: int | None = None) -> list[list[list[int]]]:
    """The next global batches, or all that are left."""
    iterators = [iter(loader) for loader in loaders]
    batches: list[list[list[int]]] = []
    while steps is None or len(batches) < steps:
        parts = [next(iterator, None) for iterator in iterators]
        if parts[0] is None:
            assert parts == [None] * len(parts)
            break
        batches.append(tokens_of(parts))
    return batches


def kill_sidecar(root: Path) -> None:
    """SIGKILL the sidecar of the world that runs."""
    (folder,) = root.glob("world-*")
    os.kill(int((folder / "sidecar.pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("mode", MODES)
def test_every_token_once_over_one_three_and_two_ranks_with_kills(tmp_path: Path, shm_root: Path, mode: str) -> None:
    documents = corpus(tmp_path / "d")
    options = {**OPTIONS, "packed": {"sequence_length": 48, "eos_token": EOS, "mode": mode}}
    with world(tmp_path / "d", 1, **options) as loaders:
        alone = run(loaders)
    got, state = [], None
    for size, steps in ((1, 4), (3, 5), (2, None)):
        with world(tmp_path / "d", size, state, **options) as loaders:
            got += run(loaders, 2)
            kill_sidecar(shm_root)
            got += run(loaders, None if steps is None else steps - 2)
            state = loaders[0].state_dict()
    assert got == alone
    seen = [token for batch in got for sequence in batch for token in sequence]
    wanted = [token for one in documents if one for token in [*one, EOS]]
    assert sorted(seen) == sorted(wanted)
    if mode == BEST_FIT:
        # A document that fits is in one sequence.
        of = [{token // 1000 for token in sequence if token != EOS} for batch in got for sequence in batch]
        for number, document in enumerate(documents):
            if document and len(document) < 48:
                assert sum(number in here for here in of) == 1


def test_every_state_resumes_exactly(tmp_path: Path) -> None:
    corpus(tmp_path / "d")
    packed = {"sequence_length": 64, "mode": BEST_FIT, "cross_document_mask": True}
    options = {**OPTIONS, "tensors": "numpy", "packed": packed}
    assert assert_exact_resume(lambda: lanefeed.open(tmp_path / "d", **options), every=6, tail=3) > 2


def test_masks_say_which_document_each_token_is_of(tmp_path: Path) -> None:
    documents = corpus(tmp_path / "d")
    packed = {"sequence_length": 48, "mode": CONCAT, "cross_document_mask": True, "column": "tokens"}
    seen = 0
    with lanefeed.open(tmp_path / "d", **OPTIONS, packed=packed) as loader:
        for batch in loader:
            assert {batch[name].shape[1:] for name in ("tokens", "document_ids", "position_ids")} == {(48,)}
            assert batch["document_ids"].dtype == torch.int32
            real = torch.arange(48) < batch["lengths"][:, None]
            tokens, places = batch["tokens"][real], batch["position_ids"][real]
            assert torch.equal(tokens % 1000 - 10, places)
            assert (batch["document_ids"][~real] == -1).all()
            # Documents are numbered in their row group: the same number, the same document.
            for row, ids, length in zip(batch["tokens"], batch["document_ids"], batch["lengths"], strict=True):
                pairs = {(int(t) // 1000, int(i)) for t, i in zip(row[:length], ids[:length], strict=True)}
                assert len(pairs) == len({document for document, _ in pairs}) == len({number for _, number in pairs})
            seen += int(real.sum())
    assert seen == sum(map(len, documents))


def test_what_was_cached_is_the_same_and_another_packing_has_its_own(tmp_path: Path) -> None:
    corpus(tmp_path / "d")
    cached = {**OPTIONS, "tensors": "numpy", "epochs": 2, "cache_dir": tmp_path / "cache"}
    for length in (48, 32, 48):
        packed = {"sequence_length": length, "eos_token": EOS}
        with lanefeed.open(tmp_path / "d", **{**OPTIONS, "tensors": "numpy", "epochs": 2}, packed=packed) as loader:
            plain = [tokens_of([batch]) for _ in loader.epochs() for batch in loader]
        with lanefeed.open(tmp_path / "d", **cached, packed=packed) as loader:
            assert [tokens_of([batch]) for _ in loader.epochs() for batch in loader] == plain


@pytest.mark.parametrize(
    ("packed", "more", "said"),
    [
        (2048, {}, r"packed is 2048: give a dict such as \{'sequence_length': 2048\}"),
        ({"mode": "Concat"}, {}, "packed lacks 'sequence_length': it takes sequence_length and, where wanted, column"),
        ({"sequence_length": 8, "eos": 1}, {}, "packed has 'eos': it takes sequence_length"),
        ({"sequence_length": 8, "mode": "best"}, {}, "mode is 'best': it must be Concat or BestFit"),
        ({"sequence_length": 8, "column": "text"}, {}, "packed.column is 'text', which the dataset does not have"),
        ({"sequence_length": 8}, {"columns": ["tokens", "x"]}, "names x, which cannot be delivered"),
        (
            {"sequence_length": 8, "eos_token": 1 << 40},
            {},
            "eosToken is 1099511627776, and column 'tokens' holds int32",
        ),
        ({"sequence_length": 1 << 20}, {"slot_bytes": 1 << 20}, r"slotBytes"),
    ],
)
def test_bad_input_names_what_is_wrong(tmp_path: Path, packed: Any, more: dict[str, Any], said: str) -> None:
    write_documents(tmp_path / "d" / "a.parquet", [[1] * 1000] * 20)
    options = {**OPTIONS, "global_batch_size": 1, "tensors": "numpy", **more}
    with (
        pytest.raises(lanefeed.LanefeedError, match=said),
        lanefeed.open(tmp_path / "d", packed=packed, **options) as it,
    ):
        for _ in it:
            pass
