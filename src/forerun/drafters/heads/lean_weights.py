"""A drafting network as the lean CPU pass takes it: weights in panels, and memory for passes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forerun.drafters.heads.design import Design
from forerun.lean.attention import HeadShape
from forerun.lean.heads_pass import HeadsScratch, HeadsWeights
from forerun.lean.linear import Floats, alternate, join, make_limbs
from forerun.lean.storage import padded


def take(design: Design, weights: Mapping[str, Floats], embedding: Floats) -> HeadsWeights:
    """The weights, copied into panels of the fewest bits that keep them."""
    part = {name.removesuffix(".weight"): values for name, values in weights.items()}
    matrices = [
        part["fuse"],
        part["qkv"],
        part["output"],
        alternate(*np.split(part["gate_up"], 2)),
        part["down"],
        part["head"],
    ]
    norms = ("norm_feature", "norm_embedding", "norm_mlp", "norm_head")
    parts = (([matrix], np.zeros(len(matrix), np.float32)) for matrix in matrices)
    return HeadsWeights(
        matrices=join(parts, is_coarse=True),
        embedding=embedding,
        layer_norms=part["norm_layers"].reshape(-1, design.hidden_size),
        norms=np.stack([part[norm] for norm in norms]),
        head_norms=np.ones((2, design.head_size), np.float32),
        heads=HeadShape(
            queries=design.num_heads,
            keys=design.num_kv_heads,
            size=design.head_size,
            wide=padded(design.head_size),
            scale=np.float32(design.head_size**-0.5),
            has_norms=False,
            eps=np.float32(0),
        ),
        eps=np.float32(design.norm_eps),
    )


def make_scratch(weights: HeadsWeights, num_tokens: int) -> HeadsScratch:
    """Memory for passes of up to so many tokens."""
    heads, m = weights.heads, weights.matrices
    hidden, inner = weights.embedding.shape[1], heads.queries * heads.size

    def room(*shape: int) -> Floats:
        return np.empty(shape, np.float32)

    return HeadsScratch(
        hidden=room(num_tokens, weights.layer_norms.size),
        features=room(num_tokens, hidden),
        joined=room(num_tokens, 2 * hidden),
        qkv=room(num_tokens, inner + 2 * heads.keys * heads.size),
        queries=room(heads.keys, num_tokens * (heads.queries // heads.keys), heads.size),
        mixed=room(num_tokens, inner),
        gathered=room(num_tokens, inner),
        normed=room(num_tokens, hidden),
        inner=room(num_tokens, int(m.depth[4])),
        limbs=make_limbs(m, num_tokens),
    )
