"""The engine with image columns: each row's pixels are those of plain Pillow on the row that its id names."""

import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_core.images import ImageColumn
from lanefeed_core.manifest import Manifest
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.cache import Allowance
from lanefeed_sidecar.errors import ConfigError, DataError
from lanefeed_sidecar.formats import images as decoding
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, Stats
from lanefeed_sidecar.pipeline.pieces import RowGroupKey
from support.frames_oracle import Slot, config
from support.images import Checker, read, sample, table, write_images

SPEC = StreamSpec(seed=3, global_batch_size=6, lanes=3, window=8)
SHARDS = [(40, 10), (23, 23), (31, 8)]
IMAGE = ImageColumn(column="image", height=24, width=32)
BUDGET = 16 << 20


def start(manifest: Manifest, **more: object) -> Engine:
    given = {"epochs": 2, "images": (IMAGE,), "read_ahead_bytes": BUDGET, **more}
    engine = Engine(config(SPEC, **given), manifest, stats=Stats())  # type: ignore[arg-type]
    engine.start()
    return engine


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_every_batch_holds_the_pixels_of_its_rows(tmp_path: Path, kind: str, layout: str) -> None:
    image = ImageColumn(column="image", height=24, width=32, layout=layout)
    engine = start(write_images(tmp_path, SHARDS, kind), images=(image,))
    try:
        read(engine, Checker(engine, 1, image), 0)
    finally:
        engine.close()


def test_two_ranks_and_a_resume_in_the_middle(tmp_path: Path) -> None:
    manifest = write_images(tmp_path, SHARDS)
    engine = start(manifest, ranks=2)
    try:
        checker = Checker(engine, 2, IMAGE)
        at = [read(engine, checker, rank, 0, 5) for rank in (0, 1)]
    finally:
        engine.close()
    # Another world goes on, three pods of one rank, from within the epoch.
    for pod in range(3):
        engine = start(manifest, replicas=3, pod=pod)
        try:
            read(engine, Checker(engine, 3, IMAGE), pod, max(at))
        finally:
            engine.close()


def test_nulls_are_zeros_and_marked_and_a_hugging_face_struct_is_read(tmp_path: Path) -> None:
    image = ImageColumn(column="image.bytes", height=9, width=7, mode="L", resize="Stretch")
    manifest = write_images(tmp_path, SHARDS, nulls=True, struct=True)
    engine = start(manifest, images=(image,), columns=("id", "image.bytes"))
    try:
        read(engine, Checker(engine, 1, image, nulls=True), 0)
    finally:
        engine.close()


def test_a_row_is_decoded_once_an_epoch_however_lanes_and_windows_cut_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, decoded = write_images(tmp_path, SHARDS), []
    real = decoding.ImageDecoder.decode
    monkeypatch.setattr(
        decoding.ImageDecoder, "decode", lambda self, data, out: (decoded.append(data), real(self, data, out))
    )
    engine = start(manifest, epochs=1)
    try:
        read(engine, Checker(engine, 1, IMAGE), 0)
    finally:
        engine.close()
    # What lastBatch Drop leaves over is in no window.
    assert len(decoded) == len(set(decoded)) <= manifest.rows


