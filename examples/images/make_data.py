"""Images of several sizes and formats with a label: is the circle red, green or blue? As Hugging Face writes them."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

rng = np.random.default_rng(0)
Path("data").mkdir(exist_ok=True)
for shard in range(4):
    images, labels = [], []
    for _ in range(120):
        width, height = (int(n) for n in rng.integers(48, 96, 2))
        picture = Image.fromarray(rng.integers(0, 90, (height, width, 3)).astype(np.uint8))
        label = int(rng.integers(0, 3))
        colour = tuple(220 if channel == label else 30 for channel in range(3))
        ImageDraw.Draw(picture).ellipse((width // 4, height // 4, 3 * width // 4, 3 * height // 4), fill=colour)
        out = io.BytesIO()
        picture.save(out, ["JPEG", "PNG", "WEBP"][len(images) % 3])
        images.append({"bytes": out.getvalue(), "path": None})
        labels.append(label)
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"image": pa.array(images, kind), "label": pa.array(labels, pa.int64())})
    pq.write_table(table, f"data/{shard}.parquet", row_group_size=40)
