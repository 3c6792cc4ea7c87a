"""The report service of one machine, and what both shells' services share: a server that runs until it is stopped.

`serve` is called by the local runner; `start` also by `cluster`. The methods themselves are in `handlers`.
"""

import asyncio
import hmac
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from lanefeed_core.wire import MAX_MESSAGE_BYTES
from lanefeed_operator.coordinator import loop
from lanefeed_operator.coordinator.authenticate import Caller
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.directory import Member
from lanefeed_operator.coordinator.handlers import MAX_CALLS, Service
from lanefeed_operator.coordinator.pace import Pacer
from lanefeed_operator.coordinator.rejected import Rejected
from lanefeed_operator.errors import CoordinatorError

__all__ = ["Server", "serve", "start"]

START_SECONDS = 10.0

#: Something that goes on beside the service.
Work = Callable[[], Coroutine[Any, Any, None]]


class Server:
    """A running report service. `address` is what sidecars connect to."""

    def __init__(self, service: Service, server: Any, address: str) -> None:
        """Made by `start`."""
        self._service, self._server = service, server
        self.address = address
        self.counters = service.counters
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def pacer(self) -> Pacer | None:
        """How often sidecars are told to report; None: at their own pace."""
        return self._service.pacer

    def quiet(self) -> float:
        """Seconds since the service's event loop was last seen to move; it hangs where that is more than a few."""
        return time.monotonic() - self.pacer.ticked if self.pacer is not None else 0.0

    def stop(self, grace: float = 1.0) -> None:
        """Take no more reports, let the present ones end, close; a Unix socket is removed."""
        try:
            loop.call(self._stop(grace), grace + 5.0)
        finally:
            self._service.close()
        if self.address.startswith("unix:"):
            path = self.address.removeprefix("unix:")
            if os.path.exists(path):
                os.unlink(path)

    async def _stop(self, grace: float) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._server.stop(grace)


def start(
    service: Service,
    address: str,
    bind: Callable[[Any, str], int],
    options: Sequence[tuple[str, int]] = (),
    works: Sequence[Work] = (),
) -> Server:
    """Serve at `address`; `bind` adds it to a server and says the port; `works` go on beside it until `stop`.

    Raises CoordinatorError where the address cannot be bound.
    """
    try:
        return loop.call(_start(service, address, bind, options, works), START_SECONDS)
    except TimeoutError:
        service.close()
        raise CoordinatorError(f"the report service at {address} did not start in {START_SECONDS:.0f} s") from None


async def _start(
    service: Service,
    address: str,
    bind: Callable[[Any, str], int],
    options: Sequence[tuple[str, int]],
    works: Sequence[Work],
) -> Server:
    # Twice the cap, so that a report above it is refused with words and counted; beyond that gRPC ends the call.
    fixed = [("grpc.max_receive_message_length", 2 * MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=[*fixed, *options], maximum_concurrent_rpcs=MAX_CALLS)
    server.add_generic_rpc_handlers((service.handlers(),))
    try:
        port = bind(server, address)
    except RuntimeError as error:
        service.close()
        raise CoordinatorError(f"cannot listen at {address}: {error}; is another runner using it?") from None
    await server.start()
    if not address.startswith("unix:"):
        address = f"{address.rpartition(':')[0]}:{port}"
    running = Server(service, server, address)
    running.tasks += [asyncio.create_task(work()) for work in works]
    return running


@dataclass(frozen=True, slots=True)
class _OneJob:
    """The directory of one machine: one job, whose manifest the shell makes itself."""

    coordinator: Coordinator
    namespace: str = ""
    name: str = "this job"

    def find(self, job_uid: str) -> Member | None:
        """The core itself refuses the reports of another job, for good."""
        return self

    def put_manifest(self, job_uid: str, pod_uid: str, digest: str, data: bytes) -> str:
        """Nobody uploads here."""
        return "this job's manifest is made on this machine"

    def manifest_failed(self, job_uid: str, pod_uid: str, kind: str, message: str, retryable: bool) -> None:
        """Nobody indexes in a pod here."""


class _OneToken:
    """The authenticator of one machine: whoever may read the job's token speaks for its pods."""

    def __init__(self, token: str) -> None:
        """`token`: the only one."""
        self._token = token.encode()

    def known(self, token: str) -> Caller | None:
        """See Authenticator."""
        return self.review(token)

    def review(self, token: str) -> Caller:
        """See Authenticator."""
        if not hmac.compare_digest(token.encode(errors="replace"), self._token):
            raise Rejected.unauthenticated("the token is missing or wrong")
        return Caller("", "")


def serve(core: Coordinator, address: str, token: str, clock: Callable[[], float]) -> Server:
    """Serve one job at `address` ("unix:/path" or "host:port"; port 0: any free one), for one machine.

    `token` is what sidecars send as metadata `lanefeed-token`; `clock` gives seconds since 1970.
    Raises CoordinatorError where the address cannot be bound.
    """
    if len(token) < 16:
        raise CoordinatorError(f"the coordinator's token has {len(token)} characters: use at least 16 random ones")
    if address.startswith("unix:") and os.path.exists(address.removeprefix("unix:")):
        os.unlink(address.removeprefix("unix:"))
    service = Service(_OneJob(core), _OneToken(token), clock)
    return start(service, address, lambda server, at: server.add_insecure_port(at))
