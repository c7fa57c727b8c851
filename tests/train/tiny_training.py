"""A tiny target on disk with a tokenizer of words, prompts for it, and texts it might have said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_heads import VOCAB_SIZE, tiny_llama
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from forerun.drafters.heads.design import Design
from forerun.drafters.heads.network import Network
from forerun.train.course import forward_kl
from forerun.train.shards import Spoken
from forerun.train.teacher import Teacher
from forerun.train.training import Optimiser, Training, TrainingBudget
from forerun.train.unroll import HeadsRecipe

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + ' ' + m['content'] + ' ' + '</s>' + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>' }}{% endif %}"
)


def tiny_tokenizer() -> Any:
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(VOCAB_SIZE - 4))]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
    )


def save_target(folder: Path, seed: int = 3) -> str:
    """One that can be learned from little: sure of itself, and mostly by its last word."""
    model = tiny_llama(seed=seed, max_position_embeddings=64)
    with torch.no_grad():
        model.lm_head.weight *= 2
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= 0.05
            layer.mlp.down_proj.weight *= 0.02
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def save_prompts(file: Path, count: int = 40) -> str:
    rows = [{"prompt": f"w{i % 57} w{i * 7 % 57} w{i * 13 % 57}"} for i in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def some_texts(count: int = 12, seed: int = 0) -> list[Spoken]:
    """Random tokens with an answer at the end; held-out ones at temperature 0."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        length = int(rng.integers(8, 30))
        tokens = rng.integers(3, VOCAB_SIZE, length).astype(np.int32)
        found.append(Spoken(tokens, np.arange(length) >= length // 3, "words"))
    return found


def tiny_training(folder: Path, steps: int) -> Training:
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = tiny_llama(seed=3).requires_grad_(False)
    tokens = torch.arange(40)
    design = Design.after(model.config, len(tokens))
    network = Network(design).initialise(model.get_output_embeddings().weight[tokens])
    teacher = Teacher(model, design.layers, tokens)
    return Training(
        course=HeadsRecipe(2, "fading").course(network, teacher, forward_kl),
        optimiser=Optimiser(network, 1e-3, muon=True),
        budget=TrainingBudget(None, steps),
        batch_tokens=96,
        seed=0,
        folder=folder,
    )
