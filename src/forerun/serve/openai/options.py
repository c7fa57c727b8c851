"""The fields that several routes share: the model, sampling options, and speculation."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.engine.answer_options import AnswerOptions
from forerun.generation.prompts import encode
from forerun.sampling.options import MOST_PENALTY, Sampling
from forerun.serve.admission.ask import Speculation
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import (
    Choice,
    Either,
    Flag,
    ListOf,
    MapOf,
    Number,
    Text,
    Whole,
    safe,
    wrong_size,
    wrong_value,
)
from forerun.serve.openai.objects import Field, Object
from forerun.serve.openai.offer import Offer

LEAST_SEED, MOST_SEED = -(1 << 63), (1 << 64) - 1
LEAST_PRIORITY, MOST_PRIORITY = -100, 100
MOST_LABELS, LABEL, LABEL_VALUE = 16, 64, 512  # OpenAI's limits of `metadata`

NO_STORE = "answers are not kept here."
REFUSED = {
    "prediction": "use `speculation` to say how is drafted; it never changes the text.",
    "verbosity": "the model has no such setting.",
    "prompt_cache_retention": "what is kept of a prompt is not a request's to decide.",
}
"""Fields of OpenAI's API that no route can honour, each with the reason."""
NO_THINKING = {"reasoning_effort": "use /v1/chat/completions."}


def common_fields(offer: Offer) -> dict[str, Field]:
    """The fields of every route that generates text."""
    limits = offer.limits
    return {
        "model": Field(Text(), "The id of the model, as /v1/models lists it."),
        "stream": Field(Flag(), "Send the answer in events as it is made.", False),
        **sampling_fields(offer),
        "speculation": Field(_speculation(offer), "How the answer is drafted; false: not at all."),
        "fates": Field(Flag(), "Tell how each token came about.", False),
        "priority": Field(Whole(LEAST_PRIORITY, MOST_PRIORITY), "A higher one is served first.", 0),
        "timeout": Field(
            Number(0, limits.max_seconds, above_low=True),
            "Seconds after which the answer ends as it is, with finish_reason length.",
        ),
        "user": Field(Text(LABEL_VALUE), "A label of the client's own."),
        "safety_identifier": Field(Text(LABEL_VALUE), "A label of the client's own."),
        "prompt_cache_key": Field(Text(LABEL_VALUE), "A label of the client's own."),
        "metadata": Field(
            MapOf(Text(LABEL_VALUE), MOST_LABELS, Text(LABEL)), "Labels of the client's own."
        ),
        "store": Field(Choice((False,)), "Answers are not kept.", False),
        "service_tier": Field(Choice(("auto", "default")), "There is one tier."),
    }


def sampling_fields(offer: Offer) -> dict[str, Field]:
    """The fields that say how tokens are sampled and where an answer ends."""
    limits = offer.limits
    stop = Text(limits.max_stop_length, least=1)
    table = {
        "temperature": Field(Number(0, 2), "0 is greedy.", 1.0),
        "top_p": Field(Number(0, 1, above_low=True), "Keep the likeliest tokens.", 1.0),
        "top_k": Field(Whole(-1, 1 << 31), "Keep so many tokens; 0 and -1 keep all."),
        "min_p": Field(Number(0, 1), "Keep tokens this likely against the likeliest.", 0.0),
        "presence_penalty": Field(Number(-2, 2), "Over the output.", 0.0),
        "frequency_penalty": Field(Number(-2, 2), "Over the output.", 0.0),
        "repetition_penalty": Field(
            Number(1 / MOST_PENALTY, 10), "Over prompt and output, as in transformers.", 1.0
        ),
        "logit_bias": Field(
            MapOf(Number(-100, 100), limits.max_biases, pattern="^[0-9]{1,9}$"),
            "By token id, added to the logits.",
        ),
        "seed": Field(
            Whole(LEAST_SEED, MOST_SEED),
            "Same seed, same text; a negative one counts modulo 2**64.",
        ),
        "stop": Field(
            Either((stop, ListOf(stop, limits.max_stops)), "a text or a list of texts"),
            "Texts that end the answer and are left out of it.",
        ),
        "stop_token_ids": Field(
            ListOf(Whole(0, offer.target.vocab_size - 1), limits.max_stops),
            "Tokens that end the answer, beside the model's own.",
        ),
        "min_tokens": Field(Whole(0, offer.max_tokens), "Nothing ends the answer before.", 0),
        "ignore_eos": Field(Flag(), "Go on after the model's ending token.", False),
    }
    for name in table.keys() & offer.defaults.keys():
        table[name] = replace(table[name], default=_usable(table[name], name, offer.defaults[name]))
    return table


