"""The version of the installed distribution, for logs and handshakes."""

from importlib import metadata

__all__ = ["VERSION"]

try:
    VERSION = metadata.version("lanefeed")
except metadata.PackageNotFoundError:  # a source tree on PYTHONPATH
    VERSION = "0.0.0+source"
