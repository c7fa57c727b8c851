"""Good and bad servers by name: what an audit must pass, and what it must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forerun import rules
from forerun.proof.broken import coins_by_position, drafts_by_position, walk
from forerun.proof.mutants import MUTANTS
from forerun.proof.rounds import draw_plainly
from forerun.rules.base import Rule
from standins.faults import Faults
from standins.language import Drafter, Language, PromptLanguage
from standins.rounds import (
    FunctionRound,
    OneCoinBlockRound,
    Round,
    RuleRound,
    SharedRaceRound,
    likeliest_bonus,
    plain_round,
)
from standins.server import StandIn

VLLM_TARGET, VLLM_DRAFT = (0.5, 0.3, 0.2), (0.1, 0.6, 0.3)
"""Laws of the case that vLLM's kernels were run on."""
RACED_TARGET, RACED_DRAFT = (0.6, 0.3, 0.1), (0.2, 0.2, 0.6)
"""Laws under which a race on shared noise makes 64% of the first token's 60%."""


@dataclass(frozen=True)
class Exhibit:
    """A way to make a server, what is wrong with it, and which check must say so."""

    name: str
    story: str
    round: Callable[[], Round]
    check: str | None = None  # None: nothing is wrong
    faults: Faults = field(default_factory=Faults)
    target: tuple[float, ...] | None = None  # one law for all places, where given
    draft: tuple[float, ...] | None = None
    reads_prompts: bool = False  # the words of the audit's prompts are words of its language
    long_round: Callable[[], Round] | None = None  # of answers that may be longer than 8 tokens

    def server(self, seed: int) -> StandIn:
        language = Language(seed=seed) if self.target is None else Language(constant=self.target)
        if self.reads_prompts:
            language = PromptLanguage()
        drafter = Drafter(language, constant=self.draft)
        long = None if self.long_round is None else self.long_round()
        return StandIn(language, drafter, self.round(), long, faults=self.faults, seed=seed)


def _rule(rule: str | Rule, drafts: str) -> Callable[[], Round]:
    return lambda: RuleRound(rule, drafts)


def _mutant(name: str) -> Callable[[], Round]:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)

    def made() -> Round:
        assert callable(mutant.subject), "a function, not a rule"
        return FunctionRound(mutant.subject, mutant.draw or draw_plainly)

    return made


def _sound() -> Round:
    """The `ratio` rule in a few lines, as the mutants were made from."""
    return FunctionRound(walk)


HONEST = (
    Exhibit("match", "copies the text", _rule("match", "ngram")),
    Exhibit("ratio", "a draft model", _rule("ratio", "model")),
    Exhibit("block", "a draft model", _rule("block", "model")),
    Exhibit("plain", "no speculation", lambda: plain_round),
)


def _block(name: str, story: str, round_: Callable[[], Round]) -> Exhibit:
    """A fault of block verification, on the laws that vLLM's kernels were run on."""
    return Exhibit(name, story, round_, "law", target=VLLM_TARGET, draft=VLLM_DRAFT)


USUAL = (
    Exhibit(
        "temperature untold",
        "drafts are drawn at the temperature, and said to be drawn at 1",
        _sound,
        "law",
        Faults(untold=("temperature",)),
    ),
    Exhibit(
        "top-p untold",
        "drafts are drawn under top-p, and said to be drawn without",
        _sound,
        "law",
        Faults(untold=("top_p",)),
    ),
    Exhibit(
        "stale penalties",
        "tokens of a round are not penalised for one another",
        _sound,
        "law",
        Faults(stale_penalties=True),
    ),
    Exhibit(
        "lossy when long",
        "typical acceptance where max_tokens is above 8",
        _sound,
        "law",
        long_round=_rule("typical", "ngram"),
    ),
    Exhibit(
        "likeliest bonus",
        "three bonus tokens in ten are the likeliest",
        lambda: FunctionRound(likeliest_bonus),
        "law",
    ),
)
"""Faults of the kind that real servers have, each of which shows under some settings only."""

