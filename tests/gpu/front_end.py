"""Takes the kernels of the pass and of its decisions through Triton's front end for compute
capability 9.0, as they are launched, without a device, and prints what was met and what fails.

Run it with TRITON_INTERPRET=0: what is interpreted has no types.  With the argument "brief" it
meets every kernel, but few of the combinations in which each is launched.
"""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import replace
from typing import Any

import torch
from compiling import Absent
from packing import FORMATS, random_matrix
from triton import knobs
from triton._C.libtriton import ir
from triton.compiler import ASTSource, make_backend
from triton.runtime import driver

from forerun.gpu import attention, experts, formats, forward, shapes
from forerun.gpu.kernels import heads, lanes
from forerun.gpu.shapes import Inputs, PassShape
from forerun.gpu.weights import ExpertWeights, Layer, Weights
from forerun.kernels import decide, truncation
from forerun.kernels.decide import RacePiece, Round
from forerun.kernels.scratch import CutScratch, Outcome, Scratch
from forerun.models.families import Experts, Family, Form, LayerForm
from forerun.noise.addresses import Purpose

K, HD, INNER, VOCABULARY = 256, 64, 256, 600
TARGET = Absent().get_current_target()
BACKEND = make_backend(TARGET)
FORM = Form(4, 2, HD, 0.1, 1e-6, Family(""))
AFTER = Family("", before=(), after=("attention", "mlp"), unit=1.0)
ROUTED = Experts(4, 2, True, False)
FORMS: list[dict[str, Any]] = [
    {},
    {"layers": (LayerForm(experts=ROUTED),)},
    {"head_norms": "head", "layers": (LayerForm(window=9, table=None),)},
    {"head_norms": "width", "attention_cap": 2.0, "activation": "gelu", "family": AFTER},
    {"rotary_size": 32, "logits_cap": 3.0},
    {"layers": (LayerForm(9, experts=ROUTED._replace(takes_turns=True)),), "has_sinks": True,
     "activation": "clamped", "clamp": (1.7, 7.0)},
]  # fmt: skip
FEW, TREE = PassShape(4, 4, 1, 4, 2), PassShape(4, 4, 4, 1, 2, branch_width=9)
LONG = PassShape(4, 4, 1, 4, attention.ADDED_LATER)
WIDE = PassShape(256, 1, 16, 16, 2)
met: set[tuple[str, str]] = set()
failed: dict[str, str] = {}


