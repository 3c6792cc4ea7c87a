"""Last words: nothing of them is lost while they fit, and what does not fit is given up in the right order."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanefeed_core.lastwords import (
    MAX_BYTES,
    Commit,
    Failure,
    LastWords,
    LastWordsError,
    Rank,
    decode,
    encode,
    recognised,
)
from lanefeed_core.ledger import Ledger

UID = "0f4c1b9e-5a43-4a0c-9d0e-3b1f6f3f6c11"


def ledger(epoch: int, count: int = 1_000_000) -> Ledger:
    found = Ledger()
    found.add(epoch, count, 0x1234567890ABCDEF * (count + epoch))
    return found


def words(ranks: int = 2, commits: int = 2, name: str = "ckpt/{}", **changes: object) -> LastWords:
    found = LastWords(
        why="SIGTERM",
        job_uid=UID,
        pod_uid=UID[::-1],
        pod_index=3,
        plan_generation=7,
        session="ab" * 16,
        sequence=4711,
        ranks=tuple(Rank(r, 0, False, 500 * commits, True) for r in range(ranks)),
        commits=tuple(
            Commit(r, 500 * i, 500 * (i + 1), name.format(i), ledger(i // 10))
            for i in range(commits)
            for r in range(ranks)
        ),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_they_come_back_whole_and_read_well() -> None:
    given = words(failures=(Failure("DataError", "shard a.parquet: Grü\u00dfe\n", False),))
    text = encode(given)
    assert decode(text) == given
    assert text.startswith('{"lanefeed":1,"why":"SIGTERM","job":"0f4c')
    assert text.isascii()
    assert "\n" not in text
    assert recognised(text)
    assert not recognised("ConfigError: the manifest /etc/x cannot be read")


def test_equal_ranks_take_one_entry() -> None:
    given = words(ranks=8, commits=0)
    assert json.loads(encode(given))["ranks"] == [[0, 7, 0, 0, 0, 1]]
    odd = replace(given, ranks=(*given.ranks[:3], replace(given.ranks[3], ended=False), *given.ranks[4:]))
    assert decode(encode(odd)) == odd
    assert len(json.loads(encode(odd))["ranks"]) == 3


def test_too_many_commits_are_joined_and_the_newest_stay_apart() -> None:
    given = words(ranks=2, commits=100)
    text = encode(given)
    assert len(text) <= MAX_BYTES
    got = decode(text)
    assert got.left_out == 0
    for rank in range(2):
        mine = [c for c in got.commits if c.rank == rank]
        assert 2 <= len(mine) <= 16
        assert (mine[0].start, mine[-1].stop, mine[-1].name) == (0, 50_000, "ckpt/99")
        assert all(a.stop == b.start for a, b in itertools.pairwise(mine))
        whole = sum((c.ledger for c in given.commits if c.rank == rank), Ledger())
        assert sum((c.ledger for c in mine), Ledger()) == whole


def test_commits_that_do_not_connect_are_left_out_oldest_first_and_counted() -> None:
    apart = tuple(Commit(0, 10 * i, 10 * i + 5, "", ledger(0)) for i in range(100))
    got = decode(encode(replace(words(1, 0), commits=apart)))
    assert got.left_out == 100 - len(got.commits)
    assert got.commits == apart[-len(got.commits) :]


def test_names_go_before_commits_and_commits_before_where_the_ranks_ended() -> None:
    shared = decode(encode(words(ranks=8, commits=3, name="n" * 450 + "{}")))
    assert len(shared.commits) == 24, "a name that all ranks give takes its room once"
    own = words(ranks=8, commits=3)
    own = replace(own, commits=tuple(replace(c, name="n" * 450 + str(c.rank)) for c in own.commits))
    long = decode(encode(own))
    assert [c.name for c in long.commits] == [""] * 8
    assert {(c.start, c.stop) for c in long.commits} == {(0, 1500)}
    epochs = Ledger()
    for epoch in range(400):
        epochs = epochs + ledger(epoch)
    got = decode(encode(replace(words(2, 0), commits=(Commit(0, 0, 9, "x", epochs), Commit(1, 0, 9, "x", epochs)))))
    assert (got.commits, got.left_out) == ((), 2)
    assert got.ranks == words(2, 0).ranks


def test_what_is_no_last_words_says_so() -> None:
    for text in ("", "DataError: x", "{}", "[1]", "null", '{"lanefeed":1}', encode(words())[:-1]):
        with pytest.raises(LastWordsError, match="no last words, or was cut"):
            decode(text)
    with pytest.raises(LastWordsError, match="version 2: this Lanefeed knows 1"):
        decode(encode(words()).replace('"lanefeed":1', '"lanefeed":2'))
    with pytest.raises(LastWordsError, match="are allowed"):
        encode(words(), 100)


STEPS = st.integers(0, 1 << 40)
COMMITS = st.builds(
    Commit,
    st.integers(0, 63),
    STEPS,
    STEPS,
    st.text(max_size=60),
    st.dictionaries(st.integers(0, 9), st.integers(0, 1 << 64)).map(
        lambda d: sum((ledger(e, n) for e, n in d.items()), Ledger())
    ),
)


@settings(max_examples=150)
@given(
    st.lists(
        st.builds(Rank, st.integers(0, 63), STEPS, st.booleans(), STEPS, st.booleans()), unique_by=lambda r: r.rank
    ),
    st.lists(COMMITS, max_size=40),
    st.lists(st.builds(Failure, st.text(max_size=20), st.text(max_size=4000), st.booleans()), max_size=4),
)
def test_they_always_fit_and_always_come_back(
    ranks: list[Rank], commits: list[Commit], failures: list[Failure]
) -> None:
    given = replace(
        words(),
        ranks=tuple(sorted(ranks, key=lambda r: r.rank)),
        commits=tuple(commits),
        failures=tuple(failures),
    )
    text = encode(given)
    assert len(text.encode()) <= MAX_BYTES
    got = decode(text)
    assert (got.session, got.sequence, got.job_uid) == (given.session, given.sequence, given.job_uid)
    assert got == given or len(encode(given, 1 << 20)) > MAX_BYTES
    assert {c.rank for c in got.commits} <= {c.rank for c in commits}


def document(**changes: object) -> str:
    """Last words with something else in one place."""
    return json.dumps({**json.loads(encode(words())), **changes})


HOSTILE = {
    "more ranks than fit into memory": document(ranks=[[0, 10**12, 0, 0, 0, 0]]),
    "as many in two runs": document(ranks=[[0, 1000, 0, 0, 0, 0], [1001, 2000, 0, 0, 0, 0]]),
    "a rank below zero": document(ranks=[[-(10**12), 0, 0, 0, 0, 0]]),
    "a step beyond 63 bits": document(ranks=[[0, 0, 0, 0, 1 << 63, 0]]),
    "no number": document(ranks=[[0, 0, 0, 0, float("inf"), 0]]),
    "a commit beyond 63 bits": document(commits=[[0, 0, 1 << 63, -1, {}]]),
    "a commit that is no number": document(commits=[[0, 0, "1", -1, {}]]),
    "nested without end": '{"lanefeed":' + "[" * 3000,
    "a huge number": '{"lanefeed":1,"sequence":' + "9" * 4000 + "}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_a_program_wrote_to_harm_the_reader_is_refused_before_it_costs_anything(text: str) -> None:
    """A trainer can write its termination message itself: a run of 10**12 ranks took all of the operator's memory."""
    with pytest.raises(LastWordsError):
        decode(text)
