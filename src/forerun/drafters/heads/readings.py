"""Finds out how a published head was trained, if its files leave that open.

Every possible interpretation of the files is tried as a head of its own. All of them guess along a
few of the target's own answers, and the one that agrees most with the target is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from forerun.base.arrays import to_numpy
from forerun.base.errors import notice
from forerun.drafters.heads.eagle3 import Published, Rotation
from forerun.drafters.heads.files import Trained
from forerun.drafters.heads.fitting import fit
from forerun.drafters.heads.mtp import PublishedLayer
from forerun.drafters.heads.runner import Runner
from forerun.models.base import CpuPass

QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain in two sentences why the sky is blue.",
    "List three countries in South America and their capitals.",
    "If a train travels 60 miles in 90 minutes, how fast is it?",
    "Translate into German: The weather is nice today.",
)
NUM_NEW = 18  # tokens of each answer
SPREAD = 7919  # between the ids of prompts for a target without a tokenizer


class Answer(NamedTuple):
    """A prompt followed by the beginning of the target's greedy answer."""

    tokens: list[int]
    num_prompt: int
    states: Any  # (N, L * hidden_size): of all tokens but the last


def settle(published: Published | PublishedLayer, target: Any) -> tuple[Trained, str]:
    """The head for a target, and a description of how its files were interpreted ("" if they leave
    nothing open). Raises if the head was made for another target."""
    designs = published.designs(target.num_layers, _rotation_of(target))
    weights = dict(published.weights)
    if "head.weight" not in weights:
        weights["head.weight"] = head_of(target, published.tokens)
    if isinstance(published, PublishedLayer):
        weights["norm_layers.weight"] = without_norm(target)
    readings = {
        words: Trained(
            design,
            published.target,
            published.tokens,
            {name: weights[name] for name in design.shapes},
            published.embedding,
        )
        for words, design in designs.items()
    }
    best = likeliest(published.name, target, {
        words: Reading(
            head.design.layers, head.design.state_size, head.tokens, partial(fit, head, target)
        )
        for words, head in readings.items()
    })  # fmt: skip
    return readings[best], best


class Reading(NamedTuple):
    """A head under one interpretation of its files."""

    layers: Sequence[int]  # of the target, whose states it reads
    width: int  # D, of one such state
    tokens: Any  # (Vd,), the target's ids
    runner: Callable[[], Runner]


def likeliest(name: str, target: Any, readings: Mapping[str, Reading]) -> str:
    """The description of the reading that agrees most with the target's own answers."""
    if len(readings) == 1:
        return next(iter(readings))
    layers = sorted({layer for reading in readings.values() for layer in reading.layers})
    answers = _answers(target, layers)
    shares = {words: agreement(reading, answers, layers) for words, reading in readings.items()}
    best = max(shares, key=lambda words: shares[words])
    rest = "; ".join(
        f"{share:.0%} with {words}" for words, share in shares.items() if words != best
    )
    notice(
        f"{name} leaves open how it was trained.  It is read with {best}: so it agrees "
        f"with {target.name} on {shares[best]:.0%} of tokens ({rest})"
    )
    return best


def agreement(reading: Reading, answers: Sequence[Answer], layers: Sequence[int]) -> float:
    """The share of the target's tokens that a head guesses correctly, one and two tokens ahead.

    layers: the layers whose states `answers` contain.
    """
    runner, rows = reading.runner(), range(len(answers))
    state = runner.start(len(answers), max(len(each.tokens) for each in answers) + 1)
    places = [layers.index(layer) for layer in reading.layers]
    width = reading.width
    columns = np.concatenate([np.arange(place * width, (place + 1) * width) for place in places])
    known, hits = [0] * len(answers), 0
    for new in range(NUM_NEW - 2):
        features, following = [], []
        for row, answer in enumerate(answers):
            end = answer.num_prompt + new
            features.append(answer.states[known[row] : end][:, columns])
            following.append(answer.tokens[known[row] + 1 : end + 1])
            known[row] = end
        logits = runner.extend(state, rows, features, following)
        nexts = [answer.tokens[answer.num_prompt + new + 1] for answer in answers]
        hits += int((reading.tokens[logits.argmax(1)] == nexts).sum())
        logits = runner.step(state, rows, [-1] * len(answers), nexts)
        nexts = [answer.tokens[answer.num_prompt + new + 2] for answer in answers]
        hits += int((reading.tokens[logits.argmax(1)] == nexts).sum())
    return hits / (2 * (NUM_NEW - 2) * len(answers))


