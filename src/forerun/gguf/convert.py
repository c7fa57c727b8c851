"""Converts a GGUF file to a folder that transformers loads in a moment.

transformers can read some of these files itself, but takes half a minute every time, needs
accelerate, and splits numbers unlike the models' own tokenizers.  Converting weights to float32
loses nothing.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tqdm.auto import tqdm

from forerun.base.errors import notice
from forerun.gguf.file import Tensor
from forerun.gguf.model import explaining, read_model

BAR = "{desc}: {percentage:3.0f}%|{bar:30}| {elapsed}<{remaining}"
SHARD = 2 << 30  # bytes of weights that are in memory at a time


def convert(source: Path, folder: Path, title: str) -> None:
    """Write the configuration, tokenizer and weights of `source` into `folder`.

    title: the text of the progress bar.  Raises InputError or UnsupportedError for a file that is
    damaged or of another architecture.
    """
    model = read_model(source)
    tensors = model.tensors
    needed = sum(map(_num_bytes, tensors.values()))
    if (free := shutil.disk_usage(folder).free) < needed:
        raise OSError(f"it needs {needed >> 20:,} MB, and {free >> 20:,} MB are free")
    if not sys.stderr.isatty():  # no bar is shown
        notice(f"converting {title}, once")
    model.config.save_pretrained(folder)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    total = sum(tensor.num_bytes for tensor in tensors.values())
    with tqdm(desc=f"Converting {title}, once", total=total, bar_format=BAR, disable=None) as bar:
        places = {}
        for number, names in enumerate(_shards(tensors)):
            weights = {}
            for name in names:
                with explaining(model.file):
                    weights[name] = np.ascontiguousarray(model.values(name))
                bar.update(tensors[name].num_bytes)
            shard = f"model-{number + 1}.safetensors"
            save_file(weights, folder / shard, metadata={"format": "pt"})
            places.update(dict.fromkeys(names, shard))
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _shards(tensors: dict[str, Tensor]) -> Iterator[list[str]]:
    """Lists of tensor names: each list has at most SHARD bytes, or one larger tensor."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and size + _num_bytes(tensor) > SHARD:
            yield names
            names, size = [], 0
        names.append(name)
        size += _num_bytes(tensor)
    yield names


def _num_bytes(tensor: Tensor) -> int:
    """The size of a tensor in float32."""
    return 4 * math.prod(tensor.shape)
