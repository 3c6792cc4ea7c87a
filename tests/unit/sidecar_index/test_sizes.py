"""What row groups decode to, as far as a footer says it, and the lint that names those that are too large."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_sidecar.index import build_manifest, lint

MIB = 1 << 20


def test_numbers_in_lists_are_counted_however_little_they_take_in_the_file(tmp_path: Path) -> None:
    """A million equal numbers are a few bytes; lists of one length and of any, also inside of a struct."""
    values = pa.array(np.zeros(1 << 20, np.int32))
    fixed = pa.FixedSizeListArray.from_arrays(values, 1024)
    ragged = pa.ListArray.from_arrays(pa.array(np.arange(1025, dtype=np.int32) * 1024), values)
    for name, array in (("fixed", fixed), ("ragged", ragged), ("inner", pa.StructArray.from_arrays([ragged], ["x"]))):
        path = tmp_path / name / "a.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"x": array}), path)
        assert path.stat().st_size < 10_000
        (nbytes,) = build_manifest([str(path)], digest="Never").manifest.shards[0].row_group_bytes
        assert 4 * MIB <= nbytes < 5 * MIB, name


def test_lint_names_huge_row_groups(tmp_path: Path) -> None:
    shards = [Shard(f"{i}.parquet", 1000, (10, 10), (MIB, (100 + 20 * i) * MIB)) for i in range(8)]
    found = {f.code: f for f in lint(Manifest(tuple(shards), (Field("x", "int64"),), "parquet", str(tmp_path)))}
    assert found["huge-row-groups"].what == (
        "6 row groups decode to more than 128 MiB, a quarter of the default sidecar.readAheadBytes: "
        "7.parquet #1 (240 MiB), 6.parquet #1 (220 MiB), 5.parquet #1 (200 MiB) and 3 more"
    )
    assert "row groups of 8 to 64 MiB" in found["huge-row-groups"].remedy
    small = [Shard(f"{i:02}.parquet", 1000, (10,), (MIB,)) for i in range(80)]
    found = {f.code: f for f in lint(Manifest(tuple(small), (Field("x", "int64"),), "parquet", str(tmp_path)))}
    assert "huge-row-groups" not in found
