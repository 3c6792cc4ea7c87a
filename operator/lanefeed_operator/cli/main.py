"""The commands of `lanefeed`, and errors as words.

Exit codes: 0 well, 1 the job failed or is not exact, 2 wrong input, 130 stopped by Ctrl-C.
"""

import logging
import sys
from importlib.metadata import PackageNotFoundError, version

import typer
from rich.console import Console

from lanefeed_core.errors import CoreError
from lanefeed_operator.cli import bench, index, plan, run, scale, status, top, verify
from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import DEEPEST_JSON

__all__ = ["app", "main"]

app = typer.Typer(
    name="lanefeed",
    help="Feeds GPUs: any world size, order kept, nothing lost, nothing repeated, and a proof of it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("scale", short_help="Change a job's number of pods.")(scale.scale)
app.command("status")(status.status)
app.command("plan", short_help="Show which pod reads what, and the memory it takes.")(plan.plan)
app.command(
    "index",
    short_help="Say what is in a dataset and what to improve.",
    context_settings={"ignore_unknown_options": False},
)(index.index)
app.command("bench")(bench.bench)
app.command("verify", short_help="Prove that each sample was used exactly once.")(verify.verify)
app.command("top")(top.top)


@app.command("version")
def show_version() -> None:
    """Print the version."""
    try:
        print(version("lanefeed"))
    except PackageNotFoundError:
        print("0.0.0 (not installed)")


def main() -> None:
    """Run the command line; what a user did wrong is told in words and ends with exit code 2."""
    sys.setrecursionlimit(DEEPEST_JSON)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        app()
    except (OperatorError, CoreError) as error:
        Console(stderr=True).print("[bold red]error:[/] ", end="", highlight=False)
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except OSError as error:
        # A full disk, a folder that may not be written: nothing that a trace would explain better.
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
