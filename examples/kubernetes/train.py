"""An example trainer for a cluster: a small classifier under DistributedDataParallel, restartable at any moment.

Lanefeed's part is `connect`, the loop, `state_dict`, `commit` and `stop_requested`; the rest is any DDP script. It reads
the columns x (fixed-size list of float) and label. Checkpoints go to $CHECKPOINTS, which all pods share, under names that
hold the plan generation: a pod that was given up for lost cannot overwrite those of its successors.
With RECORD_IDS=1 every checkpoint also tells which samples are in it: that is what the end-to-end tests compare.
"""

import json
import os
import socket
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lanefeed

CHECKPOINTS = Path(os.environ.get("CHECKPOINTS", "/checkpoints"))
EVERY = int(os.environ.get("CHECKPOINT_EVERY", "50"))
PAUSE = float(os.environ.get("STEP_SECONDS", "0"))
RECORD_IDS = os.environ.get("RECORD_IDS") == "1"


def write(path: Path, content: str) -> None:
    """Whole or not at all."""
    # In containers every process is number 1, and a pod that was given up for lost may write beside its successor.
    temporary = path.with_suffix(f".{socket.gethostname()}.{os.getpid()}.tmp")
    temporary.write_text(content)
    os.replace(temporary, path)


def written(name: str) -> Path:
    """The model of a committed checkpoint. Without it nothing is trained: to begin anew in silence would repeat samples."""
    path = CHECKPOINTS / name / "model.pt"
    if not path.exists():
        raise SystemExit(
            f"the job goes on from checkpoint {name}, and {path} is not in this pod: mount a volume that all pods share "
            f"at {CHECKPOINTS} (or set CHECKPOINTS to where one is), or delete the job and apply it again to begin anew"
        )
    return path


class Trainer:
    """Model, optimizer, loader, and their checkpoints."""

    def __init__(self) -> None:
        self.loader = lanefeed.connect()
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.name, self.ids = "", []
        self.restore()

    def restore(self) -> None:
        """From the job's last commit; rank 0 says which one that is, so that all ranks load the same."""
        commit = self.loader.last_commit
        last = [commit.name if commit else ""]
        dist.broadcast_object_list(last)
        self.name = last[0]
        if self.name:
            checkpoint = torch.load(written(self.name), weights_only=True)
            self.model.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.loader.load_state_dict(checkpoint["loader"])
            print(f"restored {self.name}", flush=True)

    def save(self) -> None:
        """Rank 0 writes the model, once all ranks are at this step; then every rank commits."""
        loader, before = self.loader, self.name
        self.name = f"step-{loader.step:06d}-gen{loader.plan_generation}"
        if self.name == before:
            return
        folder = CHECKPOINTS / self.name
        folder.mkdir(parents=True, exist_ok=True)
        if RECORD_IDS:
            seen = {"before": before, "world": loader.world, "step": loader.step, "ids": self.ids}
            write(folder / f"rank-{loader.rank}.json", json.dumps(seen))
            self.ids = []
        dist.barrier()
        if dist.get_rank() == 0:
            content = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(content | {"loader": loader.state_dict()}, folder / "model.tmp")
            os.replace(folder / "model.tmp", folder / "model.pt")
        dist.barrier()
        loader.commit(self.name)

    def step(self, batch: lanefeed.Batch) -> float:
        """One optimizer step; `weight` makes uneven rank batches count by their samples."""
        loss = nn.functional.cross_entropy(self.model(batch["x"]), batch["label"]) * batch.weight
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if RECORD_IDS:
            self.ids.append(np.asarray(batch.ids).tolist())
        return float(loss)

    def train(self) -> None:
        """To the end of the stream, or until a stop is asked for."""
        loss = 0.0
        for epoch in self.loader.epochs():
            for batch in self.loader:
                loss = self.step(batch)
                time.sleep(PAUSE)
                if self.loader.stop_requested:
                    self.save()
                    raise lanefeed.Stopped
                if self.loader.step % EVERY == 0:
                    self.save()
            self.save()
            print(f"epoch {epoch} done, loss {loss:.4f}", flush=True)
        self.loader.close()


def main() -> None:
    """As torchrun starts it, once for each rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    Trainer().train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
