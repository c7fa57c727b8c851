"""The lean GPU pass in Triton's interpreter, against transformers in float32."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from interpreting import IN_INTERPRETER  # noqa: E402
from tiny import Reference, build, error  # noqa: E402

import forerun as fr  # noqa: E402
from forerun.gpu import forward, weights  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.pool import (  # noqa: E402
    MOST_ROWS,
    ON_HOST,
    DeviceMemoryError,
    DevicePages,
    Pool,
)
from forerun.gpu.shapes import CHUNK  # noqa: E402
from forerun.gpu.tiles import tile  # noqa: E402
from forerun.models.agreement import Probe  # noqa: E402
from forerun.models.forward import Forward  # noqa: E402

pytestmark = IN_INTERPRETER
TEXT = [3, 1, 4, 15, 9, 2, 6, 5, 35]
ROUNDING = {torch.float16: 0.01, torch.bfloat16: 0.06}
"""Rounding stays below half of this; a wrong mask, position or weight moves logits by their whole
spread."""
MODEL = build()
TARGET, REFERENCE = GpuModel(MODEL), Reference(MODEL)
DEEP = build(num_hidden_layers=2)
DEEP_TARGET, DEEP_REFERENCE = GpuModel(DEEP), Reference(DEEP)


def scored(target: GpuModel, text: list[int], count: int) -> Any:
    return target.score(target.start(1, 64), [0], [text], [count])[0]


def is_near(ours: Any, exact: Any, dtype: Any = torch.float16) -> bool:
    assert ours.shape == exact.shape
    return error(ours, exact) < ROUNDING[dtype]


SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2, whose queries, keys and values have biases": {"kind": "qwen2"},
    "qwen3, whose queries and keys have norms": {"kind": "qwen3"},
    "bfloat16": {"dtype": torch.bfloat16},
    "tied, with three key heads, and sizes no block divides": {
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 45,
        "intermediate_size": 52,
        "vocab_size": 263,
        "tie_word_embeddings": True,
    },
    "heads of 80": {"head_dim": 80},
}
MORE_SHAPES: dict[str, dict[str, Any]] = {
    **{f"heads of {size}": {"head_dim": size} for size in (64, 96, 128, 256)},
    "heads of 96 with norms": {"kind": "qwen3", "head_dim": 96},
    "five query heads to a key head": {"num_attention_heads": 5, "hidden_size": 20},
    "mistral": {"kind": "mistral", "sliding_window": None},
    "several tiles": {"hidden_size": 272, "intermediate_size": 300, "vocab_size": 520},
    "scaled rotary embedding": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}
ALL_SHAPES = [
    *(pytest.param(how, id=name) for name, how in SHAPES.items()),
    *(pytest.param(how, id=name, marks=pytest.mark.slow) for name, how in MORE_SHAPES.items()),
]


@pytest.mark.parametrize("how", ALL_SHAPES)
def test_logits_are_those_of_transformers(how: dict[str, Any]) -> None:
    model = build(**how)
    exact = Reference(model).logits(TEXT)
    assert is_near(scored(GpuModel(model), TEXT, 4), exact[-4:], how.get("dtype", torch.float16))


def test_rows_and_trees_score_like_texts_from_scratch() -> None:
    probe = Probe(Forward(REFERENCE.model), TARGET.vocab_size)
    probe.forward = Forward(MODEL)  # whose precision is what may differ
    assert probe.agrees_with(TARGET.start(2))
    probe.forward = Forward(REFERENCE.model)
    rows = TARGET.start(2)
    tokens, parents = [*TEXT[:4], 7, 8, 9, 10], [-1, -1, 1, 0]
    logits = TARGET.score(rows, [1], [tokens], [5], [parents])[0]
    for node, path in ((1, [7]), (2, [8]), (3, [8, 9]), (4, [7, 10])):
        exact = REFERENCE.logits([*TEXT[:4], *path])[-1:]
        assert is_near(logits[node : node + 1], exact)
    TARGET.commit(rows, [1], [[0, 1, 2, 3, 5, 6]])  # the path of 8 and 9 moves together
    assert rows.lengths == [0, 6]
    after = TARGET.score(rows, [1], [[11]], [1])[0]
    assert is_near(after, REFERENCE.logits([*TEXT[:4], 8, 9, 11])[-1:])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_probe_finds_no_difference(dtype: Any) -> None:
    model = build(dtype=dtype, num_hidden_layers=2)
    target = GpuModel(model)
    probe = Probe(Forward(model), target.vocab_size)
    with torch.inference_mode():
        assert probe.agrees_with(target.start(2))
        assert probe.agrees_on_trees_with(target.start(2))


def test_rows_begin_as_copies_and_are_cut_short() -> None:
    rows = TARGET.start(3, 64)
    TARGET.score(rows, [0], [TEXT], [1])
    TARGET.commit(rows, [0], [len(TEXT)])
    assert TARGET.copy_prefix(rows, 0, 2, 5) == 5
    assert TARGET.truncate(rows, 0, 3) == 3
    assert rows.lengths == [3, 0, 5]
    logits = TARGET.score(rows, [0, 2], [[8, 8], TEXT[5:7]], [1, 1])
    assert is_near(logits[0], REFERENCE.logits([*TEXT[:3], 8, 8])[-1:])
    assert is_near(logits[1], REFERENCE.logits(TEXT[:7])[-1:])
    TARGET.release(rows, 2)
    assert rows.lengths == [3, 0, 0]
    assert TARGET.copy_prefix(rows, 0, 2, 7) == 3  # all there is
    with pytest.raises(fr.InputError):
        TARGET.copy_prefix(rows, 0, 2, 3)  # to a row in use


def test_what_was_scored_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that grows by one token feeds one token."""
    fed: list[int] = []
    run = forward.launch

    def counting(w: Any, shape: Any, *args: Any, **options: Any) -> Any:
        fed.append(shape.num_tokens)
        return run(w, shape, *args, **options)

    monkeypatch.setattr("forerun.gpu.storage.launch", counting)
    rows = TARGET.start(1, 64)
    for end in (4, 5):
        logits = TARGET.score(rows, [0], [TEXT[:end]], [1])[0]
    assert fed == [4, 1]
    assert is_near(logits, REFERENCE.logits(TEXT[:5])[-1:])