def translate(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
    """In place of a launch."""
    if (fn.name, key) not in met:
        met.add((fn.name, key))
        options = BACKEND.parse_options(
            {name: compile[name] for name in ("num_warps", "num_stages")}
        )
        context = ir.context()
        ir.load_dialects(context)
        BACKEND.load_dialects(context)
        attributes = compile["configs"][0]
        source = ASTSource(fn.jit_function, compile["signature"], compile["constants"], attributes)
        codegen, modules = BACKEND.get_codegen_implementation(options), BACKEND.get_module_map()
        try:
            source.make_ir(TARGET, options, codegen, modules, context)
        except Exception as error:
            failed[fn.name] = str(error)
    return True


def matrix(rows: int, depth: int, how: dict[str, Any] | None, count: int = 0) -> Any:
    """Without content, or packed; of so many experts, if any."""
    if how is not None:
        return random_matrix((max(1, count) * rows, depth), **how)
    return torch.empty((count, rows, depth) if count else (rows, depth)).bfloat16()


def weights(form: Form, how: dict[str, Any] | None = None, has_biases: bool = False) -> Weights:
    """A model of one layer."""
    queries, keys = form.num_heads * HD, form.num_key_heads * HD
    norm, table = torch.empty(K).bfloat16(), torch.empty(VOCABULARY, K).bfloat16()
    bias = torch.empty(2 * INNER).bfloat16() if has_biases else None
    before, after = (norm if names else None for names in (form.family.before, form.family.after))
    routed = form.layers[0].experts
    count = 0 if routed is None else routed.total
    opening, closing = matrix(2 * INNER, K, how, count), matrix(K, INNER, how, count)
    router, mlp = torch.empty(count, K).bfloat16(), {"gate_up": opening, "down": closing}
    if routed is not None:
        mlp = {"experts": ExpertWeights(routed, router, bias, opening, bias, closing, bias)}
    layer = Layer(
        qkv=matrix(queries + 2 * keys, K, how), out=matrix(K, queries, how), attention_norm=before,
        mlp_norm=before, attention_after=after, mlp_after=after,
        head_norms=torch.empty(queries + keys).bfloat16() if form.head_norms else None,
        sinks=norm if form.has_sinks else None, qkv_bias=bias, out_bias=bias, gate_up_bias=bias,
        down_bias=bias, **mlp,
    )  # fmt: skip
    return Weights((layer,), table, matrix(VOCABULARY, K, None), norm, form)


def run(made: Weights, shape: PassShape, kind: Any = torch.bfloat16) -> None:
    """One pass with keys and values of this kind."""
    keys = torch.empty(1, 2, made.form.num_key_heads, shapes.CHUNK, HD, dtype=kind)
    angles = torch.empty(1, 64, (made.form.rotary_size or HD) // 2)
    cache = attention.Cache(keys, keys, torch.zeros(4, 2, dtype=torch.int32), angles, angles)
    scratch, between = forward.Scratch(made, shape.num_tokens), None
    if not shape.is_whole:
        between = attention.AttentionScratch(made, 64, 64)
    logits, states = torch.empty(shape.num_logits, VOCABULARY), torch.empty(256, K).bfloat16()
    inputs = Inputs.empty(shape, torch.device("cpu"))
    forward.launch(
        made, shape, inputs, cache, scratch, between, logits, watched=states, layers=(1,)
    )


def passes(is_brief: bool) -> None:
    """Each switch of a pass on and off, in passes of each shape; then each format of weights."""
    if is_brief:
        for kind in (torch.bfloat16, torch.uint8):
            run(weights(FORM), WIDE, kind)
            run(weights(replace(FORM, **FORMS[3]), FORMATS["int4, groups"]), FEW, kind)
        run(weights(replace(FORM, has_sinks=True)), LONG)
        run(weights(replace(FORM, **FORMS[5]), FORMATS["float4, groups"], True), TREE)
        run(weights(FORM, FORMATS["int4, groups"]), WIDE)
        return
    for at, how in enumerate(FORMS):
        made = weights(replace(FORM, **how), has_biases=at % 2 == 1)
        for shape in (FEW, LONG, TREE, WIDE) if at < 2 else (FEW, LONG):
            for kind in (torch.bfloat16, torch.uint8):
                run(made, shape, kind)
    for at, how in enumerate(how for name, how in FORMATS.items() if "mixed" not in how):
        run(weights(replace(FORM, **FORMS[at % 2]), how), FEW)
    run(weights(FORM, FORMATS["int4, groups"]), WIDE)


def decisions() -> None:
    """Each rule, and draws; with thresholds, and trees."""
    out, scratch = Outcome.allocate(2, "cpu"), Scratch.allocate(2, 4, VOCABULARY, "cpu")
    logits, lengths = torch.zeros(2, 4, VOCABULARY), torch.zeros(2, dtype=torch.int32)
    heat, numbers = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    tokens, edges = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 4)
    made = Round(logits, tokens, lengths, heat, numbers, numbers, thresholds=edges)
    tree = replace(made, parents=torch.zeros(2, 3, dtype=torch.int32), thresholds=None)
    for piece in (RacePiece(4, 4, 128), RacePiece(8, 2, 0)):
        decide.race_piece = lambda *_, piece=piece: piece
        decide.decide_match(made, scratch, out)
        decide.decide_match(tree, scratch, out)
    law = replace(made, draft_logits=logits[:, 1:].clone(), draft_thresholds=edges)
    for rule in (decide.decide_ratio, decide.decide_block):
        rule(made, scratch, out)
        rule(law, scratch, out)
    alone = Scratch.allocate(2, 1, VOCABULARY, "cpu")
    for purpose in (Purpose.TARGET, Purpose.DRAFT):
        decide.sample(logits[:, 0], heat, numbers, numbers, purpose, 0, alone, out)
    cut = CutScratch.allocate(8, VOCABULARY, "cpu")
    truncation.find_thresholds(logits, lengths, heat, lengths, heat, heat, edges, cut, more=1)


def inputs_of_rounds(is_brief: bool) -> None:
    """The kernels of `lanes` and `heads`, whose operands are told by their names."""
    floats = {
        "embedding",
        "norms",
        "joined",
        "features",
        "fused",
        "weight",
        "normed",
        "states",
        "x",
    }
    wide = {"sampled", "drafts", "extra"}
    numbers = {"width": 9, "step": 2, "stride": 9, "length": 3, "LANES": 2, "K": 3, "eps": 1e-6}
    sizes = {"PADDED": 2, "WIDE": 8, "V": VOCABULARY, "PAGE": 128, "KP": 256}
    kinds = {torch.bfloat16: floats, torch.int64: wide}
    for kernel in (
        lanes.first_draft_inputs, lanes.next_draft_inputs, lanes.target_inputs, lanes.advance,
        heads.norm_states, heads.keep_features, heads.join_kept, heads.join_followers,
        heads.draft_entry,
    ):  # fmt: skip
        for on in (False, True)[is_brief:]:
            given = dict(numbers | sizes | dict.fromkeys(("PDL", "FIRST", "DRAWN"), on))
            for name in inspect.signature(kernel.fn).parameters:
                kind = next((kind for kind, names in kinds.items() if name in names), torch.int32)
                given.setdefault(name, torch.empty(16, dtype=kind))
            kernel[(1,)](**{n: given[n] for n in inspect.signature(kernel.fn).parameters})


if __name__ == "__main__":
    driver.set_active(Absent())
    knobs.runtime.jit_cache_hook = translate
    formats._has_pairs = lambda device: True
    forward.has_bulk_copies = lambda device: True
    is_brief = sys.argv[1:] == ["brief"]
    for options in ({"PDL": False}, {"PDL": True, "launch_pdl": True})[is_brief:]:
        for module in (forward, experts, decide, truncation):
            module.dependent_launch = lambda device, options=options: options
        run(weights(FORM), FEW)
    passes(is_brief)
    decisions()
    inputs_of_rounds(is_brief)
    print(json.dumps({"met": sorted({name for name, _ in met}), "failed": failed}))
