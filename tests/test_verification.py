"""The front door: shapes, libraries, precision, what is read, and what a batch may not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forerun as fr
from cases import for_all
from forerun import rules, verification
from forerun.base.arrays import to_numpy
from instances import Instance, dyadic_instance, random_instance
from libraries import Library, load

LOSSLESS = rules.names(lossless=True)
EVERY = rules.names()
NUMPY = load("numpy")


def outcome(verdict: fr.Verdict) -> tuple[list[int], list[int]]:
    return to_numpy(verdict.num_accepted).tolist(), to_numpy(verdict.extra).tolist()


# --- the same verdict everywhere ---------------------------------------------------------------


@for_all("rule", EVERY)
@for_all("vocab_size", [4, 300])
def test_dyadic_rounds_end_alike_in_every_library(lib: Library, rule: str, vocab_size: int) -> None:
    """Exact sums leave nothing to rounding, so verdicts are equal, and so is their kind."""
    made = dyadic_instance(1, 24, 4, vocab_size)
    lengths = [index % 5 for index in range(24)]
    for seed in (0, 2**40 + 7):
        found = fr.verify(
            made.sampled(lib, lengths=lengths), lib.array(made.target), rule=rule, seed=seed
        )
        wanted = fr.verify(made.sampled(NUMPY, lengths=lengths), made.target, rule=rule, seed=seed)
        assert outcome(found) == outcome(wanted)
        assert found.tokens() == wanted.tokens()
        assert type(found.extra) is type(found.num_accepted) is type(lib.array([0]))


@for_all("rule", LOSSLESS)
@for_all("dtype", ["float32", "float64"])
def test_other_rounds_differ_only_by_rounding(lib: Library, rule: str, dtype: str) -> None:
    """Verdicts that differ from NumPy's are counted.

    A coin or a draw flips when its number falls between two roundings of one threshold: with odds
    of the order of 1e-6 in float32 and 1e-15 in float64.  Of 600 verdicts 2 differing ones are
    let through; a correct implementation has more with probability below 1e-6.
    """
    made = random_instance(2, 200, 3, 50, dtype)
    target, draft = lib.array(made.target), made.sampled(lib)
    differing = 0
    for seed in range(3):
        found = outcome(fr.verify(draft, target, rule=rule, seed=seed))
        wanted = outcome(fr.verify(made.sampled(NUMPY), made.target, rule=rule, seed=seed))
        differing += int(np.sum(np.any(np.array(found) != np.array(wanted), axis=0)))
    assert differing <= (0 if dtype == "float64" and lib.name != "jax" else 2)


def test_everything_stays_on_the_callers_device() -> None:
    """array-api-strict refuses to mix its two devices, as a GPU library would."""
    strict = pytest.importorskip("array_api_strict")
    device, made = strict.Device("device1"), random_instance(3, 5, 3, 300, np.float32)
    tokens, draft, target = (
        strict.asarray(part, device=device) for part in (made.tokens, made.draft, made.target)
    )
    for rule in EVERY:
        verdict = fr.verify(
            fr.Draft.sampled(tokens, draft), target, rule=rule, seed=[1, 2, 3, 4, 5]
        )
        assert verdict.extra.device == verdict.num_accepted.device == device
        wanted = fr.verify(made.sampled(NUMPY), made.target, rule=rule, seed=[1, 2, 3, 4, 5])
        assert outcome(verdict) == outcome(wanted)


@pytest.mark.gpu
@for_all("rule", EVERY)
def test_a_cuda_device_gives_the_same_verdicts(rule: str) -> None:
    """Dyadic rows, so that only noise and addresses could differ."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    made = dyadic_instance(15, 40, 4, 3000)
    tokens, draft, target = (
        torch.tensor(part, device="cuda") for part in (made.tokens, made.draft, made.target)
    )
    for seed in range(5):
        found = fr.verify(fr.Draft.sampled(tokens, draft), target, rule=rule, seed=seed)
        assert found.extra.is_cuda
        wanted = fr.verify(made.sampled(NUMPY), made.target, rule=rule, seed=seed)
        assert outcome(found) == outcome(wanted)


# --- shapes ------------------------------------------------------------------------------------


@for_all("rule", EVERY)
def test_one_sequence_needs_no_batch_axis(lib: Library, rule: str) -> None:
    made = random_instance(4, 1, 3, 7, np.float32)
    with_axis = fr.verify(made.sampled(lib), lib.array(made.target), rule=rule, seed=9)
    without = fr.verify(
        fr.Draft.sampled(lib.array(made.tokens[0]), lib.array(made.draft[0])),
        lib.array(made.target[0]),
        rule=rule,
        seed=9,
    )
    assert outcome(without) == outcome(with_axis)