def _usable(entry: Field, name: str, value: float) -> Any:
    """Check one of the model's own defaults; raises if a client could not ask for the same
    value."""
    try:
        return entry.kind.check(value, name)
    except ApiError as error:
        cure = "Correct the model's generation_config.json."
        wrong = "A default of the model's cannot be honoured."
        raise InputError(explain(wrong, f"{name}={value}", f"{error.message} {cure}")) from error


def usual_tokens(offer: Offer, otherwise: int) -> int:
    """The limit on new tokens if a request gives none: the model's own default, or else
    `otherwise`."""
    return min(int(offer.defaults.get("max_new_tokens", otherwise)), offer.max_tokens)


def _speculation(offer: Offer) -> Either:
    """The field `speculation`: an object with drafter, rule and length, or a boolean."""
    limits = offer.limits
    table = {
        "drafter": Field(Choice(offer.drafters), "One of the server's."),
        "draft_length": Field(
            Either((Whole(0, limits.max_draft_length), Choice(("auto",))), 'a number or "auto"'),
            "Guesses in a row at most; 0 is plain decoding.",
        ),
        "rule": Field(Choice(offer.rules), "One of the server's."),
    }
    return Either((Flag(), Object(table)), "an object, or false for none")


def speculation_of(fields: Mapping[str, Any]) -> Speculation:
    """The drafter and the rule that a body asks for."""
    asked = fields["speculation"]
    if not isinstance(asked, Mapping):
        return Speculation()
    return Speculation(asked.get("drafter"), asked.get("rule"))


def options_of(
    fields: Mapping[str, Any], sampling: Sampling, max_new_tokens: int, logprobs: int | None
) -> AnswerOptions:
    """The options of an answer. sampling, max_new_tokens and logprobs are given because routes read
    them differently."""
    if sampling.min_tokens > max_new_tokens:
        limit = f"at most {max_new_tokens}, as the answer has no more tokens"
        raise wrong_value(sampling.min_tokens, "min_tokens", limit)
    asked = fields["speculation"]
    length = asked.get("draft_length") if isinstance(asked, Mapping) else None
    return AnswerOptions(
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        stop=_stops_of(fields["stop"]),
        stop_tokens=fields["stop_token_ids"] or (),
        ignore_eos=fields["ignore_eos"],
        logprobs=logprobs,
        draft_length=0 if asked is False else length,
        priority=fields["priority"],
        timeout=fields["timeout"],
    )


def sampling_of(offer: Offer, fields: Mapping[str, Any], grammar: Any = None) -> Sampling:
    """The sampling options, with the client's seed or one that is drawn here."""
    if grammar is not None and fields["min_tokens"]:
        message = (
            "'min_tokens' cannot be honoured together with a format or with calls in a form of "
            "their own: such an answer may be complete earlier, and then no token may follow. "
            "Leave out one of the two."
        )
        raise ApiError(message, param="min_tokens", code="unsupported_parameter")
    seed = fields["seed"]
    top_k = fields["top_k"]
    return Sampling(
        temperature=fields["temperature"],
        top_k=None if top_k is None or top_k < 1 else top_k,
        top_p=fields["top_p"],
        min_p=fields["min_p"],
        repetition_penalty=fields["repetition_penalty"],
        presence_penalty=fields["presence_penalty"],
        frequency_penalty=fields["frequency_penalty"],
        logit_bias=_biases(offer, fields["logit_bias"] or {}),
        min_tokens=fields["min_tokens"],
        grammar=grammar,
        n=fields.get("n", 1),
        seed=secrets.randbits(63) if seed is None else seed % (1 << 64),
    )


