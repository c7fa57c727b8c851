"""A block network of a tiny Llama's sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_heads import tiny_llama
from transformers import LlamaForCausalLM

from forerun.drafters.block.network import BlockNetwork
from forerun.drafters.heads.design import BlockDesign
from forerun.drafters.heads.files import Trained, load, save
from forerun.drafters.heads.fingerprint import Fingerprint


def tiny_block_network(
    num_tokens: int = 40, seed: int = 0, config: Any = None, **changes: Any
) -> BlockNetwork:
    torch.manual_seed(seed)
    config = tiny_llama().config if config is None else config
    choices = {"num_layers": 2, "has_head_norms": True, "block_size": 4, "mask_token": 5}
    design = BlockDesign.after(config, num_tokens)
    design = replace(design, **choices | changes)
    network = BlockNetwork(design).initialise(torch.randn(num_tokens, design.hidden_size))
    for layer in network.layers:  # so that the block's entries matter to one another
        layer.initialise_layer()
        layer.output.weight.data *= 10
        layer.down.weight.data *= 10
    return network


def save_block(
    folder: Path, model: LlamaForCausalLM, seed: int = 0, *, num_tokens: int = 40, **changes: Any
) -> Trained:
    """A block drafter of random weights for a tiny model, as it is read back: in 8 bits."""
    network = tiny_block_network(num_tokens, seed, model.config, **changes)
    tokens = np.sort(np.random.default_rng(seed).permutation(model.config.vocab_size)[:num_tokens])
    network.head.weight.data.copy_(model.get_output_embeddings().weight.detach()[tokens])
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    save(folder, Trained(network.design, Fingerprint.of(model, "tiny"), tokens, weights))
    return load(folder)


def block_network_of(trained: Trained) -> BlockNetwork:
    design: Any = trained.design
    network = BlockNetwork(design)
    network.load_state_dict({name: torch.from_numpy(w) for name, w in trained.weights.items()})
    return network.requires_grad_(False)