def test_tokens_may_be_lists(lib: Library) -> None:
    made = random_instance(5, 2, 3, 7, np.float32)
    target, draft = lib.array(made.target), lib.array(made.draft)
    listed = fr.Draft.sampled(made.tokens.tolist(), draft)
    for rule in LOSSLESS:
        wanted = fr.verify(made.sampled(lib), target, rule=rule, seed=1)
        assert outcome(fr.verify(listed, target, rule=rule, seed=1)) == outcome(wanted)
    ragged = fr.Draft.point([made.tokens[0].tolist(), made.tokens[1, :1].tolist()])
    explicit = fr.Draft.point(lib.array(made.tokens), lengths=lib.array([3, 1]))
    verdicts = [fr.verify(draft, target, seed=1) for draft in (ragged, explicit)]
    assert outcome(verdicts[0]) == outcome(verdicts[1])


@for_all("rule", EVERY)
@for_all("form", ["probs", "logits", "greedy"])
def test_no_guesses_means_plain_sampling(lib: Library, rule: str, form: str) -> None:
    """K = 0: nothing accepted, one token of the first row, by whichever rule."""
    rows = np.array([[[0.25, 0.75, 0.0]], [[0.0, 0.0, 1.0]]], dtype=np.float32)
    nothing = fr.Draft.point(lib.array(np.zeros((2, 0), dtype=np.int64)))
    with np.errstate(divide="ignore"):
        given: dict[str, Any] = {
            "probs": {"target_probs": lib.array(rows)},
            "logits": {"target_logits": lib.array(np.log(rows))},
            "greedy": {"target_probs": lib.array(rows), "temperature": 0},
        }[form]
    verdict = fr.verify(nothing, rule=rule, seed=3, **given)
    assert to_numpy(verdict.num_accepted).tolist() == [0, 0]
    first, second = to_numpy(verdict.extra).tolist()
    assert second == 2
    assert first == 1 if form == "greedy" else first in (0, 1)


@for_all("rule", EVERY)
def test_ragged_rows_are_judged_as_if_alone(lib: Library, rule: str) -> None:
    """A row's verdict does not depend on its neighbours, on padding, or on the batch's K.

    Padding is filled with ids and numbers that would be refused anywhere else.
    """
    made = random_instance(6, 6, 4, 40, np.float32)
    lengths, seeds, positions = [4, 0, 2, 3, 1, 4], [5, 6, 7, 8, 9, 10], [0, 3, 100, 2, 7, 1]
    tokens, draft, target = made.tokens.copy(), made.draft.copy(), made.target.copy()
    for row, count in enumerate(lengths):
        tokens[row, count:], draft[row, count:], target[row, count + 1 :] = -7, np.nan, np.nan
    together = fr.verify(
        fr.Draft.sampled(lib.array(tokens), lib.array(draft), lengths=lengths),
        lib.array(target),
        rule=rule,
        seed=seeds,
        positions=positions,
    )
    for row, count in enumerate(lengths):
        one, few = slice(row, row + 1), slice(0, count)
        laws = lib.array(made.draft[one, few]) if count else lib.array(made.draft[one, :1])
        alone = fr.verify(
            fr.Draft.sampled(lib.array(made.tokens[one, few]), laws),
            lib.array(made.target[one, : count + 1]),
            rule=rule,
            seed=seeds[row],
            positions=[positions[row]],
        )
        assert alone.tokens()[0] == together.tokens()[row]


@pytest.mark.parametrize("name", ["numpy", "torch"])
@for_all("rule", EVERY)
def test_computing_with_a_few_rows_at_a_time_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, rule: str
) -> None:
    lib, made = load(name), random_instance(7, 11, 3, 33, np.float32)
    lengths = [index % 4 for index in range(11)]
    draft = made.sampled(lib, lengths=lengths)
    verdicts = []
    for rows_at_a_time in (100, 1, 3):
        monkeypatch.setattr(verification, "CACHE_BYTES", rows_at_a_time * 33 * 4)
        verdicts.append(fr.verify(draft, lib.array(made.target), rule=rule, seed=list(range(11))))
    assert outcome(verdicts[0]) == outcome(verdicts[1]) == outcome(verdicts[2])


