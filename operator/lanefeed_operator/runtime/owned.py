"""Writes of children with one rule for all of them: made if not there, kept if ours, never touched if another's.

Called by actions, registry and manifests. "Ours" is the UID in the annotation together with the UID of the controlling
owner: a job that was deleted and made anew under its name does not get the children of the former one.
"""

from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import AlreadyExists, Kind, KubeApi, Object, Unreachable
from lanefeed_operator.render import constants as c

__all__ = ["NameConflict", "ensure", "is_ours"]


class NameConflict(OperatorError):
    """An object of a name that the operator needs belongs to somebody else."""


def is_ours(obj: Object, job_uid: str) -> bool:
    """Whether a child belongs to the ShardedTrainingJob of this UID."""
    meta = obj["metadata"]
    owner: Object = next((o for o in meta.get("ownerReferences") or () if o.get("controller")), {})
    return (meta.get("annotations") or {}).get(c.UID_ANNOTATION) == job_uid == owner.get("uid")


def ensure(api: KubeApi, kind: Kind, body: Object, job_uid: str, *, patient: bool = True) -> tuple[Object, bool]:
    """The object as it is now, and whether it was made by this call. Raises NameConflict, ApiError.

    `patient`: the garbage collector may still be at the children of a former job of this name: try again later.
    """
    meta = body["metadata"]
    try:
        return api.create(kind, meta["namespace"], body), True
    except AlreadyExists:
        pass
    found = api.get(kind, meta["namespace"], meta["name"])
    if is_ours(found, job_uid):
        return found, False
    if found["metadata"].get("deletionTimestamp") or (patient and _of_a_former(found)):
        raise Unreachable(f"{kind.kind} {meta['name']} of a former job of this name is still being deleted")
    raise NameConflict(
        f"{kind.kind} {meta['namespace']}/{meta['name']} exists and does not belong to this job, which needs the name: "
        f"delete it, or give the job another name"
    )


def _of_a_former(obj: Object) -> bool:
    """Made by the operator for a job that had another UID."""
    return c.UID_ANNOTATION in (obj["metadata"].get("annotations") or {})
