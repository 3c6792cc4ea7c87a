"""Which file system a folder is on, by Linux's list of mounts, and the word about one that is none of memory."""

import pytest

from lanefeed_core.tmpfs import file_system, on_disk

MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
26 22 0:5 / /dev rw - devtmpfs udev rw
27 26 0:22 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw
30 22 0:40 / /run/my\040folder rw - tmpfs tmpfs rw
31 22 0:41 / /data rw - xfs /dev/vdb rw
32 31 0:42 / /data rw - tmpfs over rw
broken line
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/tmp/x", "ext4"),
        ("/dev/shm", "tmpfs"),
        ("/dev/shm/lanefeed-open-1/deep", "tmpfs"),
        ("/dev/shmother", "devtmpfs"),
        ("/run/my folder/x", "tmpfs"),
        ("/run/my", "ext4"),
        ("/data/x", "tmpfs"),
    ],
)
def test_the_mount_that_shows_counts(folder: str, kind: str) -> None:
    assert file_system(folder, MOUNTS) == kind
    assert bool(on_disk(folder, MOUNTS)) == (kind == "ext4")


def test_what_the_user_is_told() -> None:
    text = on_disk("/tmp/x", MOUNTS)
    assert text.startswith("the run folder /tmp/x is on ext4, not in tmpfs: ")
    assert "use a folder in tmpfs, such as /dev/shm (LANEFEED_SHM_ROOT, or run_dir= of lanefeed.open)" in text
    assert on_disk("/tmp/x", "") == "", "nobody knows: no word"