def test_seeds_and_positions_are_part_of_the_address(lib: Library) -> None:
    rows = lib.array(np.full((1, 1, 1000), 0.001))
    nothing = fr.Draft.point([[]])

    def token(**options: Any) -> int:
        return int(fr.verify(nothing, rows, **options).extra[0])

    assert token(seed=1, positions=[5]) == token(seed=[1], positions=np.array([5]))
    assert token(seed=np.int64(1), positions=5) == token(seed=1, positions=[5])
    assert token(seed=0) == token(seed=0, positions=[0])
    # Twelve samples of a flat law over 1,000 tokens are all equal with odds 1e-33.
    assert len({token(seed=seed, positions=[at]) for seed in range(3) for at in range(4)}) > 1


# --- kinds of input ----------------------------------------------------------------------------


@for_all("rule", EVERY)
def test_logits_and_probabilities_agree(lib: Library, rule: str) -> None:
    """In float64 the softmax of a logarithm is off by 1e-15: no verdict of these 180 may differ.

    JAX computes in float32 unless told otherwise; there 2 may (odds of more below 1e-6).
    """
    differing = 0
    for seed in range(3):
        made = random_instance(seed, 60, 3, 20)
        with_probs = fr.verify(made.sampled(lib), lib.array(made.target), rule=rule, seed=seed)
        with_logits = fr.verify(
            fr.Draft.sampled(lib.array(made.tokens), logits=lib.array(np.log(made.draft) + 3)),
            target_logits=lib.array(np.log(made.target) - 5),
            rule=rule,
            seed=seed,
        )
        pair = np.array([outcome(with_probs), outcome(with_logits)])
        differing += int(np.any(pair[0] != pair[1], axis=0).sum())
    assert differing <= (2 if lib.name == "jax" else 0)


def test_temperature_shapes_target_and_draft_logits(lib: Library) -> None:
    made = random_instance(8, 30, 3, 20)
    scaled = {"t": np.log(made.target) * 0.7, "d": np.log(made.draft) * 0.7}
    for rule in LOSSLESS:
        found = fr.verify(
            fr.Draft.sampled(lib.array(made.tokens), logits=lib.array(scaled["d"])),
            target_logits=lib.array(scaled["t"]),
            temperature=0.7,
            rule=rule,
            seed=4,
        )
        wanted = fr.verify(made.sampled(lib), lib.array(made.target), rule=rule, seed=4)
        assert np.sum(np.array(outcome(found)) != np.array(outcome(wanted))) <= (
            2 if lib.name == "jax" else 0
        )


@for_all("rule", LOSSLESS)
@for_all("form", ["probs", "logits"])
def test_temperature_0_keeps_the_run_of_argmaxes(lib: Library, rule: str, form: str) -> None:
    """Greedy by every rule, whatever the seed: the draft up to the first token that is not it."""
    made = random_instance(9, 40, 4, 6, np.float32)
    best = np.argmax(made.target, axis=2)
    tokens = np.where(np.random.default_rng(0).random((40, 4)) < 0.7, best[:, :-1], made.tokens)
    given: dict[str, Any] = (
        {"target_probs": lib.array(made.target)}
        if form == "probs"
        else {"target_logits": lib.array(np.log(made.target))}
    )
    draft = fr.Draft.point(lib.array(tokens))
    verdict = fr.verify(draft, temperature=0, rule=rule, seed=3, **given)
    right = np.cumprod(tokens == best[:, :-1], axis=1).sum(axis=1)
    assert outcome(verdict) == (right.tolist(), best[np.arange(40), right].tolist())
    assert 0 < right.mean() < 4


@pytest.mark.parametrize("name", ["numpy", "torch"])
@for_all("rule", EVERY)
def test_float16_is_upcast(name: str, rule: str) -> None:
    """Rows in float16 are judged as the same numbers in float32."""
    lib, made = load(name), dyadic_instance(10, 30, 3, 40)
    half = Instance(made.tokens, made.draft.astype("float16"), made.target.astype("float16"))
    found = fr.verify(half.sampled(lib), lib.array(half.target), rule=rule, seed=2)
    wanted = fr.verify(made.sampled(NUMPY), made.target, rule=rule, seed=2)
    assert outcome(found) == outcome(wanted)


