"""Verifiers with the signature of a published exercise, and what `certify` makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.proof import Case, standard_cases
from forerun.proof.cases import contextual, mixed


@pytest.fixture
def few() -> list[Case]:
    target = contextual(3, 1)
    return [Case("small", 3, target, mixed(target, contextual(3, 2), 0.5), 2, 3)]


def judged(rows: Any, draft: Any, tokens: Any, random: Any, pick: Any, *, has_bonus: bool) -> Any:
    """The ratio rule on lists of rows."""
    kept = []
    for p, q, token in zip(rows, draft, tokens, strict=False):
        if random() >= p[token] / q[token]:
            owed = np.maximum(p - q, 0)
            return [*kept, pick(owed / owed.sum())]
        kept.append(int(token))
    return [*kept, pick(rows[-1])] if has_bonus else kept


def pick(law: Any) -> int:
    return int(np.random.choice(len(law), p=law))  # noqa: NPY002


def with_lists(draft_tokens: Any, draft_probs: Any, target_probs: Any, vocab_size: Any) -> Any:
    assert isinstance(draft_tokens, list)
    assert vocab_size == len(target_probs[0])
    given = (target_probs, draft_probs, draft_tokens)
    return judged(*given, np.random.random, pick, has_bonus=True)


def with_tensors(target_probs: Any, draft_probs: Any, draft_tokens: Any) -> Any:
    import torch

    assert len(target_probs) == len(draft_probs)
    return judged(
        target_probs.numpy(),
        draft_probs.numpy(),
        draft_tokens.tolist(),
        lambda: torch.rand(1).item(),
        lambda law: int(torch.multinomial(torch.tensor(law), 1)),
        has_bonus=False,
    )


def with_coins(draft_probs: Any, target_probs: Any, draft_tokens: Any, random_coins: Any) -> Any:
    given = (target_probs, draft_probs, draft_tokens)
    emitted = judged(*given, iter(random_coins).__next__, pick, has_bonus=True)
    return {"accepted_tokens": emitted, "num_generated": len(emitted)}


def with_models(x: Any, draft_model: Any, target_model: Any, N: Any, K: Any) -> Any:
    end = len(x) + N
    while len(x) < end:
        longer = x
        for _ in range(K):
            longer = np.append(longer, pick(draft_model(longer)[-1]))
        draft, target = draft_model(longer)[len(x) - 1 : -1], target_model(longer)[len(x) - 1 :]
        given = (target, draft, longer[len(x) :])
        x = np.append(x, judged(*given, np.random.random, pick, has_bonus=True))
    return x


class Decoder:
    def __init__(self, target_model: Any, draft_model: Any, draft_tokens: int = 4) -> None:
        self.models = [self.rows_of(draft_model), self.rows_of(target_model)]
        self.length = draft_tokens

    @staticmethod
    def rows_of(model: Any) -> Any:
        import torch

        return lambda ids: model(torch.tensor(ids)[None]).logits[0].softmax(-1).numpy()

    def decode(self, input_ids: Any, max_new_tokens: int) -> Any:
        import torch

        text = with_models(input_ids[0].numpy(), *self.models, max_new_tokens, self.length)
        return torch.tensor(text)[None]


def annotated(tokens: torch.Tensor, draft: torch.Tensor, target: torch.Tensor, rng: Any) -> Any:  # type: ignore[name-defined]  # noqa: F821
    given = (target.numpy(), draft.numpy(), tokens.tolist())
    return judged(*given, rng.random, lambda law: rng.choice(3, p=law), has_bonus=True)


def of_three(draft_tokens: torch.Tensor, draft_probs: Any, target_probs: Any) -> Any:  # type: ignore[name-defined]  # noqa: F821
    """Torch's global generator, as engines have it."""
    import torch

    for i, token in enumerate(draft_tokens.tolist()):
        if torch.rand(()) * draft_probs[i, token] >= target_probs[i, token]:
            rest = (target_probs[i] - draft_probs[i]).clamp(min=0)
            return [*draft_tokens.tolist()[:i], int(torch.multinomial(rest, 1))]
    return [*draft_tokens.tolist(), int(torch.multinomial(target_probs[-1], 1))]


@pytest.mark.parametrize(
    ("subject", "called"),
    [
        (of_three, "of_three(draft_tokens, draft_probs, target_probs) with tensors"),
        (with_lists, "with_lists(draft_tokens, draft_probs, target_probs, vocab_size), as in"),
        (with_tensors, "with_tensors(target_probs, draft_probs, draft_tokens), as in"),
        (with_coins, "with_coins(draft_probs, target_probs, draft_tokens, random_coins), as in"),
        (with_models, "with_models(x, draft_model, target_model, N, K), as in"),
        (annotated, "annotated with tensors"),
    ],
)
def test_a_published_signature_is_recognised(few: list[Case], subject: Any, called: str) -> None:
    found = fr.certify(subject, cases=few)
    assert found.method == "exact"
    assert found.lossless
    assert found.bias < 1e-12
    assert found.called.startswith(called)
    assert f"Called as {called}" in str(found)


def test_a_constant_beside_a_probability_is_told_from_a_wrong_rule(few: list[Case]) -> None:
    """The published exercise adds 1e-10 to q, and many copies of it do."""

    def solution(draft_tokens: Any, draft_probs: Any, target_probs: Any, vocab_size: Any) -> Any:
        close = [row + 1e-10 for row in draft_probs]
        return with_lists(draft_tokens, close, target_probs, vocab_size)

    found = fr.certify(solution, cases=few)
    assert not found.lossless
    assert 1e-12 < found.bias < 1e-9
    assert "comes from a constant such as 1e-10" in str(found)
    assert "constant" not in str(fr.certify(with_lists, cases=few))


def test_a_class_over_two_models(few: list[Case]) -> None:
    found = fr.certify(Decoder, cases=few, samples=1000, method="sampled")
    assert found.lossless
    assert found.called.startswith("Decoder(target_model, draft_model, K).decode")


def test_a_class_that_fails_says_where_and_how_it_was_called(few: list[Case]) -> None:
    class Broken(Decoder):
        def decode(self, input_ids: Any, max_new_tokens: int) -> Any:
            return input_ids[0][:, 0]

    message = (
        r"IndexError: .*\(test_published\.py, line \d+\)\. It is called as Broken\(target_model"
    )
    with pytest.raises(fr.InputError, match=message) as told:
        fr.certify(Broken, cases=few)
    assert "f(draft_tokens" not in str(told.value)


@pytest.mark.slow  # a fresh seed per call: these are sampled
def test_our_own_solutions_are_right() -> None:
    from forerun.classic.numpy_loop import speculative_sampling
    from forerun.classic.numpy_verify import speculative_decoding_verify
    from forerun.classic.torch_verify import speculative_decode

    cases = [case for case in standard_cases() if case.name == "good drafter"]
    for function in (speculative_decoding_verify, speculative_decode, speculative_sampling):
        found = fr.certify(function, cases=cases, samples=2000)
        assert found.method == "sampled"
        assert found.lossless


def test_given_coins_and_an_argmax_are_lossy(few: list[Case]) -> None:
    from forerun.classic.coin_round import speculative_decode

    found = fr.certify(speculative_decode, cases=few, samples=1000)
    assert not found.lossless
    assert found.called.endswith("random_coins), as in the exercise")
