"""Routes that are answered at once, without an engine: tokenising and detokenising, as in vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.models.no_warnings import no_warnings
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Flag, ListOf, Text, TokenIds
from forerun.serve.openai.objects import Field, Object
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.options import check_length, check_model
from forerun.serve.openai.replies import Words
from forerun.serve.openai.templates import MESSAGE, chat_tokens
from forerun.serve.openai.toolbox import Toolbox, tool_fields


class Tokenize:
    """The route `/tokenize`: the token ids of a text or of a conversation."""

    path = "/tokenize"
    method = "POST"

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.body = Object(
            {
                "model": Field(Text(), "The id of the model, as /v1/models lists it."),
                "prompt": Field(Text(), "This, or messages."),
                "messages": Field(ListOf(MESSAGE, offer.limits.max_messages, 1), "Or prompt."),
                "tools": tool_fields(offer)["tools"],
                "add_special_tokens": Field(
                    Flag(), "Those the tokenizer adds to a prompt; true if left out."
                ),
                "add_generation_prompt": Field(
                    Flag(), "Words that begin the answer to messages; true if left out."
                ),
                "return_token_strs": Field(Flag(), "Texts of the tokens as well.", False),
            }
        )
        self._words = Words(offer.tokenizer)

    def answer(self, body: Mapping[str, Any], **_: str) -> dict[str, Any]:
        """The ids and their number; also the texts of the tokens, if asked for."""
        fields = self.body.check(body)
        check_model(self.offer, fields["model"])
        tokens = self._tokens(fields)
        is_told = fields["return_token_strs"]
        return {
            "count": len(tokens),
            "max_model_len": self.offer.max_context,
            "tokens": tokens,
            "token_strs": [self._words.text(token) for token in tokens] if is_told else None,
        }

    def _tokens(self, fields: Mapping[str, Any]) -> list[int]:
        """The token ids of either a prompt or a conversation."""
        prompt, messages = fields["prompt"], fields["messages"]
        if (prompt is None) == (messages is None):
            message = "Either 'prompt' or 'messages' is needed, and not both."
            raise ApiError(message, param="prompt", code="missing_required_parameter")
        other = ("tools", "add_generation_prompt") if messages is None else ("add_special_tokens",)
        for name in other:
            if fields[name]:
                kind = "messages" if messages is None else "a prompt"
                message = f"'{name}' has a meaning only with {kind}."
                raise ApiError(message, param=name, code="invalid_value")
        if messages is None:
            check_length(self.offer, prompt, "prompt")
            with no_warnings():  # of its length
                special = fields["add_special_tokens"] is not False
                return list(self.offer.tokenizer.encode(prompt, add_special_tokens=special))
        defaults = {"tool_choice": None, "parallel_tool_calls": True}
        toolbox = Toolbox.of(self.offer, {**fields, **defaults})
        begins = fields["add_generation_prompt"] is not False
        return chat_tokens(self.offer, messages, tools=toolbox.shown, begins_answer=begins)


class Detokenize:
    """The route `/detokenize`: the text of token ids, special tokens included."""

    path = "/detokenize"
    method = "POST"

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        ids = TokenIds(offer.target.vocab_size, offer.max_context)
        self.body = Object(
            {
                "model": Field(Text(), "The id of the model, as /v1/models lists it."),
                "tokens": Field(ids, "Token ids.", required=True),
            }
        )

    def answer(self, body: Mapping[str, Any], **_: str) -> dict[str, Any]:
        fields = self.body.check(body)
        check_model(self.offer, fields["model"])
        return {"prompt": str(self.offer.tokenizer.decode(fields["tokens"]))}


def card_of(offer: Offer, created: int) -> dict[str, Any]:
    """The entry of a model in /v1/models, without its names.

    created: when the server started, in seconds since 1970.
    """
    return {
        "created": created,
        "max_model_len": offer.max_context,
        "speculation": {"drafters": list(offer.drafters), "rules": list(offer.rules)},
    }