@for_all("rule", EVERY)
def test_bfloat16_is_upcast(rule: str) -> None:
    torch = pytest.importorskip("torch")
    made = dyadic_instance(11, 30, 3, 40)
    target, draft = (torch.tensor(part).bfloat16() for part in (made.target, made.draft))
    found = fr.verify(fr.Draft.sampled(made.tokens, draft), target, rule=rule, seed=2)
    assert outcome(found) == outcome(fr.verify(made.sampled(NUMPY), made.target, rule=rule, seed=2))


def test_bfloat16_rows_may_miss_their_sum_by_its_rounding() -> None:
    """Eight bits per entry move a sum by up to 2**-8; the same miss in float32 is a mistake."""
    torch = pytest.importorskip("torch")
    rows = torch.full((1, 2, 300), 1 / 300).bfloat16()
    assert 1e-3 < abs(float(rows[0, 0].float().sum()) - 1) < 2**-8
    fr.verify(fr.Draft.sampled([[5]], rows[:, :1]), rows, rule="ratio", check="all")
    with pytest.raises(fr.InputError, match="does not sum to 1"):
        fr.verify(fr.Draft.sampled([[5]], rows[:, :1].float()), rows.float(), check="all")


@for_all("rule", EVERY)
def test_sparse_draft_laws_are_dense_ones(lib: Library, rule: str) -> None:
    """A top-5 law given on its support, in any order, and the same law with its zeros."""
    made = random_instance(12, 20, 3, 30, np.float32)
    rng = np.random.default_rng(1)
    ids = rng.permuted(np.argsort(-made.draft, axis=2)[..., :5], axis=2)
    kept = np.take_along_axis(made.draft, ids, axis=2)
    kept /= kept.sum(axis=2, keepdims=True)
    dense = np.zeros_like(made.draft)
    np.put_along_axis(dense, ids, kept, axis=2)
    tokens = np.take_along_axis(ids, rng.integers(5, size=(20, 3))[..., None], axis=2)[..., 0]
    found = fr.verify(
        fr.Draft.sampled(lib.array(tokens), fr.Sparse(lib.array(ids), lib.array(kept))),
        lib.array(made.target),
        rule=rule,
        seed=6,
        check="all",
    )
    wanted = fr.verify(
        fr.Draft.sampled(lib.array(tokens), lib.array(dense)),
        lib.array(made.target),
        rule=rule,
        seed=6,
    )
    assert outcome(found) == outcome(wanted)


@for_all("rule", ["ratio", "block", "lenient"])
def test_a_deterministic_draft_is_a_law_with_one_token(lib: Library, rule: str) -> None:
    made = random_instance(13, 30, 3, 8, np.float32)
    certain = np.eye(8, dtype=np.float32)[made.tokens]
    point = fr.verify(
        fr.Draft.point(lib.array(made.tokens)), lib.array(made.target), rule=rule, seed=1
    )
    dense = fr.verify(
        fr.Draft.sampled(lib.array(made.tokens), lib.array(certain)),
        lib.array(made.target),
        rule=rule,
        seed=1,
    )
    assert outcome(point) == outcome(dense)


# --- what is read ------------------------------------------------------------------------------


@for_all("rule", ["ratio", "block", "match", "lenient", "threshold"])
def test_rows_that_are_not_needed_are_not_read(lib: Library, rule: str) -> None:
    """One whole target row per sequence is enough; the others may hold NaN off the draft's path.

    `block` and `match` are given a round whose first coin or sample ends it.
    """
    vocab_size, draft_length = 6, 4
    tokens = np.zeros((1, draft_length), dtype=np.int64)
    target = np.full((1, draft_length + 1, vocab_size), np.nan)
    draft = np.full((1, draft_length, vocab_size), np.nan)
    draft[..., 0] = 1.0
    if rule == "match":  # the target cannot say token 0 at the first slot
        target[0, 0] = [0, 0.5, 0.5, 0, 0, 0]
        expected = 0
    elif rule == "block":  # pi = 1 throughout: the last slot is kept at once
        draft[..., 0], target[..., 0] = 0.5, 0.5
        target[0, -1] = [0, 0, 0, 0, 0, 1]
        expected = draft_length
    else:  # accepted, accepted, refused
        target[..., 0] = [1, 1, 0, 1, 1]
        target[0, 2] = [0, 0, 0, 1, 0, 0]
        draft[0, 2] = [1, 0, 0, 0, 0, 0]
        expected = 2
    verdict = fr.verify(
        fr.Draft.sampled(lib.array(tokens), lib.array(draft)), lib.array(target), rule=rule, seed=1
    )
    assert int(verdict.num_accepted[0]) == expected
    with pytest.raises(fr.InputError, match="NaN"):
        fr.verify(
            fr.Draft.sampled(lib.array(tokens), lib.array(draft)),
            lib.array(target),
            rule=rule,
            seed=1,
            check="all",
        )


