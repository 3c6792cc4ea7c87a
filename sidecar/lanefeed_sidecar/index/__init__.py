"""The indexer: makes the manifest and says how the dataset could read faster."""

from lanefeed_sidecar.index.build import IndexResult, build_manifest
from lanefeed_sidecar.index.lint import Finding, lint

__all__ = ["Finding", "IndexResult", "build_manifest", "lint"]
