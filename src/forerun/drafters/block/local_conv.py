"""A local convolution around attention or an MLP, by which an entry of a block knows those before
it.

Its coefficients are fixed numbers per channel, plus numbers that a product makes of the entry and
that a group of channels shares. Published as part of DFlash2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from forerun.drafters.heads.design import BlockDesign

BEFORE, AFTER = 0, 1  # the attention or the MLP


class LocalConv(nn.Module):  # type: ignore[misc]
    """The convolutions of the inputs and of the outputs of one attention or MLP."""

    def __init__(self, design: BlockDesign) -> None:
        super().__init__()
        taps, width, group = design.conv_taps, design.hidden_size, design.conv_group
        self.group = group
        self.base = nn.Parameter(torch.zeros(2, taps, width))
        self.kernel = nn.Linear(width, 2 * taps * width // group, bias=False)

    def forward(self, values: Tensor, inputs: Tensor, side: int) -> Tensor:
        """The sums (..., S, D) over the last entries of values (..., S, D).

        inputs: what the coefficients depend on, (..., S, D): the inputs of the attention or MLP.
        side: `BEFORE` or `AFTER`.
        """
        base = self.base[side]
        own = nn.functional.linear(inputs, self.kernel.weight.chunk(2)[side])
        shares = own.unflatten(-1, (len(base), -1)).repeat_interleave(self.group, -1)
        found: Tensor = values * (base[0] + shares[..., 0, :])
        for tap in range(1, len(base)):
            earlier = nn.functional.pad(values[..., :-tap, :], (0, 0, tap, 0))
            found = found + earlier * (base[tap] + shares[..., tap, :])
        return found
