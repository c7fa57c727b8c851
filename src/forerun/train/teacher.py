"""Runs the target on its own texts: its hidden states are the network's input, its distributions
the training targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forerun.base.arrays import HostArray
from forerun.models.forward import without_cudnn_attention
from forerun.train.shards import Spoken

MULTIPLE = 32  # lengths are padded to multiples of this, so that memory is reused
CHUNK = 8192  # positions whose full logits are held at once


@dataclass(frozen=True)
class Batch:
    """Texts in rows, padded on the right, which causal attention does not see."""

    tokens: Tensor  # (B, L)
    rows: Tensor  # (A,): with `places`, the tokens u inside an answer whose next one is as well
    places: Tensor  # (A,)
    reach: (
        Tensor  # (A,): answer tokens up to u in its answer: what was known before it is u - reach
    )
    first: int  # the smallest of the places

    @classmethod
    def of(cls, spoken: Sequence[Spoken], device: Any) -> Batch:
        """Make a batch of these texts."""
        longest = -(-max(map(len, spoken)) // MULTIPLE) * MULTIPLE
        tokens = np.zeros((len(spoken), longest), np.int64)
        reach = np.zeros((len(spoken), longest), np.int64)
        for row, text in enumerate(spoken):
            tokens[row, : len(text)] = text.tokens
            reach[row, : len(text)] = run_lengths(text.is_answer)
        rows, places = np.nonzero((reach[:, :-1] > 0) & (reach[:, 1:] > 0))
        arrays = tokens, rows, places, reach[rows, places]
        ids, row, place, known = (_placed(array, device) for array in arrays)
        first = int((places - reach[rows, places]).min())
        return cls(ids, row, place, known, first)

    @property
    def next_tokens(self) -> Tensor:
        """The token after each place, (A,)."""
        return self.tokens[self.rows, self.places + 1]


def _placed(array: HostArray, device: Any) -> Tensor:
    """A copy of an array on a device; the host does not wait for a copy to a GPU."""
    tensor = torch.from_numpy(array)
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def run_lengths(flags: np.ndarray[Any, np.dtype[np.bool_]]) -> HostArray:
    """The number of consecutive set flags up to each place, (L,): 0 1 1 0 1 gives 0 1 2 0 1."""
    counts = np.cumsum(flags)
    return np.asarray(counts - np.maximum.accumulate(np.where(flags, 0, counts)))


class Teacher:
    """The target, run on whole texts."""

    def __init__(self, model: Any, layers: Sequence[int], draft_tokens: Tensor) -> None:
        self.model, self.layers = model, tuple(layers)
        self.draft_tokens = draft_tokens  # (Vd,)
        self.embedding: Tensor = model.get_input_embeddings().weight.detach()  # (V, D)
        self.to_draft = torch.full((len(self.embedding),), -1, device=self.embedding.device)
        self.to_draft[draft_tokens] = torch.arange(len(draft_tokens), device=self.to_draft.device)

    def watch(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden states after the layers that the drafter reads, (B, L, F), and after the last
        layer, (B, L, D)."""
        with torch.no_grad(), without_cudnn_attention():
            output = self.model.base_model(
                input_ids=tokens, use_cache=False, output_hidden_states=True
            )
            hidden = torch.cat([output.hidden_states[layer] for layer in self.layers], -1)
        return hidden, output.last_hidden_state

    def laws(self, final: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """The target's distributions at final states (A, D).

        Returns the probabilities of the draft tokens (A, Vd), which sum to at most 1, and the
        likeliest of all tokens (A,).
        """
        probs, likeliest = [], []
        with torch.no_grad():
            head = self.model.get_output_embeddings()
            for part in final.split(CHUNK):
                logits = head(part)
                likeliest.append(logits.argmax(-1))
                if temperature != 1:
                    logits = logits.float() / temperature
                law = torch.log_softmax(logits, -1, dtype=torch.float32)
                probs.append(law[:, self.draft_tokens].exp().to(final.dtype))
        return torch.cat(probs), torch.cat(likeliest)


def autocast(device: torch.device) -> torch.autocast:
    """Matrix products in bfloat16 on CUDA; no change elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
