"""Families of models on the lean GPU pass: what they compute, and how fast.

    python benchmarks/gpu_models.py [--output gpu_models] [--parts logits text speed]
        [--only NAMES] [--peers]

Random weights of true shapes, made on the device, in bfloat16; vocabularies are cut where only
logits are compared.  `logits`: two layers, a text of 1,000 tokens against transformers in float32
(the error of its own bfloat16 forward beside), and how many logits differ between passes of other
sizes.  `text`: small whole models, 24 greedy texts beside transformers'.  `speed`: passes and plain
text at temperature 1, beside the time to read the bytes of a pass once at the bandwidth of a large
reduction.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import forerun as fr
from forerun.doctor.diagnosis import diagnose
from forerun.gpu.model import GpuModel
from forerun.gpu.rows import Line, fill
from forerun.gpu.shapes import PassShape, num_chunks
from forerun.models.huggingface import HuggingFaceModel
from gpu import bandwidth, milliseconds
from machine import save

SLIDING = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "Mistral-7B": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 256,
    },
    "Ministral-8B": {
        "model_type": "ministral", "hidden_size": 4096, "intermediate_size": 12288,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "sliding_window": 256, "layer_types": SLIDING,
    },
    "Phi-4": {
        "model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920,
        "num_attention_heads": 40, "num_key_value_heads": 10, "sliding_window": None,
    },
    "SmolLM3-3B": {
        "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008,
        "num_attention_heads": 16, "num_key_value_heads": 4, "no_rope_layers": [1, 0],
    },
    "Seed-OSS-36B": {
        "model_type": "seed_oss", "hidden_size": 5120, "intermediate_size": 27648,
        "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128,
        "attention_bias": True,
    },
    "Granite-3.3-8B": {
        "model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800,
        "num_attention_heads": 32, "num_key_value_heads": 8, "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 16.0,
    },
    "OLMo-2-7B": {
        "model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_key_value_heads": 32,
    },
    "OLMo-3-7B": {
        "model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 256,
        "layer_types": SLIDING,
    },
    "Gemma-2-9B": {
        "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
        "query_pre_attn_scalar": 256, "sliding_window": 256, "layer_types": SLIDING,
    },
    "Gemma-3-4B": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "query_pre_attn_scalar": 256, "sliding_window": 256, "layer_types": SLIDING,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
        "layer_types": SLIDING,
    },
}  # fmt: skip
"""Two layers of each are compared; windows are short enough to matter in 1,000 tokens."""
CUT = {"num_hidden_layers": 2, "vocab_size": 8192}
SMALL = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 4096,
    "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
WHERE_NAMED = {
    "head_dim": 64, "sliding_window": 64, "layer_types": SLIDING * 2,
    "no_rope_layers": [1, 1, 1, 0], "query_pre_attn_scalar": 64, "moe_intermediate_size": 256,
    "num_experts": 16, "num_local_experts": 16,
}  # fmt: skip
"""A whole model that `text` makes of each family; the latter of those whose shape names them."""
SPEEDS: dict[str, dict[str, Any]] = {
    "Qwen3-30B-A3B": {"num_hidden_layers": 48, "vocab_size": 151936},
    "Gemma-3-4B": {"num_hidden_layers": 34, "vocab_size": 262208, "sliding_window": 1024,
                   "layer_types": None},
    "gpt-oss-20b": {"num_hidden_layers": 24, "vocab_size": 201088, "layer_types": SLIDING * 12},
    "Phi-4, 8 layers": {"num_hidden_layers": 8, "vocab_size": 100352},
}  # fmt: skip
GROUPINGS = ([1], [6], [16], [48], [128])
DEVICE = "cuda"
LENGTH, NEW, PROMPT = 1000, 256, 64


def build(shape: dict[str, Any], **more: Any) -> Any:
    """A model in bfloat16 on the device, whose norms and biases are random too."""
    torch.manual_seed(0)
    common = {"max_position_embeddings": 8192, "pad_token_id": 0, "eos_token_id": None}
    config = AutoConfig.for_model(**{**common, **shape, **more})
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="eager"
        )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def text_of(count: int, seed: int, size: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, size, (count,), generator=generator).tolist()


def fed(
    target: GpuModel, text: list[int], sizes: list[int], beside: list[int] | None = None
) -> Any:
    """Logits (N, V) after each token, fed in passes of these sizes in turn; beside: the length of
    another text in the last row, which is fed along."""
    rows, parts, at, step = target.start(2, len(text)), [], 0, 0
    while at < len(text):
        part = text[at : at + sizes[step % len(sizes)]]
        row, feeds, counts = [1], [part], [len(part)]
        if beside is not None and rows.lengths[0] < 500:
            row, feeds, counts = [0, 1], [beside, part], [len(beside), len(part)]
        logits = target.score(rows, row, feeds, counts)[-1, : len(part)]
        target.commit(rows, row, [len(feed) for feed in feeds])
        parts.append(logits.clone())
        at, step = at + len(part), step + 1
    return torch.cat(parts)


def error(ours: Any, exact: Any) -> dict[str, float]:
    """The errors of rows of logits, as shares of their spread: a row whose experts were nearly tied
    may have others."""
    found = (ours - exact).pow(2).mean(-1).sqrt() / exact.std(-1)
    return {"median": float(found.median()), "largest": float(found.max())}


@torch.no_grad()
def compare_logits(shape: dict[str, Any]) -> dict[str, Any]:
    model = build(shape, **CUT)
    target, text = GpuModel(model), text_of(LENGTH, 1, CUT["vocab_size"])
    whole = fed(target, text, [LENGTH])
    ids = torch.tensor([text], device=DEVICE)
    theirs = model(input_ids=ids, use_cache=False).logits[0].float()
    exact = copy.deepcopy(model).float()(input_ids=ids, use_cache=False).logits[0]
    differing = {f"in {sizes[0]}": fed(target, text, sizes) for sizes in GROUPINGS}
    differing["beside others"] = fed(target, text, [7], text_of(40, 2, CUT["vocab_size"]))
    return {
        "error": error(whole, exact),
        "error of transformers": error(theirs, exact),
        "differing logits": {name: int((one != whole).sum()) for name, one in differing.items()},
    }


@torch.no_grad()
def compare_texts(shape: dict[str, Any]) -> dict[str, Any]:
    named = {key: value for key, value in WHERE_NAMED.items() if shape.get(key) is not None}
    model = build(shape, **SMALL, **named)
    target, plain = GpuModel(model), HuggingFaceModel(model)
    prompts = [text_of(20, seed, SMALL["vocab_size"]) for seed in range(24)]
    how = {"max_new_tokens": 64, "drafter": None, "batch_size": 24}
    ours, theirs = (
        [out.tokens for out in fr.generate(one, prompts, **how)] for one in (target, plain)
    )
    pairs = zip(prompts, ours, theirs, strict=True)
    told = [diagnose(plain, *pair, other=target) for pair in pairs]
    parted = [diagnosis for diagnosis in told if diagnosis is not None]
    return {
        "equal": len(prompts) - len(parted),
        "near-ties": sum(not diagnosis.is_bug for diagnosis in parted),
        "largest gap of logits": max((one.gap for one in parted), default=0.0),
        "largest error and bound of one": max(
            ((one.error, one.rounding.bound) for one in parted),
            key=lambda pair: pair[0] / pair[1],
            default=(0.0, 0.0),
        ),
        "texts": len(prompts),
    }


def speed(name: str, bytes_per_second: float, with_peers: bool) -> dict[str, Any]:
    shape = next(shape for family, shape in FAMILIES.items() if name.startswith(family))
    begin = time.perf_counter()
    model = build(shape, **SPEEDS[name])
    target = GpuModel(model)
    print(f"{name} made in {time.perf_counter() - begin:.0f} s", flush=True)
    num_bytes = target._weights.num_bytes
    found: dict[str, Any] = {"bytes": num_bytes, "limit, ms": 1e3 * num_bytes / bytes_per_second}
    for count in (1, 6, 16):
        state = target.start(1, PROMPT + count)
        lines = [Line(7 * i, 0, PROMPT + i, PROMPT + i, 0, (), i) for i in range(count)]
        shape_of_pass = PassShape(count, count, 1, count, num_chunks(PROMPT + count))
        with torch.inference_mode():
            captured = state.storage.captured(shape_of_pass)
            fill(captured.inputs, lines, list(range(count)))
            taken = milliseconds(captured.run)
        found[f"pass of {count}, ms"] = taken
        found[f"pass of {count}, share"] = found["limit, ms"] / taken
    found["tokens/s"] = rate(target)
    if with_peers:
        ids = torch.tensor([text_of(PROMPT, 3, 1000)], device=DEVICE)
        how = {"do_sample": True, "min_new_tokens": 64, "max_new_tokens": 64, "pad_token_id": 0}
        for _ in range(2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model.generate(ids, attention_mask=torch.ones_like(ids), **how)
            torch.cuda.synchronize()
        found["tokens/s of transformers"] = 64 / (time.perf_counter() - begin)
    return found


def rate(target: Any, drafter: Any = None, repeats: int = 4) -> float:
    """Tokens a second of one text at temperature 1, the prompt's reading included."""
    rates = []
    for seed in range(repeats):
        prompt = text_of(PROMPT, seed, 1000)
        sampling = fr.Sampling(temperature=1.0, seed=seed)
        begin = time.perf_counter()
        fr.generate(target, prompt, drafter=drafter, sampling=sampling, max_new_tokens=NEW)
        rates.append(NEW / (time.perf_counter() - begin))
    return statistics.median(rates[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="gpu_models", help="name of the JSON file")
    parts = ("logits", "text", "speed")
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names")
    parser.add_argument("--peers", action="store_true", help="transformers' generate too")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_models: no CUDA device, nothing measured")
        return
    torch.set_float32_matmul_precision("highest")
    found: dict[str, Any] = {part: {} for part in args.parts}
    reached = bandwidth() if "speed" in args.parts else 0.0
    for part in args.parts:
        for name in SPEEDS if part == "speed" else FAMILIES:
            if not name.startswith(tuple(args.only)):
                continue
            if part == "speed":
                found[part][name] = speed(name, reached, args.peers)
            else:
                compare = compare_logits if part == "logits" else compare_texts
                found[part][name] = compare(FAMILIES[name])
            print(part, name, found[part][name], flush=True)
            save(args.output, {"bytes_per_second": reached, **found}, "cuda")
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
