"""Makes a `LanguageModel` from a name, a transformers model or a function."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.base.errors import InputError, UnsupportedError, explain, meant, notice, shown_by, warn
from forerun.gguf.magic import is_gguf
from forerun.loading import hub
from forerun.loading.bundled import NAME, local_copy
from forerun.loading.damage import (
    check_complete,
    check_files,
    check_finite,
    config_of,
    not_loaded,
    told_by_name,
)
from forerun.loading.device_choice import check_place, usual_device
from forerun.loading.folders import at_home, check_folder, check_name, tokenizer_of
from forerun.loading.kinds import check_adapter, is_adapter, merged, refuse_other_kinds
from forerun.loading.lean_pass import (
    KvDtype,
    Lean,
    Quantize,
    check_kv_dtype,
    check_pass,
    memory_of,
    with_pass,
)
from forerun.loading.sources import Source, is_for_cpu, source_of
from forerun.models.adapter import NEEDED, huggingface_model, missing, register
from forerun.models.base import CpuPass, LanguageModel
from forerun.models.function import FunctionModel
from forerun.models.no_warnings import no_loading_bar
from forerun.models.trial_results import findings_of

if TYPE_CHECKING:
    from forerun.gpu.model import GpuModel
    from forerun.lean.model import LeanModel
    from forerun.models.huggingface import HuggingFaceModel

SHARED = ("revision", "token", "cache_dir", "local_files_only", "trust_remote_code")
"""Arguments of `load` that are also passed to the tokenizer's loader."""
OWN = ("device", "dtype", "lean", "quantize", "gpu_memory", "kv_dtype")
"""Arguments of `load` that are not passed on to `from_pretrained`."""
NARROW = ("None", "auto", "bfloat16", "float16")
"""The values of `dtype` with which a GPU multiplies the weights of a GGUF file in their packed
form."""
USUAL_FILES = ("model.safetensors", "model.safetensors.index.json")
"""A folder with few-bit weights contains one of these files."""
OFTEN = ("attn_implementation", "device_map", "gguf_file", "quantization_config", "subfolder")
"""Arguments that often go to `from_pretrained`."""


