"""What the sidecar shows of itself: Prometheus metrics, liveness and readiness."""
