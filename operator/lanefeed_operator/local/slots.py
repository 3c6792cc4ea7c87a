"""Free slots of each rank, asked of the sidecars' /metrics in the background: a picture must never wait for a pod."""

import re
import threading
from collections.abc import Mapping

from lanefeed_operator.local import probes

__all__ = ["SlotWatch", "parse_slots"]

ASK_SECONDS = 1.0
_SAMPLE = re.compile(r'^lanefeed_slots_free\{[^}]*rank="(\d+)"[^}]*\}\s+([0-9.e+]+)', re.MULTILINE)
_TOTAL = re.compile(r"^lanefeed_slots_free(?:\{[^}]*\})?\s+([0-9.e+]+)", re.MULTILINE)


def parse_slots(text: str) -> dict[int, int]:
    """Prometheus text -> rank -> free slots; rank -1 where the sidecar gives one number for the pod."""
    found = {int(rank): int(float(value)) for rank, value in _SAMPLE.findall(text)}
    if not found and (match := _TOTAL.search(text)):
        found[-1] = int(float(match[1]))
    return found


class SlotWatch:
    """Pod index -> its slots, refreshed once a second by one thread."""

    def __init__(self) -> None:
        """The thread starts when there is something to ask."""
        self._addresses: Mapping[int, str] = {}
        self._known: dict[int, dict[int, int]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, addresses: Mapping[int, str]) -> None:
        """Whom to ask from now on: pod index -> host:port."""
        self._addresses = dict(addresses)
        if self._thread is None and addresses:
            self._thread = threading.Thread(target=self._run, name="slots", daemon=True)
            self._thread.start()

    def text(self, pod: int, rank: int) -> str:
        """Free slots of a rank, "-" where they are not known."""
        slots = self._known.get(pod, {})
        value = slots.get(rank, slots.get(-1))
        return "-" if value is None else str(value)

    def _run(self) -> None:
        while not self._stop.wait(ASK_SECONDS):
            for pod, address in self._addresses.items():
                self._known[pod] = parse_slots(probes.metrics_text(address))

    def close(self) -> None:
        """Stop asking."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * ASK_SECONDS)
