"""A folder of every kind of drafter that is read here, all for the same tiny target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dflash_files
import torch
from eagle3_reference import Head
from mtp_reference import Layer
from safetensors.torch import save_file
from tiny_blocks import save_block
from tiny_heads import save_drafter, tiny_llama

SEED = 3  # of the target


def medusa(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 1}')
    head, tensors = tiny_llama(SEED).get_output_embeddings().weight.detach(), {}
    torch.manual_seed(0)
    for number in range(2):
        tensors[f"{number}.0.linear.weight"] = torch.randn(32, 32) * 0.1
        tensors[f"{number}.0.linear.bias"] = torch.randn(32) * 0.1
        tensors[f"{number}.1.weight"] = head + 0.1 * number
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


def of_ours(save: Callable[..., Any]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        save(folder, tiny_llama(SEED))
        return folder

    return write


KINDS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "heads": ("heads", of_ours(save_drafter)),
    "block": ("block", of_ours(save_block)),
    "eagle3": ("eagle3", lambda folder: Head(rope_theta=1e4).save(folder)),
    "eagle3 of speculators": (
        "eagle3",
        lambda folder: Head(rope_theta=1e4).save(folder, "speculators", norm_before_residual=False),
    ),
    "dflash": ("dflash", lambda folder: dflash_files.write(folder, dflash_files.flat())),
    "dflash of speculators": (
        "dflash",
        lambda folder: dflash_files.write(folder, dflash_files.of_speculators()),
    ),
    "dflash2": ("dflash", dflash_files.write_second),
    "dflash2 of speculators": (
        "dflash",
        lambda folder: dflash_files.write_second(folder, dflash_files.of_speculators_second()),
    ),
    "medusa": ("medusa", medusa),
    "mtp": ("mtp", lambda folder: Layer("qwen", model_type="qwen3").save(folder)),
    "mtp of speculators": ("mtp", lambda folder: Layer("speculators").save(folder)),
}
"""By kind: the drafter that reads it, and what writes a folder."""
