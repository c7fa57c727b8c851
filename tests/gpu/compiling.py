"""Compiles narrow products with weights of few bits, and attention to keys of 8, for compute
capability 9.0, without a device, and prints what became of their operands, by name, as JSON.

Run it with TRITON_INTERPRET=0: what is interpreted is never compiled.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
from packing import FORMATS, random_matrix
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from forerun.gpu import formats
from forerun.gpu.kernels.attention import attend, attend_whole
from forerun.gpu.kernels.experts import close_experts, open_experts
from forerun.gpu.kernels.layers import add_product

ROWS, OUTPUTS, INPUTS, AT_ONCE = 16, 32, 1024, 256


class Absent:
    """A device that kernels are compiled for and that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def layouts(how: dict[str, Any]) -> dict[str, Any]:
    """What `sides` says of a product."""
    read = formats.operand(random_matrix((OUTPUTS, INPUTS), **how))
    x, y = torch.empty(ROWS, INPUTS).bfloat16(), torch.empty(ROWS, OUTPUTS).bfloat16()
    return sides(add_product.warmup(
        x, read["w"], None, None, None, y, y, y, 1.0, ROWS, OUTPUTS, UNIT=0.0, K=INPUTS, P=1,
        BN=OUTPUTS, BK=AT_ONCE, MP=ROWS, MASKED=False, BIAS=False, ADD=False, NORM=False,
        BULK=False, FORMAT=read["FORMAT"], PDL=False, num_warps=2, num_stages=2, grid=(1,),
    ))  # fmt: skip


def layouts_of_experts(how: dict[str, Any]) -> list[dict[str, Any]]:
    """What `sides` says of the products with experts: gate and up, in turns and not, and down."""
    read = formats.operand(random_matrix((2 * OUTPUTS, INPUTS), **how))
    x, y = torch.empty(ROWS, INPUTS).bfloat16(), torch.empty(ROWS, OUTPUTS).bfloat16()
    squares, places = torch.empty(ROWS, 0), torch.empty(ROWS, dtype=torch.int32)
    sizes = {"D": OUTPUTS, "BN": OUTPUTS, "BK": AT_ONCE, "MP": ROWS, "BIAS": False, "PDL": False}
    sizes |= {"FORMAT": read["FORMAT"], "num_warps": 4, "num_stages": 2, "grid": (1, 1)}
    made = [
        open_experts.warmup(
            x, squares, read["w"], None, places, places, y, 1e-6, 1.7, 7.0, K=INPUTS, P=0, TOP=2,
            KIND="silu", TURNS=turns, **sizes,
        ) for turns in (False, True)
    ]  # fmt: skip
    made.append(close_experts.warmup(
        x, read["w"], None, places, places, y, N=OUTPUTS, **(sizes | {"D": INPUTS}),
    ))  # fmt: skip
    return [sides(one) for one in made]


def layouts_of_attention() -> list[dict[str, Any]]:
    """What `sides` says of attention to keys of 8 bits, of few queries and of many."""
    q, keys = torch.empty(ROWS, 64).bfloat16(), torch.empty(1, 1, 128, 64, dtype=torch.uint8)
    numbers, floats = torch.empty(ROWS, dtype=torch.int32), torch.empty(ROWS)
    where = [numbers, numbers, numbers, numbers, numbers, None, numbers, 1, 0.1, 0.0, 1, 9]
    sizes = {"H": 1, "KV": 1, "G": 1, "GP": 1, "HD": 64, "HP": 64, "CHUNK": 128, "BLOCK": 64}
    sizes |= {"SINKS": False, "CAPPED": False, "WINDOW": False, "TREE": False, "PDL": False}
    sizes |= {"num_stages": 2, "grid": (1, 1, 1)}
    few = sizes | {"MQ": 16, "ADDS": True, "num_warps": 2}
    many = sizes | {"MQ": 64, "num_warps": 4}
    return [
        sides(attend.warmup(q, keys, keys, q, floats, floats, numbers, *where, **few)),
        sides(attend_whole.warmup(q, keys, keys, q, *where, **many)),
    ]


def sides(made: Any) -> dict[str, Any]:
    """The inputs that lie side by side in a register, of all operands, the number of operands that
    were computed elsewhere and moved, and the number of loads that steps wait for."""
    lines = made.asm["ttgir"].splitlines()
    sides = {int(n) for line in lines for n in re.findall(r"dot_op<.*?kWidth = (\d+)", line)}
    moved = [line for line in lines if "local_alloc %" in line or "convert_layout %made" in line]
    loops = [place for place, line in enumerate(lines) if re.search("scf.(for|yield)", line)]
    waits = [line for line in lines[loops[0] : loops[-1]] if " tt.load " in line] if loops else []
    return {"side by side": sorted(sides), "moved": len(moved), "waits": len(waits)}


if __name__ == "__main__":
    driver.set_active(Absent())
    formats._has_pairs = lambda device: True
    found = {"keys": layouts_of_attention()}
    for name in sys.argv[1:]:
        found[name] = [layouts(FORMATS[name]), *layouts_of_experts(FORMATS[name])]
    print(json.dumps(found))
