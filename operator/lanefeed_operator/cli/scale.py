"""`lanefeed scale`: the scale subresource, of a local job or of a cluster's."""

from typing import Annotated

import typer

from lanefeed_operator.api.status import Status
from lanefeed_operator.cli.choose import Context, Namespace, choose
from lanefeed_operator.cli.common import JobArgument, StateDir, positive
from lanefeed_operator.cli.places import LocalPlace
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.reconcile.plan_policy import misfit

__all__ = ["scale"]


def scale(
    job: JobArgument,
    replicas: Annotated[int, typer.Argument(metavar="N", help="Wanted number of pods.")],
    state_dir: StateDir = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Change the number of pods of a job, while it runs or before it is run again."""
    positive(replicas, "N")
    place = choose(job, state_dir, namespace, context)
    found = place.job()
    problem = misfit(found, replicas)
    if problem:
        raise LocalError(problem)
    # A failed local job can be run again, with another size.
    status = found.status or Status()
    if status.terminal and not (status.state == "Failed" and isinstance(place, LocalPlace)):
        raise LocalError(f"job {place.name} is {status.state}: nothing is left to scale; {place.again}")
    when = place.scale(replicas)
    print(f"{place.name}: {found.spec.replicas} -> {replicas} pods ({when})")
