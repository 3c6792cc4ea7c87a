"""A small network over images that the sidecar decodes: uint8 pixels come in, what is random happens here."""

import os

import torch
from torch.nn.functional import cross_entropy

import lanefeed

SIZE = 32
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 5, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(),
    torch.nn.Linear(128, 3),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def augmented(images: torch.Tensor) -> torch.Tensor:
    """A random crop of each batch and a mirror of half of its images, on the device of the images."""
    top, left = (int(n) for n in torch.randint(0, images.shape[-1] - SIZE + 1, (2,)))
    crop = images[:, :, top : top + SIZE, left : left + SIZE]
    mirrored = (torch.rand(len(crop), device=images.device) < 0.5)[:, None, None, None]
    return torch.where(mirrored, crop.flip(-1), crop).float().div(255)


loader = lanefeed.connect()
if loader.last_commit and loader.last_commit.name:
    saved = torch.load(loader.last_commit.name, weights_only=True)
    model.load_state_dict(saved["model"])
    loader.load_state_dict(saved["loader"])
for _ in loader.epochs():
    for batch in loader:
        loss = cross_entropy(model(augmented(batch["image.bytes"])), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loader.step % 10 == 0 or loader.stop_requested:
            path = f"checkpoint-{loader.step}-gen{loader.plan_generation}.pt"
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, f"{path}.{loader.rank}")
            os.replace(f"{path}.{loader.rank}", path)  # whole or not at all, whichever rank comes first
            loader.commit(path)
        if loader.stop_requested:
            raise lanefeed.Stopped
    print(f"epoch done, loss {loss.item():.3f}", flush=True)
