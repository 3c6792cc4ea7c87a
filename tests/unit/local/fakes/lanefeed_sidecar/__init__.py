"""Stands in for the sidecar where a test is about its supervisor: it does on order what a real one does by accident."""
