"""Lanefeed under a torch DataLoader, for code that must keep one around it.

    loader = torch.utils.data.DataLoader(lanefeed.torch.IterableDataset(), batch_size=None)

The sidecar does what workers would do, so `num_workers=0` is right. One worker works too: the loader is made in it, and
batches travel once more. Lightning, Accelerate and the like may also iterate over a Loader itself, which is better.
"""

import multiprocessing.util
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.utils.data

from lanefeed._batch import Batch
from lanefeed._connect import connect
from lanefeed._loader import Loader
from lanefeed.errors import ForkError, UsageError

__all__ = ["IterableDataset"]


class IterableDataset(torch.utils.data.IterableDataset[Batch]):
    """Whole batches: use `DataLoader(dataset, batch_size=None)`, so that nothing is batched twice.

    The loader is made when it is first needed, in the process that needs it. `state_dict` and `load_state_dict` make it
    Stateful, also under torchdata's StatefulDataLoader. Each iteration is one epoch, or the rest of it.
    """

    def __init__(self, make: Callable[[], Loader] | Loader | None = None, **connect_kwargs: Any) -> None:
        """`make`: makes the loader, such as `lambda: lanefeed.open(...)`; or a loader, for num_workers=0 only.

        Without it `lanefeed.connect(**connect_kwargs)` does.
        """
        super().__init__()
        if make is not None and connect_kwargs:
            raise UsageError(f"give a loader or arguments for connect ({', '.join(connect_kwargs)}), not both")
        self._make = make if callable(make) else (lambda: connect(**connect_kwargs))
        self._loader: Loader | None = make if isinstance(make, Loader) else None
        self._given = isinstance(make, Loader)
        self._pid = os.getpid()
        self._state: Mapping[str, Any] | None = None

    @property
    def loader(self) -> Loader:
        """The loader of this process: for `commit`, `stop_requested`, `mark_consumed`, `stats`."""
        if self._loader is not None and self._pid != os.getpid():
            if self._given:
                raise ForkError(
                    "this dataset was given a loader, which stays in the process that made it: use num_workers=0, or "
                    "give a function that makes it"
                )
            # The parent's, inherited by a fork: left alone, its own process uses it.
            self._loader = None
        if self._loader is None:
            self._pid = os.getpid()
            self._loader = self._make()
            if torch.utils.data.get_worker_info() is not None:
                # Worker processes leave without running exit handlers, but for those of multiprocessing.
                multiprocessing.util.Finalize(None, self._loader.close, exitpriority=10)
            if self._state is not None:
                self._loader.load_state_dict(self._state)
        return self._loader

    def __iter__(self) -> Iterator[Batch]:
        info = torch.utils.data.get_worker_info()
        if info is not None and info.num_workers > 1:
            raise UsageError(
                f"num_workers is {info.num_workers}: the sidecar reads, decodes and shuffles already, and every worker "
                "would get the same batches; use num_workers=0 (best) or 1"
            )
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Where this process's loader is."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there; kept for the worker's loader, if there will be one."""
        self._state = dict(state)
        if self._loader is not None and self._pid == os.getpid():
            self._loader.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """For spawned workers: the loader does not travel, what makes it does."""
        if self._given:
            raise UsageError("a loader cannot be sent to a worker: use num_workers=0, or give a function that makes it")
        return {**self.__dict__, "_loader": None}