BAD = (
    *USUAL,
    Exhibit("lenient", "our lossy rule, a draft model", _rule("lenient", "model"), "law"),
    Exhibit("typical", "our lossy rule, copies the text", _rule("typical", "ngram"), "law"),
    Exhibit("threshold", "our lossy rule, copies the text", _rule("threshold", "ngram"), "law"),
    Exhibit(
        "threshold 0.3",
        "the same with p >= 0.3",
        _rule(rules.get("threshold", single=0.3), "ngram"),
        "law",
    ),
    Exhibit("nothing refused", "every draft is kept", _mutant("coin is 0"), "law"),
    Exhibit("residual is p", "a refused token may come back", _mutant("residual is p"), "law"),
    Exhibit(
        "argmax as sampled", "drafts are not drawn as told", _mutant("argmax as sampled"), "law"
    ),
    Exhibit(
        "wrong bonus row",
        "the bonus from the row before",
        _mutant("bonus from the last slot"),
        "law",
    ),
    Exhibit("stale rows", "all slots judged by the first row", _mutant("stale rows"), "law"),
    Exhibit("shared uniform", "one number draws and accepts", _mutant("shared uniform"), "law"),
    Exhibit(
        "shared race",
        "draft and residual race on the same noise",
        SharedRaceRound,
        "law",
        target=RACED_TARGET,
        draft=RACED_DRAFT,
    ),
    _block(
        "coins by position, copies",
        "block, one coin a slot by position, n-gram drafts (vLLM 0.32)",
        lambda: OneCoinBlockRound("ngram"),
    ),
    _block(
        "coins by position, argmax",
        "block, one coin a slot by position, likeliest drafts",
        lambda: OneCoinBlockRound("argmax"),
    ),
    _block(
        "coins by position, model",
        "block, one coin a slot by position, drawn drafts (vLLM 0.32)",
        lambda: OneCoinBlockRound("model", by_position=True),
    ),
    Exhibit(
        "coins by position, reader",
        "the same, n-gram drafts, in a language that has the words of the prompts",
        lambda: OneCoinBlockRound("ngram"),
        "law",
        reads_prompts=True,
    ),
    Exhibit(
        "our coins by position, reader",
        "our block rule with both coins by position, in such a language",
        lambda: RuleRound("block", "ngram", coins_by_position),
        "law",
        reads_prompts=True,
    ),
    _block(
        "drafts by position",
        "block, a slot drafted again is drawn with the same number (vLLM 0.32)",
        lambda: OneCoinBlockRound("model", by_position=True, coins_by_position=False),
    ),
    _block(
        "our coins by position",
        "our block rule with both coins of a slot by position",
        lambda: RuleRound("block", "argmax", coins_by_position),
    ),
    _block(
        "our drafts by position",
        "our block rule with drafts by position",
        lambda: RuleRound("block", "model", drafts_by_position),
    ),
    Exhibit(
        "logprobs of zero",
        "0.0 for every accepted token (llama.cpp #27972)",
        _sound,
        "logprobs",
        Faults(zero_logprobs=True),
    ),
    Exhibit(
        "seed ignored",
        "every request draws anew",
        _sound,
        "repeatability",
        Faults(ignores_seed=True),
    ),
    Exhibit(
        "text depends on load",
        "the seed is used together with a counter",
        _sound,
        "repeatability",
        Faults(load_changes_text=True),
    ),
    Exhibit(
        "stop string late",
        "looked for after a run, which is then shown whole",
        _sound,
        "stops and limits",
        Faults(late_stop=True),
    ),
    Exhibit(
        "limit overrun",
        "a run is not cut at max_tokens",
        _sound,
        "stops and limits",
        Faults(overruns=True),
    ),
    Exhibit(
        "first temperature for all",
        "as under continuous batching in transformers serve",
        _sound,
        "options",
        Faults(first_temperature=True),
    ),
    Exhibit(
        "penalties ignored",
        "read and not used",
        _sound,
        "options",
        Faults(ignores=("presence_penalty", "frequency_penalty")),
    ),
    Exhibit(
        "top-p ignored",
        "read and not used",
        _sound,
        "options",
        Faults(ignores=("top_p",)),
    ),
    Exhibit(
        "logit bias ignored",
        "read and not used",
        _sound,
        "options",
        Faults(ignores=("logit_bias",)),
    ),
)


def exhibit(name: str) -> Exhibit:
    """The server of that name."""
    return next(one for one in (*HONEST, *BAD) if one.name == name)
