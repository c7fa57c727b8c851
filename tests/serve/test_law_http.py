"""The law through HTTP: what a client gets follows the model, and a lossy server is caught.

A real server process, a transformers model with eight tokens, and a draft model that disagrees with
it.  The first two tokens of 20,000 answers are compared with the law that the model's own logits
give, by Pearson's chi-square over the 64 pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import ServerProcess, server
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import forerun as fr

pytestmark = pytest.mark.serve

VOCAB, PROMPT = 8, (1, 2, 3)
NUM_SAMPLES, NUM_LOSSY = 20_000, 2_000
PER_REQUEST = 100  # answers, numbered 0 to 99 under one seed
ODDS = 1e-6
"""A correct server fails with this probability, over the choice of the seeds."""
DETECTABLE = 0.045
"""A law this far off, in total variation, is missed in fewer than 1 of 1000 runs."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The target and the draft model, which is the target with another head."""
    place = tmp_path_factory.mktemp("models")
    words = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate("abcdefgh")}, "a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
            bos_token_id=None, eos_token_id=None, pad_token_id=None, initializer_range=0.3,
        )
    )  # fmt: skip
    for name in ("target", "draft"):
        model.save_pretrained(place / name)
        PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(place / name)
        model.lm_head.weight.data += 0.1 * torch.randn_like(model.lm_head.weight)
    return place / "target", place / "draft"


@pytest.fixture(scope="module")
def servers(folders: tuple[Path, Path]) -> Iterator[list[ServerProcess]]:
    """Two servers, so that both cores have something to do."""
    target, draft = map(str, folders)
    flags = ["--drafter", draft, "--draft-length", "2", "--rules", "match,ratio,lenient"]
    flags += ["--max-batch", "64", "--max-queue", "1000"]
    with ExitStack() as stack:
        yield [stack.enter_context(server(target, *flags)) for _ in range(2)]


@pytest.fixture(scope="module")
def lossless(servers: list[ServerProcess]) -> dict[str, Tally]:
    with ThreadPoolExecutor() as pool:
        asked = {
            rule: pool.submit(sample, one, rule, NUM_SAMPLES)
            for rule, one in zip(("match", "ratio"), servers, strict=True)
        }
        return {rule: work.result() for rule, work in asked.items()}


class Tally:
    """The first two tokens of many answers, and how they came about."""

    def __init__(self) -> None:
        self.pairs = np.zeros((VOCAB, VOCAB), int)
        self.fates: Counter[str] = Counter()  # of the second token

    def add(self, choice: dict[str, Any]) -> None:
        first, second = choice["token_ids"][:2]
        self.pairs[first, second] += 1
        self.fates[choice["fates"][1]] += 1


def sample(asked: ServerProcess, rule: str, count: int) -> Tally:
    """Answers of three tokens, so that the first two have guesses before them."""
    tally = Tally()

    def ask(seed: int) -> list[dict[str, Any]]:
        body = {
            "prompt": list(PROMPT),
            "max_tokens": 3,
            "n": PER_REQUEST,
            "seed": seed,
            "fates": True,
            "speculation": {"rule": rule},
        }
        status, _, answer = asked.ask("/v1/completions", body)
        assert status == 200, answer
        return answer["choices"]

    with ThreadPoolExecutor(3) as pool:
        for choices in pool.map(ask, range(count // PER_REQUEST)):
            for choice in choices:
                tally.add(choice)
    assert tally.pairs.sum() == count
    return tally


def law_of(folder: Path) -> np.ndarray:
    """The joint law of the first two tokens (V, V), from the logits of transformers' own pass."""
    model = AutoModelForCausalLM.from_pretrained(folder).double().eval()
    texts = torch.tensor([[*PROMPT, token] for token in range(VOCAB)])
    with torch.inference_mode():
        rows = model(texts).logits.softmax(-1)  # (V, 4, V)
    return (rows[0, -2, :, None] * rows[:, -1]).numpy()


def p_value(pairs: np.ndarray, law: np.ndarray) -> float:
    """Of Pearson's chi-square; pairs expected less than five times are counted together."""
    expected = law.ravel() * pairs.sum()
    is_rare = expected < 5
    observed = np.append(pairs.ravel()[~is_rare], pairs.ravel()[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    return tail(statistic, len(observed) - 1)


def tail(statistic: float, freedom: int) -> float:
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*halves))


@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_the_first_two_tokens_follow_the_model(
    lossless: dict[str, Tally], folders: tuple[Path, Path], rule: str
) -> None:
    """Fails for a correct server in 1 of a million choices of the seeds."""
    tally = lossless[rule]
    judged = tally.fates["accepted"] + tally.fates["correction"]
    assert judged > 0.9 * NUM_SAMPLES
    assert tally.fates["correction"] > 0.1 * NUM_SAMPLES
    assert p_value(tally.pairs, law_of(folders[0])) > ODDS


def test_the_test_has_the_power_it_claims() -> None:
    """With 63 degrees of freedom, at the largest statistic that passes.

    Of a law at total variation d, the statistic has at least the noncentrality 4 d^2 N, by Cauchy
    and Schwarz.  Its chance to pass is that of a noncentral chi-square, a mixture of central ones.
    """
    freedom = VOCAB**2 - 1
    passing = next(x for x in np.arange(freedom, 300, 0.5) if tail(x, freedom) < ODDS)
    half = 2 * DETECTABLE**2 * NUM_SAMPLES
    weights = np.exp(np.cumsum([-half, *np.log(half / np.arange(1, 400))]))
    missed = sum(w * (1 - tail(passing, freedom + 2 * j)) for j, w in enumerate(weights))
    assert weights.sum() == pytest.approx(1)
    assert missed < 1e-3


def test_a_lossy_server_is_caught(servers: list[ServerProcess], folders: tuple[Path, Path]) -> None:
    """By the same test with a tenth of the answers; what it sees is the lossy rule's exact law."""
    target, draft = (law_of(folder) for folder in folders)
    lossy = fr.law("lenient", rows_of(target), rows_of(draft), draft_length=2, length=2)
    assert np.abs(lossy - target).sum() / 2 > DETECTABLE
    tally = sample(servers[0], "lenient", NUM_LOSSY)
    assert p_value(tally.pairs, target) < ODDS
    assert p_value(tally.pairs, lossy) > ODDS


def rows_of(law: np.ndarray) -> Any:
    """A joint law of two tokens as a model: the next token's after a prefix."""
    return lambda prefix: law[prefix[0]] / law[prefix[0]].sum() if prefix else law.sum(1)
