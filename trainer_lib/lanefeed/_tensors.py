"""What needs torch, imported only where tensors are asked for.

Called by `_arena.frame`, `Batch.to` and `Ragged`. Each tensor is a plain tensor over the array's memory, not a torch
view of another tensor: in-place changes and `requires_grad_()` work as on any tensor of the user's own.
"""

from typing import Any

import numpy as np
import torch

from lanefeed._ragged import Ragged

__all__ = ["nested", "padded", "to_tensor", "torch_dtype"]

#: One tensor over one array: [*shape] of the same dtype, sharing memory; keeps the array alive.
to_tensor = torch.from_numpy


def torch_dtype(dtype: str) -> torch.dtype:
    """The torch dtype of a NumPy name."""
    return to_tensor(np.empty(0, dtype=dtype)).dtype


def padded(ragged: Ragged, value: Any, length: int) -> torch.Tensor:
    """`Ragged.to_padded` for tensors, on the values' device."""
    values, offsets = ragged.values, ragged.offsets
    out = torch.full((len(ragged), length), value, dtype=values.dtype, device=values.device)
    places = torch.arange(length, device=values.device)[None, :]
    keep = places < ragged.lengths[:, None]
    out[keep] = values[(offsets[:-1, None] + places)[keep]]
    return out


def nested(ragged: Ragged) -> torch.Tensor:
    """`Ragged.to_nested`: jagged layout over the same values and offsets."""
    values = ragged.values if isinstance(ragged.values, torch.Tensor) else to_tensor(ragged.values)
    offsets = ragged.offsets if isinstance(ragged.offsets, torch.Tensor) else to_tensor(ragged.offsets)
    return torch.nested.nested_tensor_from_jagged(values, offsets)
