"""`traversal`: the rule `block` on a tree, from the leaves to the root.

Each node has a debt: the chance r with which a token must still be emitted there, and the law P of
that token. It passes the chance min(r P(x) / q(x), 1) on to its first child x. If that child fails,
the debt for the next child is (r P - q)+; after the last child, what is left is the node's own.
Debts depend on the draft alone, so all are known before a coin is tossed. Nodes are then tried,
children before parents; the first success ends the round.

A path is tried to its end before anything is decided, so this keeps at least as many tokens as
`siblings`, which accepts or refuses each child at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import array_api_compat as compat

from forerun.base.arrays import Array, positive_part, put_rows, sum_rows, take_columns, to_numpy
from forerun.rules.base import Noise, Trial


@dataclass(frozen=True)
class Traversal:
    """The rule `traversal`: lossless, on chains and trees."""

    name: ClassVar[str] = "traversal"
    lossless: ClassVar[bool] = True
    needs_draft_probs: ClassVar[bool] = True
    judges_trees: ClassVar[bool] = True

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        """Test nodes, children before parents; the round ends at the first success. Returns the
        target row reached (B,) and the token after it (B,)."""
        xp = trial.xp
        debts, chances = _debts(trial)
        reached, undecided = xp.zeros_like(trial.lengths), trial.lengths >= 0
        order = _children_first(trial)
        for turn in range(order.shape[1]):
            slots = order[:, turn] + xp.zeros_like(reached)
            chance = xp.take_along_axis(chances, slots[:, None], axis=1)
            chance = xp.where(undecided[:, None], chance, 0.0)
            if not bool(xp.any(chance > 0)):
                continue
            passed = undecided & noise.coins([turn], chance)[:, 0]
            reached = xp.where(passed, slots, reached)
            undecided = undecided & ~passed
        return reached, noise.draw(_owed(trial, debts, reached))


def _debts(trial: Trial) -> tuple[Array, Array]:
    """Each node's chance of having to emit a token, and its own chance of emitting one after all
    its children have failed.

    Both are (B, K + 1), by target row: 0 is the text, i + 1 comes after node i. The second chance
    is 1 for the text.
    """
    xp, first = trial.xp, trial.everyone[:1]
    dtype = trial.target.take(first, xp.zeros_like(first)).dtype
    one = xp.ones(trial.tokens.shape[0], dtype=dtype, device=compat.device(trial.tokens))
    debts, chances = [one] + [xp.zeros_like(one)] * trial.tokens.shape[1], []
    for slot, debt in enumerate(debts):  # parents come first, so each debt is final when it is read
        owing = debt > 0
        if _children(trial, slot) and bool(xp.any(owing)):
            rest, _, handed = _settle(trial, slot, owing, debt[owing])
            debt = put_rows(xp, owing, rest, debt)
            for child, (there, share) in handed.items():
                debts[child + 1] = put_rows(xp, there, share, debts[child + 1])
        chances.append(debt if slot else one)
    return xp.stack(debts, axis=1), xp.stack(chances, axis=1)


def _owed(trial: Trial, debts: Array, reached: Array) -> Array:
    """The law (B, V) of each row's extra token: what its last node still owes after all its
    children."""
    xp = trial.xp
    laws, rows = [], []
    for slot in sorted(set(to_numpy(reached).tolist())):
        here = reached == slot
        laws.append(_settle(trial, slot, here, debts[:, slot][here])[1])
        rows.append(trial.everyone[here])
    return xp.take(xp.concat(laws), xp.argsort(xp.concat(rows)), axis=0)


def _settle(
    trial: Trial, slot: int, owing: Array, debt: Array
) -> tuple[Array, Array, dict[int, tuple[Array, Array]]]:
    """Compute the debts of a slot as its children fail, one after another.

    owing: (B,) booleans that select the R rows to compute.
    debt: (R,), the chance with which each row has to emit at this slot.
    Returns the chance that is left after all children (R,), the law of the token then (R, V), and
    for each child the rows (B,) that have it and its own debt.
    """
    xp, rows = trial.xp, trial.everyone[owing]
    assert trial.draft is not None, "law-only rules are never reached without a draft law"
    law = trial.target.take(rows, xp.full_like(rows, slot))
    handed = {}
    for child in _children(trial, slot):
        there = owing & trial.used[:, child] & (trial.parents[:, child] == slot - 1)  # (B,)
        some, mine = trial.everyone[there], there[owing]
        if some.shape[0] == 0:
            continue
        drawn = trial.draft.take(some, xp.full_like(some, child))
        old, old_debt = law[mine], debt[mine]
        scaled = old * old_debt[:, None]
        token = trial.tokens[:, child][there][:, None]
        ratio = take_columns(xp, scaled, token)[:, 0] / take_columns(xp, drawn, token)[:, 0]
        handed[child] = there, xp.minimum(ratio, 1.0)
        left = positive_part(xp, scaled - drawn)
        total = sum_rows(xp, left)  # (R,)
        whole = total + 1 - old_debt  # 0 only if the child cannot fail
        new_debt = xp.where(whole > 0, total / xp.where(whole > 0, whole, 1.0), 1.0)
        new = left / xp.where(total > 0, total, 1.0)[:, None]
        law = put_rows(xp, mine, xp.where(total[:, None] > 0, new, old), law)
        debt = put_rows(xp, mine, new_debt, debt)
    return debt, law, handed


def _children(trial: Trial, slot: int) -> list[int]:
    """All nodes that follow a slot, in any row, in ascending order."""
    children = (tree.children[slot - 1] for tree in trial.kinds if slot <= len(tree))
    return sorted(set().union(*children))


def _children_first(trial: Trial) -> Array:
    """The order in which target rows are tried, (B, K + 1); (1, K + 1) if all rows have the same
    tree."""
    trees = trial.kinds if len(trial.kinds) == 1 else trial.shapes
    return trial.by_row([[node + 1 for node in tree.children_first] for tree in trees], 0, more=1)
