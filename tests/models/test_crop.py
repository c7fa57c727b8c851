"""How rows are put together into passes."""

from __future__ import annotations

import pytest

from forerun.models.crop import MOST_PADDED, group_rows


@pytest.mark.parametrize(
    ("counts", "groups"),
    [
        ([1], [[0]]),
        ([6, 1, 4, 3], [[0, 1, 2, 3]]),  # rounds of decoding share a pass
        ([6, 500, 4], [[0, 2], [1]]),  # a prompt does not
        ([500, 400, 450], [[0, 1, 2]]),  # prompts of similar length do
        ([5000, 5000], [[0], [1]]),  # unless they are long
    ],
)
def test_similar_rows_share_a_pass(counts: list[int], groups: list[list[int]]) -> None:
    assert group_rows(counts) == groups


def test_passes_are_bounded_and_little_is_padded() -> None:
    counts = [17 * i % 900 + 1 for i in range(200)]
    groups = group_rows(counts)
    assert sorted(i for group in groups for i in group) == list(range(200))
    padded = sum(len(group) * max(counts[i] for i in group) for group in groups)
    assert padded < 2 * sum(counts)
    assert all(len(group) * max(counts[i] for i in group) <= MOST_PADDED for group in groups[1:])
