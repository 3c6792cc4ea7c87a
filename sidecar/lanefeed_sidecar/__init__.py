"""The sidecar: reads, decodes, shuffles and batches shards into shared memory, and signals trainers.

read-ahead -> fetch -> verify -> decode -> window -> assemble -> slot -> signal. No torch, no Kubernetes.
"""
