"""Reports about what lies in the files: nulls, empty parts, bit patterns, sizes, replaced files (../shared/cases.md).

Each through `lanefeed.open` with the production sidecar.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lanefeed
from support.badinput import SMALL, folder, sidecar_pid
from support.tmpfs import mounted


def columns(uri: Path, **options: object) -> dict[str, list[object]]:
    """All columns as lists, in the order of the ids."""
    rows: list[tuple[int, dict[str, object]]] = []
    with lanefeed.open(uri, **(SMALL | {"last_batch": "Partial"} | options)) as loader:
        for batch in loader:
            parts = {name: list(batch[name]) for name in batch}
            for name, valid in batch.validity.items():
                parts[name] = [v if ok else None for v, ok in zip(parts[name], valid, strict=True)]
            rows += [(int(i), {n: p[at] for n, p in parts.items()}) for at, i in enumerate(batch.ids)]
    rows.sort(key=lambda row: row[0])
    return {name: [row[name] for _, row in rows] for name in rows[0][1]}


def test_case_34_a_column_all_null_in_the_first_file(tmp_path: Path) -> None:
    """hf#7222, usajobs#593: all null in the first file, strings later: one schema, nulls marked, strings whole."""
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"id": [0, 1, 2], "s": pa.nulls(3)}), tmp_path / "d" / "0.parquet")
    pq.write_table(pa.table({"id": [3, 4], "s": ["a", "bc"]}), tmp_path / "d" / "1.parquet")
    found = columns(tmp_path / "d")
    assert [int(i) for i in found["id"]] == [0, 1, 2, 3, 4]
    assert found["s"][:3] == [None, None, None]
    assert [bytes(np.asarray(s)) for s in found["s"][3:]] == [b"a", b"bc"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_case_48_what_is_empty_comes_first(tmp_path: Path, kind: str) -> None:
    """Kubeflow data cache: an empty file first, then an empty row group (or record batch) first in its file."""
    (tmp_path / "d").mkdir()
    schema = pa.schema({"id": pa.int64()})
    full = [pa.record_batch({"id": np.arange(low, low + 10)}) for low in (0, 10)]
    empty = pa.record_batch({"id": np.arange(0)})
    for name, batches in (("0", [empty]), ("1", [empty, full[0]]), ("2", [full[1], empty])):
        path = tmp_path / "d" / f"{name}.{kind}"
        if kind == "parquet":
            with pq.ParquetWriter(path, schema) as writer:
                for batch in batches:
                    writer.write_table(pa.Table.from_batches([batch]))
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as out:
                for batch in batches:
                    out.write_batch(batch)
    assert [int(i) for i in columns(tmp_path / "d")["id"]] == list(range(20))


def test_nan_payloads_and_negative_zero_pass_bit_for_bit(tmp_path: Path) -> None:
    """No report: NaN and -0.0 through the slot."""
    bits = np.array([0x7FF8DEADBEEF0001, 0xFFF0000000000001, 1 << 63, 0, 0x7FF0000000000000, 1], np.uint64)
    bits32 = np.array([0x7FC0BEEF, 0xFF800001, 1 << 31, 0, 0x7F800000, 1], np.uint32)
    (tmp_path / "d").mkdir()
    table = pa.table({"d": pa.array(bits.view(np.float64)), "f": pa.array(bits32.view(np.float32))})
    pq.write_table(table, tmp_path / "d" / "0.parquet")
    found = columns(tmp_path / "d", global_batch_size=2)
    assert np.array(found["d"], np.float64).view(np.uint64).tolist() == bits.tolist()
    assert np.array(found["f"], np.float32).view(np.uint32).tolist() == bits32.tolist()


def test_sigterm_in_the_middle_of_a_slot_write(tmp_path: Path, shm_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No report: the half-written slot is never seen, the next sidecar goes on at the same step."""
    uri = folder(tmp_path / "d")
    monkeypatch.setenv("LANEFEED_FAILPOINTS", "slot.mid_write=sleep:120@3")
    seen: list[int] = []
    with lanefeed.open(uri, **SMALL) as loader:
        batches = iter(loader)
        seen += next(batches)["id"].tolist()
        monkeypatch.delenv("LANEFEED_FAILPOINTS")
        pid, began = sidecar_pid(shm_root), time.monotonic()
        time.sleep(0.3)  # until it sleeps inside of its third write
        os.kill(pid, signal.SIGTERM)
        for batch in batches:
            assert batch["id"].tolist() == batch.ids.tolist()
            seen += batch["id"].tolist()
        assert sidecar_pid(shm_root) != pid
    assert time.monotonic() - began < 60
    assert sorted(seen) == list(range(64))


@pytest.fixture
def tiny_tmpfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real tmpfs of 2 MiB for run folders."""
    with mounted("2m") as place:
        monkeypatch.setenv("LANEFEED_SHM_ROOT", str(place))
        yield place


def test_a_row_group_larger_than_the_tmpfs(tmp_path: Path, tiny_tmpfs: Path) -> None:
    """No report: one row group of 8 MB, a tmpfs of 2 MiB: only batches have to fit."""
    (tmp_path / "d").mkdir()
    values = np.random.default_rng(1).integers(0, 1 << 62, (1000, 1024))
    x = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 1024)
    pq.write_table(pa.table({"id": np.arange(1000), "x": x}), tmp_path / "d" / "0.parquet", row_group_size=1000)
    options = SMALL | {"slot_bytes": 1 << 18, "last_batch": "Partial"}
    seen = 0
    with lanefeed.open(tmp_path / "d", **options) as loader:
        for batch in loader:
            assert np.array_equal(batch["x"], values[np.asarray(batch["id"])])
            seen += len(batch["id"])
    assert seen == 1000
