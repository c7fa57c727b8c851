"""Makes a transformers tokenizer from a GGUF file.

transformers can make one itself, but that one splits numbers unlike the models' own tokenizers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from forerun.base.errors import UnsupportedError, explain
from forerun.gguf.file import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of tokens
SPACE = "▁"  # SentencePiece's letter for a space
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORDS = {
    "llama-bpe": rf"{_LETTERS}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_LETTERS}|\p{{N}}|{_REST}",
    "tekken": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Patterns of words, by GGUF's name of the pre-tokenizer.  Merges stay within a word."""
ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "codeshell")
WHOLE_WORDS = ("llama-bpe", "tekken")  # pre-tokenizers under which a word that is a token is one


def tokenizer_of(file: GgufFile, max_length: int) -> Any:
    """A fast tokenizer; None if the file has no vocabulary.

    max_length: the longest text of the model, in tokens.
    """
    fields = dict(file.fields)
    kind = fields.get("tokenizer.ggml.model", "none")
    if kind in ("none", "no_vocab") or "tokenizer.ggml.tokens" not in fields:
        return None
    if kind not in ("gpt2", "llama"):
        raise _unsupported(file, f"tokenizer {kind!r}")
    template = fields.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise file.damaged(f"tokenizer.chat_template {template!r:.40}")
    fields["tokenizer.ggml.tokens"] = _tokens(file)
    file = file._replace(fields=fields)
    core = _byte_pairs(file) if kind == "gpt2" else _sentence_pieces(file)
    core.add_special_tokens(_verbatim(file, CONTROL, UNKNOWN))
    core.add_tokens(_verbatim(file, USER_DEFINED))
    _frame(core, file)
    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    named = {f"{role}_token": _token(file, name) for role, name in roles.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        **{role: token for role, token in named.items() if token is not None},
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )


def _tokens(file: GgufFile) -> list[str]:
    """All tokens in the order of their ids.  Raises InputError if they are not distinct or not as
    many as rows of the embedding; llama.cpp requires that too."""
    listed = file.strings("tokenizer.ggml.tokens")
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(listed)]  # as llama.cpp
    num_rows = file.tensors["token_embd.weight"].shape[0]
    if len(tokens) != num_rows:
        raise file.damaged(f"{len(tokens):,} tokens for {num_rows:,} rows of the embedding")
    if len(set(tokens)) < len(tokens):
        [(token, count)] = Counter(tokens).most_common(1)
        raise file.damaged(f"{count:,} tokens {token!r:.40}")
    return tokens


def _verbatim(file: GgufFile, *kinds: int) -> list[AddedToken]:
    """The tokens of these types, which are recognised before a text is split into words."""
    tokens = file.fields["tokenizer.ggml.tokens"]
    pairs = zip(tokens, file.numbers("tokenizer.ggml.token_type", len(tokens)), strict=True)
    return [AddedToken(token, normalized=False) for token, kind in pairs if kind in kinds]


def _byte_pairs(file: GgufFile) -> Any:
    """A byte-pair tokenizer: merges of bytes within words."""
    fields = file.fields
    name = fields.get("tokenizer.ggml.pre", "default")
    name = ALIASES.get(name, name)
    tokens = file.fields["tokenizer.ggml.tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [merge.partition(" ") for merge in file.strings("tokenizer.ggml.merges")]
    merges = [(left, right) for left, _, right in pairs]
    core = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in WHOLE_WORDS))
    if name in WORDS:
        split = pre_tokenizers.Split(Regex(WORDS[name]), "isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    elif name in SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    elif name == "gpt-2":
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        raise _unsupported(file, f"pre-tokenizer {name!r}")
    if name == "qwen2":
        core.normalizer = normalizers.NFC()
    core.decoder = decoders.ByteLevel()
    return core


def _sentence_pieces(file: GgufFile) -> Any:
    """A SentencePiece tokenizer: merges of characters, the piece with the highest score first;
    characters that are no piece become bytes."""
    fields = file.fields
    tokens = file.fields["tokenizer.ggml.tokens"]
    scores = file.numbers("tokenizer.ggml.scores", len(tokens))
    kinds = file.numbers("tokenizer.ggml.token_type", len(tokens))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pieces = {
        token: score
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind == NORMAL
    }
    core = Tokenizer(
        models.BPE(
            vocabulary,
            _merges(pieces, vocabulary),
            unk_token=_token(file, "unknown"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = fields.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    core.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if has_prefix else spaces
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    core.decoder = decoders.Sequence(steps)
    return core


def _merges(pieces: dict[str, float], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """All pairs of pieces that make another piece, the one with the highest score first."""
    found = []
    for piece, score in pieces.items():
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in pieces and right in pieces:
                found.append((-score, vocabulary[left], vocabulary[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _frame(core: Any, file: GgufFile) -> None:
    """Let a tokenizer add the tokens that texts begin and end with."""
    fields = file.fields
    is_piece_model = fields["tokenizer.ggml.model"] == "llama"
    pre = fields.get("tokenizer.ggml.pre", "")
    usual = is_piece_model or ALIASES.get(pre, pre) == "llama-bpe"
    before = _token(file, "bos") if fields.get("tokenizer.ggml.add_bos_token", usual) else None
    after = _token(file, "eos") if fields.get("tokenizer.ggml.add_eos_token", False) else None
    frame = [token for token in (before, after) if token is not None]
    if not frame:
        return

    def framed(*texts: str) -> list[str]:
        return [part for text in texts for part in (before, text, after) if part is not None]

    core.post_processor = processors.TemplateProcessing(
        single=framed("$A"),
        pair=framed("$A", "$B:1"),
        special_tokens=[(token, core.token_to_id(token)) for token in dict.fromkeys(frame)],
    )


def _token(file: GgufFile, role: str) -> str | None:
    """The token of a role such as "bos"; None if the file names none."""
    index = file.token_id(role)
    tokens: list[str] = file.fields["tokenizer.ggml.tokens"]
    return None if index is None else tokens[index]


def _unsupported(file: GgufFile, received: str) -> UnsupportedError:
    known = ", ".join((*WORDS, *ALIASES, *SINGLE_DIGITS, "gpt-2"))
    wrong = f"GGUF files with SentencePiece or one of these pre-tokenizers are served: {known}."
    cure = "Load the model's original checkpoint, which has a tokenizer that transformers reads."
    return UnsupportedError(explain(wrong, f"{received} in {str(file.path)!r}", cure))
