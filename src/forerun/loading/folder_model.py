"""The model in a folder of safetensors files: its configuration, and where its weights lie."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from forerun.base.arrays import HostArray
from forerun.base.errors import InputError, explain
from forerun.drafters.heads.mtp_layouts import belonging
from forerun.loading.damage import CURE, check_files, config_of, shards_of
from forerun.loading.folders import check_folder, tokenizer_of
from forerun.loading.kinds import refuse_other_kinds

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The types of tensors that the lean pass reads, by their names in files."""


class FolderTensor(NamedTuple):
    """A tensor in a file: its name, shape and type, and where it begins."""

    name: str
    shape: tuple[int, ...]
    type: str
    path: Path
    begin: int  # byte

    def values(self) -> HostArray:
        """The values as float32, read by the safetensors library."""
        with safe_open(self.path, "pt") as file:
            found = file.get_slice(self.name)[: self.shape[0]].float()
        values: HostArray = found.numpy()
        return values


class FolderModel(NamedTuple):
    """A model in a folder, with the tensor names and shapes that transformers expects."""

    folder: Path
    config: Any  # transformers'
    tensors: dict[str, FolderTensor]  # by their names in transformers
    skeleton: Any  # the transformers model on the device "meta": it has no values
    tokenizer: Any  # None if there is none

    def num_turned_heads(self, name: str) -> int:
        """Always 0, because rows are stored in the order in which they are used."""
        return 0

    def values(self, name: str) -> HostArray:
        """The values of a tensor; InputError if some are not finite."""
        values = self.tensors[name].values()
        if not np.isfinite(values).all():
            wrong = f"The weight {name} holds NaN or infinity."
            raise InputError(explain(wrong, repr(str(self.folder)), CURE))
        return values

    def of(self, config: Any, tensors: dict[str, FolderTensor]) -> FolderModel:
        """The same model with another configuration and the tensors that belong to it."""
        return self._replace(config=config, tensors=tensors, skeleton=_skeleton(config))


def read_folder(folder: Path, dtype: str) -> FolderModel | None:
    """Describe the model in a folder. None if its weights are not simply those of its configuration
    in the requested precision; then transformers loads it, or says what is wrong."""
    told = config_of(folder)
    check_folder(folder)
    refuse_other_kinds(folder, told)
    check_files(folder, told)
    tensors = {tensor.name: tensor for tensor in _tensors(folder)}
    for name in belonging(tensors):  # a drafter reads them, and the model does not
        del tensors[name]
    if "quantization_config" in told or not _keeps(dtype, told, tensors):
        return None
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        skeleton = _skeleton(config)
        if (folder / "generation_config.json").is_file():
            skeleton.generation_config = GenerationConfig.from_pretrained(folder)
        tokenizer = tokenizer_of(folder)
    except Exception:  # loading it in the usual way tells what is wrong
        return None
    expected = {name: tuple(weight.shape) for name, weight in skeleton.state_dict().items()}
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]
    if {name: tensor.shape for name, tensor in tensors.items()} != expected:
        return None
    return FolderModel(folder, config, tensors, skeleton, tokenizer)


def _keeps(dtype: str, told: Mapping[str, Any], tensors: Mapping[str, FolderTensor]) -> bool:
    """Whether the files hold only weights in this precision."""
    kept = {DTYPES.get(tensor.type) for tensor in tensors.values()}
    if dtype == "auto":
        dtype = told.get("dtype") or told.get("torch_dtype") or "auto"
    is_one = len(kept) == 1 and dtype in (*kept, "auto")
    return bool(kept) and None not in kept and (is_one or dtype == "float32")


def _tensors(folder: Path) -> Iterator[FolderTensor]:
    """All tensors of the files that transformers would read."""
    files = [folder / name for name in sorted(shards_of(folder))] or [folder / "model.safetensors"]
    for file in filter(Path.is_file, files):
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
        for name, about in header.items():
            if name != "__metadata__":
                begin = 8 + size + about["data_offsets"][0]
                yield FolderTensor(name, tuple(about["shape"]), about["dtype"], file, begin)


def _skeleton(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)
