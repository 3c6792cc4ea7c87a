"""Files of a web server: `https://host/folder/a.parquet`, a folder or a glob where the server lists its folders.

A server must serve ranges. Folders are read as index pages (nginx, Apache, Python's own).
"""

import html.parser
import time
from collections.abc import Iterator
from urllib.parse import quote, unquote, urljoin, urlsplit

from lanefeed_sidecar.sources.names import Name
from lanefeed_sidecar.sources.objects import Attempt, ObjectInfo, ReadFailed
from lanefeed_sidecar.sources.wire import Answer, Client, retry_after

__all__ = ["HttpStore", "check"]

_MAX_PAGES = 10_000


class HttpStore:
    """One host. Keys are paths as people write them, not quoted."""

    def __init__(self, name: Name) -> None:
        """Connects at the first request."""
        self.place = f"{name.scheme}://{name.authority}"
        self._client = Client()

    def _url(self, key: str) -> str:
        path, mark, query = key.partition("?")
        return f"{self.place}/{quote(unquote(path))}{mark}{query}"

    def below(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore. Sizes are unknown (-1)."""
        todo, seen = [prefix.rpartition("/")[0]], set[str]()
        while todo:
            folder = todo.pop()
            if folder in seen or len(seen) > _MAX_PAGES:
                continue
            seen.add(folder)
            for link in self._links(folder):
                if link.endswith("/"):
                    todo.append(link.rstrip("/"))
                elif link.startswith(prefix):
                    yield ObjectInfo(link, -1, "")

    def _links(self, folder: str) -> list[str]:
        page = self._url(folder + "/" if folder else "")
        answer = self._client.get(page)
        check(answer)
        if "html" not in answer.headers.get("Content-Type", ""):
            return []
        parser = _Links()
        parser.feed(answer.body.decode("utf-8", "replace"))
        base = urlsplit(page)
        links = [urlsplit(urljoin(page, link)) for link in parser.links]
        below = [link.path for link in links if link.netloc == base.netloc and not link.query]
        return sorted({unquote(path).lstrip("/") for path in below if path.startswith(base.path) and path != base.path})

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore. Asks for one byte: not every server answers HEAD as it answers GET."""
        answer = self._client.get(self._url(key), {"Range": "bytes=0-0"}, limit=1)
        if answer.status == 416 and answer.headers.get("Content-Range", "").endswith("/0"):
            return ObjectInfo(key, 0, answer.version)
        check(answer)
        if answer.total < 0:
            raise ReadFailed("refused", "the server does not say how large the file is")
        return ObjectInfo(key, answer.total, answer.version)

    def read(self, key: str, start: int, view: memoryview, attempt: Attempt) -> str:
        """See ObjectStore."""
        answer = self._client.read(self._url(key), start, view, attempt, {})
        check(answer)
        return answer.version

    def refresh(self, since: float) -> bool:
        """There are no credentials."""
        return False

    def close(self) -> None:
        """See ObjectStore."""
        self._client.close()


class _Links(html.parser.HTMLParser):
    """Collects the targets of links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for key, value in attrs if key == "href" and value]


def check(answer: Answer, code: str = "") -> None:
    """Raise ReadFailed for an answer that is no success. `code`: what the body calls the error."""
    status = answer.status
    if status in (200, 206):
        return
    said = f"HTTP {status}" + (f" {code}" if code else "")
    if status in (429, 503):
        raise ReadFailed("throttled", said, retry_after(answer.headers.get("Retry-After", ""), time.time()))
    if status in (500, 502, 504):
        raise ReadFailed("server", said)
    if status in (401, 403):
        raise ReadFailed("denied", said)
    raise ReadFailed("missing" if status in (404, 410) else "refused", said)
