"""What a stand-in gets wrong beside its round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    zero_logprobs: bool = False  # 0.0 for every token that came out of a draft
    ignores_seed: bool = False
    late_stop: bool = False  # stop strings are looked for at the end of a run only
    first_temperature: bool = False  # that of the first request holds for all
    ignores: tuple[str, ...] = ()  # options that are read and not used
    stale_penalties: bool = False  # counts within a run are those before it
    overruns: bool = False  # a run is not cut at max_tokens
    load_changes_text: bool = False  # the text depends on the requests before it
    untold: tuple[str, ...] = ()  # options of which drafts are drawn, but not the law they report
    scaled_logprobs: float = 1.0  # log-probabilities are told times this
