"""`GET /v1/models` and `GET /v1/models/{id}`: the one model that is served."""

from __future__ import annotations

from typing import Any

from forerun.serve.offer import Offer
from forerun.serve.options import check_model


class Models:
    """The list of models, and each of them."""

    path = "/v1/models"

    def __init__(self, offer: Offer, created: int) -> None:
        self._offer = offer
        self._created = created  # when the server started, in seconds since 1970

    def listing(self) -> dict[str, Any]:
        return {"object": "list", "data": [self.one(self._offer.name)]}

    def one(self, name: str) -> dict[str, Any]:
        check_model(self._offer, name)
        return {
            "id": self._offer.name,
            "object": "model",
            "created": self._created,
            "owned_by": "forerun",
            "max_model_len": self._offer.max_context,
            "speculation": {
                "drafters": list(self._offer.drafters),
                "rules": list(self._offer.rules),
            },
        }
