"""The report service: a pure core (`core`) that takes sidecars' reports, and a thin gRPC servicer (`service`).

The shells' seam (all thread safe; `lanes` is made of the manifest and `dataset.spec_of(status.stream)`):

    core = Coordinator(job_uid, lanes, stream.total_steps, status)  # go on from a persisted status, or begin
    core.on_change = wake                                # called outside the lock, from gRPC threads
    server = serve(core, "unix:/run/x.sock", token, time.time)      # lanefeed.v1.Coordinator; .address, .stop(grace)
    core.new_plan(generation, replicas, ranks_per_replica)          # WritePlan; a no-op for the present one
    core.expect(generation, index, pod_uid)              # the shell made or found this pod: only its UID may report
    core.stop(generation, step, reason)                  # AskStop
    core.fence(generation, index, pod_uid, reason)       # Fence
    feed = core.snapshot(now)                            # for Observed.feed
    core.persisted(feed.version)                         # after the status was written: its commits are acknowledged
    core.addresses(), core.ready(index)                  # /metrics of the pods; what a pod's sidecar says of itself
"""

from lanefeed_operator.coordinator.core import Coordinator

__all__ = ["Coordinator"]
