"""Stepwise rounds whose tokens under `match` are sampled on the device: for host drafters and
trees.

Instead of logits, the host gets the target's own token after every scored position, and follows the
guesses that equal it. Requests that need the host get their logits too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from forerun.base.arrays import to_numpy
from forerun.engine.drafting import Drafting
from forerun.engine.laws import Fault, TargetLaws
from forerun.engine.match_on_host import walk
from forerun.engine.plan import RoundPlan, Span
from forerun.engine.proposal import Proposal
from forerun.engine.request import Request, report_of
from forerun.engine.stepwise import Decision, Stepwise
from forerun.gpu.inference import inference
from forerun.gpu_rounds.edits import Edits, edits_law, fits_device
from forerun.gpu_rounds.lanes import MOST, cuts_law
from forerun.gpu_rounds.masks import Masks, has_mask, masks_of
from forerun.gpu_rounds.outcomes import fault_of, first_fault
from forerun.grammars.base import Words
from forerun.kernels.decide import sample
from forerun.kernels.scratch import CutScratch, Outcome, Scratch, padded
from forerun.kernels.truncation import find_thresholds
from forerun.models.base import LanguageModel
from forerun.noise.addresses import Purpose
from forerun.rules.base import Rule
from forerun.rules.match import Match


class SampledSteps(Stepwise):
    """Executes plans step by step on the rows of one target on a CUDA device."""

    def __init__(self, target: LanguageModel, state: Any, drafting: Drafting, rule: Rule) -> None:
        super().__init__(target, state, drafting, rule)
        self._is_on_host: Sequence[bool] = ()
        self._mask_faults: Mapping[int, Mapping[int, BaseException]] = {}
        self._kept: dict[int, tuple[Outcome, Scratch]] = {}  # by number of rows, a power of two
        self._edits: Edits | None = None  # for as many requests as there were at most

    @property
    def device(self) -> Any:
        target: Any = self.target
        return target.model.device

    @inference
    def execute(self, plan: RoundPlan) -> Decision:
        self._is_on_host = [not fits_device(span.request) for span in plan.answering]
        return super().execute(plan)

    def _score(self, plan: RoundPlan, drafts: Sequence[Proposal]) -> Any:
        scored = self._score_on_device(plan, drafts)
        return LazyRows(scored) if type(self.rule) is Match else to_numpy(scored)

    def decide(
        self, spans: Sequence[Span], drafts: Sequence[Proposal], logits: Any
    ) -> tuple[TargetLaws, list[Sequence[int]], list[int]]:
        if type(self.rule) is not Match or not spans:
            return super().decide(spans, drafts, logits)
        tokens, faults = self._sample(spans, drafts, logits.on_device)
        laws = SampledLaws(
            [span.request for span in spans], drafts, logits, tokens, faults, self._mask_faults,
            self._is_on_host,
        )  # fmt: skip
        return laws, *walk(drafts, laws, lambda: self._noise(spans))

    def _sample(
        self, spans: Sequence[Span], drafts: Sequence[Proposal], logits: Any
    ) -> tuple[Any, Any]:
        """The target's token and the fault at every slot, both (A, N)."""
        num_spans, num_slots, vocab = logits.shape
        depths = np.zeros((num_spans, num_slots), np.int64)
        for row, draft in enumerate(drafts):
            for node in range(len(draft.tokens)):
                depths[row, node + 1] = (
                    node + 1 if draft.tree is None else draft.tree.depths[node] + 1
                )
        requests = [span.request for span in spans]
        outputs = np.array([request.num_output for request in requests])
        seeds = np.array([request.seed for request in requests], np.uint64).view(np.int64)
        heats = np.array([request.sampling.temperature for request in requests], np.float32)
        device, count = logits.device, num_spans * num_slots
        integers = np.stack([np.repeat(seeds, num_slots), (outputs[:, None] + depths).reshape(-1)])
        seed, position = torch.from_numpy(integers).to(device)
        heat = torch.from_numpy(np.repeat(heats, num_slots)).to(device)
        outcome, scratch = self._memory(count, vocab, device)
        flat, cuts = logits.reshape(count, vocab), None
        edited = [
            request if edits_law(request) and not on_host else None
            for request, on_host in zip(requests, self._is_on_host, strict=True)
        ]
        if any(request is not None for request in edited):
            flat = flat.float()
            self._edit(edited, drafts, flat, depths, outputs)
        masks, self._mask_faults = self._masks(requests, drafts, num_slots, vocab)
        if masks:
            flat = flat.float()
            made = Masks(count, vocab, device)
            made.put(masks)
            made.apply(flat)
        if any(cuts_law(request.sampling) for request in requests):
            cuts = self._thresholds(requests, flat, heat, scratch)
        sample(flat, heat, seed, position, Purpose.TARGET, 0, scratch, outcome, thresholds=cuts)
        parts = [part[:count].to(torch.int64) for part in (outcome.extra, outcome.fault)]
        tokens, faults = torch.stack(parts).cpu().numpy().reshape(2, num_spans, num_slots)
        return tokens, faults

    def _masks(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Proposal],
        num_slots: int,
        vocab_size: int,
    ) -> tuple[dict[int, Words], dict[int, dict[int, BaseException]]]:
        """The masks of grammars by row of the logits, and the exceptions raised, by request and
        slot."""
        masks: dict[int, Words] = {}
        faults: dict[int, dict[int, BaseException]] = {}
        for row, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            if has_mask(request) and not self._is_on_host[row]:
                found, faults[row] = masks_of(request, request.output, draft, vocab_size)
                masks |= {row * num_slots + slot: mask for slot, mask in found.items()}
        return masks, faults

    def _edit(
        self,
        requests: Sequence[Request | None],
        drafts: Sequence[Proposal],
        flat: Any,
        depths: Any,
        outputs: Any,
    ) -> None:
        """Apply the penalties, bias and bans of some requests, at every node for the path to it."""
        num_spans, num_slots = depths.shape
        table = np.zeros((num_spans, num_slots, max(1, num_slots - 1)), np.int64)
        for row, draft in enumerate(drafts):
            for node in range(len(draft.tokens)):
                path = [draft.tokens[other] for other in draft.path(node)]
                table[row, node + 1, : len(path)] = path
        device, vocab = flat.device, flat.shape[1]
        if self._edits is None or self._edits.num_lanes < num_spans:
            self._edits = Edits(padded(num_spans), vocab, device)
        texts = [() if request is None else request.tokens for request in requests]
        self._edits.put(requests, texts)
        drafted = torch.from_numpy(table.reshape(num_spans * num_slots, -1)).to(device)
        self._edits.apply(
            flat, drafted, torch.from_numpy(outputs).to(device), num_rows=num_slots,
            depths=torch.from_numpy(depths.reshape(-1).astype(np.int32)).to(device),
        )  # fmt: skip

    def _memory(self, count: int, vocab: int, device: Any) -> tuple[Outcome, Scratch]:
        """The kernels' working memory for this many rows, or a few more, reused by later rounds."""
        count = padded(count)
        if count not in self._kept:
            scratch = Scratch.allocate(count, 1, vocab, device, for_match_only=True)
            self._kept[count] = Outcome.allocate(count, device), scratch
        return self._kept[count]

    def _thresholds(self, requests: Sequence[Request], flat: Any, heat: Any, scratch: Any) -> Any:
        """The smallest logit that each row keeps."""
        num_slots, device = len(flat) // len(requests), flat.device
        options = [request.sampling for request in requests]
        counts = np.repeat(
            np.array([min(one.top_k or 0, MOST) for one in options], np.int32), num_slots
        )
        shares = np.array([(one.top_p, one.min_p) for one in options], np.float32)
        top_p, min_p = torch.from_numpy(np.repeat(shares, num_slots, axis=0).T.copy()).to(device)
        cuts, room = (
            torch.empty((len(flat), 1), device=device),
            CutScratch.allocate(len(flat), flat.shape[1], device),
        )
        find_thresholds(
            flat[:, None], scratch.no_tokens, heat, torch.from_numpy(counts).to(device), top_p,
            min_p, cuts, room, more=1,
        )  # fmt: skip
        return cuts


