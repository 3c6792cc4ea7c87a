"""Shared memory: the mapped arena, frames in it, and who still looks at them. No gRPC here."""