def _biases(offer: Offer, biases: Mapping[str, float]) -> dict[int, float]:
    size = offer.target.vocab_size
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < size):
            limit = f"by token ids from 0 to {size - 1}"
            raise wrong_value(safe(key), "logit_bias", limit)
    return {int(key): bias for key, bias in biases.items()}


def _stops_of(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def check_model(offer: Offer, name: str | None) -> None:
    """Refuse a model that is not served here."""
    if name is not None and name not in offer.names:
        message = f"The model '{safe(name)}' does not exist here. Use '{offer.name}'."
        raise ApiError(message, status=404, param="model", code="model_not_found")


def check_choices(offer: Offer, num_prompts: int, n: int) -> None:
    """Refuse a request for more choices than the server allows."""
    most = offer.limits.max_choices
    if num_prompts * n > most:
        received = f"{num_prompts} x {n}"
        raise wrong_size(received, "n", f"at most {most} answers over all prompts", "invalid_value")


def tokens_of(offer: Offer, prompt: Any, where: str) -> list[int]:
    """The token ids of a prompt given as text or ids; raises an `ApiError` if it is refused."""
    if isinstance(prompt, str):
        check_length(offer, prompt, where)
    try:
        return encode(offer.target, prompt)
    except InputError as error:
        raise ApiError(str(error), param=where, code="invalid_value") from error


def check_length(offer: Offer, text: str, where: str) -> None:
    """Refuse a text that is certainly too long, before it is tokenised, which would delay
    others."""
    longest = offer.max_context
    if longest is not None and len(text) > longest * offer.longest_token:
        message = (
            f"This model's context is {longest} tokens, and '{where}' is {len(text)} characters "
            "long, which is more than that in any case. Shorten it."
        )
        raise ApiError(message, param=where, code="context_length_exceeded")


def room_for(offer: Offer, prompt: list[int], where: str) -> int:
    """How many tokens fit after a prompt; a prompt that leaves no room is refused."""
    longest, most = offer.max_context, offer.max_tokens
    if longest is None:
        return most
    if len(prompt) >= longest:
        message = (
            f"This model's context is {longest} tokens, and '{where}' is {len(prompt)} tokens "
            f"long. Shorten it to {longest - 1} tokens or fewer."
        )
        raise ApiError(message, param=where, code="context_length_exceeded")
    return min(longest - len(prompt), most)


def stream_options() -> Field:
    """The field `stream_options` of routes that stream chunks."""
    table = {
        "include_usage": Field(Flag(), "A last chunk with the counts.", False),
        "continuous_usage_stats": Field(
            Flag(), "The counts so far in every chunk too; with include_usage.", False
        ),
        "include_obfuscation": Field(Choice((False,)), "Chunks are not padded.", False),
    }
    return Field(Object(table), "Only with stream.")


def counts_of(fields: Mapping[str, Any]) -> dict[str, bool]:
    """The options of an `Ask` that say which chunks have token counts. An option without the one it
    depends on is refused."""
    options = fields["stream_options"]
    if options is None:
        return {}
    if not fields["stream"]:
        message = "'stream_options' has a meaning only where 'stream' is true."
        raise ApiError(message, param="stream_options", code="invalid_value")
    if options["continuous_usage_stats"] and not options["include_usage"]:
        name = "stream_options.continuous_usage_stats"
        message = f"'{name}' has a meaning only where 'include_usage' is true."
        raise ApiError(message, param=name, code="invalid_value")
    return {
        "includes_usage": options["include_usage"],
        "counts_in_chunks": options["continuous_usage_stats"],
    }