def _answers(target: Any, layers: Sequence[int]) -> list[Answer]:
    """The target's greedy answers, with its hidden states after these layers."""
    texts = [_encoded(target, number) for number in range(len(QUESTIONS))]
    rows, lengths = range(len(texts)), [len(text) for text in texts]
    state = target.start(len(texts), max(lengths) + NUM_NEW)
    target.watch(state, layers)
    fed, seen = [list(text) for text in texts], [[] for _ in texts]  # type: ignore[var-annotated]
    for _ in range(NUM_NEW):
        logits = to_numpy(target.score(state, rows, fed, [1] * len(texts)))
        target.commit(state, rows, [len(tokens) for tokens in fed])
        for row in rows:
            seen[row].append(np.asarray(to_numpy(target.watched(state, row)), np.float32))
        fed = [[int(token)] for token in logits[:, 0].argmax(1)]
        for text, (token,) in zip(texts, fed, strict=True):
            text.append(token)
    for row in rows:
        target.release(state, row)
    return [
        Answer(text, length, np.concatenate(parts))
        for text, length, parts in zip(texts, lengths, seen, strict=True)
    ]


def _encoded(target: Any, number: int) -> list[int]:
    """One of the prompts as token ids; without a tokenizer that knows its words, some arbitrary
    ids."""
    tokenizer, question = getattr(target, "tokenizer", None), QUESTIONS[number]
    tokens: list[int] = []
    if tokenizer is not None:
        with suppress(Exception):  # no chat template, or one that wants other roles
            chat = [{"role": "user", "content": question}]
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            tokens = list(tokenizer.encode(text, add_special_tokens=False))
        with suppress(Exception):  # unknown words
            tokens = tokens or list(tokenizer.encode(question))
    return tokens or [(SPREAD * (8 * number + place + 1)) % target.vocab_size for place in range(8)]


def _rotation_of(target: Any) -> Rotation | None:
    """The rotary embedding of a target; None if it has several, or another kind."""
    if isinstance(target, CpuPass):
        frequencies, factors = target.packed.rotary
        return (frequencies[0], float(factors[0])) if len(frequencies) == 1 else None
    rotary: Any = getattr(getattr(target.model, "model", None), "rotary_emb", None)
    if not hasattr(rotary, "inv_freq"):
        return None
    return rotary.inv_freq.float().cpu().numpy(), float(rotary.attention_scaling)


def without_norm(target: Any) -> Any:
    """Weights (D,) that undo the target's final norm on its last states, except for their length,
    which the feature's norm removes anyway."""
    if isinstance(target, CpuPass):
        gains = target.packed.weights.norms[-1]
    else:
        import torch

        norm: Any = target.model.get_decoder().norm
        with torch.inference_mode():
            gains = norm(torch.ones_like(norm.weight)).float().cpu().numpy()
    size = np.sqrt(np.square(gains).mean())
    return np.divide(size, gains, out=np.zeros_like(gains), where=gains != 0)


def head_of(target: Any, tokens: Any) -> Any:
    """The rows of the target's head for these tokens, (Vd, D), for a draft model without its own
    head."""
    import torch

    table = target.model.get_output_embeddings().weight.detach()
    rows = table[torch.from_numpy(tokens).to(table.device)]
    return rows.float().cpu().numpy()
