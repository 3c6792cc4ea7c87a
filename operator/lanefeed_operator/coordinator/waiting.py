"""Answers that are held until what they tell of is durable: who waits for which version. Used by `core` alone.

A held answer costs no thread: whoever waits leaves a callable, which `core` calls outside of its lock.
"""

from collections.abc import Callable

__all__ = ["Waiting"]


class Waiting:
    """Callables by the version that they wait for. Its caller holds a lock."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        """Nobody waits."""
        self._calls: list[tuple[int, Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, version: int, call: Callable[[], None]) -> None:
        """Call `call` once `version` is durable."""
        self._calls.append((version, call))

    def remove(self, call: Callable[[], None]) -> None:
        """It waits no longer."""
        self._calls = [(version, other) for version, other in self._calls if other is not call]

    def due(self, version: int) -> list[Callable[[], None]]:
        """Take out all that wait for `version` or an older one."""
        ready = [call for wanted, call in self._calls if wanted <= version]
        if ready:
            self._calls = [(wanted, call) for wanted, call in self._calls if wanted > version]
        return ready
