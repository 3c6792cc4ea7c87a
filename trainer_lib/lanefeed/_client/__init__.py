"""The wire: one gRPC client for each loader. Frames come in over a queue, releases go out; `next()` never does RPC."""
