"""GGUF files by path: what they hold is what transformers computes with, or they are refused."""

from __future__ import annotations

import errno
import random
import struct
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors import safe_open
from tiny_gguf import BYTE_PAIRS, write
from tiny_models import VOCAB_SIZE, Architecture, fresh_logits, largest, random_tokens

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.cli import main
from forerun.gguf import magic
from forerun.gguf.config import config_of
from forerun.gguf.file import SERVED, GgufFile, read_gguf
from forerun.loading import bundled
from forerun.loading.bundled import local_copy
from forerun.loading.cache import cache_folder

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama, untied, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 16, "num_hidden_layers": 7, "sliding_window": 6, "query_pre_attn_scalar": 16},
    ),
}
# Rows of 256 weights, as the K types need.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))


def tiny(kind: str = "llama", **options: Any) -> Any:
    model = Architecture(kind, "", options, dtype=torch.float32).build()
    for name, weight in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # ones and zeros would hide a mistake
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_computes_what_its_model_does(name: str, tmp_path: Path) -> None:
    kind, options = FAMILIES[name]
    model, path = tiny(kind, **options), tmp_path / "tiny.gguf"
    write(path, model)
    loaded: Any = fr.load(str(path))
    assert loaded.pass_name.startswith("lean CPU pass") or not _has_numba()
    text = random_tokens(random.Random(0), 40)
    expected = fresh_logits(model, text)
    logits = loaded.score(loaded.start(1), [0], [text], [40])[0]
    assert largest(torch.as_tensor(logits) - expected) < 1e-4 * largest(expected)
    assert loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer.encode("hello a12")) == [
        "hello", "Ġa", "1", "2"
    ]  # fmt: skip


def _has_numba() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("kind", SERVED)
def test_every_type_of_tensor_is_read_exactly(kind: str, tmp_path: Path) -> None:
    model, path = tiny(**WIDE), tmp_path / "tiny.gguf"
    write(path, model, Kind[kind])
    folder = local_copy(str(path))
    assert folder is not None
    with safe_open(folder / "model-1.safetensors", "np") as weights:
        for name, expected in model.state_dict().items():
            np.testing.assert_array_equal(weights.get_tensor(name), expected.numpy(), name)


def test_it_is_converted_once_and_again_if_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(magic, "SAMPLE", 8)  # bytes at both ends, which do not change
    path = tmp_path / "tiny [1].gguf"
    write(path, tiny())
    folder = local_copy(str(path))
    assert folder is not None
    made = (folder / "config.json").stat().st_mtime_ns
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / path.name)
    assert local_copy(str(moved)) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    write(path, tiny(rms_norm_eps=0.5))
    assert local_copy(str(path)) != folder


def test_a_file_of_another_architecture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    finish(writer)
    with pytest.raises(UnsupportedError, match=r"llama, qwen2, qwen3, gemma3.*'mamba'.*original"):
        fr.load(str(path))


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_type_that_is_not_served_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    data = np.zeros((4, gguf.GGML_QUANT_SIZES[Kind.IQ4_XS][1]), np.uint8)
    writer.add_tensor("token_embd.weight", data, raw_dtype=Kind.IQ4_XS)
    finish(writer)
    with pytest.raises(UnsupportedError, match=r"IQ4_XS are not served; F32.*token_embd.*Q8_0"):
        fr.load(str(path))


