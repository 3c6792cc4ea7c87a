"""The oracle of packed datasets: what each sequence must hold follows from packing the files' documents here."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lanefeed_core.manifest import Manifest
from lanefeed_core.packing import PackingRequest
from lanefeed_sidecar.index import build_manifest
from support.frames_oracle import Reader
from support.token_files import Lists, expected, lists, write_documents

__all__ = ["GROUP", "ROWS", "PackedOracle", "dataset", "truth", "write"]

#: Documents of each file, and of a row group.
ROWS, GROUP = (150, 64, 90), 64


@dataclass
class PackedOracle(Reader):
    """Compares every byte of every frame with `truth`."""

    truth: dict[str, np.ndarray] = field(default_factory=dict)

    def _check_fixed(self, name: str, ids: np.ndarray, values: np.ndarray, valid: np.ndarray) -> None:
        assert valid.all()
        assert values.tolist() == self.truth[name][ids].tolist(), f"column {name} holds other sequences"


def write(folder: Path, rows: tuple[int, ...] = ROWS, group: int = GROUP, kind: str = "parquet") -> Path:
    """The files."""
    for number, count in enumerate(rows):
        options = {"write_page_checksum": True} if kind == "parquet" else {}
        write_documents(folder / f"{number}.{kind}", _documents(number, count), group=group, kind=kind, **options)
    return folder


def dataset(folder: Path, request: PackingRequest, rows: tuple[int, ...] = ROWS, group: int = GROUP) -> Manifest:
    """The files and their manifest."""
    return build_manifest([str(write(folder, rows, group))], packing=request).manifest


def truth(manifest: Manifest, rows: tuple[int, ...] = ROWS, group: int = GROUP) -> dict[str, np.ndarray]:
    """Column -> what it holds for each sample id."""
    assert manifest.packing is not None
    kind = manifest.format
    files: dict[str, Lists] = {f"{number}.{kind}": _documents(number, count) for number, count in enumerate(rows)}
    made = expected(manifest, files, group, manifest.packing)
    return {
        "tokens": np.concatenate([one.tokens for one in made]),
        "lengths": np.concatenate([one.lengths for one in made]),
        "document_ids": np.concatenate([one.documents for one in made if one.documents is not None]),
        "position_ids": np.concatenate([one.positions for one in made if one.positions is not None]),
    }


def _documents(number: int, count: int) -> Lists:
    return lists(number, count, 60)
