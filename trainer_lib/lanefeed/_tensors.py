"""What needs torch, imported only where tensors are asked for.

Called by `_arena.frame`, `Batch.to` and `Ragged`. Each tensor is a plain tensor over the array's memory, not a torch
view of another tensor: in-place changes and `requires_grad_()` work as on any tensor of the user's own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lanefeed._ragged import Ragged

__all__ = ["nested", "padded", "pieces", "stacked", "to_tensor", "torch_dtype"]

#: (tensor, sizes): cuts along the first dimension that share memory, but neither autograd's views nor version counters:
#: a change in place of one column or step is no change of the others in the eyes of autograd.
pieces = torch.unsafe_split_with_sizes
#: One tensor over one array: [*shape] of the same dtype, sharing memory; keeps the array alive.
to_tensor = torch.from_numpy


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy: columns side by side, [rows, columns, ...]."""
    return torch.stack(list(tensors), dim=1)


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
