"""The demo's trainer: a small classifier under DistributedDataParallel, restartable at any moment.

What it needs of Lanefeed is `connect`, the loop, `state_dict`, `commit` and `stop_requested`. The rest is what any DDP
script has: a model, a checkpoint that is written whole or not at all, and one rank that says which one to load. It
also keeps the ids of the samples in each checkpoint, so that the demo can compare the order, not assume it.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lanefeed

EVERY = int(os.environ.get("DEMO_CHECKPOINT_EVERY", "50"))
PAUSE = float(os.environ.get("DEMO_STEP_SECONDS", "0"))
OUT = Path(os.environ["DEMO_OUT"])


def save(name: str, content: dict, rank: int, ids: list[list[int]], before: str) -> None:
    """Write a checkpoint: each rank its ids, then rank 0 the model; `model.pt` appears last, by rename."""
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    step = content["loader"]["cursor"]
    (folder / f"ids-{rank}.json").write_text(json.dumps({"before": before, "at": step, "ids": ids}))
    dist.barrier()
    if rank == 0:
        torch.save(content, folder / "model.tmp")
        os.replace(folder / "model.tmp", folder / "model.pt")
    dist.barrier()


def main() -> None:
    """Train until the stream ends or a stop is asked for."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = lanefeed.connect()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    last = [loader.last_commit.name if loader.last_commit else ""]
    dist.broadcast_object_list(last)
    if last[0]:
        checkpoint = torch.load(OUT / last[0] / "model.pt", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])

    name, ids = last[0], []

    def checkpoint_now() -> None:
        nonlocal name
        before, name = name, f"step-{loader.step:06d}-gen{loader.plan_generation}"
        if name == before:
            return
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        save(name, content, rank, ids, before)
        loader.commit(name)
        ids.clear()

    log = (OUT / "steps.log").open("a", buffering=1) if rank == 0 else None
    for epoch in loader.epochs():
        loss = torch.zeros(())
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["label"]) * batch.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids.append(np.asarray(batch.ids).tolist())
            if PAUSE:
                time.sleep(PAUSE)
            if log:
                log.write(f"{time.time():.3f} {loader.step} {loss.item():.4f}\n")
            if loader.stop_requested:
                checkpoint_now()
                raise lanefeed.Stopped
            if loader.step % EVERY == 0:
                checkpoint_now()
        checkpoint_now()
        if rank == 0:
            print(f"epoch {epoch} done, loss {loss.item():.4f}", flush=True)
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
