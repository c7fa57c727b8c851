"""A tiny random Llama and a drafting network of its sizes, for tests of everything around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from forerun.drafters.heads.design import Design
from forerun.drafters.heads.files import Trained, load, save
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.network import Network

VOCAB_SIZE = 61


def tiny_llama(seed: int = 0, **changes: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = LlamaConfig(**{**sizes, **changes}, initializer_range=0.3)
    return LlamaForCausalLM(config).eval()


def tiny_network(num_tokens: int = 40, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    design = Design.after(tiny_llama().config, num_tokens)
    return Network(design).initialise(torch.randn(num_tokens, design.hidden_size))


def save_drafter(
    folder: Path,
    model: LlamaForCausalLM,
    seed: int = 0,
    *,
    like_target: bool = False,
    num_tokens: int = 40,
) -> Trained:
    """A drafter of random weights for a tiny model, as it is read back: in 8 bits.

    like_target: one that often agrees, because it reads the last feature with the target's head.
    """
    torch.manual_seed(seed)
    tokens = np.sort(np.random.default_rng(seed).permutation(model.config.vocab_size)[:num_tokens])
    design = Design.after(model.config, len(tokens))
    network = Network(design).initialise(torch.randn(len(tokens), design.hidden_size))
    if like_target:
        network.initialise(model.get_output_embeddings().weight.detach()[tokens])
        network.fuse.weight.data.zero_()
        network.fuse.weight.data[:, -design.hidden_size :] = torch.eye(design.hidden_size)
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    save(folder, Trained(design, Fingerprint.of(model, "tiny"), tokens, weights))
    return load(folder)


def network_of(trained: Trained) -> Network:
    network = Network(trained.design)
    network.load_state_dict({name: torch.from_numpy(w) for name, w in trained.weights.items()})
    return network.requires_grad_(False)