def test_the_first_batch_waits_for_no_image_of_a_later_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder stops after as many images as the first windows of all lanes hold: the first frame comes anyhow."""
    manifest = write_images(tmp_path, [(200, 100)])
    left, lock, go_on = SPEC.lanes * SPEC.window, threading.Lock(), threading.Event()
    real = decoding.ImageDecoder.decode

    def decode(self: decoding.ImageDecoder, data: bytes, out: np.ndarray) -> None:
        nonlocal left
        with lock:
            left -= 1
            stop = left < 0
        if stop:
            go_on.wait(100)
        real(self, data, out)

    monkeypatch.setattr(decoding.ImageDecoder, "decode", decode)
    engine = start(manifest, decode_threads=1)
    slot, end = Slot(engine.slot_bytes), time.monotonic() + 60
    try:
        meta = engine.fill(0, 0, slot.bytes, cancelled=lambda: time.monotonic() > end)
        assert meta is not None, "the first frame waits for images of later windows"
        Checker(engine, 1, IMAGE).check(0, 0, meta, slot)
        go_on.set()
        read(engine, Checker(engine, 1, IMAGE), 0, meta.steps)
    finally:
        go_on.set()
        engine.close()


def test_a_row_group_above_the_budget_is_read_in_pieces(tmp_path: Path) -> None:
    manifest = write_images(tmp_path, [(94, 94)])
    engine = start(manifest, read_ahead_bytes=320 << 10)
    try:
        assert engine._store.streams(RowGroupKey(0, 0))
        read(engine, Checker(engine, 1, IMAGE), 0)
    finally:
        engine.close()


def test_the_cache_keeps_pixels_and_other_options_are_other_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Allowance, "open", True)
    manifest, cache = write_images(tmp_path / "d", SHARDS), str(tmp_path / "c")

    def run(image: ImageColumn) -> int:
        engine = start(manifest, images=(image,), cache_dir=cache, cache_bytes=1 << 30)
        # Row groups kept in memory would hide the disk.
        engine._store._wanted = lambda group: False  # type: ignore[method-assign]
        try:
            read(engine, Checker(engine, 1, image), 0)
            return int(engine._stats.snapshot().counts.get("row_groups", 0))
        finally:
            engine.close()

    assert run(IMAGE) > 0
    assert run(IMAGE) == 0
    assert run(ImageColumn(column="image", height=24, width=32, resize="Stretch")) > 0


def test_a_damaged_image_is_an_error_that_names_its_row_after_the_batches_before_it(tmp_path: Path) -> None:
    data = table(0, 40)
    rows = data["image"].to_pylist()
    rows[33] = rows[33][: len(rows[33]) // 2]
    path = tmp_path / "a.parquet"
    pq.write_table(data.set_column(1, "image", pa.array(rows, pa.binary())), path, row_group_size=10)
    spec = StreamSpec(seed=3, global_batch_size=4, lanes=1, window=8, shuffle=False)
    manifest = build_manifest([str(path)], digest="Never").manifest
    given = config(spec, images=(IMAGE,), read_ahead_bytes=BUDGET)
    engine = Engine(given, manifest, stats=Stats())
    engine.start()
    slot, step = Slot(engine.slot_bytes), 0
    try:
        error = None
        while error is None:
            try:
                meta = engine.fill(0, step, slot.bytes, cancelled=lambda: False)
            except DataError as found:
                error = found
            else:
                assert meta is not None, f"the stream ended at step {step} without the error"
                step += meta.steps
    finally:
        engine.close()
    text = str(error)
    assert text.startswith(
        f"shard {path}, row group 3, row 3: the image in column image cannot be delivered: it is damaged"
    )
    assert text.endswith("make a new manifest with `lanefeed index` and start a new job")
    assert step * 4 >= 24


@pytest.mark.parametrize(
    ("images", "columns", "text"),
    [
        (
            (ImageColumn(column="imag", height=1, width=1),),
            (),
            "names 'imag', which .* did you mean 'image'",
        ),
        ((ImageColumn(column="id", height=1, width=1),), (), "names 'id', which is int64: an image column is binary"),
        ((IMAGE,), ("id",), "data.images names 'image' and data.columns does not"),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_the_start(
    tmp_path: Path, images: tuple[ImageColumn, ...], columns: tuple[str, ...], text: str
) -> None:
    manifest = write_images(tmp_path, [(8, 8)])
    with pytest.raises(ConfigError, match=text):
        Engine(config(SPEC, images=images, columns=columns), manifest, stats=Stats())


@pytest.mark.parametrize("fault", ["two rows", "one bit"])
def test_tooth_a_decoder_that_swaps_two_rows_or_flips_a_bit_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    real = decoding.ImageDecoder.decode
    first, second = sample(50), sample(51)

    def wrong(self: decoding.ImageDecoder, data: bytes, out: np.ndarray) -> None:
        real(self, {first: second, second: first}.get(data, data) if fault == "two rows" else data, out)
        if fault == "one bit" and data == first:
            out[0, 5, 5] ^= 1

    monkeypatch.setattr(decoding.ImageDecoder, "decode", wrong)
    engine = start(write_images(tmp_path, SHARDS))
    try:
        with pytest.raises(AssertionError, match="other pixels of 5"):
            read(engine, Checker(engine, 1, IMAGE), 0)
    finally:
        engine.close()


@pytest.mark.parametrize("last_batch", ["Pad", "Partial"])
def test_the_last_batch_of_an_epoch(tmp_path: Path, last_batch: str) -> None:
    spec = StreamSpec(seed=3, global_batch_size=7, lanes=3, window=8, last_batch=last_batch)
    manifest = write_images(tmp_path, SHARDS)
    engine = Engine(config(spec, epochs=2, images=(IMAGE,), read_ahead_bytes=BUDGET), manifest, stats=Stats())
    engine.start()
    try:
        read(engine, Checker(engine, 1, IMAGE), 0)
    finally:
        engine.close()


def test_two_columns_of_images_of_one_size_and_one_of_another(tmp_path: Path) -> None:
    data = table(0, 60)
    pair = data.append_column("pair", table(60, 60)["image"]).append_column("small", table(120, 60)["image"])
    pq.write_table(pair, tmp_path / "a.parquet", row_group_size=13)
    small = ImageColumn(column="small", height=5, width=4, mode="L")
    images = (IMAGE, ImageColumn(column="pair", height=24, width=32), small)
    manifest = build_manifest([str(tmp_path)], digest="Never").manifest
    for image, first in zip(images, (0, 60, 120), strict=True):
        engine = start(manifest, images=images)
        try:
            read(engine, Checker(engine, 1, image, first=first), 0)
        finally:
            engine.close()
