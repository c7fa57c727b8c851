"""Bad input: a clear error that says what was received and what to do, and nothing guessed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import forerun as fr
from cases import for_all
from forerun import rules
from libraries import Library, load

TARGET = np.full((2, 3, 4), 0.25)
DRAFT = np.full((2, 2, 4), 0.25)
TOKENS = np.array([[0, 1], [2, 3]])


def refused(
    *parts: str,
    draft: fr.Draft,
    target: Any,
    error: type[Exception] = fr.InputError,
    **options: Any,
) -> None:
    """The call fails with an error whose message has all the parts, in their order."""
    with pytest.raises(error, match=".*".join(map(re.escape, parts))):
        fr.verify(draft, target, **options)


def changed(array: np.ndarray, where: Any, value: Any) -> np.ndarray:
    copy = array.copy()
    copy[where] = value
    return copy


@for_all("shape", [(2, 3), (2, 1), (1, 2), (2, 2, 1)])
def test_draft_and_target_shapes_that_disagree(lib: Library, shape: tuple[int, ...]) -> None:
    tokens = lib.array(np.zeros(shape, dtype=np.int64))
    refused(
        "do not fit",
        f"draft tokens {shape} with a target of (2, 3, 4)",
        "K + 1 target rows",
        draft=fr.Draft.point(tokens),
        target=lib.array(TARGET),
    )


@for_all("shape", [(4,), (1, 2, 3, 4), (0, 3, 4), (2, 0, 4)])
def test_a_target_of_no_use(lib: Library, shape: tuple[int, ...]) -> None:
    draft = fr.Draft.point(lib.array(TOKENS))
    refused(
        "target_probs has a wrong shape",
        str(shape),
        "(B, N, V)",
        draft=draft,
        target=lib.array(np.ones(shape)),
    )


def test_zero_vocabulary(lib: Library) -> None:
    empty = lib.array(np.ones((2, 3, 0)))
    refused(
        "target_probs has a wrong shape",
        "(2, 3, 0)",
        "no axis of length 0",
        draft=fr.Draft.point(lib.array(TOKENS)),
        target=empty,
    )


@for_all("name", ["probs", "logits"])
@for_all("shape", [(2, 1, 4), (2, 3, 4), (1, 2, 4), (2, 4), (4,), (1, 2, 2, 4)])
def test_draft_laws_of_another_shape(lib: Library, shape: tuple[int, ...], name: str) -> None:
    """Refused where the draft is made: `match` never reads them and would not notice."""
    message = rf"draft {name} has a wrong shape. Received {re.escape(str(shape))}.*\(2, 2, 4\)"
    with pytest.raises(fr.InputError, match=message):
        fr.Draft.sampled(lib.array(TOKENS), **{name: lib.array(np.ones(shape))})


def test_sparse_draft_laws_of_another_shape(lib: Library) -> None:
    ids, probs = np.zeros((2, 2, 3), dtype=np.int64), np.full((2, 2, 3), 1 / 3)
    for fault, law in (("ids", (ids[:1], probs)), ("probs", (ids, probs[:, :1]))):
        with pytest.raises(fr.InputError, match=f"draft {fault} has a wrong shape"):
            fr.Draft.sampled(lib.array(TOKENS), fr.Sparse(*map(lib.array, law)))


def test_one_sequence_may_leave_its_axis_out(lib: Library) -> None:
    for tokens in (TOKENS[0], TOKENS[:1]):
        for probs in (DRAFT[0], DRAFT[:1]):
            fr.Draft.sampled(lib.array(tokens), lib.array(probs))


@pytest.mark.parametrize("check", ["read", "all"])
def test_vocabularies_that_differ(lib: Library, check: str) -> None:
    padded = fr.Draft.sampled(lib.array(TOKENS), lib.array(np.full((2, 2, 5), 0.2)))
    message = ("vocabularies differ", "5 and 4", "Cut or pad")
    refused(*message, draft=padded, target=lib.array(TARGET), rule="ratio", check=check)
    if check == "all":  # `match` never looks at the draft's law, unless asked to check everything
        refused(*message, draft=padded, target=lib.array(TARGET), check=check)


@for_all("token", [4, -1, 10**6])
@for_all("rule", rules.names())
def test_tokens_out_of_range(lib: Library, token: int, rule: str) -> None:
    tokens = lib.array(changed(TOKENS, (1, 0), token))
    draft = fr.Draft.sampled(tokens, lib.array(DRAFT))
    refused(
        "not in the vocabulary (row 1, slot 0)",
        str(token),
        "0 .. 3",
        "tokenizer",
        draft=draft,
        target=lib.array(TARGET),
        rule=rule,
    )


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (np.nan, "has NaN or Inf"),
        (np.inf, "has NaN or Inf"),
        (-0.25, "is negative"),
        (0.5, "does not sum to 1"),
    ],
)
@for_all("rule", rules.names())
def test_target_rows_that_are_no_law(lib: Library, value: float, fault: str, rule: str) -> None:
    """The broken row is the first one and both drafts are refused there, so every rule reads it.

    The drafted token's own entry is fine: a rule has to notice when it sums the row.
    """
    target = TARGET.copy()
    target[:, 0] = [0.0, 0.25, 0.25, 0.5]
    target[1, 0, 3] = value + (0.25 if value == 0.5 else 0)
    draft = np.zeros_like(DRAFT)
    draft[..., 0] = 1.0
    guess = fr.Draft.sampled(lib.array(np.zeros_like(TOKENS)), lib.array(draft))
    refused(
        f"target_probs {fault} at row 1, slot 0",
        "smallest entry",
        "and sum",
        "sum to 1",
        draft=guess,
        target=lib.array(target),
        rule=rule,
    )


@pytest.mark.parametrize(
    ("value", "fault"),
    [(np.nan, "has NaN or Inf"), (-0.25, "is negative"), (0.5, "does not sum to 1")],
)
@for_all("rule", ["ratio", "block", "lenient"])
def test_draft_rows_that_are_no_law(lib: Library, value: float, fault: str, rule: str) -> None:
    target = TARGET.copy()
    target[:, 0] = [0.0, 0.5, 0.25, 0.25]
    draft = changed(DRAFT, (1, 0, 3), value)
    guess = fr.Draft.sampled(lib.array(np.zeros_like(TOKENS)), lib.array(draft))
    refused(
        f"draft probs {fault} at row 1, slot 0",
        "smallest entry",
        draft=guess,
        target=lib.array(target),
        rule=rule,
    )


@for_all("value", [np.nan, -0.5, 1.5])
@for_all("rule", ["ratio", "block", "lenient", "threshold", "typical"])
def test_a_drafted_entry_that_is_no_probability(lib: Library, value: float, rule: str) -> None:
    target = lib.array(changed(TARGET, (1, 0, 2), value))
    guess = fr.Draft.sampled(lib.array(TOKENS), lib.array(DRAFT))
    refused(
        "target_probs is not a probability at row 1, slot 0",
        str(value),
        "[0, 1]",
        draft=guess,
        target=target,
        rule=rule,
    )


@for_all("value", [np.nan, np.inf])
@for_all("rule", rules.names())
def test_broken_logits(lib: Library, value: float, rule: str) -> None:
    logits = lib.array(changed(np.zeros_like(TARGET), (0, 0, 3), value))
    refused(
        "target_logits has NaN, +Inf",
        "row 0, slot 0",
        "-Inf forbids a token",
        draft=fr.Draft.point(lib.array(TOKENS)),
        target=None,
        target_logits=logits,
        rule=rule,
    )


@for_all("name", ["target", "draft"])
def test_check_all_finds_what_read_does_not(lib: Library, name: str) -> None:
    """A broken row after the refusal: not read, hence no matter, unless everything is checked."""
    target, draft = changed(TARGET, (slice(None), 0, 0), 0.0), DRAFT.copy()
    target[:, 0, 1] = 0.5
    (target if name == "target" else draft)[1, 1, 3] = 0.75
    guess = fr.Draft.sampled(lib.array(np.zeros_like(TOKENS)), lib.array(draft))
    for rule in rules.names(lossless=True):
        if rule != "block":  # which reads the later slots first
            fr.verify(guess, lib.array(target), rule=rule)
        refused(
            "does not sum to 1 at row 1, slot 1",
            draft=guess,
            target=lib.array(target),
            rule=rule,
            check="all",
        )


def test_an_empty_draft() -> None:
    for make in (fr.Draft.point, fr.Draft.shared, lambda x: fr.Draft.sampled(x, DRAFT)):
        with pytest.raises(fr.InputError, match=r"empty list.*\(B, 0\)"):
            make([])


@for_all("rule", ["ratio", "block", "lenient"])
@for_all("form", ["dense", "sparse", "logits"])
def test_a_drafted_token_its_own_law_calls_impossible(lib: Library, rule: str, form: str) -> None:
    """Dividing by that 0 would accept it for certain; refusing it would bias the law."""
    law = np.broadcast_to([0.5, 0.5, 0.0, 0.0], (2, 2, 4)).copy()
    law[0] = 0.25
    ids = np.broadcast_to(np.arange(4), (2, 2, 4))
    with np.errstate(divide="ignore"):
        draft = {
            "dense": lambda: fr.Draft.sampled(lib.array(TOKENS), lib.array(law)),
            "sparse": lambda: fr.Draft.sampled(
                lib.array(TOKENS), fr.Sparse(lib.array(ids), lib.array(law))
            ),
            "logits": lambda: fr.Draft.sampled(lib.array(TOKENS), logits=lib.array(np.log(law))),
        }[form]()
    refused(
        "draft probability 0 (row 1, slot 0)",
        "token 2",
        "Draft.point",
        draft=draft,
        target=lib.array(TARGET),
        rule=rule,
    )
    fr.verify(draft, lib.array(TARGET))  # `match` does not care how a guess came about


@for_all("name", ["target", "draft"])
def test_integer_probabilities(lib: Library, name: str) -> None:
    counts = np.zeros((2, 3, 4), dtype=np.int64)
    counts[..., 0] = 1
    if name == "target":
        guess, target = fr.Draft.point(lib.array(TOKENS)), lib.array(counts)
    else:
        guess = fr.Draft.sampled(lib.array(np.zeros_like(TOKENS)), lib.array(counts[:, :2]))
        target = lib.array(TARGET)
    refused(
        "must be floating point",
        "int64" if lib.name != "jax" else "int32",
        "counts or ids",
        draft=guess,
        target=target,
        rule="ratio",
    )


@pytest.mark.parametrize(
    "tokens", [np.zeros((2, 2)), np.zeros((2, 2), dtype=bool), [[0.5, 1.0]] * 2]
)
def test_tokens_that_are_no_integers(tokens: Any) -> None:
    refused(
        "tokens must be integers",
        "Pass integer token ids",
        draft=fr.Draft.point(tokens),
        target=TARGET,
    )


def test_mixed_libraries() -> None:
    torch, strict = load("torch"), load("strict")
    message = ("different libraries", "target_probs: torch", "one library first")
    refused(
        *message,
        draft=fr.Draft.sampled(torch.array(TOKENS), DRAFT),
        target=torch.array(TARGET),
        rule="ratio",
    )
    refused(*message, draft=fr.Draft.point(strict.array(TOKENS)), target=torch.array(TARGET))
    refused("different libraries", draft=fr.Draft.point(torch.array(TOKENS)), target=TARGET)
    sparse = fr.Sparse(np.zeros((2, 2, 1), dtype=np.int64), torch.array(np.ones((2, 2, 1))))
    refused(
        "different libraries",
        "draft ids: numpy",
        draft=fr.Draft.sampled(torch.array(TOKENS), sparse),
        target=torch.array(TARGET),
        rule="ratio",
    )


def test_mixed_devices() -> None:
    strict = pytest.importorskip("array_api_strict")
    tokens = strict.asarray(TOKENS, device=strict.Device("device1"))
    refused(
        "different devices",
        "target_probs:",
        "CPU_DEVICE",
        "draft tokens:",
        "device1",
        "one device first",
        draft=fr.Draft.point(tokens),
        target=strict.asarray(TARGET),
    )
    torch = pytest.importorskip("torch")
    meta = torch.zeros((2, 2), dtype=torch.int64, device="meta")
    refused("different devices", "meta", draft=fr.Draft.point(meta), target=torch.tensor(TARGET))


@pytest.mark.parametrize("given", ["neither", "both"])
def test_one_target_array_is_needed(given: str) -> None:
    target = None if given == "neither" else TARGET
    refused(
        "One of the two target arrays",
        given,
        "by name",
        draft=fr.Draft.point(TOKENS),
        target=target,
        target_logits=target,
    )


def test_lists_are_no_probabilities() -> None:
    refused(
        "target_probs is not an array",
        "list",
        "numpy.asarray",
        draft=fr.Draft.point(TOKENS),
        target=TARGET.tolist(),
    )
    refused(
        "draft probs is not an array",
        "list",
        draft=fr.Draft.sampled(TOKENS, DRAFT.tolist()),
        target=TARGET,
        rule="ratio",
    )


def test_sparse_laws_that_do_not_fit(lib: Library) -> None:
    probs = lib.array(np.full((2, 2, 2), 0.5))
    cases = {
        "draft ids has a wrong shape": np.zeros((2, 2, 3), dtype=np.int64),
        "draft ids must be integers": np.zeros((2, 2, 2)),
        "lie in 0 .. 3": np.full((2, 2, 2), [0, 4]),
        "distinct": np.full((2, 2, 2), [0, 0]),
    }
    for message, ids in cases.items():
        draft = fr.Draft.sampled(lib.array(TOKENS * 0), fr.Sparse(lib.array(ids), probs))
        refused(message, draft=draft, target=lib.array(TARGET), rule="block")


@for_all("lengths", [[3, 0], [-1, 2], [2], [1.5, 2], [[2, 2]]])
def test_lengths_that_do_not_fit(lib: Library, lengths: Any) -> None:
    refused(
        "lengths",
        "Received",
        "whole number",
        draft=fr.Draft.point(lib.array(TOKENS), lengths=lengths),
        target=lib.array(TARGET),
    )


@for_all("option", ["seed", "positions"])
@for_all("value", [[1], [1, 2, 3], [1.0, 2.0], 0.5, "ab"])
def test_seeds_and_positions_that_do_not_fit(lib: Library, option: str, value: Any) -> None:
    draft = fr.Draft.point(lib.array(TOKENS))
    refused(
        f"{option} does not fit the batch",
        "one for each of the 2 rows",
        draft=draft,
        target=lib.array(TARGET),
        **{option: value},
    )


def test_numbers_that_have_no_address() -> None:
    draft = fr.Draft.point(TOKENS)
    refused("position is negative", "-2", "from 0", draft=draft, target=TARGET, positions=[0, -2])
    refused("64 bits", "-1", draft=draft, target=TARGET, seed=-1)
    refused("64 bits", str(2**64), draft=draft, target=TARGET, seed=2**64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "magic"}, "no rule of that name.*'magic'.*match, ratio, block"),
        ({"check": "some"}, "check is not known.*'some'.*'read'.*'all'"),
        ({"temperature": -1}, "temperature is negative.*-1.*0 for greedy"),
        ({"temperature": float("nan")}, "temperature is negative.*nan"),
        ({"temperature": 0.7}, "temperature applies to logits only.*0.7.*target_logits"),
    ],
)
def test_options_without_meaning(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fr.InputError, match=message):
        fr.verify(fr.Draft.point(TOKENS), TARGET, **options)


@for_all("rule", ["ratio", "block", "lenient"])
def test_a_draft_with_the_targets_own_noise_is_not_for_law_only_rules(
    lib: Library, rule: str
) -> None:
    refused(
        f"{rule!r} needs a draft drawn with noise of its own",
        "Draft.shared",
        "rule='match'",
        draft=fr.Draft.shared(lib.array(TOKENS)),
        target=lib.array(TARGET),
        rule=rule,
        error=fr.UnsupportedError,
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lenient", {"lenience": 0.0}),
        ("lenient", {"lenience": 1.5}),
        ("typical", {"epsilon": 0.0}),
        ("typical", {"delta": 2.0}),
        ("threshold", {"single": -0.1}),
        ("threshold", {"accumulated": 0.0}),
    ],
)
def test_settings_of_lossy_rules(name: str, settings: dict[str, float]) -> None:
    ((field, value),) = settings.items()
    with pytest.raises(fr.InputError, match=rf"{field} is out of range.*{value}.*\(0, 1\]"):
        rules.get(name, **settings)


def test_what_is_no_rule_is_told_what_it_lacks() -> None:
    class Half:
        name, lossless, needs_draft_probs = "half", True, False

        def decide(self, trial: Any, noise: Any) -> Any: ...

    draft = fr.Draft.point(TOKENS)
    missing = ("That is no rule.", "a Half without judges_trees.", "an object with name, lossless")
    refused(*missing, draft=draft, target=TARGET, rule=Half())
    with pytest.raises(fr.InputError, match="a Half without judges_trees"):
        fr.certify(Half())
    refused(
        "a class and not yet a rule", "Write Ratio().", draft=draft, target=TARGET, rule=rules.Ratio
    )
