"""`python -m lanefeed_sidecar index`: makes a manifest file, prints what it found. The `lanefeed` command calls it."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from lanefeed_core import manifest_codec
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.index.build import IndexResult, build_manifest
from lanefeed_sidecar.index.lint import Finding, lint

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 made, 2 the data or the arguments cannot be used (the last line of stderr says why)."""
    args = _arguments(argv)
    columns = tuple(c for c in args.columns.split(",") if c)
    try:
        result = build_manifest(
            args.uri,
            base=args.base,
            columns=columns,
            digest=args.digest,
            on_corrupt=args.on_corrupt,
            threads=args.threads,
            progress=_progress if sys.stderr.isatty() else lambda _done, _all: None,
        )
    except SidecarError as error:
        print(f"{error.kind}: {error}", file=sys.stderr)
        return 2
    if args.out:
        try:
            _write(args.out, manifest_codec.encode(result.manifest))
        except OSError as error:
            print(
                f"ConfigError: --out {args.out} cannot be written: {error.strerror}; make room there, or name another "
                "folder",
                file=sys.stderr,
            )
            return 2
    print(json.dumps(_document(result)) if args.json else _text(result))
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lanefeed-sidecar index", description="Makes the manifest of a dataset.")
    parser.add_argument("uri", nargs="+", help="files, folders or globs")
    parser.add_argument("--out", default="", help="file to write the manifest to")
    parser.add_argument("--base", default=None, help="folder that relative URIs start from")
    parser.add_argument("--columns", default="", help="comma-separated columns that will be delivered (all)")
    parser.add_argument("--digest", default="Auto", choices=("Auto", "Always", "Never"))
    parser.add_argument("--on-corrupt", default="Fail", choices=("Fail", "Quarantine"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def _progress(done: int, all_: int) -> None:
    print(f"\rreading footers: {done} of {all_}", end="\n" if done == all_ else "", file=sys.stderr, flush=True)


def _write(path: str, data: bytes) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


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
    }


def _findings(result: IndexResult) -> list[Finding]:
    return lint(result.manifest, without_checksums=result.without_checksums)


def _text(result: IndexResult) -> str:
    manifest = result.manifest
    lines = [
        f"{manifest.rows} samples in {len(manifest.shards)} shards, {manifest.num_row_groups} row groups, "
        f"{manifest.bytes / 1e6:.1f} MB as {manifest.format}; digest {manifest.digest}",
        *(f"  {f.name}: {f.type}{' (nulls)' if f.nullable else ''}" for f in manifest.fields),
        *(f"{f.code}: {f.what}; {f.remedy}" for f in _findings(result)),
        *(f"left out: {path}: {reason}" for path, reason in result.skipped),
    ]
    return "\n".join(lines)
