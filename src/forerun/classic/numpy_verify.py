"""One round on NumPy rows: `speculative_decoding_verify`, as in problem 394 of deep-ml.com.

The task: accept each draft token with chance min(1, p / q), replace the first refused one by a
draw from (p - q)+, and after full acceptance add a bonus token where there is a row for it.
Randomness comes from NumPy's global generator, so `np.random.seed` makes a round repeatable.

What differs, so that the law really is the target's:

* The published code recognises full acceptance by the number of tokens, which is K after a
  refusal in the *last* slot as well; it then appends a "bonus" drawn after a token that was just
  thrown away.  Here a refusal ends the round.
* It adds 1e-10 to q and ignores residuals below 1e-10.  Here both are used as they are.
* A draft token with q = 0 was not drawn from q.  It is refused with an error, not accepted.
"""

from __future__ import annotations

import numpy as np

from forerun.base.arrays import HostArray
from forerun.classic.rows import as_table, with_bonus_row
from forerun.rules.types import Draft
from forerun.verification import verify


def speculative_decoding_verify(
    draft_tokens: list[int],
    draft_probs: list[HostArray],
    target_probs: list[HostArray],
    vocab_size: int,
) -> list[int]:
    """The tokens that a round emits: 1 to K + 1 with K + 1 target rows, 1 to K with K of them.

    draft_tokens: K ids.  draft_probs: K rows (V,).  target_probs: K rows, or K + 1 for a bonus.
    """
    draft = as_table("draft_probs", draft_probs, vocab_size)
    target = as_table("target_probs", target_probs, vocab_size)
    num_drafted = len(draft_tokens)
    has_bonus_row = len(target) > num_drafted
    if num_drafted == 0 and not has_bonus_row:
        return []  # there are no tokens to verify and no rows to draw from
    guess = Draft.sampled([list(draft_tokens)], draft[None])
    rows = with_bonus_row(target, num_drafted)
    (emitted,) = verify(guess, rows, rule="ratio", seed=fresh_seed()).tokens()
    return emitted if has_bonus_row else emitted[:num_drafted]


def fresh_seed() -> int:
    """A seed of 64 bits from NumPy's global generator."""
    return int.from_bytes(np.random.bytes(8), "little")  # noqa: NPY002
