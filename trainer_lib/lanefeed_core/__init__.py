"""The pure heart of Lanefeed: which sample comes when, where a job is, and the proof that nothing was lost.

Everybody imports this package and it imports nobody: NumPy, protobuf and the standard library only. No module here
reads a file, a clock or a random source; all of them take what they need as arguments and return decisions.
"""

__all__ = ["ORDER_VERSION"]

#: Version of the sample order. It changes only when the same manifest, seed and sizes would give another order;
#: a cursor of another order version is refused.
ORDER_VERSION = 1