@shown_by('fr.load("HuggingFaceTB/SmolLM2-135M-Instruct")')
def load(
    name_or_path: str | Path,
    device: Any = None,
    dtype: Any = None,
    *,
    lean: Lean = "auto",
    quantize: Quantize | None = None,
    gpu_memory: float | str | None = None,
    kv_dtype: KvDtype | None = None,
    **given: Any,
) -> HuggingFaceModel | LeanModel | GpuModel:
    """Load a causal language model and its tokenizer, from a directory or the Hugging Face hub.

    `dtype=None` keeps the precision the weights were saved in. Further arguments (`given`) go to
    `AutoModelForCausalLM.from_pretrained`. The default model, SmolLM2-135M-Instruct, comes from
    its pip package where that is installed: its weights are then the 4-bit numbers of a GGUF file,
    written out as float32, and not the hub's bfloat16 ones.  Naming a `revision` asks for those.

    `device=None` takes the GPU where there is one.  On a CPU, and on a GPU in bfloat16 or float16,
    `lean="auto"` takes the lean pass where it fits the model and reproduces it; True insists on
    it, False keeps to transformers. On a CPU it computes in float32: bfloat16 and float16 weights
    stay as they are, each is widened when it is multiplied, and the text is that of the model in
    float32. `pass_name` of the result says which pass runs, and `why_not_lean` why it is not the
    lean one, if it is not.
    A GGUF file or a folder is packed for that pass as it is, at every start; the cache keeps what
    took torch and transformers to find out, so that a later start does without them.
    `quantize="int8"` rounds its weights to 8 bits: that is another target, and named so.
    `gpu_memory` is how much of the GPU this process may fill, weights, keys and values together:
    a share such as 0.9, or an amount such as "40GiB". None leaves half of what is free to others.
    `kv_dtype="float8"` rounds keys and values to 8 bits (e4m3) on the lean GPU pass: twice as many
    tokens fit, and the text is another one. That is lossy, and `pass_name` says so.
    """
    given_name: Any = name_or_path
    if not isinstance(given_name, str | Path):
        kind, cure = type(given_name).__name__, "For a model itself, use forerun.wrap(model)."
        raise InputError(explain("A model is loaded by its name or folder.", f"a {kind}", cure))
    check_pass(lean, quantize)
    if kv_dtype is not None:
        check_kv_dtype(kv_dtype, lean, quantize, "cpu" if is_for_cpu(device) else "cuda")
    memory = memory_of(gpu_memory)
    if few_bits := {"load_in_8bit", "load_in_4bit"} & {*given}:
        cure = 'Use quantize="int8", or quantization_config= with lean=False.'
        raise InputError(explain("transformers no longer takes this.", min(few_bits), cure))
    check_place(device, dtype)
    check_name(str(name_or_path))
    shared = {name: given[name] for name in SHARED if name in given}
    if not given and lean is not False and is_for_cpu(device):
        source = source_of(str(name_or_path), dtype)
        if source is not None:
            if name_or_path == NAME:
                _compile_drafter()
            packed = _read(source, str(name_or_path), is_rounded=quantize is not None)
            if packed is not None:
                _tell_numbers(packed, dtype)
                return _from(packed, is_gguf(source.place))
    where = device or (usual_device() if quantize is None else None) or "cpu"
    if not given and lean is not False and str(where).startswith("cuda"):
        path = at_home(str(name_or_path))
        if is_gguf(path) and str(dtype).removeprefix("torch.") in NARROW:
            return _gguf_on_gpu(path, str(name_or_path), where, dtype, lean, memory, kv_dtype)
    copied = None if "revision" in shared else local_copy(str(name_or_path))
    is_at_home = str(name_or_path).startswith("~")
    place = copied or (at_home(str(name_or_path)) if is_at_home else name_or_path)
    _check_extra()
    folder = Path(place)
    config: Mapping[str, Any] = {}
    if folder.is_dir() and not {"subfolder", "config", "gguf_file"} & {*given}:
        config = config_of(folder)
        check_folder(folder)
        refuse_other_kinds(folder, config)
        check_files(folder, config)
    if not folder.exists() and not _can_download(str(place), shared):
        shared["local_files_only"] = given["local_files_only"] = True
    if not folder.exists() and lean is not False and not {*given} - {*SHARED}:
        options = {name: shared[name] for name in shared if name != "trust_remote_code"}
        if (found := hub.packed_folder(str(place), **options)) is not None:
            folder, place, config = found, found, config_of(found)
    wrapper = huggingface_model()
    import torch
    from transformers import AutoModelForCausalLM

    name = str(name_or_path)
    read: Mapping[str, Any] = {}
    is_usual = lean is not False and not {*given} - {*SHARED}
    stored_as = _packed_format(name, folder, config, lean) if is_usual else None
    given.setdefault("trust_remote_code", False)  # else a folder with code asks a question
    with told_by_name(name, folder, partial(_refuse_unknown, given=given)), no_loading_bar():
        tokenizer = tokenizer_of(
            place, **{**shared, "trust_remote_code": given["trust_remote_code"]}
        )
        model = None
        if is_adapter(folder):
            check_adapter(folder)
            model = merged(folder, dtype=dtype or "auto", **given)
        elif stored_as is not None:
            model = _packed(name, folder, stored_as, where, dtype, lean)
        if model is None:
            stored_as = None
            model, read = AutoModelForCausalLM.from_pretrained(
                place, dtype=dtype or "auto", **{**given, "output_loading_info": True}
            )
    if "attn_implementation" not in given:
        _heed_caps(model)
    check_complete(name, read, may_leave_out="num_hidden_layers" in given)
    if device is not None:
        model = model.to(device)
    elif (
        not {"device_map", "distributed_config"} & given.keys()
        and quantize is None
        and not (
            lean is True and model.dtype is torch.float32  # the lean pass for float32 is the CPU's
        )
    ):
        model = on_usual_device(model)
    check_finite(name, model)
    loaded = wrapper(model.eval(), tokenizer)
    loaded.name = name
    chosen = with_pass(loaded, lean, quantize, memory, kv_dtype)
    _tell_numbers(chosen, dtype)
    if stored_as is not None:
        from forerun.loading.packed_checkpoint import told

        notice(told(chosen, stored_as.name))
    return _from(chosen, copied is not None)