class LazyRows:
    """Logits (A, N, V) on the device; rows are copied to the host only when they are read."""

    def __init__(self, on_device: Any) -> None:
        self.on_device = on_device
        self._rows: dict[int, Any] = {}

    def __getitem__(self, place: Any) -> Any:
        """The logits of one span (N, V), or of one slot (V,)."""
        row, slot = place if isinstance(place, tuple) else (place, slice(None))
        if row not in self._rows:
            self._rows[row] = to_numpy(self.on_device[row])
        return self._rows[row][slot]


class SampledLaws(TargetLaws):
    """The laws of a round whose tokens were sampled on the device, except for some requests."""

    def __init__(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Proposal],
        logits: Any,
        tokens: Any,  # (A, N)
        faults: Any,  # (A, N)
        mask_faults: Mapping[int, Mapping[int, BaseException]],  # by row and slot
        is_on_host: Sequence[bool],
    ) -> None:
        super().__init__(requests, drafts, logits)
        self._tokens = tokens
        self._codes = faults
        self._mask_faults = mask_faults
        self._is_on_host = is_on_host

    def certain(self, row: int, slot: int) -> int | None:
        if self._is_on_host[row]:
            return super().certain(row, slot)
        return int(self._tokens[row, slot])

    def settle(self, row: int, path: Sequence[int]) -> tuple[list[Any], Fault | None]:
        if self._is_on_host[row]:
            return super().settle(row, path)
        fault = first_fault(self.requests[row], path, self._mask_faults.get(row, {}))
        if fault is not None:
            return [], fault
        for num_sound, slot in enumerate([0, *(node + 1 for node in path)]):
            if (code := int(self._codes[row, slot])) != 0:
                fault = fault_of(self.requests[row], code)
                assert fault is not None
                return [], Fault(num_sound, fault.place + num_sound, fault.error)
        if self.requests[row].num_logprobs is None:
            return [], None
        return [report_of(self.logits[row, slot]) for slot in (0, *(n + 1 for n in path))], None
