"""A stand-in's answer to one sample: rounds until a limit or a stop string ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray
from standins.faults import Faults
from standins.language import Drafter, Language
from standins.options import OF_DRAFTS, law_of
from standins.rounds import Place, Round, Row

LONG = 8


@dataclass
class Said:
    """The answer to one sample; `runs` has the number of tokens of each round."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[HostArray] = field(default_factory=list)  # log-probabilities (V,) at each token
    runs: list[int] = field(default_factory=list)
    drafted: int = 0
    reason: str = "length"
    text: str = ""


@dataclass(frozen=True)
class Speaker:
    language: Language
    drafter: Drafter
    round: Round
    draft_length: int
    faults: Faults
    long_round: Round | None = None  # of answers that may be longer than LONG; None: the same

    def speak(
        self,
        prompt: tuple[int, ...],
        seed: int,
        options: Mapping[str, Any],
        most: int,
        stops: Sequence[str],
    ) -> Said:
        said = Said()
        untold = self.faults.untold
        round_ = self.round if most <= LONG or self.long_round is None else self.long_round
        while len(said.tokens) < most:
            first = len(said.tokens)
            length = min(self.draft_length, most - first - 1)
            if self.faults.overruns and most > 1:
                length = self.draft_length

            def target(text: tuple[int, ...], first: int = first) -> HostArray:
                new = text[len(prompt) :][: first if self.faults.stale_penalties else None]
                return law_of(self.language.logits(text), new, options)

            told = self._drafts(options, untold) if untold else None
            place = Place(prompt + tuple(said.tokens), first, seed, told)
            emitted = round_(place, target, self._drafts(options), length)
            for slot, token in enumerate(emitted):
                logprobs = self.language.logits(prompt + tuple(said.tokens))
                logprobs = logprobs * self.faults.scaled_logprobs
                is_zero = self.faults.zero_logprobs and slot < len(emitted) - 1
                said.logprobs.append(0.0 if is_zero else float(logprobs[token]))
                said.tops.append(logprobs)
                said.tokens.append(token)
            said.drafted += length
            said.runs.append(len(emitted))
            if self._is_stopped(said, stops):
                return said
        said.text = self._text(said.tokens)
        return said

    def _drafts(self, options: Mapping[str, Any], untold: Sequence[str] = ()) -> Row:
        """The drafter's law under the options that concern it, but for those untold."""
        known = {name: options[name] for name in OF_DRAFTS if name in options.keys() - set(untold)}
        return lambda text: law_of(np.log(self.drafter.law(text)), (), known)

    def _text(self, tokens: Sequence[int]) -> str:
        return "".join(self.language.text(token) for token in tokens)

    def _is_stopped(self, said: Said, stops: Sequence[str]) -> bool:
        """Look for stop strings; cut the answer at the first, or too late."""
        text = self._text(said.tokens)
        places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
        if not places:
            return False
        said.reason = "stop"
        said.text = text if self.faults.late_stop else text[: min(places)]
        if not self.faults.late_stop:
            ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
            while len(said.tokens) > 1 and len(self._text(said.tokens[:-1])) >= min(ends):
                said.tokens.pop()
            del said.logprobs[len(said.tokens) :]
            del said.tops[len(said.tokens) :]
        return True
