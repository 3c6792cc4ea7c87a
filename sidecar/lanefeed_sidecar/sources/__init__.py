"""Where shards are: URIs to a sorted listing of files. Local files in this version."""

from lanefeed_sidecar.sources.listing import Found, Source, list_shards

__all__ = ["Found", "Source", "list_shards"]
