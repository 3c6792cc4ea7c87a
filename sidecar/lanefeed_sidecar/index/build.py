"""Builds the manifest: lists, reads all footers in threads, unifies schemas, sets bad shards aside by policy.

Called by the index command. The result does not depend on threads or on the order of the listing.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lanefeed_core.images import ImageColumn
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.packing import Packing, PackingRequest
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats import delivered_columns
from lanefeed_sidecar.formats.identity import content_digest
from lanefeed_sidecar.formats.images import decoder_version
from lanefeed_sidecar.index.packed import count, settle
from lanefeed_sidecar.index.scan import BadShard, Scanned, scan
from lanefeed_sidecar.index.schema import unify
from lanefeed_sidecar.sources import Found, Stores, is_remote, list_shards, relative

__all__ = ["AUTO_DIGEST_BYTES", "IndexResult", "build_manifest", "threads_for"]

#: `digest: Auto` reads every byte of datasets up to this size, a few seconds of reading.
AUTO_DIGEST_BYTES = 4 << 30


#: Files scanned to see how long a read takes here, files a task, and the most threads.
_PROBE = 32
_BATCH = 32
_MAX_THREADS = 16


@dataclass(frozen=True, slots=True)
class IndexResult:
    """The manifest and what was left out of it: (path, reason)."""

    manifest: Manifest
    skipped: tuple[tuple[str, str], ...]
    #: Number of shards whose pages carry no checksums; 0 where all do or the format has none.
    without_checksums: int = 0
    #: Tokens of all documents with those that end them, where they are packed.
    tokens: int = 0


def build_manifest(
    uris: Sequence[str],
    *,
    base: str | None = None,
    columns: tuple[str, ...] = (),
    images: tuple[ImageColumn, ...] = (),
    digest: str = "Auto",
    on_corrupt: str = "Fail",
    packing: PackingRequest | None = None,
    threads: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> IndexResult:
    """Make the manifest of all files that `uris` name.

    digest: Always | Auto | Never: whether each shard's content is hashed. on_corrupt: Fail | Quarantine, or "": Fail,
    for those who cannot choose. packing: the samples are sequences that the rows, documents of tokens, are packed into.
    Raises DataError for files that cannot be used and schemas that differ, ConfigError for columns.
    """
    stores = Stores()
    try:
        found = list_shards(uris, base=base, stores=stores)
        return _build(uris, found, stores, columns, images, digest, on_corrupt, packing, threads, progress)
    finally:
        stores.close()


def _build(
    uris: Sequence[str],
    found: Found,
    stores: Stores,
    columns: tuple[str, ...],
    images: tuple[ImageColumn, ...],
    digest: str,
    on_corrupt: str,
    request: PackingRequest | None,
    threads: int,
    progress: Callable[[int, int], None],
) -> IndexResult:
    scanned, bad = _scan_all(found, stores, threads, progress)
    _by_policy(bad, on_corrupt)
    empty = [(s.shard.path, "it has no rows") for s in scanned if not s.shard.rows]
    good = [s for s in scanned if s.shard.rows]
    if not good:
        raise DataError(_nothing_left(uris, empty, bad))
    kind = _one_kind(good)
    fields = unify([s.schema for s in good])
    shards = [s.shard for s in good]
    packing, tokens = settle(request, fields) if request else None, 0
    if packing is not None:
        shards, tokens = _pack(good, fields, kind, packing, empty, bad, progress)
        _by_policy(bad, on_corrupt)
        if not shards:
            raise DataError(_nothing_left(uris, empty, bad))
    local = not any(is_remote(s.path) for s in shards)
    # Remote bytes are not read twice unasked: once here, and once more in each sidecar.
    if digest == "Always" or (digest == "Auto" and local and sum(s.size for s in shards) <= AUTO_DIGEST_BYTES):
        shards = _with_content(shards, stores, threads)
    shards = [replace(s, path=relative(s.path, found.root)) for s in shards]
    manifest = Manifest(
        shards=tuple(sorted(shards, key=lambda s: s.path)),
        fields=fields,
        format=kind,
        root=found.root,
        quarantined=tuple((relative(p, found.root), reason) for p, reason in bad),
        packing=packing,
    )
    delivered_columns(manifest, columns, images)
    if images:
        # Where the sidecar has none, neither has its indexer: said at once.
        decoder_version()
    unchecked = sum(s.page_checksums is False for s in good)
    return IndexResult(manifest, found.skipped + tuple(empty), unchecked, tokens)


def _by_policy(bad: list[tuple[str, str]], on_corrupt: str) -> None:
    """Raise DataError naming the first bad shard, unless bad ones are set aside."""
    if bad and on_corrupt != "Quarantine":
        # Of a job alone: `lanefeed.open` and `lanefeed index` have no such option.
        advice = ", or set data.onCorrupt to Quarantine" if on_corrupt else ""
        more = f" (and {len(bad) - 1} more files)" if len(bad) > 1 else ""
        raise DataError(bad[0][1] + advice + more)


def _pack(
    good: list[Scanned],
    fields: tuple[Field, ...],
    kind: str,
    packing: Packing,
    empty: list[tuple[str, str]],
    bad: list[tuple[str, str]],
    progress: Callable[[int, int], None],
) -> tuple[list[Shard], int]:
    """Shards whose rows are sequences, and all their tokens; the others go to `empty` and `bad`."""
    shards, tokens = [], 0
    for scanned, made in zip(good, count(good, fields, kind, packing, progress), strict=True):
        if isinstance(made, BadShard):
            bad.append((scanned.shard.path, str(made)))
        elif not made.shard.rows:
            empty.append((scanned.shard.path, "its documents have no tokens"))
        else:
            shards.append(made.shard)
            tokens += made.tokens
    return shards, tokens


def _nothing_left(uris: Sequence[str], empty: list[tuple[str, str]], bad: list[tuple[str, str]]) -> str:
    reasons = [f"{path}: {reason}" for path, reason in empty] + [reason for _, reason in bad]
    more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    return f"data.uri {', '.join(uris)} has no row that can be read ({'; '.join(reasons[:3])}{more}): check the files"


def _scan_all(
    found: Found, stores: Stores, threads: int, progress: Callable[[int, int], None]
) -> tuple[list[Scanned], list[tuple[str, str]]]:
    """Scan all files, `progress(done, all)` after each batch; the order of the result is that of the paths."""
    paths = found.paths
    if any(is_remote(path) for path in paths):
        return _scan_remote(found, stores, threads, progress)
    results: list[Scanned | BadShard] = []
    wall, cpu = time.monotonic(), time.thread_time()
    while len(results) < min(len(paths), _PROBE):
        results.append(_try_scan(paths[len(results)]))
    progress(len(results), len(paths))
    busy = time.thread_time() - cpu
    waited = time.monotonic() - wall - busy
    batches = [paths[at : at + _BATCH] for at in range(len(results), len(paths), _BATCH)]
    with ThreadPoolExecutor(threads or threads_for(waited, busy), thread_name_prefix="index") as pool:
        for batch in pool.map(lambda part: [_try_scan(path) for path in part], batches):
            results += batch
            progress(len(results), len(paths))
    return _good_and_bad(paths, results)


def _scan_remote(
    found: Found, stores: Stores, threads: int, progress: Callable[[int, int], None]
) -> tuple[list[Scanned], list[tuple[str, str]]]:
    # Not for local data: it takes what HTTP takes.
    from lanefeed_sidecar.index.remote import REMOTE_THREADS, scan_remote

    def one(path: str) -> Scanned | BadShard:
        try:
            return scan_remote(path, stores, found.known.get(path)) if is_remote(path) else scan(path)
        except BadShard as error:
            return error

    results: list[Scanned | BadShard] = []
    with ThreadPoolExecutor(threads or REMOTE_THREADS, thread_name_prefix="index") as pool:
        for result in pool.map(one, found.paths):
            results.append(result)
            if len(results) % _BATCH == 0 or len(results) == len(found.paths):
                progress(len(results), len(found.paths))
    return _good_and_bad(found.paths, results)


def _good_and_bad(
    paths: Sequence[str], results: Sequence[Scanned | BadShard]
) -> tuple[list[Scanned], list[tuple[str, str]]]:
    bad = [(path, str(r)) for path, r in zip(paths, results, strict=True) if isinstance(r, BadShard)]
    return [r for r in results if not isinstance(r, BadShard)], bad


def threads_for(waited: float, busy: float) -> int:
    """Threads that keep one core busy, by the seconds that one thread waited and computed.

    Footers of a local disk are parsed under the GIL, where a second thread makes both slower; a network disk is waited
    for, where 16 are 16 times as fast.
    """
    return max(1, min(_MAX_THREADS, round(1 + waited / max(busy, 1e-6)))) if waited > busy else 1


def _try_scan(path: str) -> Scanned | BadShard:
    try:
        return scan(path)
    except BadShard as error:
        return error


def _one_kind(scanned: list[Scanned]) -> str:
    first = scanned[0]
    for other in scanned[1:]:
        if other.kind != first.kind:
            raise DataError(
                f"two formats in one dataset: {first.shard.path} is {first.kind} and {other.shard.path} is "
                f"{other.kind}; index them as separate datasets"
            )
    return first.kind


def _with_content(shards: list[Shard], stores: Stores, threads: int) -> list[Shard]:
    from lanefeed_sidecar.index.remote import remote_digest

    def one(shard: Shard) -> str:
        return remote_digest(shard, stores) if is_remote(shard.path) else content_digest(shard.path)

    with ThreadPoolExecutor(threads or min(16, 2 * (os.cpu_count() or 1)), thread_name_prefix="index") as pool:
        digests = list(pool.map(one, shards))
    return [replace(s, content=d) for s, d in zip(shards, digests, strict=True)]
