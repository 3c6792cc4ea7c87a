"""Entry point: `python -m lanefeed_sidecar --config FILE` serves, `... index ...` indexes, `... trial ...` measures.

Exit codes: 0 stopped, 2 a configuration or data that no restart mends (the last line of stderr says why), 1 the rest.
"""

import argparse
import faulthandler
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lanefeed_core.errors import CoreError
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.process import raise_open_files
from lanefeed_sidecar import early
from lanefeed_sidecar.errors import ConfigError, SidecarError
from lanefeed_sidecar.podenv import complete

if TYPE_CHECKING:
    from lanefeed_core.manifest import Manifest
    from lanefeed_sidecar.feed.seams import FeedEngine
    from lanefeed_sidecar.pipeline.stats import Stats
    from lanefeed_sidecar.supervisor import EngineFactory

__all__ = ["main", "serve"]

log = logging.getLogger(__name__)

#: Memory that decoding has freed stays ours: the read-ahead budget bounds it (bench/memory.py watches).
KEEP_FREED_PAGES = "-1"
#: The most that is asked for: 1,024 decode threads with all their shards open, and some.
MAX_OPEN_FILES = 1 << 17


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["index"]:
        from lanefeed_sidecar.index.cli import main as index

        return index(arguments[1:])
    if arguments[:1] == ["trial"]:
        _keep_freed_pages()
        _open_many_files()
        from lanefeed_sidecar.trial import main as trial

        return trial(arguments[1:])
    return serve(arguments, _engine)


def serve(arguments: Sequence[str], make_engine: "EngineFactory") -> int:
    """Serve as the configuration says."""
    # Here, so that the indexer, which a first start waits for, loads no gRPC and no server; pyarrow comes with it.
    _keep_freed_pages()
    from lanefeed_sidecar.supervisor import exit_code, run

    parser = argparse.ArgumentParser(prog="lanefeed-sidecar", description=__doc__.partition("\n")[0])
    parser.add_argument("--config", required=True, type=Path, help="pod configuration (JSON)")
    parser.add_argument(
        "--await", type=int, default=0, dest="starter", metavar="PID", help="wait for --config while this parent lives"
    )
    parser.add_argument(
        "--log-level", default=os.environ.get("LANEFEED_LOG_LEVEL", "INFO"), help="DEBUG, INFO, WARNING"
    )
    args = parser.parse_args(arguments)
    faulthandler.enable()
    # The trainer may be another user of the same group.
    os.umask(0o007)
    try:
        if args.starter:
            early.load()
            early.await_file(args.config, args.starter)
        config = _read_config(args.config)
        _set_up_logging(config, args.log_level)
        _open_many_files()
        return run(config, make_engine)
    except (SidecarError, CoreError) as error:
        kind = error.kind if isinstance(error, SidecarError) else type(error).__name__
        _last_line(f"{kind}: {error}")
        return exit_code(error)
    except Exception as error:
        # The process's edge: a fault of ours; the trace is for us, the last line for the user.
        logging.getLogger(__name__).exception("internal error")
        _last_line(f"internal error: {error!r}; please report it with this log")
        return 1


def _engine(config: PodConfig, manifest: "Manifest", stats: "Stats") -> "FeedEngine":
    from lanefeed_sidecar.pipeline.engine import Engine

    return Engine(config, manifest, stats=stats)


def _keep_freed_pages() -> None:
    """Arrow's allocator gives freed pages back after 10 ms and takes them again for the next row group.

    6 % of all CPU would go into clearing them. It reads this when pyarrow is loaded.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", KEEP_FREED_PAGES)


def _open_many_files() -> None:
    """A decode thread has up to 32 shards open, with three descriptors each: ten of them reach the usual 1,024."""
    files, why = raise_open_files(MAX_OPEN_FILES)
    if why:
        log.warning("open files stay limited to %d: %s; raise it, or set a smaller sidecar.decodeThreads", files, why)


def _read_config(path: Path) -> PodConfig:
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not UTF-8: {error}") from None
    config = complete(PodConfig.from_json(text))
    if config.slots < 2:
        raise ConfigError(f"sidecar.slots is {config.slots}: it must be at least 2 (one to read, one to fill)")
    return config


def _set_up_logging(config: PodConfig, level: str) -> None:
    who = f"{config.job}/{config.pod_index}".replace("%", "%%")
    form = f"%(asctime)s %(levelname)s {who} %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form)


def _last_line(text: str) -> None:
    """One line, whatever is in the message: supervisors and the kubelet show the last one."""
    logging.shutdown()
    sys.stderr.write(" ".join(text.split()) + "\n")
    sys.stderr.flush()
