"""`GET /v1/models` and `GET /v1/models/{id}`: the one model that is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.serve.openai.offer import Offer
from forerun.serve.openai.options import check_model


class OneModel:
    """A model by its id."""

    path = "/v1/models/{name:path}"
    method = "GET"

    def __init__(self, offer: Offer, created: int) -> None:
        self.offer = offer
        self._created = created  # when the server started, in seconds since 1970

    def answer(self, body: Mapping[str, Any], **path_parameters: str) -> dict[str, Any]:
        check_model(self.offer, path_parameters["name"])
        return self.card()

    def card(self) -> dict[str, Any]:
        offer = self.offer
        return {
            "id": offer.name,
            "object": "model",
            "created": self._created,
            "owned_by": "forerun",
            "max_model_len": offer.max_context,
            "speculation": {"drafters": list(offer.drafters), "rules": list(offer.rules)},
        }


class Models:
    """The list of models."""

    path = "/v1/models"
    method = "GET"

    def __init__(self, offer: Offer, created: int) -> None:
        self._one = OneModel(offer, created)

    def answer(self, body: Mapping[str, Any], **_: str) -> dict[str, Any]:
        return {"object": "list", "data": [self._one.card()]}
