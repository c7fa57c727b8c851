"""The front door: arrays in, checks, one rule, a verdict out in the caller's own arrays."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun import rules
from forerun.base.arrays import (
    Array,
    Namespace,
    as_indices,
    device_of,
    is_floating,
    is_integer,
    namespace_of,
    on_host,
    to_numpy,
    upcast,
)
from forerun.base.errors import InputError, UnsupportedError, explain, shown_by
from forerun.base.on_device import are_on, fits, is_on_device
from forerun.noise.philox import check_seeds
from forerun.noise.race import folds, seed_key
from forerun.rules import refusals
from forerun.rules.base import CounterNoise, Rule, Trial
from forerun.rules.rows import Dense, Logits, Points, Rows, SparseRows
from forerun.rules.types import Draft, Drawn, Sparse, Verdict
from forerun.trees.tree import Tree

CACHE_BYTES = 2**19
"""The most bytes of rows that are processed at a time on a CPU."""


@shown_by("fr.verify(fr.Draft.sampled(tokens, draft_probs), target_probs)")
def verify(
    draft: Draft,
    target_probs: Array | None = None,
    *,
    target_logits: Array | None = None,
    temperature: float = 1.0,
    rule: str | Rule = "match",
    seed: int | Sequence[int] | None = None,
    positions: Any = None,
    check: str = "read",
) -> Verdict:
    """Decide how many draft tokens to keep, and the one token that follows them.

    target_probs: (B, K + 1, V), or (K + 1, V) for one sequence; or target_logits of that shape.
        Row i is the target's distribution after i draft tokens, the last one for the bonus token.
        For a draft with a tree, row 0 is that after the text and row i + 1 that after token i.
    temperature: divides target_logits (and draft logits); 0 is greedy, for probabilities too.
    seed: None draws a fresh one for this call, kept as `verdict.seed` so that the call can be
        repeated.  One whole number serves all rows, folded with the number of each, so that rows
        are independent.  A sequence has one seed per row, used as it is.
    positions: (B,) index in its sequence of the first token that this round emits.  Rounds of a
        sequence that share a seed need it: the same seed and position are the same noise.
    check: "read" checks what the rule reads, "all" reads and checks everything first.
    """
    rule = rules.trusted(rule)
    by_kernels = kernels_decide(refusals.as_draft(draft), target_logits, rule, check)
    tables = target_probs, target_logits
    trial = prepare(draft, *tables, temperature, rule, check, read=not by_kernels)
    num_rows, device = trial.tokens.shape[0], compat.device(trial.tokens)
    seed = secrets.randbits(63) if seed is None else seed
    seeds = _row_seeds(seed, num_rows)
    first = _whole_numbers(0 if positions is None else positions, num_rows, "positions")
    if min(first) < 0:
        raise InputError(explain("A position is negative.", min(first), "Count them from 0."))
    if by_kernels:
        from forerun.kernels import decide_trial

        check_seeds(seeds)
        reached, extra = decide_trial.decide(trial, rule, seeds, first)
    else:
        key = seed_key(trial.xp, seeds, device)
        noise = CounterNoise(trial.xp, key, as_indices(trial.xp, first, device))
        reached, extra = rule.decide(trial, noise)
    if trial.trees is None:
        return Verdict(reached, extra, trial.tokens, rule.name, rule.lossless, seed)
    paths = [trial.path(row, end) for row, end in enumerate(to_numpy(reached).tolist())]
    num_accepted = as_indices(trial.xp, [len(path) for path in paths], device)
    return Verdict(num_accepted, extra, trial.tokens, rule.name, rule.lossless, seed, paths)


def _row_seeds(seed: int | Sequence[int], num_rows: int) -> list[int]:
    """One seed per row: the given ones, or independent ones made from a single one."""
    if isinstance(seed, Integral):
        return folds(int(seed), num_rows)
    return _whole_numbers(seed, num_rows, "seed")


def _whole_numbers(values: Any, num_rows: int, name: str) -> list[int]:
    """One whole number per row, from one for all or from a sequence."""
    if isinstance(values, Integral):
        return [int(values)] * num_rows
    # As objects: NumPy would turn whole numbers on both sides of 2**63 into floats.
    is_array = compat.is_array_api_obj(values)
    array = to_numpy(values) if is_array else np.asarray(values, dtype=object)
    numbers = array.tolist()
    if array.shape != (num_rows,) or not all(isinstance(one, Integral) for one in numbers):
        cure = f"Pass one whole number, or one for each of the {num_rows} rows."
        raise InputError(explain(f"{name} does not fit the batch.", values, cure))
    return [int(number) for number in numbers]


def prepare(
    draft: Draft,
    target_probs: Array | None,
    target_logits: Array | None,
    temperature: float,
    rule: Rule,
    check: str = "read",
    *,
    read: bool = True,
) -> Trial:
    """Check everything that can be checked without reading rows, and bind it to one library.

    read: look at the tokens and their draft probabilities; kernels do that themselves.
    """
    if check not in ("read", "all"):
        cure = "Use 'read' (what the rule reads) or 'all' (every row first)."
        raise InputError(explain("check is not known.", repr(check), cure))
    if (target_probs is None) == (target_logits is None):
        received = "neither" if target_probs is None else "both"
        cure = "Pass target_probs, or target_logits by name."
        raise InputError(explain("One of the two target arrays is needed.", received, cure))
    name, table = (
        ("target_logits", target_logits) if target_probs is None else ("target_probs", target_probs)
    )
    parts = {name: table, "draft tokens": draft.tokens} | _draft_arrays(draft)
    from_list = {key for key in ("draft tokens",) if not _is_callers_array(parts[key], table)}
    named = {key: value for key, value in parts.items() if key not in from_list}
    xp, device = namespace_of(**named), device_of(**named)
    table = _three_axes(xp, table, name)
    if temperature < 0 or temperature != temperature:
        raise InputError(
            explain("temperature is negative.", temperature, "Use 0 for greedy, or more.")
        )
    if name == "target_probs" and temperature not in (0, 1):
        cure = "Pass target_logits, or probabilities with their temperature already in."
        raise InputError(explain("temperature applies to logits only.", temperature, cure))
    target = (
        Logits(xp, table, temperature, name)
        if name == "target_logits"
        else Dense(xp, table, name, greedy=temperature == 0)
    )
    tokens, lengths = _tokens(xp, device, draft, table, read)
    law = None
    if rule.needs_draft_probs or (check == "all" and draft.drawn is Drawn.SAMPLED):
        law = _draft_rows(xp, draft, table, tokens, temperature, rule)
    at_a_time = None
    if on_host(xp, device):
        at_a_time = max(1, CACHE_BYTES // (table.shape[2] * table.dtype.itemsize))
    trees = _trees(draft, lengths, tokens.shape[1], rule)
    trial = Trial(xp, tokens, lengths, target, law, at_a_time, trees)
    if law is not None and read:
        _check_drawn(trial)
    if check == "all":
        _check_all(trial)
    return trial


def _is_callers_array(tokens: Any, table: Array) -> bool:
    """Whether an argument was an array of the caller's; lists were made NumPy arrays and follow the
    target's library."""
    return not _is_numpy(tokens) or _is_numpy(table)


