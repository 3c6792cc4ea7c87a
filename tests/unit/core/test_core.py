"""Units of the core: messages that users see, ledger arithmetic, the book, slots, manifest."""

import json

import numpy as np
import pytest

from lanefeed_core import book, expected, layout, ledger, manifest_codec, permute, slots
from lanefeed_core.cursor import Cursor, SavedState
from lanefeed_core.errors import LedgerMismatch, ManifestError, StateMismatch, StreamError
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Entry, Ledger
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.podconfig import ConfigError, PodConfig
from lanefeed_core.stream import StreamSpec, default_lanes, default_window

SPEC = StreamSpec(seed=7, global_batch_size=4, lanes=2, window=8)


def shard(path: str, *rows: int, **more: object) -> Shard:
    return Shard(path, 100, rows, **more)  # type: ignore[arg-type]


def manifest(*paths: str) -> Manifest:
    return Manifest(tuple(shard(p, 5, 6) for p in paths), (Field("x", "int32"),))


# ---- streams ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"global_batch_size": 0}, r"batching\.globalBatchSize is 0"),
        ({"lanes": 5}, r"batching\.lanes is 5: it must lie in 1\.\.4"),
        ({"window": 0}, r"shuffle\.window is 0"),
        ({"seed": -1}, r"shuffle\.seed is -1"),
        ({"boundary": "aligned"}, r"epochBoundary is 'aligned': it must be one of Aligned, Continuous"),
        ({"last_batch": "Keep"}, r"batching\.lastBatch is 'Keep'"),
    ],
)
def test_a_wrong_size_names_the_field_and_the_bounds(change: dict[str, object], text: str) -> None:
    with pytest.raises(StreamError, match=text):
        StreamSpec(**{**SPEC.to_dict(), **change})


def test_fewer_rows_than_a_global_batch_says_what_to_do() -> None:
    with pytest.raises(StreamError, match=r"3 samples, fewer than .*globalBatchSize 4.*Partial or Pad"):
        Lanes(SPEC, np.array([3]))
    with pytest.raises(StreamError, match="no samples"):
        Lanes(SPEC, np.array([], dtype=np.int64))


def test_defaults_follow_design_section_3() -> None:
    assert default_lanes(global_batch_size=512, ranks=4, row_groups=512) == 16
    assert default_lanes(global_batch_size=512, ranks=16, row_groups=512) == 64
    assert default_lanes(global_batch_size=512, ranks=4, row_groups=20) == 5
    assert default_lanes(global_batch_size=512, ranks=8, row_groups=1) == 8
    assert default_lanes(global_batch_size=3, ranks=2, row_groups=512) == 3
    assert default_window(lanes=16, row_bytes=8192, budget_bytes=512 << 20) == 1024
    assert default_window(lanes=16, row_bytes=4, budget_bytes=512 << 20) == 8192
    assert default_window(lanes=64, row_bytes=1 << 20, budget_bytes=64 << 20) == 16
    # Below 256 only where two of these a lane leave no quarter of the budget for row groups being decoded.
    assert default_window(lanes=16, row_bytes=150_528, budget_bytes=512 << 20) == 32
    assert default_window(lanes=4, row_bytes=150_528, budget_bytes=512 << 20) == 256


def test_window_and_shard_permutations_differ_by_every_coordinate() -> None:
    base = {"seed": 1, "domain": permute.WINDOW, "source": 0, "epoch": 0, "lane": 0, "window": 0}
    first = permute.permutation(100, **base)
    assert sorted(first.tolist()) == list(range(100))
    for key in base:
        assert permute.permutation(100, **{**base, key: base[key] + 1}).tolist() != first.tolist()


# ---- state -----------------------------------------------------------------------------------------------------


def test_a_state_of_another_job_is_refused_with_both_values() -> None:
    state = SavedState("m1", SPEC, Cursor(1, 2))
    state.check(manifest="m1", spec=SPEC, steps_per_epoch=5)
    with pytest.raises(StateMismatch, match="belongs to the dataset m1 and this job reads m2"):
        state.check(manifest="m2", spec=SPEC, steps_per_epoch=5)
    for key, value, label in (
        ("seed", 8, r"shuffle\.seed 7 and this job has 8"),
        ("global_batch_size", 6, r"batching\.globalBatchSize 4 and this job has 6"),
        ("lanes", 3, r"batching\.lanes 2 and this job has 3"),
        ("window", 16, r"shuffle\.window 8 and this job has 16"),
        ("last_batch", "Pad", r"batching\.lastBatch 'Drop' and this job has 'Pad'"),
    ):
        with pytest.raises(StateMismatch, match=label):
            state.check(manifest="m1", spec=StreamSpec(**{**SPEC.to_dict(), key: value}), steps_per_epoch=5)
    with pytest.raises(StateMismatch, match="outside an epoch of 1 steps"):
        state.check(manifest="m1", spec=SPEC, steps_per_epoch=1)


