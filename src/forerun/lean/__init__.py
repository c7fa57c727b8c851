"""A forward pass of our own for Llama-family models on a CPU, in float32.

On a CPU a pass over a few tokens should cost what reading the weights once costs, so that scoring
a draft is nearly free.  torch's matrix products do not manage that for 2 to 16 rows, and a third
of a small model's step is Python.  Here a whole pass is one compiled call: `tile` multiplies,
`linear` and `attention` are made of it, `plan` says what each token sees, `crew` shares the work
between threads, `forward` runs all stages, `weights` takes the numbers from a transformers model,
`storage` keeps them in few bits, and `model` is what the engine sees.  `heads_pass` does for a
drafting network what `forward` does for its target.  Where a processor adds up products of bytes
(`dots`), `limbs` and `limb_tile` multiply weights that are kept in blocks, several times faster.
`packed` is a model apart from transformers, and `kept_file` keeps it on disk for the next process.

Every number of a token is computed by the same operations in the same order whatever else is in
the pass, so logits do not depend, to the last bit, on the draft, its shape, the batch or the
threads.

Importing this package needs the extra `cpu`: Numba.
"""
