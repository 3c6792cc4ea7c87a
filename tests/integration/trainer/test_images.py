"""`lanefeed.open(images=...)`: a sidecar of its own decodes, the trainer gets tensors of pixels; resume and errors."""

from pathlib import Path

import numpy as np
import pytest

import lanefeed
from support.images import plain, sample, write_images

IMAGE = lanefeed.ImageColumn(column="image", height=24, width=32)


def check(batch: lanefeed.Batch) -> list[int]:
    ids = batch["id"].tolist()
    assert batch["image"].dtype == np.uint8
    assert batch["image"].shape == (len(ids), 3, 24, 32)
    for row, number in enumerate(ids):
        assert np.array_equal(batch["image"][row], plain(sample(number), IMAGE)), f"other pixels of {number}"
    return [int(n) for n in ids]


def test_batches_are_pixels_and_a_resume_goes_on_with_the_same(tmp_path: Path) -> None:
    write_images(tmp_path, [(20, 8), (17, 17)])
    given = {"global_batch_size": 4, "seed": 5, "tensors": "numpy"}
    with lanefeed.open(tmp_path, images=[IMAGE], epochs=1, **given) as loader:
        seen = []
        for _ in loader.epochs():
            for number, batch in enumerate(loader):
                seen.append(check(batch))
                if number == 3:
                    state = loader.state_dict()
    assert len({i for ids in seen for i in ids}) == 36
    # The same as a dict, read in another process's life.
    asked = {"column": "image", "height": 24, "width": 32}
    with lanefeed.open(tmp_path, images=[asked], epochs=1, **given) as loader:
        loader.load_state_dict(state)
        rest = [check(batch) for _ in loader.epochs() for batch in loader]
    assert rest == seen[4:]


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (IMAGE, "give a list of them"),
        ([{"column": "image", "height": 24}], "give column, height and width"),
        ([{"column": "image", "height": 24, "width": 0}], "images: width of column 'image' is 0"),
        ([IMAGE, IMAGE], "images names column 'image' twice"),
    ],
)
def test_what_is_asked_wrongly_is_said_at_once(tmp_path: Path, images: object, text: str) -> None:
    with pytest.raises(lanefeed.UsageError, match=text):
        lanefeed.open(tmp_path, global_batch_size=4, images=images)  # type: ignore[arg-type]


def test_a_column_that_is_none_is_refused_by_the_indexer(tmp_path: Path) -> None:
    write_images(tmp_path, [(8, 8)])
    asked = lanefeed.ImageColumn(column="id", height=1, width=1)
    wrong = r"data\.images names 'id', which is int64: an image column is binary"
    with (
        lanefeed.open(tmp_path, global_batch_size=4, images=[asked]) as loader,
        pytest.raises(lanefeed.UsageError, match=wrong),
    ):
        next(iter(loader))
