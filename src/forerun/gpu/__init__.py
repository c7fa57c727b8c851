"""Rounds on a CUDA device: kernels in Triton, a lean pass, and whole rounds as captured graphs.

Nothing here is imported by `import forerun`.  `fr.verify` takes the verification kernels for CUDA
tensors where they cover the case; `FORERUN_KERNELS=0` turns them off.
"""

ARITHMETIC = 3
"""The version of the kernels' arithmetic, as docs/gpu.md states it.  Texts sampled on a device are
the same wherever this number is the same, whatever the batch, K, the drafter and the row."""