def test_match_reads_rows_up_to_the_first_refusal_and_no_draft_law(lib: Library) -> None:
    """With certain rows the refusals are known: each row of the batch stops at its own."""
    vocab_size, draft_length = 300, 5
    stops = [0, 2, 5]
    target = np.full((3, draft_length + 1, vocab_size), np.nan, dtype=np.float32)
    for row, stop in enumerate(stops):
        for slot in range(stop + 1):
            target[row, slot] = np.eye(vocab_size)[slot + (7 if slot == stop else 0)]
    tokens = np.broadcast_to(np.arange(draft_length), (3, draft_length))
    nonsense = lib.array(np.full((3, draft_length, vocab_size), np.nan, dtype=np.float32))
    verdict = fr.verify(
        fr.Draft.sampled(lib.array(tokens), nonsense), lib.array(target), seed=[1, 2, 3]
    )
    assert outcome(verdict) == (stops, [stop + 7 for stop in stops])


def test_a_broken_row_that_is_needed_is_found(lib: Library) -> None:
    """The same round, with NaN in the row the residual comes from."""
    target = np.full((1, 3, 4), 0.25)
    draft = np.full((1, 2, 4), 0.25)
    target[0, 1, 0], draft[0, 1, 0] = 0.0, 1.0  # refused at the second slot
    draft[0, 1, 1:] = 0.0
    target[0, 1, 2] = np.nan
    with pytest.raises(fr.InputError, match="target_probs has NaN or Inf at row 0, slot 1"):
        fr.verify(
            fr.Draft.sampled(lib.array([[0, 0]]), lib.array(draft)),
            lib.array(target),
            rule="ratio",
        )


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_the_callers_arrays_are_left_alone(name: str) -> None:
    """Work is done in place where it can be, never on what was passed in."""
    lib, made = load(name), random_instance(14, 3, 3, 700, np.float32)
    arrays = [lib.array(part) for part in (made.tokens, made.draft, made.target)]
    copies = [to_numpy(part).copy() for part in arrays]
    for rule in EVERY:
        for seed in range(5):
            fr.verify(fr.Draft.sampled(arrays[0], arrays[1]), arrays[2], rule=rule, seed=seed)
    for array, copy in zip(arrays, copies, strict=True):
        assert np.array_equal(to_numpy(array), copy)


# --- what every verdict satisfies --------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_verdict_never_contains_the_impossible(data: st.DataObject) -> None:
    """No more tokens than were drafted, and none that the target calls impossible."""
    rule = data.draw(st.sampled_from(LOSSLESS), "rule")
    num_rows, draft_length = data.draw(st.integers(1, 5), "B"), data.draw(st.integers(0, 5), "K")
    vocab_size = data.draw(st.sampled_from([1, 2, 3, 17, 256, 300]), "V")
    dtype = data.draw(st.sampled_from(["float32", "float64"]), "dtype")
    lengths = data.draw(
        st.lists(st.integers(0, draft_length), min_size=num_rows, max_size=num_rows), "lengths"
    )
    seed, kind = data.draw(st.integers(0, 2**64 - 1), "seed"), data.draw(st.booleans(), "sampled")
    make = data.draw(st.sampled_from([random_instance, dyadic_instance]), "kind of rows")
    made = make(seed % 1000, num_rows, draft_length, vocab_size, dtype)
    draft = (
        made.sampled(NUMPY, lengths=lengths)
        if kind and draft_length
        else fr.Draft.point(made.tokens, lengths=lengths)
    )
    verdict = fr.verify(draft, made.target, rule=rule, seed=seed, check="all")
    assert verdict.lossless
    for row, emitted in enumerate(verdict.tokens()):
        assert len(emitted) == verdict.num_accepted[row] + 1 <= lengths[row] + 1
        assert emitted[:-1] == made.tokens[row, : len(emitted) - 1].tolist()
        for slot, token in enumerate(emitted):
            assert made.target[row, slot, token] > 0


def test_bare_tokens_are_no_draft() -> None:
    message = r"That is no draft. Received a list. .*Draft.sampled\(tokens, probs\).*Draft.point"
    with pytest.raises(fr.InputError, match=message):
        fr.verify([1, 2], np.eye(3))  # type: ignore[arg-type]
