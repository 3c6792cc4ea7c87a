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
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, logging.getLevelName(level)))
    logging.captureWarnings(True)
