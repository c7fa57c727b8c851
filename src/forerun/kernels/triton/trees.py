"""What kernels ask of a tree."""

import triton
import triton.language as tl


@triton.jit
def depth_of(parents, node):
    """How many guesses come before what follows a node; the text itself is node -1."""
    depth = 0
    while node >= 0:
        node = tl.load(parents + node).to(tl.int32)
        depth += 1
    return depth
