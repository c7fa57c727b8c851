"""Two transformers models in one loop: `SpeculativeDecoder`.

The task: a draft model guesses draft_tokens tokens, the target scores them in one pass, accepted
tokens are kept, and the first refused one is resampled.  Both models sample at temperature 1.
Randomness comes from Torch's global CPU generator, so `torch.manual_seed` makes a call repeatable.

What differs, so that the text really follows the target:

* The published draft is draft_tokens samples of *one* position.  Here each is drawn after those
  before it.
* It accepts with the target's probability alone, read from a wrong row, resamples without
  subtracting the draft's law, and adds nothing after full acceptance.  Here the rule is `ratio`,
  the correct form of that loop, which accepts the most of all rules that judge an independent draft
  token by token.
* Its loop compares max_new_tokens with the length of prompt and text together.  Here that many
  *new* tokens are generated.
* It decodes the first row only.  Here every row is decoded, with noise of its own, ends at the
  target's end-of-text token, and is then filled with the padding token, or with the end-of-text
  token if there is no padding token.  As in the published code there is no attention mask: every
  given id is text, so prompts of different length need separate calls.
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
    """Decodes with a target and a draft model of one vocabulary, draft_tokens guesses a round."""

    def __init__(self, target_model: Any, draft_model: Any, draft_tokens: int = 4) -> None:
        self.target = wrap(target_model)
        self.draft = drafters.Model(draft_model)
        self.draft_tokens = draft_tokens

    def decode(self, input_ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
        """Returns input_ids (B, T) with up to max_new_tokens new columns appended."""
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
        """The padding token for answers shorter than the longest of the batch."""
        config = getattr(getattr(self.target, "model", None), "generation_config", None)
        padding = getattr(config, "pad_token_id", None)
        return int(next(iter(ending_tokens(self.target)), 0) if padding is None else padding)
