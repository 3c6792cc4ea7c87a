"""Waiting for the Lease and keeping it: the thread around `lease.Lease`. Used by `main` where two replicas run."""

import logging
import threading
from collections.abc import Callable

from lanefeed_operator.runtime.lease import RETRY, Lease, LeaseLost

__all__ = ["Leader"]

log = logging.getLogger(__name__)


class Leader:
    """See the module. `valid` is what is asked before each write."""

    def __init__(self, lease: Lease, *, stop: threading.Event, lost: Callable[[str], None]) -> None:
        """`stop`: the process is ending. `lost(why)` is called once if the lead is lost: the process must end."""
        self._lease, self._stop, self._lost = lease, stop, lost
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def valid(self) -> bool:
        """Whether this replica may write now."""
        return self._lease.valid()

    def acquire(self, standby: Callable[[str], None]) -> bool:
        """Wait until this replica leads; False: the process is ending. `standby` is told who leads meanwhile."""
        holder = None
        while not self._stop.is_set():
            if self._lease.step():
                log.info("this replica leads")
                self._thread.start()
                return True
            if holder != self._lease.holder:
                holder = self._lease.holder
                log.info("standing by: %s leads", holder)
            standby(holder or "nobody")
            self._stop.wait(RETRY)
        return False

    def release(self) -> None:
        """Let the next one lead at once; only after the last write."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join(RETRY)
        self._lease.release()

    def _keep(self) -> None:
        while not self._done.wait(RETRY):
            try:
                self._lease.step()
            except LeaseLost as error:
                self._lost(str(error))
                return
