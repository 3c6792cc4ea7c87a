"""The pure reconcile: (job, status, observed, now) -> (status, actions). One policy a file; no I/O, no clock."""
