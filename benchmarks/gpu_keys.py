"""Keys and values of 16 and of 8 bits: the time of passes after long texts, and tokens that fit.

    python benchmarks/gpu_keys.py [--layers 8] [--contexts 1000 32000 120000] [--output gpu_keys]

The model has random weights and layers of the shape of Llama 3 of 8 billion parameters.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from forerun.gpu.model import GpuModel
from forerun.gpu.rows import Line, fill
from forerun.gpu.shapes import PassShape, num_chunks
from gpu import milliseconds
from gpu_formats import made
from machine import result_file, write

COUNTS = (1, 6, 16)
PROMPT = 4000


def pass_time(target: GpuModel, context: int, count: int) -> float:
    """Milliseconds of a captured pass of so many tokens after a text."""
    rows = target.start(1, context + count)
    shape = PassShape(count, count, 1, count, num_chunks(context + count))
    lines = [Line(7 * i, 0, context + i, context + i, 0, (), i) for i in range(count)]
    with torch.inference_mode():
        rows.reserve(0, 0, context + count)
        captured = rows.storage.captured(shape)
        fill(captured.inputs, lines, list(range(count)))
        return milliseconds(captured.run)


def prompt_time(target: GpuModel) -> float:
    """Milliseconds to the logits after a prompt."""
    text = [(7 + 7919 * (i + 1) ** 2) % target.vocab_size for i in range(PROMPT)]

    def read() -> None:
        target.score(target.start(1, PROMPT + 32), [0], [text], [1])

    return milliseconds(read, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--contexts", nargs="+", type=int, default=[1000, 32_000, 120_000])
    parser.add_argument("--output", default="gpu_keys")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_keys: no CUDA device, nothing measured")
        return
    torch.manual_seed(0)
    model = made("8b", "bfloat16", num_hidden_layers=args.layers, max_position_embeddings=131072)
    results: dict[str, Any] = {"layers": args.layers}
    for kv_dtype in (None, "float8"):
        target = GpuModel(model, kv_dtype=kv_dtype)
        target.expect_rows(40 * 2**30)
        found: dict[str, Any] = {"tokens": target.num_tokens_free, "prompt_ms": prompt_time(target)}
        for context in args.contexts:
            for count in COUNTS:
                found[f"{count} after {context}"] = pass_time(target, context, count)
        results[kv_dtype or "bfloat16"] = found
        print(kv_dtype, found, flush=True)
        del target
        model.findings = None
        torch.cuda.empty_cache()
    write(result_file(args.output, "cuda"), results)


if __name__ == "__main__":
    main()
