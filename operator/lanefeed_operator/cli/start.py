"""Entry of the programs `lanefeed` and `kubectl-lanefeed`, which are there whatever extras were installed.

A trainer image has the programs without their packages: that is said in words. All else is `main`'s.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; exit code 2 where its packages are missing."""
    try:
        from lanefeed_operator.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lanefeed"):
            raise
        sys.stderr.write(
            f"error: the command line needs the package {error.name}, which is not installed: pip install "
            "'lanefeed[local]' to run jobs on this machine, 'lanefeed[cluster]' for jobs of a cluster\n"
        )
        sys.exit(2)
    run()
