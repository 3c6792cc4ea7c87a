"""Benchmarks: what Lanefeed, its peers and the bare machine do on the same bytes, measured side by side in one run.

Run through `make bench`; docs/performance.md says how a number is made. Nothing in the product imports this package.
"""
