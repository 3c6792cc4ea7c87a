"""The wrapper that reads one batch ahead, as Accelerate and Lightning do it."""

from collections.abc import Iterator

import lanefeed


def one_ahead(loader: lanefeed.Loader) -> Iterator[lanefeed.Batch]:
    """Fetch the next before handing out the current, to know which is the last."""
    it = iter(loader)
    current = next(it, None)
    while current is not None:
        following = next(it, None)
        yield current
        current = following
