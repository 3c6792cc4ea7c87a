"""Who the report service works for: the jobs of a cluster, as it sees them.

The shell's registry implements `Directory`; the service asks it for every report and hands it what indexers upload.
Nothing here decides or keeps anything. Every method is called from threads of the service and must be safe from any.
"""

from typing import Protocol

from lanefeed_operator.coordinator.core import Coordinator

__all__ = ["Directory", "Member"]


class Member(Protocol):
    """One job that the shell knows."""

    @property
    def coordinator(self) -> Coordinator | None:
        """What takes its reports; None while the job has no manifest yet, so that no pod of a plan can exist."""

    @property
    def namespace(self) -> str:
        """Where the job and all of its pods live."""

    @property
    def name(self) -> str:
        """The job's name."""


class Directory(Protocol):
    """The jobs by UID. `find` answers at once; the others may take as long as the API server does."""

    def find(self, job_uid: str) -> Member | None:
        """The job, None where the shell does not know it (any more, or yet)."""

    def put_manifest(self, job_uid: str, pod_uid: str, digest: str, data: bytes) -> str:
        """Store a manifest that an indexer made: "" once it is stored, else why it is not wanted.

        The service has checked that the caller is pod `pod_uid` of the job's namespace, and the number of bytes. That
        this pod indexes this job, and that `data` is a manifest of this digest, is for the directory to check.
        Raises ApiError where it cannot be stored now: the indexer sends it again.
        """

    def manifest_failed(self, job_uid: str, pod_uid: str, kind: str, message: str, retryable: bool) -> None:
        """An indexer says that the dataset cannot be indexed; checked as in `put_manifest`."""
