"""A tiny language model over packed documents: attention and loss stay within each document."""

import os

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import lanefeed

VOCABULARY, WIDTH = 256, 32
model = torch.nn.ModuleDict(
    {
        "tokens": torch.nn.Embedding(VOCABULARY, WIDTH),
        "project": torch.nn.Linear(WIDTH, 3 * WIDTH),
        "out": torch.nn.Linear(WIDTH, VOCABULARY),
    }
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_of(batch: lanefeed.Batch) -> torch.Tensor:
    """Mean loss over the tokens that have a next one in their document."""
    tokens, documents = batch["tokens"].long(), batch["document_ids"]
    same = documents[:, :, None] == documents[:, None, :]  # flex_attention: the same line as a mask_mod
    query, key, value = model["project"](model["tokens"](tokens)).chunk(3, dim=-1)
    attended = scaled_dot_product_attention(query, key, value, attn_mask=same.tril())
    # The next token counts where it is of the same document; padding (document -1) never does.
    counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
    return cross_entropy(model["out"](attended[:, :-1])[counts], tokens[:, 1:][counts])


loader = lanefeed.connect()
if loader.last_commit and loader.last_commit.name:
    saved = torch.load(loader.last_commit.name, weights_only=True)
    model.load_state_dict(saved["model"])
    loader.load_state_dict(saved["loader"])
for _ in loader.epochs():
    for batch in loader:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loader.step % 50 == 0 or loader.stop_requested:
            path = f"checkpoint-{loader.step}-gen{loader.plan_generation}.pt"
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, f"{path}.{loader.rank}")
            os.replace(f"{path}.{loader.rank}", path)  # whole or not at all, whichever rank comes first
            loader.commit(path)
        if loader.stop_requested:
            raise lanefeed.Stopped
    print(f"epoch done, loss {loss.item():.3f}", flush=True)
