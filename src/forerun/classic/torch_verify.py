"""One round on Torch tensors: `speculative_decode`, as in TorchCode's "Speculative Decoding".

The task: accept each draft token with chance min(1, p / q), replace the first refused one by a
draw from (p - q)+, and stop.  At most K tokens come out: there is no bonus, because the target
has K rows only.  It passes `torch_judge.check("speculative_decoding")`.

What differs: q is not raised to 1e-10, and if rounding leaves an empty residual the target's row
takes its place, never a uniform one that could emit tokens the target forbids.  Randomness comes
from Torch's global CPU generator wherever the tensors live, so `torch.manual_seed` gives the same
round on every device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.classic.rows import with_bonus_row
from forerun.rules.types import Draft
from forerun.verification import verify

if TYPE_CHECKING:
    import torch


def speculative_decode(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, draft_tokens: torch.Tensor
) -> list[int]:
    """The tokens that a round emits, 1 to K of them (none for K = 0).

    target_probs, draft_probs: (K, V).  draft_tokens: (K,), drawn from draft_probs.
    """
    import torch

    tokens = torch.as_tensor(draft_tokens, device=target_probs.device)
    num_drafted = len(tokens)
    if num_drafted == 0:
        return []
    guess = Draft.sampled(tokens, draft_probs)
    rows = with_bonus_row(target_probs, num_drafted)
    (emitted,) = verify(guess, rows, rule="ratio", seed=fresh_seed()).tokens()
    return emitted[:num_drafted]


def fresh_seed() -> int:
    """A seed of 64 bits from Torch's global CPU generator."""
    import torch

    low, high = torch.randint(2**32, (2,), device="cpu").tolist()
    return int(low | high << 32)
