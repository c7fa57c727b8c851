"""What is kept from the screen, and nothing else."""

from __future__ import annotations

import warnings

from forerun.models.no_warnings import no_onednn_traces

# PyTorch's, of the first bfloat16 product on an ARM processor without instructions for it.
TRACE = """mkldnn_matmul failed, switching to BLAS gemm:mkldnn_matmul: mkldnn_matmul bf16 \
path needs a cpu with bf16 support
Exception raised from mkldnn_matmul at Matmul.cpp:338 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation)"""


def test_the_trace_of_onednn_and_no_other_warning() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        no_onednn_traces()
        for message in (TRACE, "mkldnn_matmul was slow"):
            warnings.warn(message, UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in seen] == ["mkldnn_matmul was slow"]
