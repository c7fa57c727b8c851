"""Loads checkpoints whose matrices have few bits, tensor by tensor, from their files to the device.

The model is transformers' own, made without values. On a GPU its linear layers and experts keep
their weights packed; elsewhere the weights are converted to ordinary floats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.gpu.pool import DeviceMemoryError
from forerun.loading.damage import CURE, object_in
from forerun.loading.packed_experts import fill_experts
from forerun.loading.stored_formats import Format, Stored
from forerun.models.packed import PackedLinear, bytes_of, packed_parts

BESIDE = {"input_scale", "activation_scale", "activation_scale_inv", "input_zero_point",
          "output_scale", "k_scale", "v_scale", "q_scale", "inv_freq"}  # fmt: skip
"""Tensors about activations, which may be stored beside those of a matrix and are not read."""
SHARE = 0.95  # of the free memory, that weights may take


class Shards:
    """The tensors of a folder; each is read from its file when it is needed."""

    def __init__(self, folder: Path, device: Any) -> None:
        index = folder / "model.safetensors.index.json"
        whole = folder / "model.safetensors"
        names = {whole.name} if whole.is_file() else {*object_in(index)["weight_map"].values()}
        files = [folder / name for name in sorted(names)]
        self.num_bytes = sum(file.stat().st_size for file in files)
        opened: list[Any] = [safe_open(file, "pt", device=str(device)) for file in files]
        self._places: dict[str, Any] = {
            name: file
            for file in opened
            for name in file.keys()  # noqa: SIM118
        }
        self.unread = {*self._places}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def find(self, name: str) -> Any:
        """The tensor with this name, on the device; None if there is none."""
        if name not in self._places:
            return None
        self.unread.discard(name)
        return self._places[name].get_tensor(name)


def told(model: Any, stored_as: str) -> str:
    """A sentence on a loaded model: its bytes, format, pass and room for tokens."""
    plain = model.model
    total = sum(map(bytes_of, {id(each): each for each in plain.parameters()}.values()))
    total += sum(map(bytes_of, packed_parts(plain)))
    said = f"{model.name}: {total / 1e9:.2f} GB of weights from {stored_as}; {model.pass_name}"
    free = getattr(model, "num_tokens_expected", None)  # pages wait for models that come later
    return said if free is None else f"{said}; room for about {free:,} tokens"


def load_packed(
    folder: Path, stored_as: Format, device: Any, dtype: Any = None, keeps_bits: bool | None = None
) -> Any:
    """Load the model in a folder to a device.

    keeps_bits: whether linear layers keep their weights packed; None: only on a GPU.
    """
    if (folder / "adapter_config.json").is_file():
        wrong = "An adapter lies beside weights of few bits, into which it cannot be merged."
        cure = (
            "Merge it into the model in 16 bits and quantise that, or remove adapter_config.json."
        )
        raise UnsupportedError(explain(wrong, repr(str(folder)), cure))
    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config  # transformers would make layers of its own of it
    kind = dtype_of(dtype, getattr(config, "dtype", None))
    place = torch.device(device)
    shards, is_packed = Shards(folder, place), keeps_bits
    if is_packed is None:
        is_packed = place.type == "cuda"
    if place.type == "cuda":
        check_room(folder, shards.num_bytes, place)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=kind)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    found = fill_experts(model, shards, stored_as, kind, is_packed)
    found += _fill_linear(model, shards, stored_as, kind, is_packed)
    if not found:
        wrong = f"config.json says that weights are stored as {stored_as.name}, and none is."
        raise InputError(explain(wrong, repr(str(folder)), CURE))
    _fill_rest(model, shards, folder, kind)
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config=config).to(place)
    embedding = model.get_input_embeddings()
    if hasattr(embedding, "scalar_embed_scale"):  # a number that files do not have
        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale, device=place)
    unread = sorted(name for name in shards.unread if name.rpartition(".")[2] not in BESIDE)
    if unread:
        wrong = f"The checkpoint has {len(unread)} tensors that its config.json knows nothing of."
        raise InputError(explain(wrong, f"{unread[0]} in {str(folder)!r}", CURE))
    return model.eval()


def dtype_of(asked: Any, told: Any = None) -> Any:
    """The 16-bit precision of a model: the requested one, or the one in its configuration, or
    bfloat16."""
    if asked in (None, "auto"):
        return told if told in (torch.bfloat16, torch.float16) else torch.bfloat16
    return getattr(torch, str(asked).removeprefix("torch."))


def check_room(source: Path, needed: int, device: Any) -> None:
    """Refuse weights of a folder or file, of this many bytes, that do not fit a device."""
    free = SHARE * torch.cuda.mem_get_info(device)[0]
    if needed > free:
        wrong = "The GPU has no room for the weights of this model."
        received = (
            f"{needed / 1e9:.1f} GB in {str(source)!r} where {free / 1e9:.1f} GB are free: "
            f"{(needed - free) / 1e9:.1f} GB are missing"
        )
        cure = "Free memory, use a larger GPU, or a checkpoint of fewer bits."
        raise DeviceMemoryError(explain(wrong, received, cure))


def _fill_linear(
    model: Any, shards: Shards, stored_as: Format, dtype: Any, keeps_bits: bool
) -> int:  # fmt: skip
    """Read the few-bit matrices of all linear layers. Returns how many there were."""
    first, *others = stored_as.parts
    found = 0
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or f"{name}.{first}" not in shards:
            continue
        if first == "weight" and not any(f"{name}.{other}" in shards for other in others):
            continue  # stored as it is, or refused there
        shape = module.out_features, module.in_features

        def find(part: str, name: str = name) -> Any:
            return shards.find(f"{name}.{part}")

        matrix = stored_as.read(Stored(name, shape, dtype, find))
        bias = shards.find(f"{name}.bias")
        owner, _, own = name.rpartition(".")
        if bias is not None:
            bias = torch.nn.Parameter(bias.to(dtype), requires_grad=False)
        if keeps_bits:
            made: Any = PackedLinear(matrix, bias)
        else:
            made = torch.nn.Linear(shape[1], shape[0], bias is not None, device="meta")
            made.weight = torch.nn.Parameter(matrix.written_out(), requires_grad=False)
            made.bias = bias
        setattr(model.get_submodule(owner), own, made)
        found += 1
    return found


def _fill_rest(model: Any, shards: Shards, folder: Path, dtype: Any) -> None:
    """Read the tensors with 16 bits or more: embeddings, norms, biases, some matrices."""
    tied = model.config.tie_word_embeddings
    for name, parameter in list(model.named_parameters()):
        if not parameter.is_meta:
            continue
        values = shards.find(name)
        if values is None and tied and name == "lm_head.weight":
            continue
        if values is None or tuple(values.shape) != tuple(parameter.shape):
            received = "nothing" if values is None else str(tuple(values.shape))
            wrong = f"The checkpoint in {str(folder)!r} lacks the weight {name}."
            received += f" where {tuple(parameter.shape)} was expected"
            raise InputError(explain(wrong, received, CURE))
        if values.element_size() < 2:
            wrong = f"The weight {name} has few bits and no scales."
            raise InputError(explain(wrong, str(values.dtype).removeprefix("torch."), CURE))
        owner, _, own = name.rpartition(".")
        made = torch.nn.Parameter(values.to(dtype).contiguous(), requires_grad=False)
        setattr(model.get_submodule(owner), own, made)
    model.tie_weights()
