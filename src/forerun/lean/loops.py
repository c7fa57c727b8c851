"""Loops as LLVM instructions, with what they carry in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forerun.lean.formats import I64


def repeat_from(
    builder: Any, begin: Any, end: Any, step: int, values: list[Any],
    body: Callable[[Any, list[Any]], list[Any]],
) -> list[Any]:  # fmt: skip
    """`values = body(i, values)` for i in range(begin, end, step)."""
    before = builder.block
    head = builder.append_basic_block("head")
    inside = builder.append_basic_block("inside")
    after = builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    carried = [builder.phi(value.type) for value in values]
    builder.cbranch(builder.icmp_signed("<", index, end), inside, after)
    builder.position_at_end(inside)
    new = body(index, carried)
    index.add_incoming(begin, before)
    index.add_incoming(builder.add(index, I64(step)), builder.block)
    for phi, old, value in zip(carried, values, new, strict=True):
        phi.add_incoming(old, before)
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried
