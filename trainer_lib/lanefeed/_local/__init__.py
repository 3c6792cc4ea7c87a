"""A sidecar of one's own, for `lanefeed.open`: run folders, who shares them, starting and reviving the process."""
