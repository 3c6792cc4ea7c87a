"""Packing in the manifest: pinned sequences, what the digest covers, saved forms, and requests that cannot be met."""

import base64
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanefeed_core import manifest_codec
from lanefeed_core.errors import ManifestError, StreamError
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.pack import pack, yield_of
from lanefeed_core.packing import BEST_FIT, CONCAT, Packing, PackingRequest

GOLDEN = Path(__file__).parent / "golden" / "packing.json"
PACKING = Packing("tokens", "int32", 8, 0, BEST_FIT, True)
SHARD = Shard("a.parquet", 100, (3, 0), (96, 0), fingerprint="f", documents=(7, 2))
MANIFEST = Manifest((SHARD,), (Field("tokens", "list<item: int32>"),), packing=PACKING)


def _golden() -> dict[str, Any]:
    lengths = np.array([3, 0, 8, 9, 20, 1, 7, 2, 5, 4, 16, 6] * 200)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = (np.arange(offsets[-1]) % 50000 + 1).astype(np.int32)
    found: dict[str, Any] = {
        "digest": MANIFEST.digest,
        "manifest": base64.b64encode(manifest_codec.encode(MANIFEST)).decode(),
    }
    for mode in (CONCAT, BEST_FIT):
        for eos in (None, 0):
            made = pack(values, offsets, Packing("tokens", "int32", 8, eos, mode, True))
            assert made.documents is not None
            assert made.positions is not None
            found[f"{mode}/{eos}"] = {
                "sequences": made.count,
                "first": made.tokens[:5].tolist(),
                "documents": made.documents[:5].tolist(),
                "positions": made.positions[:5].tolist(),
                # Weighted by place, so that an exchange shows.
                "sum": int((made.tokens.reshape(-1).astype(np.int64) * np.arange(1, made.tokens.size + 1)).sum()),
            }
    return found


def test_sequences_and_the_manifest_are_pinned() -> None:
    """A change here changes users' sequences: raise PACK_VERSION, then write anew with LANEFEED_GOLDEN=write."""
    made = json.loads(json.dumps(_golden()))
    if os.environ.get("LANEFEED_GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(made, indent=1) + "\n")
    assert made == json.loads(GOLDEN.read_text())


def test_a_manifest_of_packed_documents_is_read_back() -> None:
    assert manifest_codec.decode(manifest_codec.encode(MANIFEST)) == MANIFEST
    assert (MANIFEST.rows, SHARD.file_rows) == (3, (7, 2))


def test_a_reader_that_knows_no_packing_does_not_take_sequences_for_rows() -> None:
    assert manifest_codec.encode(MANIFEST)[:4] == b"LFM2"
    plain = replace(MANIFEST, packing=None, shards=(replace(SHARD, documents=()),))
    assert manifest_codec.encode(plain)[:4] == b"LFM1"


@pytest.mark.parametrize(
    "change",
    [{"sequence_length": 9}, {"eos_token": 1}, {"eos_token": None}, {"mode": CONCAT}, {"column": "x"}],
)
def test_the_digest_covers_what_sequences_depend_on(change: dict[str, Any]) -> None:
    assert replace(MANIFEST, packing=replace(PACKING, **change)).digest != MANIFEST.digest


def test_the_digest_does_not_cover_the_mask() -> None:
    assert replace(MANIFEST, packing=replace(PACKING, cross_document_mask=False)).digest == MANIFEST.digest


def test_documents_are_counted_for_each_row_group() -> None:
    with pytest.raises(ManifestError, match="counts the documents of 1 row groups and has 2"):
        replace(MANIFEST, shards=(replace(SHARD, documents=(7,)),))
    with pytest.raises(ManifestError, match="make the manifest again"):
        replace(MANIFEST, packing=None)


def test_what_changed_says_packing() -> None:
    assert "packing changed from" in MANIFEST.diff(replace(MANIFEST, packing=replace(PACKING, sequence_length=4)))


def test_the_columns_that_are_delivered() -> None:
    assert [c.name for c in PACKING.columns()] == ["tokens", "lengths", "document_ids", "position_ids"]
    assert PACKING.sequence_bytes == 8 * 4 * 3 + 4
    assert [c.shape for c in replace(PACKING, cross_document_mask=False).columns()] == [(8,), ()]


def test_a_request_is_the_indexers_options() -> None:
    request = PackingRequest(16, "tokens", 7, BEST_FIT, True)
    assert request.options() == (
        *("--sequence-length", "16", "--pack-mode", "BestFit"),
        *("--token-column=tokens", "--eos-token=7", "--cross-document-mask"),
    )
    assert PackingRequest(16).options() == ("--sequence-length", "16", "--pack-mode", "Concat")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sequence_length": 0}, "sequenceLength is 0"),
        ({"sequence_length": True}, "sequenceLength is True"),
        ({"sequence_length": 8, "mode": "Best"}, "mode is 'Best': it must be Concat or BestFit"),
        ({"sequence_length": 8, "eos_token": "</s>"}, "eosToken is '</s>': it must be a token's number"),
        ({"sequence_length": 8, "eos_token": -1}, "eosToken is -1: it must be a token's number, 0 or more, or left"),
        ({"sequence_length": 8, "column": 3}, "packed.column is 3: it must be a column's name, or left out"),
        ({"sequence_length": 8, "cross_document_mask": "no"}, "crossDocumentMask is 'no': it must be true or false"),
    ],
)
def test_requests_that_nothing_can_meet(given: dict[str, Any], said: str) -> None:
    with pytest.raises(StreamError, match=said):
        PackingRequest(**given)


@pytest.mark.parametrize(
    ("column", "dtype", "eos", "said"),
    [
        ("tokens", "uint16", 70000, "eosToken is 70000, and column 'tokens' holds uint16, which goes from 0 to 65535"),
        ("tokens", "uint16", -1, "eosToken is -1"),
        ("tokens", "float32", None, "only lists of whole numbers"),
        ("lengths", "int32", None, "'lengths' has the name of a column that packing adds"),
    ],
)
def test_packings_that_a_dataset_does_not_allow(column: str, dtype: str, eos: int | None, said: str) -> None:
    with pytest.raises(StreamError, match=said):
        Packing(column, dtype, 8, eos)


def test_best_fit_over_many_documents_stays_quick_enough_to_count() -> None:
    """200,000 documents: were fitting quadratic in a row group, this would take hours."""
    lengths = np.random.default_rng(1).integers(0, 300, 200_000)
    assert yield_of(lengths, Packing("tokens", "int32", 256, None, BEST_FIT)) > 100_000