def test_states_of_unknown_versions_or_shapes_are_refused() -> None:
    good = SavedState("m", SPEC, Cursor()).to_dict()
    assert SavedState.from_dict(json.loads(json.dumps(good))) == SavedState("m", SPEC, Cursor())
    with pytest.raises(StateMismatch, match="version 2 and this Lanefeed knows 1"):
        SavedState.from_dict({**good, "version": 2})
    with pytest.raises(StateMismatch, match="order_version 9"):
        SavedState.from_dict({**good, "order_version": 9})
    with pytest.raises(StateMismatch, match="not a Lanefeed state"):
        SavedState.from_dict({"_num_yielded": 3})
    with pytest.raises(StateMismatch, match="not a whole Lanefeed state"):
        SavedState.from_dict({k: v for k, v in good.items() if k != "cursor"})


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    assert Cursor(0, 4).advance(1, 5) == Cursor(1, 0)
    assert Cursor(0, 4).advance(12, 5) == Cursor(3, 1)
    assert Cursor.from_total(17, 5) == Cursor(3, 2)
    assert Cursor(3, 2).total_steps(5) == 17
    assert Cursor(0, 4).advance(12, 5, aligned=False) == Cursor(0, 16)


# ---- ledger and book -------------------------------------------------------------------------------------------


def test_the_ledger_sees_loss_repetition_and_exchange() -> None:
    ids = np.arange(50)
    right = Entry(50, ledger.sum_ids(ids))
    assert ledger.range_sum(0, 50) == right.total
    cases = {
        "1 samples were never used": ids[1:],
        "2 samples were used more than once": np.concatenate([ids, ids[:2]]),
        "some were repeated and as many lost": np.concatenate([ids[1:], ids[1:2]]),
    }
    for text, got in cases.items():
        with pytest.raises(LedgerMismatch, match=text):
            Ledger({0: Entry(len(got), ledger.sum_ids(got))}).check(0, right)
    Ledger({0: right}).check(0, right)


def part(lanes: Lanes, world: int, rank: int, start: int, stop: int) -> Ledger:
    """What a rank consumes between total steps."""
    total = Ledger()
    for step in range(start, stop):
        at = Cursor.from_total(step, lanes.steps_per_epoch)
        ids, mask = lanes.batch(at.epoch, at.step)
        low, high = rank * len(ids) // world, (rank + 1) * len(ids) // world
        mine = ids[low:high][mask[low:high]]
        total.add(at.epoch, len(mine), ledger.sum_ids(mine))
    return total


@pytest.fixture
def lanes() -> Lanes:
    return Lanes(StreamSpec(seed=7, global_batch_size=4, lanes=2, window=8, last_batch="Partial"), np.array([21, 9]))


def test_the_book_proves_an_epoch_over_a_lone_restart_and_a_resize(lanes: Lanes) -> None:
    """Two ranks commit 3; rank 1 dies after committing 5 alone, goes on from 3; then three ranks end the epoch."""
    keeper = book.Book(1, 2)
    for rank in range(2):
        done = keeper.add(book.Segment(rank, 0, 3, part(lanes, 2, rank, 0, 3), "c3"), 1)
    assert done is not None
    assert (done.step, done.name) == (3, "c3")
    assert keeper.add(book.Segment(1, 3, 5, part(lanes, 2, 1, 3, 5)), 1) is None
    assert keeper.waiting() == {5: [0]}
    keeper.add(book.Segment(1, 3, 4, part(lanes, 2, 1, 3, 4)), 1)
    keeper.add(book.Segment(1, 4, 5, part(lanes, 2, 1, 4, 5)), 1)
    done = keeper.add(book.Segment(0, 3, 5, part(lanes, 2, 0, 3, 5), "c5"), 1)
    assert done is not None
    keeper = book.Book.from_dict(json.loads(json.dumps(keeper.to_dict())))
    keeper.new_plan(2, 3)
    keeper.begin(5, Ledger())
    end = lanes.steps_per_epoch
    for rank in range(3):
        done = keeper.add(book.Segment(rank, 5, end, part(lanes, 3, rank, 5, end)), 2)
    assert done is not None
    done.ledger.check(0, expected.epoch_entry(lanes, 0))


def test_a_lost_part_is_caught(lanes: Lanes) -> None:
    """Tooth: rank 1 forgets what it consumed before its restart."""
    keeper = book.Book(1, 2)
    end = lanes.steps_per_epoch
    keeper.add(book.Segment(0, 0, end, part(lanes, 2, 0, 0, end)), 1)
    done = keeper.add(book.Segment(1, 0, end, part(lanes, 2, 1, 2, end)), 1)
    assert done is not None
    with pytest.raises(LedgerMismatch, match="never used"):
        done.ledger.check(0, expected.epoch_entry(lanes, 0))


