"""Methods that run without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


def inference(method: Method) -> Method:
    """`torch.inference_mode`, with the method's own type."""
    return cast(Method, torch.inference_mode()(method))
