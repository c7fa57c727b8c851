"""Edits of logits on the device: penalties, logit bias, bad words and `min_tokens`.

They are arrays over the lanes of a round, so requests with these options can use captured rounds,
as can those with a grammar (`masks.py`). Only processors, and log-probabilities of edited logits,
need the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from forerun.engine.request import Request
from forerun.gpu_rounds.kernels.edits import SEEN, ban, note, penalise
from forerun.gpu_rounds.likeliest import NUMBERS
from forerun.kernels.decide import OPTIONS
from forerun.kernels.scratch import padded

TAIL = 16
"""The number of last tokens of a text that are kept to recognise bad words; a power of two."""
MOST_WORDS = 64
"""The most bad words and ending tokens that a request may have on the device."""
ALWAYS = 2**31 - 1
BLOCK = 1024


def edits_law(request: Request) -> bool:
    """Whether the request's logits are edited before they are sampled."""
    return bool(_counts_tokens(request) or request.sampling.logit_bias or _words(request))


def fits_device(request: Request) -> bool:
    """Whether the device can sample for a request. This depends only on the request: host and
    device round differently, so all of a text must be computed in one way."""
    if request.processors:
        return False
    words = _words(request)
    if request.num_logprobs is not None:  # of logits that nothing has edited
        if request.num_logprobs > NUMBERS[-1] or request.logprobs_of != "model":
            return False
        if edits_law(request) or request.sampling.grammar is not None:
            return False
    return len(words) <= MOST_WORDS and all(len(word) <= TAIL + 1 for word, _ in words)


class Edits:
    """The edits for the requests in a number of lanes, with a vocabulary of V tokens."""

    def __init__(self, num_lanes: int, vocab_size: int, device: Any) -> None:
        self._size = num_lanes, vocab_size
        integers: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self._flags = torch.zeros((2, num_lanes), **integers)
        self._is_edited, self._num_words = self._flags
        self._penalties = torch.ones((3, num_lanes), device=device)
        self._words = torch.zeros((num_lanes, MOST_WORDS, TAIL + 3), **integers)
        self._tails = torch.zeros((num_lanes, TAIL), **integers)
        self._counts = torch.zeros((num_lanes, vocab_size), **integers)
        self._bias = torch.zeros((num_lanes, vocab_size), device=device)
        self._no_depths = torch.zeros(1, **integers)

    @property
    def num_lanes(self) -> int:
        return self._size[0]

    def put(
        self,
        requests: Sequence[Request | None],
        texts: Sequence[Sequence[int]],
        places: Sequence[int] | None = None,
    ) -> None:
        """Set the edits of lanes to those of these requests; None stands for a lane without edits.

        places: the numbers of the lanes; None: the first ones, and all other lanes get no edits.
        """
        num_lanes = self._size[0] if places is None else len(places)
        flags = np.zeros((2, num_lanes), np.int32)
        penalties = np.ones((3, num_lanes), np.float32)
        words = np.zeros((num_lanes, MOST_WORDS, TAIL + 3), np.int32)
        tails = np.full((num_lanes, TAIL), -1, np.int32)
        for lane, (request, text) in enumerate(zip(requests, texts, strict=True)):
            if request is None:
                continue
            options = request.sampling
            if _counts_tokens(request) or options.logit_bias:
                flags[0, lane] = 1
                penalties[:, lane] = (
                    options.repetition_penalty,
                    options.presence_penalty,
                    options.frequency_penalty,
                )
                self._fill(lane if places is None else places[lane], request, text)
            entries = _words(request)
            flags[1, lane] = len(entries)
            for index, (word, end) in enumerate(entries):
                words[lane, index, :3] = word[-1], len(word) - 1, end
                words[lane, index, 3 : len(word) + 2] = word[-2::-1]
            last = list(text[-TAIL:])
            tails[lane, TAIL - len(last) :] = last
        narrow, wide = [(self._flags, flags), (self._penalties, penalties)], []
        if flags[1].any():
            wide = [(self._words, words), (self._tails, tails)]
        device = self._flags.device
        where = torch.arange(num_lanes) if places is None else torch.tensor(places)
        where = where.to(device, non_blocking=True)
        for axis, arrays in ((1, narrow), (0, wide)):
            for target, values in arrays:
                source = torch.from_numpy(values).to(device, non_blocking=True)
                target.index_copy_(axis, where, source)

    def apply(
        self,
        logits: Any,
        drafted: Any,
        outputs: Any,
        *,
        num_rows: int,
        first: int = 0,
        depths: Any = None,
    ) -> None:
        """Edit logits (B * num_rows, V) in place; the rows of a lane are consecutive.

        drafted: (B, K) int64; row i of a lane comes after its first (first + i) drafted tokens.
        depths: (B * num_rows,) int32; if given, drafted is (B * num_rows, K), and each row comes
        after depths[row] tokens of its own.
        outputs: (B,) int64, the output position of the first token after the text.
        """
        num_lanes, vocab = self._size
        per_row = depths is not None
        where = logits, drafted, depths if per_row else self._no_depths
        how = {"V": vocab, "PER_ROW": per_row}
        penalise[(len(logits), -(-vocab // BLOCK))](
            *where, self._is_edited, self._penalties, self._counts, self._bias, num_rows, first,
            drafted.shape[1], LANES=num_lanes, BLOCK=BLOCK, **how, **OPTIONS,
        )  # fmt: skip
        ban[(len(logits),)](
            *where, outputs, self._num_words, self._words, self._tails, num_rows, first,
            drafted.shape[1], WORDS=MOST_WORDS, TAIL=TAIL, num_warps=1, **how,
        )  # fmt: skip

    def note(self, outcome: Any, drafts: Any, lanes: Any) -> None:
        """Count the tokens that a captured round has emitted, for penalties."""
        num_lanes, vocab = self._size
        length = drafts.shape[1]
        note[(num_lanes,)](
            outcome.accepted, outcome.extra, outcome.fault, drafts, lanes.rows, lanes.remaining,
            self._is_edited, self._num_words, self._counts, self._tails, K=length, V=vocab,
            TAIL=TAIL, WIDE=padded(length + 1), num_warps=1,
        )  # fmt: skip

    def _fill(self, lane: int, request: Request, text: Sequence[int]) -> None:
        """Set the counts and the bias of a lane."""
        counts, bias, options = self._counts[lane], self._bias[lane], request.sampling
        device, num_prompt = counts.device, len(request.prompt)
        counts.zero_()
        if options.repetition_penalty != 1:
            prompt = torch.tensor(sorted(set(request.prompt)), device=device)
            counts.index_fill_(0, prompt, SEEN.value)
        if len(text) > num_prompt:
            output = torch.tensor(text[num_prompt:], device=device)
            counts.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))
        bias.zero_()
        if options.logit_bias:
            tokens = torch.tensor(list(options.logit_bias), device=device)
            amounts = torch.tensor(list(options.logit_bias.values()), dtype=torch.float32)
            bias.index_copy_(0, tokens, amounts.to(device))


def _counts_tokens(request: Request) -> bool:
    options = request.sampling
    return bool(
        options.repetition_penalty != 1 or options.presence_penalty or options.frequency_penalty
    )


def _words(request: Request) -> list[tuple[Sequence[int], int]]:
    """The forbidden words of a request: for each its tokens, and the output position before which
    it is forbidden."""
    words: list[tuple[Sequence[int], int]] = [(word, ALWAYS) for word in request.bans.words]
    if request.sampling.min_tokens:
        words += [((token,), request.sampling.min_tokens) for token in request.bans.endings]
    return words
