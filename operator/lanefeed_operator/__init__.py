"""The control plane of Lanefeed: the job's API, the pure reconcile, the report service, and the shells that run them.

`api` types the ShardedTrainingJob, `reconcile` decides, `coordinator` listens to sidecars; `local` (this machine) and
later `kube` and `runtime` (a cluster) observe and act. No other place decides anything.
"""
