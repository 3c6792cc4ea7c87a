"""The smallest trainer: 15 lines, restartable at any moment, with any number of ranks."""

import os

import torch

import lanefeed

model = torch.nn.Linear(128, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = lanefeed.connect()
if loader.last_commit and loader.last_commit.name:
    saved = torch.load(loader.last_commit.name, weights_only=True)
    model.load_state_dict(saved["model"])
    loader.load_state_dict(saved["loader"])
for _ in loader.epochs():
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        if loader.step % 100 == 0 or loader.stop_requested:
            path = f"checkpoint-{loader.step}-gen{loader.plan_generation}.pt"
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, f"{path}.{loader.rank}")
            os.replace(f"{path}.{loader.rank}", path)  # whole or not at all, whichever rank comes first
            loader.commit(path)
        if loader.stop_requested:
            raise lanefeed.Stopped
