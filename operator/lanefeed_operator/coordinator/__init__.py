"""The report service: a pure core (`core`) that takes sidecars' reports, and a thin gRPC servicer (`service`).

The shells' seam (all thread safe):

    core = Coordinator(job_uid, lanes, total_steps, status)      # go on from a persisted status (book, plan, ledger)
    server = serve(core, "unix:/run/x.sock", token, clock)       # lanefeed.v1.Coordinator; .address, .stop(grace)
    core.new_plan(generation, replicas, ranks_per_replica)       # WritePlan; a no-op for the present one
    core.stop(generation, step, reason)                          # AskStop
    core.fence(generation, index, pod_uid, reason)               # Fence
    core.expect(generation, index, pod_uid)                      # the shell made this pod: only its UID may report
    feed = core.snapshot(now)                                    # for Observed.feed
    core.persisted(feed.version)                                 # after the status was written: commits count
    core.on_change = callback                                    # called outside the lock, from the gRPC threads
"""
