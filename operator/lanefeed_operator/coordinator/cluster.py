"""The report service of a cluster: gRPC over TLS, every job of a Directory, callers known by TokenReview.

Started by the operator's process. Certificates are renewed while it runs and taken up by new connections at once. What
one caller may cost is bounded here and in `handlers`: connections, streams, handshakes, message sizes, calls at a time.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc

from lanefeed_core.process import raise_open_files
from lanefeed_operator.coordinator import room
from lanefeed_operator.coordinator.authenticate import Authenticator
from lanefeed_operator.coordinator.certstore import Certificates
from lanefeed_operator.coordinator.directory import Directory
from lanefeed_operator.coordinator.handlers import Service
from lanefeed_operator.coordinator.pace import Pacer
from lanefeed_operator.coordinator.service import Server, start
from lanefeed_operator.errors import OperatorError

__all__ = ["serve_cluster"]

log = logging.getLogger(__name__)

#: How often the Secret is looked at.
RENEW_SECONDS = 300.0
#: The tick by which the event loop's lateness is measured.
TICK_SECONDS = 1.0
#: Connections cost memory: no more descriptors are asked for than pods are planned with.
MAX_DESCRIPTORS = 1 << 17

OPTIONS = [
    # A sidecar has one call under way, an indexer one stream; a token is about a kilobyte.
    ("grpc.max_concurrent_streams", 8),
    ("grpc.max_metadata_size", 24 << 10),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Connections that say nothing cost memory: sidecars connect again with their next report.
    ("grpc.max_connection_idle_ms", 150_000),
    # A peer that vanished (a node that was cut off) is noticed; one that pings too often is not served.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_ping_strikes", 3),
    # The most that is read ahead of one stream.
    ("grpc.http2.lookahead_bytes", 64 << 10),
    ("grpc.http2.bdp_probe", 0),
]


def serve_cluster(
    directory: Directory,
    address: str,
    certificates: Certificates,
    authenticator: Authenticator,
    clock: Callable[[], float],
    *,
    renew_seconds: float = RENEW_SECONDS,
) -> Server:
    """Serve at `address` ("host:port"; port 0: any free one) until `stop`.

    `clock` gives seconds since 1970. `.counters.totals()` counts calls by result, `.pacer` says how often pods report.
    Raises CoordinatorError where the address cannot be bound, ApiError where the certificates cannot be read or made.
    """
    certificates.refresh()
    service = Service(directory, authenticator, clock)
    service.pacer = pacer = Pacer()
    pacer.ticked = time.monotonic()
    credentials = _credentials(certificates)
    limits = [*OPTIONS, ("grpc.max_allowed_incoming_connections", _bound())]
    server = start(
        service,
        address,
        lambda server, at: server.add_secure_port(at, credentials),
        limits,
        [lambda: _renew(certificates, renew_seconds), lambda: _watch(pacer)],
    )
    log.info("the report service listens at %s", server.address)
    return server


def _credentials(certificates: Certificates) -> Any:
    """TLS with the certificate of the moment: gRPC asks at every handshake whether there is a new one."""
    served = [certificates.material]

    def configuration() -> Any:
        now = certificates.material
        served[0] = now
        return grpc.ssl_server_certificate_configuration([(now.key.encode(), now.certificate.encode())])

    def changed() -> Any:
        return configuration() if certificates.material is not served[0] else None

    return grpc.dynamic_ssl_server_credentials(configuration(), changed, require_client_authentication=False)


def _bound() -> int:
    """How many connections are taken: by descriptors and by memory, whichever is scarcer."""
    descriptors, limit = _connections(), room.memory_limit()
    if limit is None:
        log.info("at most %d pods can be connected, by open files; memory is not limited", descriptors)
        return descriptors
    memory = room.in_memory(limit)
    bound = min(descriptors, memory)
    words = "at most %d pods can be connected: %d by open files, %d by %d MiB of memory"
    log.info(words, bound, descriptors, memory, limit >> 20)
    return bound


def _connections() -> int:
    """As many as there are descriptors for, with some left for the API client, metrics and files.

    Every pod that trains has one.
    """
    files, why = raise_open_files(MAX_DESCRIPTORS)
    if why:
        log.warning("open files stay limited to %d, and reporting pods to as many: %s", files, why)
    return max(room.FEWEST, files - 256)


async def _renew(certificates: Certificates, seconds: float) -> None:
    """Look at the certificates every `seconds`."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await asyncio.to_thread(certificates.refresh)
        except OperatorError as error:
            log.warning("certificates of the report service cannot be looked at: %s; trying again", error)
        except Exception:
            # The supervisor's edge of this task: it would end unseen, and the certificate run out weeks later.
            log.exception("looking at the certificates of the report service broke; trying again")


async def _watch(pacer: Pacer) -> None:
    """Measure how late the event loop is."""
    running = asyncio.get_running_loop()
    while True:
        due = running.time() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        pacer.late(running.time() - due, time.monotonic())