def _is_numpy(table: Any) -> bool:
    return isinstance(table, np.ndarray | np.generic)


def _draft_arrays(draft: Draft) -> dict[str, Any]:
    if isinstance(draft.probs, Sparse):
        return {"draft ids": draft.probs.ids, "draft probs": draft.probs.probs}
    return {"draft probs": draft.probs, "draft logits": draft.logits}


def _three_axes(xp: Namespace, table: Array, name: str) -> Array:
    """An array as (B, N, V), from (B, N, V) or (N, V); refuses other dtypes than floating ones, and
    empty arrays."""
    if not compat.is_array_api_obj(table):
        cure = "Convert it first, for example with numpy.asarray."
        raise InputError(explain(f"{name} is not an array.", type(table).__name__, cure))
    if not is_floating(xp, table):
        cure = "Pass floating-point numbers; counts or ids are no probabilities."
        raise InputError(explain(f"{name} must be floating point.", table.dtype, cure))
    if table.ndim == 2:
        table = table[None, ...]
    if table.ndim != 3 or 0 in table.shape:
        cure = "Use (B, N, V), or (N, V) for one sequence, with no axis of length 0."
        raise InputError(explain(f"{name} has a wrong shape.", tuple(table.shape), cure))
    return table


def _tokens(
    xp: Namespace, device: Any, draft: Draft, table: Array, read: bool
) -> tuple[Array, Array]:
    """Draft tokens (B, K) and lengths (B,) that fit the target's table (B, K + 1, V)."""
    tokens = draft.tokens
    if not compat.is_array_api_obj(tokens) or not _is_callers_array(tokens, table):
        tokens = xp.asarray(to_numpy(tokens).tolist() or [[]], device=device)
        tokens = as_indices(xp, tokens, device) if tokens.shape[-1] == 0 else tokens
    if not is_integer(xp, tokens):
        cure = "Pass integer token ids."
        raise InputError(explain("Draft tokens must be integers.", tokens.dtype, cure))
    tokens = as_indices(xp, tokens, device)
    if tokens.ndim == 1:
        tokens = tokens[None, :]
    num_rows, num_slots, vocab_size = table.shape
    if tokens.shape != (num_rows, num_slots - 1):
        received = f"draft tokens {tuple(tokens.shape)} with a target of {tuple(table.shape)}"
        cure = "K draft tokens need K + 1 target rows: tokens (B, K), target (B, K + 1, V)."
        raise InputError(explain("Draft and target do not fit.", received, cure))
    given = num_slots - 1 if draft.lengths is None else draft.lengths
    counts = np.asarray(_whole_numbers(given, num_rows, "draft lengths"))
    if (counts < 0).any() or (counts > num_slots - 1).any():
        cure = f"Pass whole numbers from 0 to K = {num_slots - 1}."
        raise InputError(explain("Draft lengths do not fit.", counts.tolist(), cure))
    lengths = as_indices(xp, counts.tolist(), device)
    if read:
        drafted = to_numpy(tokens)
        inside = (drafted >= 0) & (drafted < vocab_size)
        inside |= np.arange(num_slots - 1) >= counts[:, None]
        if not inside.all():
            row, slot = (int(axis[0]) for axis in (~inside).nonzero())
            raise refusals.outside(row, slot, int(drafted[row, slot]), vocab_size)
    slots = xp.arange(num_slots - 1, dtype=lengths.dtype, device=device)
    return xp.where(slots[None, :] < lengths[:, None], tokens, 0), lengths