def test_watched_states_are_those_of_transformers() -> None:
    """The embedding, after one of two layers, and what the head reads."""
    layers, size = [2, 0, 1], DEEP_TARGET.hidden_size
    exact = DEEP_REFERENCE.states(TEXT)
    rows = DEEP_TARGET.start(2, 64)
    DEEP_TARGET.watch(rows, layers)
    DEEP_TARGET.score(rows, [0], [TEXT], [1])
    DEEP_TARGET.commit(rows, [0], [6])
    states = DEEP_TARGET.watched(rows, 0)
    assert states.shape == (6, 3 * size)
    for place, layer in enumerate(layers):
        assert is_near(states[:, place * size : (place + 1) * size], exact[layer, :6])
    DEEP_TARGET.copy_prefix(rows, 0, 1, 4)
    DEEP_TARGET.score(rows, [1], [TEXT[4:6]], [1])
    DEEP_TARGET.commit(rows, [1], [1])
    assert torch.equal(DEEP_TARGET.watched(rows, 1)[:4], states[:4])  # shown once more
    assert is_near(DEEP_TARGET.watched(rows, 1)[:, :size], exact[2, :5])
    with pytest.raises(fr.InputError, match=r"0 \.\. 2"):
        DEEP_TARGET.watch(rows, [3])
    with pytest.raises(fr.InputError, match="No hidden states"):
        TARGET.watched(TARGET.start(1, 64), 0)


def test_the_first_layers_score_under_the_models_own_head() -> None:
    rows = DEEP_TARGET.start(1, 64)
    DEEP_TARGET.score(rows, [0], [TEXT[:4]], [1])
    DEEP_TARGET.commit(rows, [0], [4])
    shallow = DEEP_TARGET.first_layers(rows, 1)
    logits = shallow.score(shallow.start(1), [0], [TEXT[4:6]], [2])[0]
    model = Reference(DEEP).model
    del model.model.layers[1:]
    ids = torch.tensor([TEXT[:6]])
    with torch.inference_mode():
        exact = model(input_ids=ids, use_cache=False).logits[0, 4:]
    assert is_near(logits, exact)
    whole = DEEP_TARGET.score(rows, [0], [TEXT[4:7]], [1])[0]  # writes over the drafted keys
    assert is_near(whole, DEEP_REFERENCE.logits(TEXT[:7])[-1:])


