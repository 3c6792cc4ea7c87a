"""How the operator's log lines look: one line each, for a person at 3 a.m. or for a log store.

Set up once by `main`. A line about a job carries `job` and `plan_generation` (`extra=` of the call): in JSON as fields
of their own, in text as part of the message that the caller wrote.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

__all__ = ["FIELDS", "setup"]

#: Attributes of a record that become fields of the JSON line.
FIELDS = ("job", "plan_generation", "decision", "reason", "pod", "resource")
#: Chatter of the libraries, below this level dropped.
QUIET = {
    "kopf": logging.WARNING,
    "aiohttp": logging.WARNING,
    "asyncio": logging.WARNING,
    "urllib3": logging.WARNING,
    "kubernetes": logging.WARNING,
    "grpc": logging.WARNING,
}
#: See _Thrift; KINDS of lines are remembered at most.
MANY, WINDOW, KINDS = 5, 30.0, 1000
#: kopf's remark that it is not in the main thread: so it is meant, `main` takes the signals.
_NOISE = ("OS signals are ignored",)


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows indented, so that it stays with its line."""
        return super().format(record).replace("\n", "\n    ")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        line["logger"] = record.name
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Thrift(logging.Filter):
    """Of one kind of line that is about no job, `MANY` in `WINDOW` seconds; the next one says how many were left out.

    An API server that is away for a minute makes every report of every pod say so.
    """

    def __init__(self) -> None:
        super().__init__()
        #: (logger, the line without its values) -> [begin of the window, lines in it].
        self._seen: dict[tuple[str, str], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written."""
        if hasattr(record, "job"):
            return True
        key = (record.name, str(record.msg))
        window = self._seen.get(key)
        if window is None or record.created - window[0] >= WINDOW:
            left_out = int(window[1]) - MANY if window is not None else 0
            if len(self._seen) >= KINDS:
                self._seen.clear()
            self._seen[key] = [record.created, 1]
            if left_out > 0:
                record.msg, record.args = f"{record.getMessage()} ({left_out} lines like this one were left out)", None
            return True
        window[1] += 1
        return window[1] <= MANY


def _quiet(record: logging.LogRecord) -> bool:
    if not record.name.startswith("kopf"):
        return True
    text = record.getMessage()
    if "failed; will retry" in text:
        # Of an API server that is away each watch tells once, not every five seconds, and as what it is.
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return "#1/" in text
    return not text.startswith(_NOISE)


def setup(*, as_json: bool, level: str, stream: TextIO = sys.stderr) -> None:
    """Everything goes to `stream` from now on."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if as_json else _Text())
    handler.addFilter(_quiet)
    handler.addFilter(_Thrift())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, logging.getLevelName(level)))
    logging.captureWarnings(True)
