"""`lanefeed scale`: the local scale subresource."""

from typing import Annotated

import typer

from lanefeed_operator.cli.common import JobArgument, StateDir, positive, stored
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.reconcile.plan_policy import misfit

__all__ = ["scale"]


def scale(
    job: JobArgument,
    replicas: Annotated[int, typer.Argument(metavar="N", help="Wanted number of pods.")],
    state_dir: StateDir = None,
) -> None:
    """Change the number of pods of a job, while it runs or before it is run again."""
    positive(replicas, "N")
    store, found = stored(job, state_dir)
    problem = misfit(found, replicas)
    if problem:
        raise LocalError(problem)
    if found.status is not None and found.status.terminal and found.status.state == "Complete":
        raise LocalError(
            f"job {store.name} is complete: nothing is left to scale; begin anew with `lanefeed run --fresh`"
        )
    store.scale(replicas)
    running = store.runner()
    when = "its runner resizes it now" if running else "it counts when the job is run again"
    print(f"{store.name}: {found.spec.replicas} -> {replicas} pods ({when})")
