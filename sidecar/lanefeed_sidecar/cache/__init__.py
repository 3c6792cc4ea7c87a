"""The decoded cache: row groups that will be needed again are decoded once and then read back from a local disk.

`DecodedCache` is what the decode threads use. `entry` is the file's form, `disk` the bounded folder that several
sidecars may share, `allowance` how much time writing may take. When a row group is needed next `pipeline.future` says.
No decoding and no pipeline here: the pipeline imports this package, not the other way round.
"""

from lanefeed_sidecar.cache.allowance import Allowance
from lanefeed_sidecar.cache.decoded import NEVER, DecodedCache, Future, open_cache

__all__ = ["NEVER", "Allowance", "DecodedCache", "Future", "open_cache"]
