"""What URIs name: files, folders, globs; what is left out, and what users are told."""

import os
from pathlib import Path

import pytest

from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.sources import list_shards


def touch(folder: Path, *names: str, size: int = 1) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def names(folder: Path, *uris: str) -> list[str]:
    return [os.path.relpath(p, folder) for p in list_shards(uris, base=str(folder)).paths]


def refused(folder: Path, *uris: str) -> str:
    with pytest.raises(DataError) as error:
        list_shards(uris, base=str(folder))
    return str(error.value)


def test_a_folder_is_searched_below_and_sorted(tmp_path: Path) -> None:
    touch(tmp_path, "d/b.parquet", "d/a/z.parquet", "d/a.parquet", "d/10.pq", "d/9.arrow", "d/x/y/w.feather", "d/v.ipc")
    want = ["d/10.pq", "d/9.arrow", "d/a.parquet", "d/a/z.parquet", "d/b.parquet", "d/v.ipc", "d/x/y/w.feather"]
    assert names(tmp_path, "d") == want
    assert names(tmp_path, "d/") == want
    assert names(tmp_path, str(tmp_path / "d")) == want
    assert names(tmp_path, f"file://{tmp_path}/d") == want
    assert list_shards(["d"], base=str(tmp_path)).root == str(tmp_path / "d")


def test_markers_hidden_and_other_files_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", ".b.parquet", "_metadata", "_c.parquet", "_tmp/d.parquet", ".x/e.parquet", "README.md")
    touch(tmp_path, "_SUCCESS", size=0)
    (tmp_path / "folder.parquet").mkdir()
    os.mkfifo(tmp_path / "pipe.parquet")
    assert names(tmp_path, ".") == ["a.parquet"]
    assert names(tmp_path, "*") == ["a.parquet"]
    assert names(tmp_path, "**") == ["a.parquet"]
    skipped = {os.path.basename(p): reason for p, reason in list_shards([str(tmp_path)]).skipped}
    assert skipped == {
        ".b.parquet": "hidden or a marker",
        "_metadata": "hidden or a marker",
        "_c.parquet": "hidden or a marker",
        "_SUCCESS": "hidden or a marker",
        "README.md": "not a data file by its name",
        "pipe.parquet": "not a regular file",
    }


def test_an_empty_file_is_no_data_unless_its_name_says_so(tmp_path: Path) -> None:
    touch(tmp_path, "part-1", size=1)
    touch(tmp_path, "part-2", size=0)
    assert names(tmp_path, "part-*") == ["part-1"]
    touch(tmp_path, "a.parquet", size=0)
    assert names(tmp_path, ".") == ["a.parquet"]


def test_a_dataset_in_a_hidden_folder_is_found(tmp_path: Path) -> None:
    """Only what is hidden below what the user wrote is hidden: data may lie in ~/.cache."""
    touch(tmp_path, ".cache/_data/a.parquet", ".cache/_data/b/c.parquet")
    assert names(tmp_path, ".cache/_data") == [".cache/_data/a.parquet", ".cache/_data/b/c.parquet"]
    assert names(tmp_path, ".cache/_data/*.parquet") == [".cache/_data/a.parquet"]
    assert names(tmp_path, ".cache/_data/**/*.parquet") == [".cache/_data/a.parquet", ".cache/_data/b/c.parquet"]


def test_named_files_may_have_any_name(tmp_path: Path) -> None:
    touch(tmp_path, "part-0", "part-1", "_odd", "a[1].parquet")
    assert names(tmp_path, "part-0", "_odd") == ["_odd", "part-0"]
    assert names(tmp_path, "part-*") == ["part-0", "part-1"]
    assert names(tmp_path, "a[1].parquet") == ["a[1].parquet"]


def test_globs(tmp_path: Path) -> None:
    touch(tmp_path, "y=1/a.parquet", "y=1/b.parquet", "y=2/c.parquet", "y=2/deep/d.parquet")
    assert names(tmp_path, "y=*/*.parquet") == ["y=1/a.parquet", "y=1/b.parquet", "y=2/c.parquet"]
    assert names(tmp_path, "**/*.parquet")[-1] == "y=2/deep/d.parquet"
    assert names(tmp_path, "y=[2]") == ["y=2/c.parquet", "y=2/deep/d.parquet"]
    strange = tmp_path / "[base]"
    touch(strange, "a.parquet")
    assert names(strange, "*.parquet") == ["a.parquet"]


def test_links_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.parquet", "data/b.parquet")
    (tmp_path / "data/more").symlink_to(tmp_path / "real")
    (tmp_path / "data/loop").symlink_to(tmp_path / "data")
    (tmp_path / "data/c.parquet").symlink_to(tmp_path / "elsewhere")
    touch(tmp_path, "elsewhere")
    assert names(tmp_path, "data") == ["data/b.parquet", "data/c.parquet", "data/more/a.parquet"]
    (tmp_path / "elsewhere").unlink()
    text = refused(tmp_path, "data")
    assert text == (
        f"{tmp_path}/data/c.parquet is a link to {tmp_path}/elsewhere, which does not exist: restore it or remove the link"  # noqa: E501
    )


def test_named_twice(tmp_path: Path) -> None:
    touch(tmp_path, "d/a.parquet")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "d/a.parquet")
    text = refused(tmp_path, "d", "d/*.parquet")
    assert text == (f"{tmp_path}/d/a.parquet is named twice in data.uri: its samples would be used twice; name it once")
    assert f"named twice in data.uri (also as {tmp_path}/d/a.parquet)" in refused(tmp_path, "d", "b.parquet")


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("d/*.pq", "data.uri d/*.pq matches no file (current folder {0}; the nearest folder that exists is {0}/d): check the pattern"),  # noqa: E501
        ("q/r/*.pq", "data.uri q/r/*.pq matches no file (current folder {0}; the nearest folder that exists is {0}): check the pattern"),  # noqa: E501
        ("d/e/f", "data.uri d/e/f does not exist (current folder {0}; the nearest folder that exists is {0}/d): check the path"),  # noqa: E501
        ("file://host/x", "data.uri file://host/x: a file URI names an absolute path on this machine, as file:///data/train"),
        ("none", "data.uri none names no data file (there is no file): check the path"),
        ("other", "data.uri other names no data file (a.txt: not a data file by its name): check the path"),
    ],
)  # fmt: skip
def test_messages(tmp_path: Path, uri: str, text: str) -> None:
    touch(tmp_path, "d/a.parquet", "other/a.txt")
    (tmp_path / "none").mkdir()
    assert refused(tmp_path, uri) == text.format(tmp_path)


def test_no_uri(tmp_path: Path) -> None:
    assert refused(tmp_path) == "data.uri is empty: name at least one file, folder or glob"
