"""A decorator for methods that run without gradients on their object's device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


def inference(method: Method) -> Method:
    """Run a method in inference mode, with `self.device` as the current device: kernels are
    launched on the current one, wherever their tensors lie."""

    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        device = self.device
        place = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with torch.inference_mode(), place:
            return method(self, *args, **options)

    return cast(Method, run)