def test_storage_of_rows_that_are_gone_is_used_again() -> None:
    """With what it has captured; its pages are free at once."""
    target = GpuModel(MODEL)
    pool = target._pass.pool
    rows = target.start(2, 64)
    target.watch(rows, [0])
    before = pool.num_unused
    target.score(rows, [1], [TEXT], [1])
    assert pool.num_unused == before - 1
    storage = rows.storage
    assert target.start(2, 64).storage is not storage  # which is in use
    del rows
    gc.collect()
    assert pool.num_unused == before
    again = target.start(1, 200)
    assert again.storage is storage
    assert again.lengths == [0]
    assert not storage.pages.table.any()
    assert storage.layers == ()
    assert target.start(MOST_ROWS + 1, 64).storage.pages.num_rows == MOST_ROWS + 1


def test_rows_share_pages_until_one_writes() -> None:
    """A page that another row has is copied before it is written to, by either of them."""
    text = [(7 * place * place + 3) % 40 for place in range(300)]
    rows, exact = TARGET.start(3), REFERENCE.logits(text)
    pages, pool = rows.storage.pages, TARGET._pass.pool
    TARGET.score(rows, [0], [text[:290]], [1])
    TARGET.commit(rows, [0], [290])
    before = pool.num_unused
    TARGET.copy_prefix(rows, 0, 1, 270)
    TARGET.copy_prefix(rows, 0, 2, 256)
    assert pool.num_unused == before
    TARGET.score(rows, [1], [[9, 9]], [1])
    assert pool.num_unused == before - 1
    assert [page.num_holders for page in pages.of_row(0, 290)] == [3, 3, 1]
    logits = TARGET.score(rows, [0, 1, 2], [text[290:], text[270:290], text[256:260]], [10, 20, 4])
    for ours, end, count in zip(logits, (300, 290, 260), (10, 20, 4), strict=True):
        assert is_near(ours[:count], exact[end - count : end])
    TARGET.truncate(rows, 0, 130)
    TARGET.release(rows, 2)
    logits = TARGET.score(rows, [0], [text[130:140]], [10])[0]
    assert is_near(logits, exact[130:140])
    logits = TARGET.score(rows, [1], [text[270:280]], [10])[0]
    assert is_near(logits, exact[270:280])
    for row in range(3):
        TARGET.release(rows, row)
    assert pool.num_unused == pool.num_pages - 1
    assert not pages.table.any()


def test_a_pool_that_is_full_refuses_and_changes_nothing() -> None:
    def angles(count: int) -> Any:
        return torch.zeros((2, 1, count, 8))

    pages = DevicePages(Pool(TARGET._weights, angles, 40_000), 2)
    pages.reserve(0, 0, (ON_HOST - 3) * CHUNK)
    with pytest.raises(DeviceMemoryError, match=r"3 pages more, of 2 free"):
        pages.reserve(1, 0, 2 * CHUNK + 1)
    with pytest.raises(DeviceMemoryError, match=r"within 40032 tokens"):
        pages.reserve(1, 0, 41_000)
    assert pages.pool.num_unused == 2
    pages.reserve(1, 0, 2 * CHUNK)
    pages.cut(0, 0)
    assert pages.pool.num_unused == ON_HOST - 3
    assert pages.table[0].sum() == 0 < pages.table[1, :2].prod()


