"""A picture that is drawn anew, through outages: `lanefeed status -w` and `top -w`. Decides nothing."""

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lanefeed_operator.kube.api import Unreachable

__all__ = ["watch"]


def watch(out: Console, draw: Callable[[], tuple[RenderableType, bool]], seconds: float) -> None:
    """Show what `draw` gives, (picture, whether it is the last), every `seconds`.

    Whoever watches for hours sees an API server restart: from the first picture on, its absence is a line below the
    last one. Before that, Unreachable is raised; any other error always.
    """
    shown: RenderableType | None = None
    with Live(console=out, auto_refresh=False) as live:
        while True:
            over = False
            try:
                shown, over = draw()
                live.update(shown, refresh=True)
            except Unreachable as error:
                if shown is None:
                    raise
                live.update(Group(shown, Text(f"{error}; trying again", style="yellow")), refresh=True)
            if over:
                return
            time.sleep(seconds)
