"""The pure reconcile: (job, status, observed, now) -> (status, actions). One policy a file; no I/O, no clock.

`types` is the seam to the shells and says how they run a pass, `engine` runs the policies, `failures.verdict` is for a
child controller of ours, `dataset.spec_of` gives the frozen StreamSpec, `plan_policy.misfit` checks a wanted size.
"""

from lanefeed_operator.reconcile.engine import reconcile

__all__ = ["reconcile"]
