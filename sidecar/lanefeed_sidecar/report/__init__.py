"""What the sidecar tells others: commits that must not be lost, and reports to the control plane."""

from lanefeed_sidecar.report.client import Reporter
from lanefeed_sidecar.report.commits import CommitLog
from lanefeed_sidecar.report.localbook import LocalBook

__all__ = ["CommitLog", "LocalBook", "Reporter"]
