"""Names of remote objects: `scheme://authority/key?options`. Pure; called by the listing, the indexer and readers.

Options stand behind a question mark and belong to the store, not to the object: `s3://bucket/a?endpoint_override=...`.
A folder and a name in it are joined before them.
"""

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

__all__ = ["Name", "common_root", "is_remote", "join", "parse", "relative"]

#: These take the question mark as a part of the name.
_HTTP = ("http", "https")


@dataclass(frozen=True, slots=True)
class Name:
    """A parsed name."""

    scheme: str
    authority: str
    key: str
    query: str = ""

    @property
    def store(self) -> str:
        """What names the store: all but the key."""
        return f"{self.scheme}://{self.authority}" + (f"?{self.query}" if self.query else "")

    @property
    def options(self) -> dict[str, str]:
        """The options."""
        return dict(parse_qsl(self.query, keep_blank_values=True))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}/{self.key}" + (f"?{self.query}" if self.query else "")

    def at(self, key: str) -> "Name":
        """Another object of the same store."""
        return Name(self.scheme, self.authority, key, self.query)


def is_remote(path: str) -> bool:
    """Whether it is the URI of an object and not a path of this machine."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme != "file" and scheme.replace("+", "").isalnum()


def parse(uri: str) -> Name:
    """The parts of a remote URI."""
    scheme, _, rest = uri.partition("://")
    query = ""
    if scheme not in _HTTP:
        head, mark, tail = rest.rpartition("?")
        # A question mark is a pattern too: options have an equals sign and no slash.
        if mark and "=" in tail and "/" not in tail:
            rest, query = head, tail
    authority, _, key = rest.partition("/")
    return Name(scheme.lower(), authority, key.lstrip("/"), query)


def join(root: str, path: str) -> str:
    """The file `path` of the folder `root`, of this machine or remote; an absolute or remote path stands alone."""
    if not is_remote(root) or is_remote(path):
        return path if is_remote(path) else os.path.join(root, path)
    name = parse(root)
    return str(name.at(f"{name.key}/{path}".lstrip("/")))


def relative(path: str, root: str) -> str:
    """The inverse of `join`."""
    if not root:
        return path
    if not is_remote(root):
        return os.path.relpath(path, root)
    return posixpath.relpath("/" + parse(path).key, "/" + parse(root).key)


def common_root(paths: Sequence[str]) -> str:
    """The folder that all have in common; "" where they are in several stores."""
    remote = [parse(path) for path in paths if is_remote(path)]
    if not remote:
        return os.path.commonpath([os.path.dirname(path) for path in paths])
    if len(remote) < len(paths) or len({name.store for name in remote}) > 1:
        return ""
    return str(remote[0].at(posixpath.commonpath(["/" + posixpath.dirname(name.key) for name in remote]).strip("/")))
