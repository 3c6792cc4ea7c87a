"""Who may take what the cache holds: fewer decode threads than there are, and fill threads only that."""

from collections.abc import Iterator

from lanefeed_sidecar.pipeline.pieces import RowGroupKey
from lanefeed_sidecar.pipeline.share import Share

KNOWN = [RowGroupKey(0, n) for n in range(6)]
FRESH = [RowGroupKey(1, n) for n in range(6)]


def share(most: int = 1) -> Share:
    return Share(lambda group: group.shard == 0, most)


def open_to(share: Share, groups: list[RowGroupKey], *, helping: bool = False) -> list[RowGroupKey]:
    return list(share.open_to(iter(groups), helping=helping))


def test_one_reads_and_the_other_decodes() -> None:
    it = share()
    mixed = [KNOWN[0], FRESH[0], KNOWN[1], FRESH[1]]
    assert open_to(it, mixed) == mixed
    assert not it.left
    assert it.begin(KNOWN[0])
    assert open_to(it, mixed[1:]) == FRESH[:2]
    assert it.left
    assert not it.begin(FRESH[0])
    it.end(KNOWN[0])
    assert open_to(it, mixed[2:]) == mixed[2:]
    assert not it.left


def test_while_the_reader_decodes_another_one_reads() -> None:
    """What is known must not wait for a slow decode."""
    it = share()
    assert not it.begin(FRESH[0])
    assert open_to(it, KNOWN) == KNOWN


def test_of_many_threads_all_but_one_read() -> None:
    it = share(3)
    for group in KNOWN[:3]:
        assert open_to(it, [group]) == [group]
        it.begin(group)
    assert open_to(it, KNOWN[3:]) == []


def test_fill_threads_take_what_is_known_whoever_reads() -> None:
    it = share()
    it.begin(KNOWN[0])
    assert open_to(it, [FRESH[0], KNOWN[1], FRESH[1]], helping=True) == [KNOWN[1]]
    assert not it.left


def test_looking_ends_after_a_few_that_are_left_to_others() -> None:
    """Not after a few that are looked at: of what is to be decoded all may be taken."""
    looked: list[RowGroupKey] = []

    def walk(groups: list[RowGroupKey]) -> Iterator[RowGroupKey]:
        for group in groups:
            looked.append(group)
            yield group

    it = share()
    it.begin(KNOWN[5])
    assert list(it.open_to(walk([*FRESH[:3], *KNOWN[:5], FRESH[3]]), helping=False)) == FRESH[:3]
    assert looked[-1] == KNOWN[3]


def test_without_a_cache_nothing_is_left_to_anybody() -> None:
    it = Share()
    assert open_to(it, KNOWN + FRESH) == KNOWN + FRESH
    assert not it.begin(KNOWN[0])
    assert open_to(it, KNOWN) == KNOWN