class Other(torch.nn.Module):
    """A class that is not of the family."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
        self.config = MODEL.config


UNFIT: dict[str, tuple[Any, str]] = {
    "float32": (lambda: build(dtype=torch.float32), "its weights are float32"),
    "two dtypes": (lambda: mixed_dtypes(), "float16, float32"),
    "another class": (Other, "it is not one of"),
    "a rotary table that changes": (
        lambda: build(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "rotary table (dynamic) changes",
    ),
    "experts that were replaced": (lambda: without_experts(), "experts were replaced"),
    "another activation": (lambda: build(hidden_act="gelu"), "gelu"),
}


def without_experts() -> Any:
    model = build("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    model.model.layers[0].mlp.experts.gate_up_proj = None
    return model


def mixed_dtypes() -> Any:
    model = build()
    model.model.norm.float()
    return model


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_refused_with_the_reason(name: str) -> None:
    make, reason = UNFIT[name]
    model = make()
    assert reason in weights.unfit(model)
    with pytest.raises(fr.UnsupportedError, match="does not fit"):
        GpuModel(model)


def test_without_the_interpreter_a_cuda_device_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert weights.unfit(MODEL) == ""
    monkeypatch.setattr(weights.triton.knobs.runtime, "interpret", False)
    assert "CUDA device" in weights.unfit(MODEL)


def test_a_device_without_tensor_cores_for_bfloat16_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    weight = SimpleNamespace(dtype=torch.bfloat16, device=torch.device("cuda:0"))
    model = SimpleNamespace(parameters=lambda: iter([weight]))
    assert weights.unfit(model).startswith("the GPU is too old: compute capability (7, 5), where")


def test_weights_are_stored_once() -> None:
    """Taken twice, and by transformers."""
    model = build()
    exact = Reference(model).logits(TEXT)
    first, second = weights.take(model), weights.take(model)
    for one, other in zip(first.layers, second.layers, strict=True):
        for name in ("qkv", "gate_up", "out", "down", "attention_norm", "mlp_norm"):
            assert getattr(one, name).data_ptr() == getattr(other, name).data_ptr()
            assert torch.equal(getattr(one, name), getattr(other, name))
    layer = model.model.layers[0]
    begin = first.layers[0].qkv.data_ptr()
    for module in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
        assert module.weight.data_ptr() == begin
        begin += module.weight.numel() * module.weight.element_size()
    assert begin == first.layers[0].qkv.data_ptr() + 2 * first.layers[0].qkv.numel()
    assert is_near(scored(GpuModel(model), TEXT, 1), exact[-1:])
    assert is_near(Reference(model).logits(TEXT), exact)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_weights_that_change_in_place_change_the_pass(kind: str) -> None:
    """Biases and head norms are views like the matrices: a model that is trained between two calls
    is not run with what it was."""
    model = build(kind)
    target = GpuModel(model)
    before = target.score(target.start(1, 8), [0], [[3, 4]], [1]).clone()
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        (attention.q_norm.weight if kind == "qwen3" else attention.q_proj.bias).add_(1.0)
    scored = target.score(target.start(1, 8), [0], [[3, 4]], [1])[0, 0]
    assert not torch.equal(scored, before[0, 0])
    expected = Reference(model).logits([3, 4])[-1]
    assert (scored - expected).norm() < 0.02 * expected.norm()


def test_weights_that_were_replaced_are_taken_anew() -> None:
    model = build()
    first = GpuModel(model)
    assert GpuModel(model)._weights is first._weights
    norm = model.model.layers[0].input_layernorm
    norm.weight = torch.nn.Parameter(norm.weight.detach() + 1)
    assert GpuModel(model)._weights is not first._weights


def test_a_model_wrapped_in_inference_mode_can_be_trained() -> None:
    model = build()
    with torch.inference_mode():
        GpuModel(model)
    model.float()
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None


def test_products_of_small_models_are_cut_narrower() -> None:
    """Those of large ones stay as they were tuned, and so do passes of many tokens."""
    memory = 227 * 1024
    assert tile("gate_up", 16, 4096, memory, num_outputs=14336) == tile("gate_up", 16, 4096, memory)
    assert tile("gate_up", 128, 576, memory, num_outputs=1536).columns == 128
    assert tile("gate_up", 16, 576, memory, num_outputs=1536).columns == 16
    assert tile("head", 16, 576, memory, num_outputs=8192).columns == 128
    assert tile("out", 16, 576, memory, num_outputs=576).columns == 16
