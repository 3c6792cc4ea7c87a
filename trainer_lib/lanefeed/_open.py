"""`lanefeed.open()`: read files with no cluster and no job, through a sidecar of one's own on this machine."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanefeed import _env
from lanefeed._arguments import column_names, flag, folder, number, number_or_none, paths, seconds
from lanefeed._client.client import GrpcFeed, Target
from lanefeed._loader import Loader
from lanefeed._local.dataset import Dataset, images_of, packing_options
from lanefeed._local.sidecar import PLAN_GENERATION, LocalSidecar
from lanefeed._make import STALL_SECONDS, copier_for, make_loader, register_with, wrapper
from lanefeed_core.images import ImageColumn

if TYPE_CHECKING:
    from lanefeed._device.copier import Device

__all__ = ["open"]

#: Of the decoded cache, where nobody says otherwise.
CACHE_BYTES = 32 << 30


def open(  # noqa: A001 - lanefeed.open reads as it should
    uris: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    global_batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    window: int | None = None,
    lanes: int | None = None,
    epochs: int | None = None,
    last_batch: str = "Drop",
    columns: Sequence[str] | None = None,
    images: Sequence[ImageColumn | Mapping[str, Any]] | None = None,
    packed: Mapping[str, Any] | None = None,
    uneven: bool = False,
    rank: int | None = None,
    world: int | None = None,
    device: "str | Device | None" = None,
    tensors: str | None = None,
    lookahead: str = "auto",
    decode_threads: int = 0,
    read_ahead_bytes: int = 512 << 20,
    slots: int = 8,
    slot_bytes: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    run_dir: str | os.PathLike[str] | None = None,
    attach_timeout: float | None = None,
    stall_timeout: float = STALL_SECONDS,
) -> Loader:
    """A loader over Parquet or Arrow files: a path, folder or glob, or several.

    Under torchrun the ranks of a machine share one sidecar; what they are given is the same as in a job. Needs
    `pip install 'lanefeed[sidecar]'`. Does no I/O: files and sidecar wait until something is asked of the loader.

    Args:
        global_batch_size: samples of a step over all ranks.
        seed, shuffle, window, lanes: what the order depends on; window and lanes are chosen (and come with a loaded
            state) where they are None.
        epochs: passes over the data; None: no end.
        last_batch: what becomes of an epoch's last N mod G samples: "Drop", "Partial" or "Pad".
        columns: those to read (all).
        images: binary columns of JPEG, PNG or WebP files that are delivered as uint8 pixels: `ImageColumn`s, or dicts
            of column, height, width and, where wanted, mode ("RGB", "L"), resize ("CenterCrop", "Stretch", "None") and
            layout ("CHW", "HWC") (docs/images.md). Needs `pip install 'lanefeed[images]'`.
        packed: pack documents of tokens into sequences, which are the samples then: {"sequence_length": 2048} and,
            where wanted, "column", "eos_token", "mode" ("Concat", "BestFit"), "cross_document_mask" (docs/packing.md).
        uneven: allow world sizes that do not divide the global batch.
        decode_threads, read_ahead_bytes, slots, slot_bytes: sizes of the sidecar; 0 lets it choose.
        cache_dir, cache_bytes: a folder on a local disk where decoded row groups are kept for later epochs, later runs
            and other jobs (they may share it), and what it may take. None: no cache.
        run_dir: a tmpfs folder to use instead of one made under LANEFEED_SHM_ROOT (/dev/shm). With `rank` and `world`
            all ranks are on this machine and name the same folder: they share its sidecar. Nothing that an earlier
            run left in it counts: the data are indexed anew, and the checkpoint says where to go on.
        rank, world, device, tensors, lookahead, attach_timeout, stall_timeout: as for `connect`.

    Raises UsageError for arguments that do not fit together; when the loader is used, DataError for files that cannot
    be read.
    """
    place = _env.place(rank, world)
    if run_dir is not None and rank is not None:
        place = replace(place, pod=0, local_world=place.world, local_rank=place.rank)
    wrap = wrapper(tensors)
    copier = copier_for(device, wrap)
    dataset = Dataset(
        uris=paths(uris),
        base=os.getcwd(),
        global_batch_size=number("global_batch_size", global_batch_size, 1),
        seed=number("seed", seed, 0),
        shuffle=flag("shuffle", shuffle),
        window=number_or_none("window", window, 1, "what fits"),
        lanes=number_or_none("lanes", lanes, 1, "what fits"),
        epochs=number_or_none("epochs", epochs, 1, "no end"),
        last_batch=last_batch,
        columns=column_names(columns),
        images=images_of(images),
        packed=packing_options(packed),
        uneven=flag("uneven", uneven),
        decode_threads=number("decode_threads", decode_threads, 0),
        read_ahead_bytes=number("read_ahead_bytes", read_ahead_bytes, 1),
        slots=number("slots", slots, 2),
        slot_bytes=number("slot_bytes", slot_bytes, 0),
        cache_dir=os.path.abspath(folder("cache_dir", cache_dir)) if cache_dir is not None else "",
        cache_bytes=number("cache_bytes", cache_bytes, 0),
    )
    sidecar = LocalSidecar(dataset, place, Path(folder("run_dir", run_dir)) if run_dir is not None else None)
    target = Target(
        run_dir=None,
        rank=place.rank,
        world=place.world,
        plan_generation=PLAN_GENERATION,
        attach_seconds=_env.attach_seconds(attach_timeout),
        ensure=sidecar.ensure,
    )
    return make_loader(
        GrpcFeed(target, register_with(copier)),
        rank=place.rank,
        world=place.world,
        wrap=wrap,
        copier=copier,
        stall_seconds=seconds("stall_timeout", stall_timeout),
        lookahead=lookahead,
        adopt=sidecar.adopt,
        reset=sidecar.reset,
        release=sidecar.release,
    )