def test_a_file_that_is_cut_off_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    write(whole, tiny(num_hidden_layers=1))
    contents = whole.read_bytes()
    generator = random.Random(0)
    ends = [
        4,
        8,
        20,
        23,
        len(contents) - 1,
        *(generator.randrange(24, len(contents)) for _ in range(60)),
    ]
    for end in ends:
        path.write_bytes(contents[:end])
        with pytest.raises(InputError, match=r"cut off.*Download the file again"):
            read_gguf(path)
    path.write_bytes(contents[: len(contents) // 2])
    with pytest.raises(InputError, match=f"at least {len(contents):,} bytes"):
        fr.load(str(path))


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        (b"", r"it is empty.*0 bytes"),
        (b"GGU", r"begin with the letters GGUF.*3 bytes that begin with b'GGU'"),
        (b"version https://git-lfs.github.com/spec/v1\noid", r"Git's pointer.*git lfs pull"),
    ],
)
def test_what_is_no_gguf_file_is_told(contents: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(contents)
    with pytest.raises(InputError, match=told):
        fr.load(str(path))


@pytest.mark.parametrize("name", ["TINY.GGUF", "tiny.bin"])
def test_a_file_is_known_by_its_beginning_too(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path, tiny(num_hidden_layers=1))
    assert fr.load(path).vocab_size == VOCAB_SIZE
    path.write_bytes(b"x" + path.read_bytes())
    with pytest.raises(InputError, match=r"no GGUF file|a folder, or a GGUF file"):
        fr.load(path)


def test_damage_is_refused(tmp_path: Path) -> None:
    """Random bytes in the header raise our errors, and nothing else."""
    whole, path = tmp_path / "whole.gguf", tmp_path / "damaged.gguf"
    write(whole, tiny(num_hidden_layers=1))
    contents = whole.read_bytes()
    generator = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(contents)
        for _ in range(4):
            damaged[generator.randrange(4, 3000)] = generator.randrange(256)
        path.write_bytes(damaged)
        try:
            local_copy(str(path))
        except (InputError, UnsupportedError):
            refused += 1
    assert refused > 30


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokenizer.ggml.merges": None}, "no list tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": [1, 2]}, r"tokenizer.ggml.merges with \[1, 2\]"),
        ({"tokenizer.ggml.merges": ["zz y", "z"]}, "zz"),
        ({"tokenizer.ggml.token_type": None}, "no list tokenizer.ggml.token_type"),
        ({"tokenizer.ggml.token_type": [1, 1]}, f"2 numbers in .*type where {VOCAB_SIZE} belong"),
        ({"tokenizer.ggml.model": "llama"}, "no list tokenizer.ggml.scores"),
        ({"llama.attention.head_count": 0}, "head_count 0"),
        ({"llama.attention.head_count": 5}, "damaged or incomplete"),
        ({"llama.embedding_length": "wide"}, "embedding_length 'wide'"),
        ({"llama.block_count": "two"}, "damaged or incomplete"),
        ({"general.alignment": 0}, "general.alignment 0"),
        ({"tokenizer.chat_template": [1]}, "tokenizer.chat_template array"),
    ],
)
def test_a_header_that_makes_no_sense_is_named(
    changes: dict[str, Any], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.gguf"
    fields = {name: value for name, value in (BYTE_PAIRS | changes).items() if value is not None}
    write(path, tiny(num_hidden_layers=1), fields=fields)
    with pytest.raises(InputError, match=f"{told}.*tiny.gguf.*Download the file again"):
        fr.load(str(path))
    assert "converting" not in capfd.readouterr().err, "nothing was begun"


def test_other_versions_and_byte_orders_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    for version in (struct.pack("<I", 1), struct.pack(">I", 3)):
        path.write_bytes(b"GGUF" + version + bytes(64))
        with pytest.raises(UnsupportedError, match="version"):
            fr.load(str(path))


@pytest.mark.parametrize("name", ["nowhere.gguf", "~/nowhere.gguf", "~nobody-here/nowhere.gguf"])
def test_a_file_that_is_not_there(name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be read \(No such file.*nowhere\.gguf"):
        fr.load(name)


def test_a_slip_in_a_name_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "coder-q4_k_m.gguf").touch()
    with pytest.raises(InputError, match=r"Did you mean coder-q4_k_m\.gguf\?"):
        fr.load(str(tmp_path / "coder-q4_k_n.gguf"))


def test_tensors_of_another_shape_are_named(tmp_path: Path) -> None:
    path, model = tmp_path / "tiny.gguf", tiny(num_hidden_layers=1)
    model.model.layers[0].mlp.up_proj.weight.data = torch.zeros(48, 16)
    write(path, model)
    with pytest.raises(InputError, match=r"1 that differ.*up_proj.*\(48, 16\) where \(48, 32\)"):
        fr.load(str(path))


def test_a_read_only_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    path = tmp_path / "tiny.gguf"
    write(path, tiny())
    monkeypatch.setattr(bundled, "TemporaryDirectory", refuse)
    with pytest.raises(InputError, match=r"converted \(.*Read-only file system.*FORERUN_CACHE"):
        fr.load(str(path), lean=False)


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    write(path, tiny())
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 10})())
    with pytest.raises(InputError, match=r"needs 0 MB, and 0 MB are free.*FORERUN_CACHE"):
        fr.load(str(path), lean=False)
    assert list(cache_folder().iterdir()) == []


