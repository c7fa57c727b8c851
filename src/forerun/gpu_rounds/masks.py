"""Grammars in captured rounds: the host computes which tokens are allowed, the device forbids the
others.

A mask depends on the tokens before it. So the host makes the masks of a round when it knows the
previous round's results and the draft, while the pass is running; then it launches the decision
with them. Masks are sent as bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from forerun.base.errors import ends_process
from forerun.engine.proposal import Proposal
from forerun.engine.request import Request
from forerun.gpu_rounds.kernels.masks import forbid
from forerun.grammars.base import Words, allowed_words

BLOCK = 2048


def has_mask(request: Request) -> bool:
    """Whether a grammar restricts the request."""
    return request.sampling.grammar is not None


def masks_of(
    request: Request, output: Sequence[int], draft: Proposal, vocab_size: int
) -> tuple[dict[int, Words], dict[int, BaseException]]:
    """The masks at all slots that a round may reach after an output, and the exceptions raised, by
    slot.

    A slot after a drafted token that the grammar forbids cannot be reached.
    """
    masks: dict[int, Words] = {}
    faults: dict[int, BaseException] = {}
    grammar: Any = request.sampling.grammar
    for slot in range(len(draft.tokens) + 1):
        path = draft.path(slot - 1)
        drafted = [draft.tokens[node] for node in path]
        if path:
            before = masks.get(path[-2] + 1 if len(path) > 1 else 0)
            if before is None or not _allows(before, drafted[-1], vocab_size):
                continue
        try:
            masks[slot] = allowed_words(grammar, [*output, *drafted], vocab_size)
        except BaseException as error:
            if ends_process(error):
                raise
            faults[slot] = error
    return masks, faults


def _allows(words: Words, token: int, vocab_size: int) -> bool:
    return 0 <= token < vocab_size and bool(words[token // 32] >> token % 32 & 1)


class Masks:
    """The grammar masks for the rows of logits in a decision."""

    def __init__(self, num_rows: int, vocab_size: int, device: Any) -> None:
        self._vocab_size = vocab_size
        self._is_masked = torch.zeros(num_rows, dtype=torch.int32, device=device)
        num_words = -(-vocab_size // 32)
        self._words = torch.zeros((num_rows, num_words), dtype=torch.int32, device=device)

    def put(self, masks: Mapping[int, Words]) -> None:
        """Set the masks of these rows; the others have none."""
        flags = np.zeros(len(self._is_masked), np.int32)
        flags[list(masks)] = 1
        device = self._is_masked.device
        self._is_masked.copy_(_ready(flags, device), non_blocking=True)
        if masks:
            rows, words = np.array(list(masks)), np.stack(list(masks.values()))
            there = [_ready(part, device).to(device, non_blocking=True) for part in (rows, words)]
            self._words.index_copy_(0, *there)

    def apply(self, logits: Any) -> None:
        """Set the logits (R, V) of forbidden tokens to -inf, in place."""
        num_rows, vocab = logits.shape
        forbid[(num_rows, -(-vocab // BLOCK))](
            logits, self._is_masked, self._words, V=vocab, W=self._words.shape[1], BLOCK=BLOCK
        )


def _ready(values: Any, device: Any) -> Any:
    """The array as a tensor; for a GPU in pinned memory, so that the host need not wait for the
    copy."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory() if device.type == "cuda" else tensor
