"""The engine over packed documents: every byte of every frame, row groups larger than the budget, files that lie."""

from dataclasses import replace
from pathlib import Path

import pytest

from lanefeed_core.packing import BEST_FIT, MODES, PackingRequest
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar import formats
from lanefeed_sidecar.pipeline import Engine, Stats
from support.frames_oracle import Slot, config, drain, until_error
from support.packed_oracle import PackedOracle, dataset, truth

SPEC = StreamSpec(seed=5, global_batch_size=8, lanes=2, window=16, last_batch="Pad")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("eos", [None, 0])
def test_every_frame_of_all_ranks(tmp_path: Path, mode: str, eos: int | None) -> None:
    manifest = dataset(tmp_path / "d", PackingRequest(50, "", eos, mode, True))
    engine = Engine(config(SPEC, ranks=2, epochs=2, decode_threads=2), manifest, stats=Stats())
    reader, slot = PackedOracle(engine, 2, truth=truth(manifest)), Slot(engine.slot_bytes)
    engine.start()
    try:
        for rank in (0, 1):
            assert drain(engine, rank, slot, reader) == engine.total_steps
            assert drain(engine, rank, slot, reader, 7, 9) >= 9
    finally:
        engine.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_row_group_larger_than_the_budget_is_packed_as_it_is_read(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (3000,)
    manifest = dataset(tmp_path / "d", PackingRequest(50, "", 0, mode, True), rows, 3000)
    budget = 256 << 10
    assert manifest.shards[0].row_group_bytes[0] > 4 * budget

    def refuse(*_: object) -> None:
        raise AssertionError("read whole")

    monkeypatch.setattr(formats.packed._PackedReader, "read", refuse)
    engine = Engine(config(SPEC, epochs=1, decode_threads=1, read_ahead_bytes=budget), manifest, stats=Stats())
    reader, slot = PackedOracle(engine, 1, truth=truth(manifest, rows, 3000)), Slot(engine.slot_bytes)
    engine.start()
    try:
        assert drain(engine, 0, slot, reader, 0, 20) >= 20
        assert drain(engine, 0, slot, reader, engine.total_steps - 5) == engine.total_steps
    finally:
        engine.close()


def test_a_file_that_lied_about_its_tokens_ends_in_an_error_and_no_wrong_batch(tmp_path: Path) -> None:
    """The second row group gives one sequence more than the indexer was told: what comes before it is right."""
    honest = dataset(tmp_path / "d", PackingRequest(50, mode=BEST_FIT, cross_document_mask=True))
    shard = honest.shards[0]
    groups = (shard.row_groups[0], shard.row_groups[1] - 1, *shard.row_groups[2:])
    manifest = replace(honest, shards=(replace(shard, row_groups=groups), *honest.shards[1:]))
    plain = replace(SPEC, shuffle=False, lanes=1)
    engine = Engine(config(plain, epochs=1, decode_threads=1), manifest, stats=Stats())
    reader, slot = PackedOracle(engine, 1, truth=truth(honest)), Slot(engine.slot_bytes)
    engine.start()
    try:
        step, error = until_error(engine, 0, slot, lambda at, meta: reader.check(0, at, meta, slot))
    finally:
        engine.close()
    assert 0 < step <= groups[0] // SPEC.global_batch_size
    assert f"row group 1 has documents for {groups[1] + 1} sequences of 50 tokens" in str(error)


def test_tooth_two_sequences_exchanged_are_caught(tmp_path: Path) -> None:
    manifest = dataset(tmp_path / "d", PackingRequest(50, cross_document_mask=True))
    wrong = truth(manifest)
    wrong["tokens"][[3, 4]] = wrong["tokens"][[4, 3]]
    engine = Engine(config(SPEC, epochs=1, decode_threads=1), manifest, stats=Stats())
    reader, slot = PackedOracle(engine, 1, truth=wrong), Slot(engine.slot_bytes)
    engine.start()
    try:
        with pytest.raises(AssertionError, match="column tokens holds other sequences"):
            drain(engine, 0, slot, reader)
    finally:
        engine.close()
