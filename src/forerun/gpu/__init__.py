"""Verification on a CUDA device: kernels that decide a round in one or two launches.

Nothing here is imported by `import forerun`; `fr.verify` takes these kernels for CUDA tensors where
they cover the case (`FORERUN_KERNELS=0` turns them off), and captured rounds call
`forerun.gpu.decide` themselves.
"""

ARITHMETIC = 1
"""The version of the kernels' arithmetic, as docs/gpu.md states it.  Texts sampled on a device are
the same wherever this number is the same, whatever the batch, K, the drafter and the row."""
