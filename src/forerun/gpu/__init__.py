"""Rounds on a CUDA device: kernels in Triton, a lean pass, and whole rounds as captured graphs.

Nothing here is imported before a model on such a device asks for it.
"""
