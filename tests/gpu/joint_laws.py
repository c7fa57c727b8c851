"""The law of the first tokens of many texts, compared with the target's by chi-square."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

import forerun as fr
from forerun.gpu.model import GpuModel

FEW, NUM_TOKENS, NUM_TEXTS, BATCH = 12, 3, 20_000, 64
Z_ALARM, Z_MISS = 4.753, 3.09  # normal quantiles of one in a million, and of one in a thousand
START = [1, 2, 3]


def joint_law(model: GpuModel, num_tokens: int) -> dict[tuple[int, ...], float]:
    """The law of the first tokens at temperature 1, by scoring every beginning."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(num_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for text, chance in law.items():
            row = model.score(model.start(1, 64), [0], [[*START, *text]], [1])[0, 0]
            probs = torch.softmax(row.double(), -1).tolist()
            longer |= {(*text, token): chance * prob for token, prob in enumerate(probs)}
        law = longer
    return law


def limit(num_cells: int) -> float:
    """Of chi-square: a correct law exceeds it once in a million (Wilson and Hilferty)."""
    df = num_cells - 1
    return df * (1 - 2 / (9 * df) + Z_ALARM * math.sqrt(2 / (9 * df))) ** 3


def detected(num_cells: int) -> float:
    """A chi-square distance, times the number of texts, that is missed once in a thousand: the
    statistic has mean df + d and variance 2 df + 4 d."""
    df, distance = num_cells - 1, 0.0
    while df + distance - Z_MISS * math.sqrt(2 * df + 4 * distance) < limit(num_cells):
        distance += 1.0
    return distance


def chi_square(counts: dict[tuple[int, ...], float], law: dict[tuple[int, ...], float]) -> Any:
    """The statistic of counts against a law, and its cells; those of fewer than 5 become one."""
    expected = np.array([law[text] * NUM_TEXTS for text in law])
    observed = np.array([counts.get(text, 0) for text in law], float)
    small = expected < 5
    if small.any():
        expected = np.append(expected[~small], expected[small].sum())
        observed = np.append(observed[~small], observed[small].sum())
    return float(((observed - expected) ** 2 / expected).sum()), len(expected)


def marginal(law: dict[tuple[int, ...], float], length: int) -> dict[tuple[int, ...], float]:
    sums: dict[tuple[int, ...], float] = dict.fromkeys(product(range(FEW), repeat=length), 0.0)
    for text, chance in law.items():
        sums[text[:length]] += chance
    return sums


def texts_of(target: GpuModel, drafter: Any, rule: str) -> list[fr.Generation]:
    """Many short answers to one prompt, with drafts of two."""
    answers: list[fr.Generation] = fr.generate(
        target, START, drafter=drafter, draft_length=2, rule=rule, batch_size=BATCH,
        sampling=fr.Sampling(temperature=1.0, seed=23, n=NUM_TEXTS), max_new_tokens=NUM_TOKENS + 1,
        ignore_eos=True,
    )  # fmt: skip
    return answers


def share_accepted(answers: Sequence[fr.Generation]) -> float:
    stats = [answer.stats for answer in answers]
    return sum(one.accepted for one in stats) / sum(one.drafted for one in stats)


def check_joint_law(
    answers: Sequence[fr.Generation],
    law: dict[tuple[int, ...], float],
    wrong: dict[tuple[int, ...], float],
) -> None:
    """The laws of the first token, of two and of three are the target's; one that is `wrong` in one
    text of ten would be found."""
    counts = Counter(tuple(answer.tokens[:NUM_TOKENS]) for answer in answers)
    assert sum(counts.values()) == NUM_TEXTS
    for length in range(1, NUM_TOKENS + 1):
        exact, other = marginal(law, length), marginal(wrong, length)
        statistic, num_cells = chi_square(marginal(dict(counts), length), exact)
        assert statistic <= limit(num_cells)
        biased = {text: NUM_TEXTS * (0.9 * exact[text] + 0.1 * other[text]) for text in exact}
        assert chi_square(biased, exact)[0] > detected(num_cells)
