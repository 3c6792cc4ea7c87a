"""`lanefeed.merge()`: one state out of all ranks' states.

Where yield is known every rank's state has the same cursor, and any of them restores the job; merging checks that they
agree and adds up what each rank says that it consumed.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lanefeed.errors import StateMismatch, from_core
from lanefeed_core.cursor import Part, SavedState
from lanefeed_core.errors import CoreError
from lanefeed_core.ledger import Ledger

__all__ = ["merge"]


def merge(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state for all ranks, with the sum of their ledgers.

    Raises StateMismatch where states are not of one moment of one job, or where a rank's is missing (it names them).
    """
    try:
        saved = [SavedState.from_dict(state) for state in states]
    except CoreError as error:
        raise from_core(error) from None
    if not saved:
        raise StateMismatch("there is no state to merge")
    first = saved[0]
    for other in saved[1:]:
        for what, mine, theirs in (
            ("dataset", first.manifest, other.manifest),
            ("stream", first.spec, other.spec),
            ("cursor", first.cursor, other.cursor),
        ):
            if mine != theirs:
                raise StateMismatch(
                    f"the states are not of one checkpoint: one has the {what} {mine}, another {theirs}"
                )
    parts = [state.part for state in saved if state.part is not None]
    if not parts:
        return first.to_dict()
    _check_ranks(parts)
    total = Ledger()
    for part in parts:
        total = total + part.ledger
    whole = Part(rank=0, world=1, since=min(part.since for part in parts), ledger=total)
    return SavedState(first.manifest, first.spec, first.cursor, whole).to_dict()


def _check_ranks(parts: list[Part]) -> None:
    worlds = sorted({part.world for part in parts})
    if len(worlds) > 1:
        raise StateMismatch(f"the states are of different world sizes: {', '.join(map(str, worlds))}")
    ranks = [part.rank for part in parts]
    missing = sorted(set(range(worlds[0])) - set(ranks))
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if missing or twice:
        said = [f"the states of ranks {missing} are missing"] if missing else []
        said += [f"ranks {twice} are there more than once"] if twice else []
        raise StateMismatch(f"{' and '.join(said)}: {worlds[0]} ranks made this checkpoint")
