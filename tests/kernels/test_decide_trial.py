"""`verify` hands CUDA tensors to the kernels; here CPU tensors stand in for them, interpreted."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from interpreting import IN_INTERPRETER  # noqa: E402
from rounds import example  # noqa: E402

import forerun as fr  # noqa: E402
from forerun import rules, verification  # noqa: E402
from forerun.kernels import decide_trial  # noqa: E402

pytestmark = IN_INTERPRETER
LAWS = example(11, 2, 1, 300, temperatures=(1.0,), ragged=False, near=0.3)
LENGTHS = [1, 0]
TOKENS = LAWS.tokens.clone()
TOKENS[1, 0] = -5  # does not count


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tensors of the CPU pass for CUDA's; the names of the rules that kernels decided."""
    names: list[str] = []
    decide = decide_trial.decide

    def watched(trial: Any, rule: Any, *where: Any) -> Any:
        names.append(rule.name)
        return decide(trial, rule, *where)

    monkeypatch.setattr(verification, "is_on_device", lambda table: isinstance(table, torch.Tensor))
    monkeypatch.setattr(decide_trial, "decide", watched)
    return names


def verify(rule: str = "match", **changed: Any) -> fr.Verdict:
    target = changed.pop("target", LAWS.target)
    draft = changed.pop("draft", LAWS.draft)
    tokens = changed.pop("tokens", TOKENS)
    options = {"rule": rule, "seed": [5, 6], "positions": [3, 2**40]} | changed
    return fr.verify(
        fr.Draft.sampled(tokens, logits=draft, lengths=LENGTHS), target_logits=target, **options
    )


@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
def test_verdicts_are_those_of_the_rules(
    taken: list[str], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_KERNELS", "1")
    fast = verify(rule)
    assert taken == [rule]
    monkeypatch.setenv("FORERUN_KERNELS", "0")
    slow = verify(rule)
    assert taken == [rule]  # not again
    assert fast.tokens() == slow.tokens()
    assert fast.extra.dtype == slow.extra.dtype
    assert fast.num_accepted.dtype == slow.num_accepted.dtype


def test_what_is_not_covered_takes_the_arrays(taken: list[str]) -> None:
    probs = torch.softmax(LAWS.target, dim=-1)
    draft = fr.Draft.point(TOKENS, lengths=LENGTHS)
    fr.verify(draft, probs, rule="match", seed=1)
    fr.verify(draft, target_logits=LAWS.target.double(), rule="match", seed=1)
    verify("typical")
    verify("match", check="all")
    assert taken == []
    for name in rules.names():
        if name not in ("match", "ratio", "block"):
            assert not verification.kernels_decide(draft, LAWS.target, rules.get(name), "read")


def changed(table: torch.Tensor, place: tuple[int, ...], value: float) -> torch.Tensor:
    copy = table.clone()
    copy[place] = value
    return copy


NAN, INF = float("nan"), float("inf")
BROKEN = {
    "NaN in a target row": ("match", {"target": changed(LAWS.target, (1, 0, 299), NAN)}),
    "+Inf in a target row": ("match", {"target": changed(LAWS.target, (0, 0, 7), INF)}),
    "nothing finite": ("match", {"target": changed(LAWS.target, (0, 0), -INF)}),
    "NaN in a target row of ratio": ("ratio", {"target": changed(LAWS.target, (1, 0, 2), NAN)}),
    "NaN in a draft row": ("ratio", {"draft": changed(LAWS.draft, (0, 0, 5), NAN)}),
    "NaN in a draft row of block": ("block", {"draft": changed(LAWS.draft, (0, 0, 5), NAN)}),
    "an impossible token": (
        "ratio",
        {"draft": changed(LAWS.draft, (0, 0, int(LAWS.tokens[0, 0])), -INF)},
    ),
    "a token outside": ("match", {"tokens": changed(TOKENS, (0, 0), 300)}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_input_is_refused_as_by_the_rules(
    taken: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words, but for what was received."""
    rule, broken = BROKEN[name]
    messages = []
    for kernels in ("1", "0"):
        monkeypatch.setenv("FORERUN_KERNELS", kernels)
        with pytest.raises(fr.InputError) as caught:
            verify(rule, **broken)
        messages.append(str(caught.value).split(" Received ")[0])
    assert messages[0] == messages[1]
    assert taken == [rule]


def test_rows_past_a_refusal_are_not_read(taken: list[str]) -> None:
    """A guess that is refused for sure, and NaN after it."""
    target = changed(LAWS.target, (0, 0, int(TOKENS[0, 0])), -INF)
    target = changed(target, (0, 1), NAN)
    assert int(verify("match", target=target).num_accepted[0]) == 0
    assert taken == ["match"]


def test_a_tensor_at_an_odd_address_is_copied() -> None:
    table = torch.arange(9, dtype=torch.float32)
    for view in (table[:8], table[1:]):
        assert decide_trial.aligned(view).data_ptr() % 16 == 0
        assert decide_trial.aligned(view).tolist() == view.tolist()


def test_seeds_are_checked(taken: list[str]) -> None:
    with pytest.raises(fr.InputError, match="64 bits"):
        verify(seed=[-1, 0])


@pytest.mark.usefixtures("taken")
def test_two_threads_on_one_stream_share_no_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may launch between two launches of the other."""
    used, both = [], Barrier(2)

    def launch(made: Any, scratch: Any, out: Any) -> None:
        used.append(scratch)
        both.wait()

    monkeypatch.setitem(decide_trial.LAUNCHES, "match", launch)
    draft = fr.Draft.point(TOKENS, lengths=LENGTHS)
    threads = [
        Thread(target=fr.verify, args=(draft,), kwargs={"target_logits": LAWS.target, "seed": 1})
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used[0] is not used[1]
