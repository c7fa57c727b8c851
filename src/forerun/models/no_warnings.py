"""Silences messages of transformers and PyTorch that do not concern the user."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_loading_bar() -> Iterator[None]:
    """Show no progress bar while weights are read, which takes a second; downloads keep theirs.

    transformers switches off both bars, so the hub's bar is switched on again.
    """
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging

    was_shown, was_downloading = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if was_downloading:
        enable_progress_bars()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


@contextmanager
def no_warnings() -> Iterator[None]:
    """Silence the warnings of transformers, if it is imported."""
    if "transformers" not in sys.modules:
        yield
        return
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def no_onednn_traces() -> None:
    """Silence the stack trace of PyTorch's first bfloat16 product on a CPU without instructions for
    it.

    oneDNN refuses such a product on ARM, and PyTorch computes the same result another way.  This
    happens once per process, in whichever model is first, so the filter stays.
    """
    warnings.filterwarnings("ignore", "mkldnn_matmul failed, switching to BLAS", UserWarning)