def _read(source: Source, name: str, *, is_rounded: bool) -> LeanModel | None:
    """Load a source on the lean CPU pass; None if it must be loaded in another way."""
    try:
        from forerun.loading.from_files import load_packed

        return load_packed(source, name, is_rounded=is_rounded)
    except ImportError:  # loading the model itself will say what is wrong
        return None


def _gguf_on_gpu(
    path: Path, name: str, device: Any, dtype: Any, lean: Lean, memory: Any, kv_dtype: Any
) -> HuggingFaceModel | LeanModel | GpuModel:
    """Load a GGUF file on a GPU, keeping its weights in the bits of the file."""
    _check_extra()
    wrapper = huggingface_model()
    from forerun.loading.packed_checkpoint import told
    from forerun.loading.packed_gguf import load_gguf

    model, tokenizer = load_gguf(path, device, dtype)
    loaded = wrapper(model, tokenizer)
    loaded.name = name
    chosen = with_pass(loaded, lean, None, memory, kv_dtype)
    notice(told(chosen, "GGUF blocks"))
    return _from(chosen, True)


def _packed_format(name: str, folder: Path, config: Mapping[str, Any], lean: Lean) -> Any:
    """The few-bit format in which a folder stores its weights; None if there is none, or if
    transformers should load it."""
    about = config.get("quantization_config")
    if not isinstance(about, Mapping):
        return None
    from forerun.loading.stored_formats import format_of, unserved
    from forerun.models.families import FAMILIES

    try:
        kind, *_ = config.get("architectures") or ("a model of no named architecture",)
        if kind not in FAMILIES:
            raise unserved(f"few bits in {kind!r:.60}", "the families of docs/models.md")
        if not any((folder / each).is_file() for each in USUAL_FILES):
            raise unserved("weights in files of other names", " or ".join(USUAL_FILES))
        return format_of(about)
    except UnsupportedError as error:
        if lean is True:
            raise
        warn(f"{name} is left to transformers: {error}")
        return None


def _packed(name: str, folder: Path, stored_as: Any, device: Any, dtype: Any, lean: Lean) -> Any:
    """Load a folder with few-bit weights; None if transformers should load it."""
    from forerun.loading.packed_checkpoint import load_packed

    try:
        return load_packed(folder, stored_as, device, dtype)
    except UnsupportedError as error:
        if lean is True or (folder / "adapter_config.json").is_file():
            raise
        warn(f"{name} is left to transformers: {error}")
        return None


def _tell_numbers(model: Any, dtype: Any) -> None:
    """Warn if a model computes in another precision than requested."""
    asked = str(dtype).removeprefix("torch.")
    if isinstance(model, CpuPass) and asked not in ("None", "auto", "float32"):
        warn(
            f"{model.name}: the weights are rounded to {asked}, but the lean CPU pass computes "
            f"in float32. lean=False (--no-lean) computes in {asked}."
        )


def _from(model: Any, is_converted: bool) -> HuggingFaceModel | LeanModel | GpuModel:
    """The model; if it was converted, its `source` now says so."""
    loaded: HuggingFaceModel | LeanModel | GpuModel = model
    if is_converted:
        model.source = "from a GGUF file"
    return loaded


