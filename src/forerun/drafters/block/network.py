"""A network of a few decoder layers that guesses a whole block of tokens in one pass, like DFlash.

For every token that the target has processed, its hidden states are fused into one feature, and
each layer makes a key and a value of it: the network sees nothing else of the text. A block
consists of the text's newest token, the *anchor*, which the target has not processed yet, and masks
after it. Every entry of the block attends to all features and to the whole block, later entries
included, and its output gives the distribution of one token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from forerun.drafters.block.local_conv import AFTER, BEFORE, LocalConv
from forerun.drafters.heads.design import BlockDesign
from forerun.drafters.heads.network import Deeper, RMSNorm, spread


class BlockLayer(Deeper):
    """A decoder layer; some published ones have local convolutions around attention and MLP."""

    def __init__(self, design: BlockDesign) -> None:
        super().__init__(design)
        self.has_convs = design.conv_taps > 0
        if self.has_convs:
            self.conv_attention, self.conv_mlp = LocalConv(design), LocalConv(design)

    def project(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed = self.norm(hidden)
        if self.has_convs:
            normed = self.conv_attention(normed, normed, BEFORE)
        return self.split(normed, cos, sin)

    def add(self, residual: Tensor, attended: Tensor) -> Tensor:
        if not self.has_convs:
            return super().add(residual, attended)
        added = self.output(attended)
        hidden = residual + self.conv_attention(added, self.norm(residual), AFTER)
        normed = self.norm_mlp(hidden)
        gate, up = self.gate_up(self.conv_mlp(normed, normed, BEFORE)).chunk(2, -1)
        added = self.down(nn.functional.silu(gate) * up)
        finished: Tensor = hidden + self.conv_mlp(added, normed, AFTER)
        return finished


class BlockNetwork(nn.Module):  # type: ignore[misc]
    """The network without the attention itself, which differs between training and drafting."""

    def __init__(self, design: BlockDesign) -> None:
        super().__init__()
        width, eps = design.hidden_size, design.norm_eps
        self.design = design
        self._selects = design.selector_rank > 0
        if design.norm_parts:
            size = design.num_features // design.norm_parts
            self.norm_layers = RMSNorm(design.norm_parts, size, eps)
        self.fuse = nn.Linear(design.num_features, width, bias="fuse" in design.biases)
        self.norm_feature = RMSNorm(1, width, eps)
        self.layers = nn.ModuleList(BlockLayer(design) for _ in range(design.num_layers))
        self.norm_head = RMSNorm(1, width, eps)
        self.head = nn.Linear(width, design.num_tokens, bias=False)
        if design.selector_rank:
            self.selector = nn.Linear(width, design.selector_rank, bias=False)

    def features(self, hidden: Tensor) -> Tensor:
        """Fuse the target's hidden states (..., F) into features (..., D)."""
        fused = self.fuse(self.norm_layers(hidden) if self.design.norm_parts else hidden)
        normed: Tensor = self.norm_feature(fused)
        return normed

    def entries(self, embedding: Tensor, anchors: Tensor) -> Tensor:
        """The inputs of the first layer (..., block, D) for blocks with these anchors (...)."""
        masks = anchors.new_full((self.design.block_size - 1,), self.design.mask_token)
        tokens = torch.cat((anchors[..., None], masks.expand(*anchors.shape, -1)), -1)
        scaled: Tensor = embedding[tokens] * self.design.embedding_scale
        return scaled

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines and sines (..., d / 2) of positions (...), which all layers share."""
        turned: tuple[Tensor, Tensor] = self.layers[0].angles(positions)
        return turned

    def outputs(self, hidden: Tensor) -> Tensor:
        """The outputs that are guesses, (..., N, D): those of all entries, or of all but the
        anchor."""
        return hidden if self.design.anchor_guesses else hidden[..., 1:, :]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the draft vocabulary, (..., Vd), followed by what a selector reads, if there
        is one."""
        normed = self.norm_head(hidden)
        output: Tensor = self.head(normed)
        return torch.cat((output, self.selector(normed)), -1) if self._selects else output

    def initialise(self, head: Tensor) -> BlockNetwork:
        """Initialise the head with the target's rows (Vd, D); all other weights are random."""
        spread(self.fuse, 1.0)
        for layer in self.layers:
            layer.initialise_layer()
        self.head.weight.data.copy_(head)
        return self
