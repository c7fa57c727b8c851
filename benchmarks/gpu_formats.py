"""Passes of models whose weights have few bits: how near reading them once, and prompts.

    python benchmarks/gpu_formats.py [--models 8b:float8 8b:int4 8b:bfloat16 70b:float8
        a3b:float8-wide gpt-oss-20b:float4] [--output gpu_formats]

Weights are random and made on the device in the format named; shapes are those of Llama 3,
Qwen3-30B-A3B and gpt-oss, whose attention stays in bfloat16.  Experts are read as far as one token
chooses them, so a share of the time to read weights is that of a pass of one token.  For
passes of 1, 6 and 16 tokens of one text: the time of the captured pass, and what part of it reading
the weights (and keys) once takes at the bandwidth of a large reduction in the same run.  For a
prompt of 2,000 tokens: the time to its first logits, which that of bfloat16 is compared with.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from forerun.gpu.model import GpuModel
from forerun.gpu.rows import Line, fill
from forerun.gpu.shapes import PassShape, num_chunks
from forerun.gpu.storage import CapturedPass
from forerun.models.packed import Packed, PackedLinear, PackedStack, packed, stacked
from gpu import bandwidth, milliseconds
from machine import result_file, write

LLAMA = {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
SIZES: dict[str, dict[str, Any]] = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
            "num_attention_heads": 64},
    "a3b": {"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768,
            "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
            "vocab_size": 151936},
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32,
                    "vocab_size": 201088},
    "gpt-oss-120b": {"model_type": "gpt_oss", "vocab_size": 201088},
}  # fmt: skip
CONTEXT = 64
PROMPT = 2000
COUNTS = (1, 6, 16)


def matrix(shape: tuple[int, int], kind: str) -> Packed:
    """Random numbers with scales that give weights of about 0.02."""
    num_rows, depth = shape
    is_float = kind.startswith("float8")
    most, size = (256, 2e-4) if is_float else (16, 5e-3)
    numbers = torch.randint(0, most, shape, dtype=torch.uint8, device="cuda")
    if is_float:
        numbers &= 0xF7  # no NaN
    if kind == "float4":
        scales = torch.full((num_rows, depth // 32), 2.0**-7, device="cuda").bfloat16()
        return packed(numbers, scales, "e2m1", torch.bfloat16)
    table = {
        "float8": (num_rows, 1),
        "float8-blocks": (num_rows // 128, depth // 128),
        "float8-wide": (num_rows // 128, depth // 128),
        "int4": (num_rows, depth // 128),
    }[kind]
    scales = size * (0.5 + torch.rand(table, device="cuda"))
    scales = scales if kind == "float8-wide" else scales.bfloat16()
    return packed(numbers, scales, "e4m3" if is_float else "int4", torch.bfloat16)


def made(size: str, kind: str, **changes: Any) -> Any:
    """A model of a size with random weights of a format."""
    config = AutoConfig.for_model(**{"model_type": "llama", **LLAMA, **SIZES[size], **changes})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for layer in model.model.layers:
        for owner in (layer.self_attn, layer.mlp):
            for name, module in list(owner.named_children()):
                if isinstance(module, torch.nn.Linear) and kind not in ("bfloat16", "float4"):
                    setattr(owner, name, PackedLinear(matrix(tuple(module.weight.shape), kind)))
        if hasattr(layer.mlp, "experts") and kind != "bfloat16":
            _pack_experts(layer.mlp.experts, kind)
    for owner in model.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            values = torch.empty(parameter.shape, dtype=torch.bfloat16, device="cuda")
            values = values.normal_(0, 0.02) if values.dim() > 1 else values.fill_(1)
            setattr(owner, name, torch.nn.Parameter(values, requires_grad=False))
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to("cuda")
    return model.eval()


def _pack_experts(owner: Any, kind: str) -> None:
    is_turned = isinstance(owner, GptOssExperts)
    for name in ("gate_up_proj", "down_proj"):
        like = getattr(owner, name)
        count, rows, depth = like.mT.shape if is_turned else like.shape
        whole = stacked([matrix((rows, depth), kind) for _ in range(count)])
        delattr(owner, name)
        setattr(owner, name, PackedStack(whole, count, is_turned))


class Measured:
    """A model, and the time of its passes."""

    def __init__(self, model: Any) -> None:
        self.model = GpuModel(model)
        self.weights = self.model._weights
        self._rows = self.model.start(1, 2 * CONTEXT)
        self._rows.reserve(0, 0, 2 * CONTEXT)

    def prepared(self, count: int) -> CapturedPass:
        """A pass of so many tokens of one text."""
        shape = PassShape(count, count, -(-count // 16), min(count, 16),
                          num_chunks(CONTEXT + count))  # fmt: skip
        made = CapturedPass(self._rows.storage, shape)
        lines = [Line(7 * i, 0, CONTEXT + i, CONTEXT + i, 0, (), i) for i in range(count)]
        fill(made.inputs, lines, list(range(count)))
        return made

    def passes(self, speed: float) -> dict[str, dict[str, float]]:
        """Milliseconds of passes, and the share that reading weights and keys once would take."""
        found = {}
        form = self.weights.form
        per_token = 4 * len(self.weights.layers) * form.num_key_heads * form.head_size
        total = self.weights.num_bytes + CONTEXT * per_token
        for count in COUNTS:
            captured = self.prepared(count)
            captured.run()
            time = milliseconds(captured.run)
            found[str(count)] = {"ms": time, "share": 1e3 * total / speed / time}
        return found

    def prompt(self) -> float:
        """Milliseconds to the logits after a prompt."""
        text = [(7 + 7919 * (i + 1) ** 2) % self.model.vocab_size for i in range(PROMPT)]

        def read() -> None:
            rows = self.model.start(1, PROMPT + 32)
            self.model.score(rows, [0], [text], [1])

        return milliseconds(read, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["8b:bfloat16", "8b:float8",
                        "8b:float8-blocks", "8b:float8-wide", "8b:int4", "70b:float8"])  # fmt: skip
    parser.add_argument("--output", default="gpu_formats")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_formats: no CUDA device, nothing measured")
        return
    torch.manual_seed(0)
    speed = bandwidth()
    results: dict[str, Any] = {"bytes_per_second": speed}
    for name in args.models:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        measured = Measured(made(*name.split(":")))
        weights = measured.weights
        extra = weights.largest_packed * 2
        found: dict[str, Any] = {
            "bytes": weights.num_bytes,
            "beside": extra / weights.num_bytes,
            "allocated": torch.cuda.memory_allocated() - before,
            "passes": measured.passes(speed),
        }
        if not name.startswith("70b"):
            found["prompt_ms"] = measured.prompt()
        results[name] = found
        for count, one in found["passes"].items():
            print(
                f"{name:16} {count:>2} tokens {one['ms']:7.3f} ms, {one['share']:.0%}", flush=True
            )
        print(f"{name:16} plain {1e3 / found['passes']['1']['ms']:.0f} tokens/s, "
              f"prompt {found.get('prompt_ms', 0):.1f} ms, {weights.num_bytes / 1e9:.2f} GB, "
              f"{found['beside']:.1%} beside", flush=True)  # fmt: skip
        del measured, weights
    write(result_file(args.output, "cuda"), results)


if __name__ == "__main__":
    main()