@shown_by("fr.wrap(model, tokenizer)")
def wrap(model: Any, tokenizer: Any = None) -> LanguageModel:
    """Wrap any kind of model as a `LanguageModel`.

    A `LanguageModel` is returned unchanged, a transformers model is adapted, the name or folder of
    a model is loaded, and any other function is taken for one from token ids to distributions. A
    model is tried out the first time, and again only if it is run in another way since (device,
    dtype, attention, adapters). On a GPU it is run by the lean pass where that fits and reproduces
    it: the linear layers become views of larger matrices. The lean CPU pass copies the weights, so
    it is not taken here: `forerun.lean.model.LeanModel(model, tokenizer)` asks for it.
    """
    if isinstance(model, str | Path):
        return load(str(model))
    if isinstance(model, type):
        wrong, name = "That is a class and not yet a model.", model.__name__
        raise InputError(explain(wrong, f"the class {name}", "Pass an object of it."))
    if isinstance(model, LanguageModel):
        if tokenizer is not None and getattr(model, "tokenizer", None) is not tokenizer:
            wrong, cure = "That is a LanguageModel already.", "Set its attribute `tokenizer`."
            raise InputError(explain(wrong, f"{type(model).__name__} and a tokenizer", cure))
        return model
    if hasattr(model, "config") and hasattr(model, "forward"):
        _check_tokenizer(tokenizer)
        wrapped = huggingface_model()(model, tokenizer)
        wrapped.findings = findings_of(model)
        return with_pass(wrapped) if wrapped.on_gpu else wrapped
    if _is_tokenizer(model) and hasattr(model, "get_vocab"):  # which a function has not
        wrong = "The first argument is a tokenizer and no causal language model."
        cure = "Pass the model first: forerun.wrap(model, tokenizer)."
        raise InputError(explain(wrong, f"a {type(model).__name__}", cure))
    if callable(model) and not hasattr(model, "forward"):
        _check_tokenizer(tokenizer)
        made = FunctionModel(model)
        made.tokenizer = tokenizer
        return made
    cure = "Pass a model's name or folder, or one of these."
    if hasattr(model, "forward"):
        cure = (
            "Wrap a function around a torch module of another kind: token ids (N,) in, the "
            "distribution of the next token (V,) out."
        )
    raise InputError(
        explain(
            "A model must be a transformers causal model, a function of token ids, or an object "
            "with the methods of LanguageModel.",
            f"{type(model).__name__}",
            cure,
        )
    )


def _is_tokenizer(value: Any) -> bool:
    verbs = (getattr(value, verb, None) for verb in ("encode", "decode"))
    return not isinstance(value, type) and all(map(callable, verbs))


def _check_tokenizer(tokenizer: Any) -> None:
    """Refuse an object that cannot turn texts into tokens and back, such as the name of a
    tokenizer."""
    if tokenizer is None or _is_tokenizer(tokenizer):
        return
    cure = (
        "Pass the tokenizer itself, for example AutoTokenizer.from_pretrained(name) of "
        "transformers, or None for a model that reads token ids."
    )
    wrong = "A tokenizer is an object that can encode and decode."
    shown = f"the {type(tokenizer).__name__} {tokenizer!r:.80}"
    raise InputError(explain(wrong, shown, cure))


def on_usual_device(model: Any) -> Any:
    """Move the model to the GPU, if there is one with enough room."""
    device = usual_device()
    if device is None:
        return model
    import torch

    try:
        return model.to(device)
    except torch.cuda.OutOfMemoryError:
        warn("The model stays on the CPU: the GPU has no room for it. device= chooses.")
        return model.to("cpu")


def _compile_drafter() -> None:
    """Compile the default model's drafter in a second process, while loading compiles the model's
    pass."""
    try:
        from forerun.lean import compiler
    except ImportError:  # loading will say what is wrong
        return
    compiler.begin()


def _check_extra() -> None:
    for module in NEEDED:
        if find_spec(module) is None:
            raise missing(module)


def _can_download(name: str, options: Mapping[str, Any]) -> bool:
    """Whether the hub serves the model. If not, raises unless it was downloaded before."""
    reason: str | None = "local_files_only keeps the Hugging Face hub from being asked"
    if not options.get("local_files_only"):
        reason = hub.why_not(name, options.get("token"))
    if reason is not None and not hub.is_cached(name, options.get("cache_dir")):
        raise not_loaded(name, f"there is no such folder, and {reason}.", Path(name))
    return reason is None


def _heed_caps(model: Any) -> None:
    """Use eager attention if scores are capped. torch's fused attention cannot cap them, and
    transformers 5.17 chooses it for Gemma 2 nevertheless."""
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")


def _refuse_unknown(error: TypeError, given: Mapping[str, Any]) -> None:
    """If the loader's error is about an option of the caller's that it does not know, raise an
    error that names it."""
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if found is None or found[1] not in given:
        return
    name = found[1]
    wrong = f"load has no option {name!r}, and neither has the loader of transformers."
    question = meant(name, (*OWN, *SHARED, *OFTEN))
    cure = f"Leave it out; options of load itself are {', '.join(OWN)}.{question}"
    raise InputError(explain(wrong, f"{name}={given[name]!r:.40}", cure)) from error


register(wrap)
