"""46 verifiers as people write them, 15 right and 31 wrong, to try `certify` on.

They were written without a look at how `certify` works.  Each is f(tokens, q, p, rng), or has the
signature of a published exercise.  `RIGHT` and `WRONG` list them.  A few right ones compute in
float32, draw from Torch's global generator, or use their random numbers in ways that cannot be
listed; a few wrong ones are wrong only where drafts are long, vocabularies large, rows uniform,
certain or without a common token, or where nothing was drafted.
"""
