"""What a library raised, as a failure of a kind that its type or its text tells. Used by `arrowfs` and `plugins`."""

import contextlib
import re
from collections.abc import Iterator

from lanefeed_sidecar.sources.objects import ReadFailed

__all__ = ["telling"]

#: What an error's text says -> kind; the first that is found counts.
_KINDS = (
    ("expired", r"expired ?token|token.{0,20}expired"),
    (
        "denied",
        r"\b(40[13]|530)\b|access.?denied|permission.?denied|forbidden|unauthori[sz]ed|no_such_access|credential",
    ),
    ("throttled", r"\b(429|503)\b|slow.?down|throttl|too many requests"),
    ("missing", r"\b(404|550)\b|not.?found|no such|does not exist"),
    ("timeout", r"time(d)? ?out|deadline"),
    ("connect", r"could ?n.t (connect|resolve)|connection refused|network_connection|name or service"),
    ("server", r"\b(50[024]|42[165]|45[012])\b|internal.?error|unavailable"),
    ("reset", r"reset|broken pipe|closed|disconnect"),
)


#: Types that say more than their words, which are often a path and nothing else.
_TYPES: tuple[tuple[type[Exception], str], ...] = (
    (FileNotFoundError, "missing"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "connect"),
    (ConnectionResetError, "reset"),
    (ConnectionAbortedError, "reset"),
    (BrokenPipeError, "reset"),
)
#: Names of objects, and addresses: whatever has slashes inside.
_NAMES = re.compile(r"\S*/\S*")


@contextlib.contextmanager
def telling(*errors: type[Exception]) -> Iterator[None]:
    """Raises ReadFailed in the place of these; what tells nothing may be tried again."""
    try:
        yield
    except ReadFailed:
        raise
    except errors as error:
        text = str(error) or type(error).__name__
        raise ReadFailed(_kind(error, text), text) from error


def _kind(error: Exception, text: str) -> str:
    """By its type where that says it all, else by its words. Names are left out: a path may hold any of those words."""
    for one, kind in _TYPES:
        if isinstance(error, one):
            return kind
    words = _NAMES.sub(" ", text)
    for kind, pattern in _KINDS:
        if re.search(pattern, words, re.IGNORECASE):
            return kind
    # After its words: a token that has expired is a PermissionError too, of some libraries.
    return "denied" if isinstance(error, PermissionError) else "reset"
