"""Two transformers models in one loop: `SpeculativeDecoder`.

Asked for: a draft model guesses draft_tokens tokens, the target scores them in one pass, accepted
ones are kept, the first refused one is resampled.  Both models sample at temperature 1.  Randomness
comes from Torch's global CPU generator, so `torch.manual_seed` makes a call repeatable.

What differs, so that the text really follows the target:

* The published draft is draft_tokens samples of *one* position.  Here each is drawn after those
  before it.
* It accepts with the target's probability alone, read from a wrong row, resamples without taking
  away what the draft already had its chance at, and adds nothing after full acceptance.  Here the
  rule is `ratio`, which is that loop done right, and accepts the most of all rules that judge an
  independent draft token by token.
* Its loop compares max_new_tokens with the length of prompt and text together.  Here that many
  *new* tokens are generated.
* It decodes the first row only.  Here every row is decoded, with noise of its own, ends at the
  target's end-of-text token, and is filled up behind it with the padding token, or the
  end-of-text token where there is none.  As published there is no attention mask: every id given
  is text, so prompts of different length are calls of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forerun import drafters
from forerun.base.errors import InputError, explain
from forerun.generation.generate import generate
from forerun.generation.intake import ending_tokens
from forerun.loading.load import wrap
from forerun.sampling.options import Sampling

if TYPE_CHECKING:
    import torch


class SpeculativeDecoder:
    """A target, a draft model with the same vocabulary, and how many tokens are guessed a round."""

    def __init__(self, target_model: Any, draft_model: Any, draft_tokens: int = 4) -> None:
        self.target = wrap(target_model)
        self.draft = drafters.Model(draft_model)
        self.draft_tokens = draft_tokens

    def decode(self, input_ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
        """input_ids (B, T) with up to max_new_tokens new columns behind them."""
        import torch

        if input_ids.ndim != 2:
            cure = "Pass (B, T): one row of token ids per text."
            raise InputError(explain("input_ids has a wrong shape.", tuple(input_ids.shape), cure))
        if max_new_tokens == 0:
            return input_ids.clone()
        words = torch.randint(2**32, (len(input_ids), 2), device="cpu").tolist()
        answers = generate(
            self.target,
            input_ids,
            drafter=self.draft,
            draft_length=self.draft_tokens,
            rule="ratio",
            sampling=[Sampling(seed=low | high << 32) for low, high in words],
            max_new_tokens=max_new_tokens,
        )
        longest = max(len(answer.tokens) for answer in answers)
        filler = self._filler()
        rows = [answer.tokens + [filler] * (longest - len(answer.tokens)) for answer in answers]
        return torch.cat([input_ids, input_ids.new_tensor(rows)], dim=1)

    def _filler(self) -> int:
        """What stands behind a text that ended before the longest of its batch."""
        config = getattr(getattr(self.target, "model", None), "generation_config", None)
        padding = getattr(config, "pad_token_id", None)
        return int(next(iter(ending_tokens(self.target)), 0) if padding is None else padding)