def test_without_a_tokenizer_token_ids_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.gguf"
    write(path, tiny(), fields={})
    folder = local_copy(str(path))
    assert folder is not None
    assert not list(folder.glob("tokenizer*"))
    assert fr.generate(fr.load(path), [1, 2], max_new_tokens=2).tokens
    capsys.readouterr()
    assert main(["generate", "hello", "--target", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"cannot read a text. Received the GGUF file {path}. Use a file with a vocab" in told


def file_of(arch: str, tensors: Any = None, **fields: Any) -> GgufFile:
    sizes = {"embedding_length": 8, "feed_forward_length": 8, "block_count": 2,
             "context_length": 64, "attention.head_count": 2,
             "attention.layer_norm_rms_epsilon": 1e-5}  # fmt: skip
    named = {f"{arch}.{name}": value for name, value in {**sizes, **fields}.items()}
    embedding = gguf_tensor("token_embd.weight", np.zeros((VOCAB_SIZE, 8), np.float32))
    norms = {f"blk.{layer}.attn_norm.weight": gguf_tensor("", np.ones(8)) for layer in range(2)}
    return GgufFile(
        Path("f.gguf"),
        {"general.architecture": arch, **named},
        {"token_embd.weight": embedding, **norms, **(tensors or {})},
    )


def gguf_tensor(name: str, values: Any) -> Any:
    return Listed(name, values.shape, values)


class Listed(NamedTuple):
    """A tensor without a file."""

    name: str
    shape: tuple[int, ...]
    numbers: Any

    def values(self) -> Any:
        return self.numbers


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"expert_count": 8}, "experts"),
        ({"attention.head_count_kv": np.array([1, 2])}, "numbers of heads"),
        ({"attention.value_length": 2}, "value_length"),
        ({"rope.dimension_count": 2}, "rope.dimension_count"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "'yarn'"),
        ({"rope.scaling.type": "yarn", "rope.scaling.attn_factor": 2.0}, "attn_factor"),
        ({"attention.causal": False}, "attention.causal"),
    ],
)
def test_variants_that_are_not_computed_are_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        config_of(file_of("llama", **fields))


def test_a_missing_field_is_named() -> None:
    file = file_of("llama")
    del file.fields["llama.block_count"]
    with pytest.raises(UnsupportedError, match="block_count"):
        config_of(file)


def test_rotary_tables() -> None:
    assert config_of(file_of("qwen3")).rope_parameters["rope_theta"] == 10000.0
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    gemma = config_of(file_of("gemma3", **{"attention.sliding_window": 5}, **linear))
    assert gemma.rope_parameters["full_attention"] == {
        "rope_type": "linear", "rope_theta": 1e6, "factor": 8.0
    }  # fmt: skip
    assert gemma.rope_parameters["sliding_attention"]["rope_theta"] == 10000.0
    assert gemma.layer_types == ["sliding_attention"] * 2


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2.0),
        ({"rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.factor": 4.0, "rope.scaling.type": "none"}, None),
        ({"rope.scaling.factor": 1.0, "rope.scaling.type": "yarn"}, None),
    ],
)
def test_positions_are_stretched_as_llama_cpp_does(
    fields: dict[str, Any], factor: float | None
) -> None:
    rope = config_of(file_of("llama", **fields)).rope_parameters
    assert rope["rope_type"] == ("linear" if factor else "default")
    assert rope.get("factor") == factor


def test_llama_3_stretches_its_slow_rotations() -> None:
    """The table of a file is the one transformers computes for Llama 3.2."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(head_dim=64, rope_parameters=rope, max_position_embeddings=131072)
    theirs = LlamaRotaryEmbedding(config).inv_freq
    plain = 500000.0 ** -(torch.arange(32) / 32)
    stretches = (plain / theirs).numpy().astype(np.float32)
    sizes = {"embedding_length": 128, "rope.freq_base": 500000.0, "context_length": 131072}

    def ours(values: Any) -> Any:
        return config_of(file_of("llama", {"rope_freqs.weight": gguf_tensor("", values)}, **sizes))

    assert ours(stretches).rope_parameters == rope
    with pytest.raises(UnsupportedError, match=r"rope_freqs\.weight"):
        ours(stretches[::-1].copy())
    sizes["rope.scaling.factor"] = 2.0
    with pytest.raises(UnsupportedError, match=r"rope_freqs\.weight and a factor of 2\.0"):
        ours(stretches)


def test_endings() -> None:
    file = file_of("llama")
    assert config_of(file).eos_token_id is None
    file.fields["tokenizer.ggml.eos_token_id"] = 3
    assert config_of(file).eos_token_id == 3
    file.fields["tokenizer.ggml.eot_token_id"] = 7
    assert config_of(file).eos_token_id == [3, 7]
