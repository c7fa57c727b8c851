"""A digest of the weights that one rank holds."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any


def digest(model: Any) -> str:
    """Equal for equal shards of equal weights."""
    import torch

    total = blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        local = value.to_local() if hasattr(value, "to_local") else value
        flat = local.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        total.update(f"{name} {tuple(local.shape)} {local.dtype}\n".encode())
        total.update(flat.numpy().data)
    return total.hexdigest()
