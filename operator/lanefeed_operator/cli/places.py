"""Where a job is: a state folder of this machine, or a cluster. What the commands ask of either, in one protocol.

`choose` decides which; no command knows the difference. Reads, and scales; decides nothing else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from lanefeed_core.manifest import Manifest
from lanefeed_operator.api.spec import Job
from lanefeed_operator.local import poddoc, probes
from lanefeed_operator.local.admission import stored_job
from lanefeed_operator.local.children import stored
from lanefeed_operator.local.errors import UnknownJob
from lanefeed_operator.local.indexer import read_manifest
from lanefeed_operator.local.store import JobStore

__all__ = ["LocalPlace", "Place"]


class Place(Protocol):
    """One job, wherever it is. Every method reads anew, and raises OperatorError in words."""

    @property
    def name(self) -> str:
        """The job's name."""

    def job(self) -> Job:
        """The job with its status."""

    def text(self) -> str:
        """The whole object as YAML."""

    def manifest(self) -> Manifest:
        """The frozen manifest."""

    def facts(self) -> list[tuple[str, str]]:
        """Lines of `lanefeed status` that only this kind of place has, as (name, text)."""

    def metrics(self) -> Mapping[int, str]:
        """Pod index -> Prometheus text of its sidecar, of the pods that answered."""

    def scale(self, replicas: int) -> str:
        """Ask for another number of pods; when that will count."""

    @property
    def again(self) -> str:
        """How to begin a finished job anew."""


class LocalPlace:
    """A job that was run on this machine."""

    def __init__(self, store: JobStore) -> None:
        """`store` exists."""
        self.store = store

    @property
    def name(self) -> str:
        """See Place."""
        return self.store.name

    def job(self) -> Job:
        """See Place."""
        found = stored_job(self.store)
        if found is None:
            raise UnknownJob(f"{self.store.status_file} is empty: run the job first")
        return found

    def text(self) -> str:
        """See Place."""
        return self.store.status_file.read_text()

    def manifest(self) -> Manifest:
        """See Place."""
        return read_manifest(self.store.manifest_file)

    def facts(self) -> list[tuple[str, str]]:
        """See Place."""
        runner = self.store.runner()
        doing = f"process {runner}" if runner else "not running; `lanefeed run` goes on"
        return [("runner", doing), ("files", str(self.store.folder))]

    def metrics(self) -> Mapping[int, str]:
        """See Place."""
        generations = sorted(stored(self.store.pods))
        found = {}
        for folder in sorted(self.store.pods.glob(f"{generations[-1]}-*")) if generations else ():
            doc = poddoc.load_doc(folder)
            text = probes.metrics_text(probes.metrics_address(Path(doc.run_dir))) if doc is not None else ""
            if doc is not None and text:
                found[doc.index] = text
        return found

    def scale(self, replicas: int) -> str:
        """See Place."""
        self.store.scale(replicas)
        return "its runner resizes it now" if self.store.runner() else "it counts when the job is run again"

    @property
    def again(self) -> str:
        """See Place."""
        return "begin anew with `lanefeed run --fresh`"