def test_zombies_and_strangers_cannot_commit(lanes: Lanes) -> None:
    keeper = book.Book(2, 2)
    with pytest.raises(book.CommitRefused, match="plan generation 1 and the job is at 2: this process was replaced"):
        keeper.add(book.Segment(0, 0, 3, Ledger()), 1)
    with pytest.raises(book.CommitRefused, match="rank 2 is not in the plan of 2 ranks"):
        keeper.add(book.Segment(2, 0, 3, Ledger()), 2)
    with pytest.raises(book.CommitRefused, match="not newer"):
        keeper.new_plan(2, 3)


def test_a_checkpoint_that_no_commit_names_is_proven_by_recomputing(lanes: Lanes) -> None:
    keeper = book.Book(1, 1)
    keeper.add(book.Segment(0, 0, 6, part(lanes, 1, 0, 0, 6)), 1)
    keeper.new_plan(2, 1)
    assert not keeper.knows(4)
    keeper.begin(4, expected.prefix(lanes, Cursor(0, 4)))
    assert keeper.last.recomputed
    end = lanes.steps_per_epoch
    done = keeper.add(book.Segment(0, 4, end, part(lanes, 1, 0, 4, end)), 2)
    assert done is not None
    done.ledger.check(0, expected.epoch_entry(lanes, 0))


def test_the_book_stays_small(lanes: Lanes) -> None:
    keeper = book.Book(1, 1)
    for step in range(500):
        keeper.add(book.Segment(0, step, step + 1, Ledger({0: Entry(1, 1)}), f"c{step}"), 1)
    assert len(keeper.commits) == book.KEEP
    assert keeper.last.step == 500


# ---- slots, layout, manifest, config ---------------------------------------------------------------------------


def test_slots_refuse_every_transition_that_the_protocol_forbids() -> None:
    ring = slots.Slots(2)
    first = ring.take()
    assert first == 0
    with pytest.raises(slots.SlotError, match="cannot lease slot 0: it is FILLING, not READY"):
        ring.lease(0)
    ring.publish(0)
    with pytest.raises(slots.SlotError, match="cannot release slot 0: it is READY"):
        ring.release(0)
    ring.lease(0)
    assert ring.take() == 1
    assert ring.take() is None
    ring.abort(1)
    ring.release(0)
    assert [ring.take(), ring.take()] == [0, 1], "the slot that was freed last comes first"
    with pytest.raises(slots.SlotError, match="slot 9 does not exist"):
        ring.release(9)


def test_a_seek_keeps_leases_and_a_death_frees_them() -> None:
    ring = slots.Slots(3)
    for _ in range(3):
        slot = ring.take()
        assert slot is not None
        ring.publish(slot)
    ring.lease(0)
    ring.reset()
    assert [ring[0], ring[1], ring[2]] == [slots.SlotState.LEASED, slots.SlotState.FREE, slots.SlotState.FREE]
    ring.reclaim()
    assert ring.count(slots.SlotState.FREE) == 3


def test_a_batch_larger_than_a_slot_names_both_sizes_and_the_field() -> None:
    with pytest.raises(layout.LayoutError, match=r"takes 5000 bytes and a slot holds 4096: raise sidecar\.slotBytes"):
        layout.check_batch_fits(5000, 4096, 16)


def test_manifest_round_trip_damage_and_order() -> None:
    whole = manifest("a.parquet", "b.parquet")
    data = manifest_codec.encode(whole)
    assert manifest_codec.decode(data) == whole
    with pytest.raises(ManifestError, match="not a Lanefeed manifest"):
        manifest_codec.decode(b"PAR1" + data)
    with pytest.raises(ManifestError, match=r"truncated|damaged"):
        manifest_codec.decode(data[:-9])
    for at in range(8, len(data), 7):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(ManifestError):
            manifest_codec.decode(flipped)
    with pytest.raises(ManifestError, match="out of order"):
        manifest("b", "a")
    with pytest.raises(ManifestError, match="listed twice"):
        manifest("a", "a")


def test_the_manifest_says_what_changed() -> None:
    old, new = manifest("a", "b", "c"), manifest("b", "c", "d")
    assert old.diff(new) == "1 missing (a); 1 new (d)"
    assert old.digest != new.digest
    moved = Manifest(
        tuple(Shard(s.path, s.size, s.row_groups, etag="later") for s in old.shards), old.fields, root="/x"
    )
    assert moved.digest == old.digest
    assert old.locate(11) == (1, 0)
    with pytest.raises(IndexError):
        old.locate(33)


def test_a_damaged_pod_configuration_is_named() -> None:
    with pytest.raises(ConfigError, match="version None is unknown"):
        PodConfig.from_json("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        PodConfig.from_json("{")
