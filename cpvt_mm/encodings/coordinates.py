"""Coordinates of cells, in query tokens, and offsets of keys from queries."""
import torch
from torch import Tensor

from cpvt_mm.tokens.tracing import cached


def token_centers(length: int, cell: float | Tensor = 1, device: torch.device | None = None) -> Tensor:
    """Returns cell centers along one axis, in query tokens: `(length,)`, float32. Query token i has its center at i."""
    return (torch.arange(length, dtype=torch.float32, device=device) + 0.5) * cell - 0.5


@cached
def offsets(length: int, key_length: int, cell: float, device: torch.device) -> Tensor:
    """Returns the offsets of key centers from queries along one axis, in query tokens, `(length, key_length)`, float32.
    """
    return token_centers(key_length, cell, device) - token_centers(length, device=device)[:, None]


@cached
def distinct_offsets(length: int, key_length: int, cell: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the values in `offsets`, `(n,)`, and where each pair has its own, `(length, key_length)`, int64.

    Each value is there once if `cell` is an int: they are `2 * length - 1` on equal grids.
    """
    if not isinstance(cell, int):
        places = torch.arange(length * key_length, device=device).unflatten(0, (length, key_length))
        return offsets(length, key_length, cell, device).flatten(), places
    values = torch.arange((key_length - 1) * cell + length, dtype=torch.float32, device=device)
    queries, keys = torch.arange(length, device=device), torch.arange(key_length, device=device)
    return values + ((cell + 1) / 2 - length), keys * cell + (length - 1 - queries)[:, None]
