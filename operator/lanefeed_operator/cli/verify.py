"""`lanefeed verify`: the ledger of a job against its manifest; exit code 1 where samples were lost or repeated."""

import sys

from lanefeed_operator.api.status import Status
from lanefeed_operator.cli.choose import Context, Namespace, choose
from lanefeed_operator.cli.common import JobArgument, StateDir, console
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.local.summary import Verdict, proof_table, verdicts
from lanefeed_operator.local.view import plural

__all__ = ["verify"]


def verify(job: JobArgument, state_dir: StateDir = None, namespace: Namespace = None, context: Context = None) -> None:
    """Compare what was consumed in each epoch with what the manifest says."""
    place = choose(job, state_dir, namespace, context)
    status = place.job().status or Status()
    if status.stream is None:
        raise LocalError(f"job {place.name} has no frozen dataset yet: run it first")
    proofs = verdicts(status, place.manifest())
    out = console()
    if proofs:
        out.print(proof_table(proofs))
    wrong = [proof for proof in proofs if not proof.right]
    total = status.stream.total_steps
    problem = _problem(total, status, proofs, wrong)
    out.print(f"[bold red]{problem}[/]" if problem else f"[green]{_well(total, status, proofs)}[/]")
    sys.exit(1 if problem else 0)


def _problem(total: int, status: Status, proofs: list[Verdict], wrong: list[Verdict]) -> str:
    """What is not exact, "" if all is well so far."""
    mismatch = status.condition("Failed")
    if mismatch is not None and mismatch.status == "True" and mismatch.reason == "LedgerMismatch":
        return mismatch.message
    if wrong:
        return f"not exact: epoch{'s' if len(wrong) > 1 else ''} {', '.join(str(p.epoch) for p in wrong)}"
    complete = status.condition("Complete")
    if complete is None or complete.status != "True":
        return ""
    if status.cursor.total_step < total:
        return (
            f"not proven: the job is complete and its last commit is at step {status.cursor.total_step} of "
            f"{total}; call loader.commit() after the last batch"
        )
    # The newest epochs are kept; older ones are in the count.
    if status.ledger.verified < len(proofs) or not proofs:
        return f"not proven: {status.ledger.verified} epochs are proven, {len(proofs)} are listed"
    return ""


def _well(total: int, status: Status, proofs: list[Verdict]) -> str:
    at = f"step {status.cursor.total_step:,} of {total:,}"
    if not proofs:
        return f"no epoch is finished yet; the job's last commit is at {at}"
    proven = plural(status.ledger.verified, "epoch")
    return f"{proven} proven: every sample used exactly once; the job's last commit is at {at}"
