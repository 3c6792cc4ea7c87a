"""`python -m lanefeed_sidecar index`: makes a manifest file, prints what it found. The `lanefeed` command calls it.

In a cluster (LANEFEED_COORDINATOR) the operator's indexer Job runs it: there the manifest, or why there is none, also
goes to the operator, and the last line into the pod's termination message.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence

from lanefeed_core import manifest_codec
from lanefeed_core.images import ImageColumn, ImageError, image_columns
from lanefeed_sidecar.errors import ConfigError, SidecarError
from lanefeed_sidecar.index.build import IndexResult, build_manifest
from lanefeed_sidecar.index.lint import Finding, lint
from lanefeed_sidecar.index.options import add_packing, packing_of
from lanefeed_sidecar.index.upload import Uploader
from lanefeed_sidecar.podenv import termination_log

__all__ = ["main"]

#: The kubelet keeps 4096 bytes, of UTF-8.
MAX_LINE = 1000


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 made (and taken), 2 no retry helps (the last line of stderr says why), 1 the operator is away."""
    args = _arguments(argv)
    try:
        uploader = Uploader.from_environment()
    except SidecarError as error:
        return _end(error)
    if uploader is not None:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        result = _build(args)
        data = manifest_codec.encode(result.manifest)
        if args.out:
            _write(args.out, data)
    except SidecarError as error:
        if uploader is not None:
            _tell(uploader, error)
        return _end(error)
    if uploader is not None:
        try:
            uploader.put(data, result.manifest.digest)
        except SidecarError as error:
            return _end(error)
    print(json.dumps(_document(result)) if args.json else _text(result))
    return 0


def _build(args: argparse.Namespace) -> IndexResult:
    return build_manifest(
        args.uri,
        base=args.base,
        columns=tuple(c for c in args.columns.split(",") if c),
        images=_images(args.images),
        digest=args.digest,
        on_corrupt=args.on_corrupt,
        packing=packing_of(args),
        threads=args.threads,
        progress=_progress if sys.stderr.isatty() else lambda _done, _all: None,
    )


def _images(text: str) -> tuple[ImageColumn, ...]:
    try:
        return image_columns(json.loads(text))
    except (ImageError, ValueError, TypeError) as error:
        raise ConfigError(f"--images {text}: {error}") from None


def _tell(uploader: Uploader, error: SidecarError) -> None:
    """Let the operator know at once; it finds the exit code and the last line by itself too, only later."""
    try:
        uploader.put_failure(error)
    except SidecarError as also:
        logging.getLogger(__name__).warning("the operator was not told: %s", also)


def _end(error: SidecarError) -> int:
    """One line on stderr, and in a pod's termination message."""
    line = " ".join(f"{error.kind}: {error}".split())
    print(line, file=sys.stderr)
    log = termination_log()
    if log is not None:
        try:
            log.write_text(line[:MAX_LINE])
        except OSError as also:
            print(f"cannot write {log}: {also.strerror}\n{line}", file=sys.stderr)
    return 1 if error.retryable else 2


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lanefeed-sidecar index", description="Makes the manifest of a dataset.")
    parser.add_argument("uri", nargs="+", help="files, folders or globs")
    parser.add_argument("--out", default="", help="file to write the manifest to")
    parser.add_argument("--base", default=None, help="folder that relative URIs start from")
    parser.add_argument("--columns", default="", help="comma-separated columns that will be delivered (all)")
    parser.add_argument("--images", default="[]", help="JSON list: columns that will be delivered as pixels (none)")
    parser.add_argument("--digest", default="Auto", choices=("Auto", "Always", "Never"))
    parser.add_argument("--on-corrupt", default="", choices=("Fail", "Quarantine"), help="what a job says (fail)")
    add_packing(parser)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def _progress(done: int, all_: int) -> None:
    print(f"\rreading footers: {done} of {all_}", end="\n" if done == all_ else "", file=sys.stderr, flush=True)


def _write(path: str, data: bytes) -> None:
    """Raises ConfigError where there is no room for it."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(
            f"--out {path} cannot be written: {error.strerror}; make room there, or name another folder"
        ) from None


def _document(result: IndexResult) -> dict[str, object]:
    manifest = result.manifest
    return {
        "digest": manifest.digest,
        "format": manifest.format,
        "root": manifest.root,
        "rows": manifest.rows,
        "shards": len(manifest.shards),
        "row_groups": manifest.num_row_groups,
        "bytes": manifest.bytes,
        "row_bytes": manifest.row_bytes,
        "columns": [{"name": f.name, "type": f.type, "nullable": f.nullable} for f in manifest.fields],
        "lint": [{"code": f.code, "what": f.what, "remedy": f.remedy} for f in _findings(result)],
        "quarantined": [{"path": p, "reason": r} for p, r in manifest.quarantined],
        "skipped": [{"path": p, "reason": r} for p, r in result.skipped],
        "packing": _packed(result),
    }


def _packed(result: IndexResult) -> dict[str, object] | None:
    """How documents are packed, how many there are, and which share of the sequences is padding."""
    manifest = result.manifest
    if manifest.packing is None:
        return None
    documents = sum(sum(s.documents) for s in manifest.shards)
    padding = 1 - result.tokens / (manifest.rows * manifest.packing.sequence_length)
    return {**manifest.packing.to_dict(), "documents": documents, "tokens": result.tokens, "padding": padding}


def _findings(result: IndexResult) -> list[Finding]:
    return lint(result.manifest, without_checksums=result.without_checksums)


def _text(result: IndexResult) -> str:
    manifest = result.manifest
    lines = [
        f"{manifest.rows} samples in {len(manifest.shards)} shards, {manifest.num_row_groups} row groups, "
        f"{manifest.bytes / 1e6:.1f} MB as {manifest.format}; digest {manifest.digest}",
        *(f"  {f.name}: {f.type}{' (nulls)' if f.nullable else ''}" for f in manifest.fields),
        *_text_packed(result),
        *(f"{f.code}: {f.what}; {f.remedy}" for f in _findings(result)),
        *(f"left out: {path}: {reason}" for path, reason in result.skipped),
    ]
    return "\n".join(lines)


def _text_packed(result: IndexResult) -> list[str]:
    found, packing = _packed(result), result.manifest.packing
    if found is None or packing is None:
        return []
    return [
        f"a sample is {packing.sequence_length} tokens of column {packing.column}: {found['documents']} documents, "
        f"{found['tokens']} tokens packed as {packing.mode}, {found['padding']:.2%} of all places are padding"
    ]
