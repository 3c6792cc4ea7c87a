"""The pod's run folder in tmpfs and the arena in it: preallocated memory in which frames travel to trainers."""

from lanefeed_sidecar.arena.arena import Arena
from lanefeed_sidecar.arena.folder import RunFolder

__all__ = ["Arena", "RunFolder"]
