"""Images for tests: encoded ones whose pixels follow from their number, datasets of them, and plain Pillow."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageOps

from lanefeed_core.images import ImageColumn
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, FrameMeta
from support.frames_oracle import Reader, Slot, view

FORMATS = ("JPEG", "PNG", "WEBP")


def pixels(number: int, width: int, height: int, channels: int = 3) -> np.ndarray:
    """Noise over a gradient, another one for each number: two images are never alike, nor two rows of one."""
    rng = np.random.default_rng([7, number])
    ramp = np.linspace(0, 200, width)[None, :, None] * rng.random(channels) + np.linspace(0, 55, height)[:, None, None]
    return (ramp + rng.integers(0, 30, (height, width, channels))).clip(0, 255).astype(np.uint8)


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    """The image as a file."""
    out = io.BytesIO()
    image.save(out, kind, **({"quality": 90} if kind == "JPEG" else {}), **options)  # type: ignore[arg-type]
    return out.getvalue()


def sample(number: int) -> bytes:
    """Image `number`: its format and its size follow from its number."""
    rng = np.random.default_rng([8, number])
    width, height = (int(n) for n in rng.integers(20, 60, 2))
    return encode(Image.fromarray(pixels(number, width, height)), FORMATS[number % 3])


def plain(data: bytes, spec: ImageColumn) -> np.ndarray:
    """What is delivered, by Pillow called as plainly as can be."""
    image = Image.open(io.BytesIO(data))
    if image.format == "JPEG" and spec.resize != "None":
        image.draft(None, (2 * spec.width, 2 * spec.height))
    image = image.convert(spec.mode)
    size = (spec.width, spec.height)
    if spec.resize == "CenterCrop":
        image = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    elif spec.resize == "Stretch":
        image = image.resize(size, Image.Resampling.BILINEAR)
    array = np.asarray(image)
    array = array[:, :, None] if array.ndim == 2 else array
    return np.ascontiguousarray(array.transpose(2, 0, 1) if spec.layout == "CHW" else array)


def missing(number: int) -> bool:
    """Whether row `number` of a dataset with nulls has no image."""
    return number % 7 == 3


def table(first: int, rows: int, *, nulls: bool = False, struct: bool = False) -> pa.Table:
    """Rows [first, first + rows): an id, and an image or a Hugging Face struct of one and its path."""
    data = [None if nulls and missing(n) else sample(n) for n in range(first, first + rows)]
    images = pa.array(data, pa.binary())
    if struct:
        paths = pa.array([f"{n}.img" for n in range(first, first + rows)])
        images = pa.StructArray.from_arrays([images, paths], ["bytes", "path"])
    return pa.table({"id": pa.array(range(first, first + rows), pa.int64()), "image": images})


def write_images(
    folder: Path, shards: list[tuple[int, int]], kind: str = "parquet", *, nulls: bool = False, struct: bool = False
) -> Manifest:
    """Write (rows, rows of a row group) shards and index them."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, (rows, group) in enumerate(shards):
        data, path = table(first, rows, nulls=nulls, struct=struct), folder / f"{number:03d}.{kind}"
        if kind == "parquet":
            pq.write_table(data, path, row_group_size=group)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, data.schema) as writer:
                writer.write_table(data, max_chunksize=group)
        first += rows
    return build_manifest([str(folder)], digest="Never").manifest


class Checker:
    """Compares frames with the reference order and with plain Pillow."""

    def __init__(self, engine: Engine, world: int, image: ImageColumn, *, nulls: bool = False, first: int = 0) -> None:
        """`first`: number of the image of sample 0."""
        self._reader, self._engine, self._image = Reader(engine, world), engine, image
        self._nulls, self._first = nulls, first
        self._made: dict[int, np.ndarray] = {}

    def pixels(self, sample_id: int) -> np.ndarray:
        if sample_id not in self._made:
            empty = self._nulls and missing(sample_id)
            made = (
                np.zeros(self._image.shape, np.uint8) if empty else plain(sample(self._first + sample_id), self._image)
            )
            self._made[sample_id] = made
        return self._made[sample_id]

    def check(self, rank: int, total: int, meta: FrameMeta, slot: Slot) -> None:
        slot.check_guard()
        names = [column.name for column in self._engine.columns]
        at = names.index(self._image.column)
        block, shape = meta.blocks[at], self._image.shape
        got = view(slot.bytes, block.values, "uint8", meta.steps, meta.rows, *shape)
        ids = view(slot.bytes, meta.ids_offset, "int64", meta.steps, meta.rows)
        valid = view(slot.bytes, block.validity, "uint8", meta.steps, meta.rows) if block.validity else None
        for k in range(meta.steps):
            want, _ = self._reader.reference(rank, total + k)
            assert ids[k].tolist() == want.tolist(), f"rank {rank}, step {total + k}: other samples or another order"
            for row, number in enumerate(ids[k].tolist()):
                assert np.array_equal(got[k, row], self.pixels(number)), f"step {total + k}: other pixels of {number}"
                assert valid is None or bool(valid[k, row]) is not (self._nulls and missing(number))


def read(engine: Engine, checker: Checker, rank: int, step: int = 0, stop: int = 0) -> int:
    """Read and check frames from `step` up to `stop` (0: the end); the step that comes next."""
    slot = Slot(engine.slot_bytes)
    while step < (stop or engine.total_steps):
        slot.spoil()
        meta = engine.fill(rank, step, slot.bytes, cancelled=lambda: False)
        assert meta is not None, f"the stream ended at step {step}"
        checker.check(rank, step, meta, slot)
        step += meta.steps
    return step
