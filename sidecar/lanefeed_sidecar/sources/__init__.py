"""Where shards are: URIs to a sorted listing of files, and reads of ranges of remote ones.

`names` parses URIs, `local` and `remote` list, `listing` joins them; `stores` gives reads of an object: `http`, `s3`,
`arrowfs` and `plugins` try once, `reads` with `pace` and `hedge` makes it succeed.
"""

from lanefeed_sidecar.sources.listing import Found, Source, list_shards
from lanefeed_sidecar.sources.names import is_remote, join, relative
from lanefeed_sidecar.sources.objects import ObjectInfo
from lanefeed_sidecar.sources.reads import Settings
from lanefeed_sidecar.sources.stores import RemoteObject, Stores

__all__ = [
    "Found",
    "ObjectInfo",
    "RemoteObject",
    "Settings",
    "Source",
    "Stores",
    "is_remote",
    "join",
    "list_shards",
    "relative",
]
