"""Writes the sidecar's last words (lanefeed_core.lastwords) into its container's termination message.

Called by the supervisor at the end: first before the last commits are handed over, in case time runs out meanwhile,
then with what is still not acknowledged. Outside of a cluster there is no such file, and nothing is written.
"""

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from lanefeed_core import lastwords
from lanefeed_core.lastwords import Commit, Failure, LastWords, Rank
from lanefeed_core.ledger import Ledger
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.proto import lanefeed_pb2 as pb

__all__ = ["last_words", "write"]

log = logging.getLogger(__name__)


def last_words(
    config: PodConfig,
    session: str,
    *,
    why: str,
    sequence: int,
    ranks: Iterable[pb.RankReport],
    commits: Iterable[pb.RankCommit],
    failures: Iterable[pb.Failure],
) -> LastWords:
    """The document of this session; `sequence`: of the last report that was made."""
    return LastWords(
        why=why,
        job_uid=config.job_uid,
        pod_uid=config.pod_uid,
        pod_index=config.pod_index,
        plan_generation=config.plan.generation,
        session=session,
        sequence=sequence + 1,
        ranks=tuple(Rank(r.rank, r.started, r.started_from_state, r.consumed, r.ended) for r in ranks),
        commits=tuple(
            Commit(c.rank, c.start, c.stop, c.name, Ledger.from_dict(json.loads(c.ledger_json))) for c in commits
        ),
        failures=tuple(Failure(f.kind, f.message, f.retryable) for f in failures),
    )


def write(path: Path, words: LastWords) -> None:
    """Replace the file's text: it is a mount, so it cannot be renamed over."""
    try:
        path.write_text(lastwords.encode(words))
    except OSError as error:
        log.warning("cannot write the last words to %s: %s", path, error.strerror)