def _trees(draft: Draft, lengths: Array, num_slots: int, rule: Rule) -> list[Tree] | None:
    """The tree of each row; a row whose length is cut keeps the first nodes of it."""
    tree = draft.tree
    if tree is None:
        return None
    if len(tree) != num_slots:
        cure = "Pass one token for each node of the tree, parents first."
        received = f"{num_slots} tokens and a tree of {len(tree)}"
        raise InputError(explain("Draft tokens and tree do not fit.", received, cure))
    if tree.is_chain:
        return None
    if not rule.judges_trees:
        wrong = f"The rule {rule.name!r} judges chains only."
        cure = "Use rule='match', or for a sampled tree 'traversal' or 'siblings'."
        raise UnsupportedError(explain(wrong, f"a tree of {len(tree)} tokens", cure))
    counts = to_numpy(lengths).tolist()
    cut = {count: tree if count == len(tree) else tree.first(count) for count in set(counts)}
    return [cut[count] for count in counts]


def _draft_rows(
    xp: Namespace, draft: Draft, table: Array, tokens: Array, temperature: float, rule: Rule
) -> Rows:
    """The law the draft was drawn from, for the rules that divide by it."""
    vocab_size = table.shape[2]
    if draft.drawn is Drawn.SHARED:
        wrong = f"The rule {rule.name!r} needs a draft drawn with noise of its own."
        cure = "Use rule='match', or draw the draft independently and pass Draft.sampled."
        raise UnsupportedError(explain(wrong, "Draft.shared", cure))
    if draft.drawn is Drawn.PRUNED:
        wrong = f"The rule {rule.name!r} needs a draft that was not chosen by its own tokens."
        cure = (
            "Use rule='match', or pass the tokens with Draft.point, which is exact for any "
            "choice; or decide what to draft before drawing it."
        )
        raise UnsupportedError(explain(wrong, "a pruned draft", cure))
    if draft.drawn is Drawn.POINT or tokens.shape[1] == 0:
        return Points(xp, tokens, vocab_size, upcast(xp, table[:1, :1, :1]).dtype)
    if isinstance(draft.probs, Sparse):
        ids, probs = draft.probs.ids, _three_axes(xp, draft.probs.probs, "draft probs")
        if not compat.is_array_api_obj(ids) or not is_integer(xp, ids):
            received = getattr(ids, "dtype", type(ids).__name__)
            raise InputError(explain("draft ids must be integers.", received, "Pass token ids."))
        ids = as_indices(xp, ids[None, ...] if ids.ndim == 2 else ids, None)
        _fits(tuple(ids.shape), (*tokens.shape, probs.shape[2]), "draft ids")
        _fits(tuple(probs.shape), (*tokens.shape, ids.shape[2]), "draft probs")
        return SparseRows(xp, ids, probs, vocab_size, "draft probs")
    name, laws = (
        ("draft logits", draft.logits) if draft.probs is None else ("draft probs", draft.probs)
    )
    laws = _three_axes(xp, laws, name)
    if laws.shape[2] != vocab_size:
        received = f"{laws.shape[2]} and {vocab_size}"
        cure = "Cut or pad both to one vocabulary, with probability 0 for the ids added."
        raise InputError(explain("Draft and target vocabularies differ.", received, cure))
    _fits(tuple(laws.shape), (*tokens.shape, vocab_size), name)
    return Logits(xp, laws, temperature, name) if draft.probs is None else Dense(xp, laws, name)


def _fits(shape: tuple[int, ...], expected: tuple[int, ...], name: str) -> None:
    if shape != expected:
        cure = f"One row per draft token is needed: {expected}."
        raise InputError(explain(f"{name} has a wrong shape.", shape, cure))


def _check_drawn(trial: Trial) -> None:
    """Refuse a token that is impossible under the law that it is said to be drawn from."""
    lied = to_numpy(trial.used & ~(trial.draft_at > 0))
    if lied.any():
        row, slot = (int(axis[0]) for axis in lied.nonzero())
        raise refusals.impossible(row, slot, int(trial.tokens[row, slot]))


def _check_all(trial: Trial) -> None:
    """Read every row that counts, so that each is checked."""
    for slot in range(trial.tokens.shape[1] + 1):
        scored, drafted = trial.lengths >= slot, trial.lengths > slot
        for table, rows in ((trial.target, scored), (trial.draft, drafted)):
            there = trial.everyone[rows]
            if table is not None and there.shape[0]:
                table.take(there, trial.xp.full_like(there, slot))


def kernels_decide(draft: Draft, target_logits: Array | None, rule: Rule, check: str) -> bool:
    """Whether `forerun.kernels.decide_trial` can decide a round.

    That takes CUDA tensors of logits, a rule that has kernels, and, for rules that divide by the
    draft's law, a law that is a point mass or given as logits.
    """
    if check != "read" or not is_on_device(target_logits) or not fits(target_logits):
        return False
    if not are_on():
        return False
    if type(rule) is rules.Match:
        return True
    if type(rule) not in (rules.Ratio, rules.Block):
        return False
    return draft.drawn is Drawn.POINT or (draft.drawn is Drawn.SAMPLED and fits(draft.logits))
