"""Products of rows with a matrix: one chain of tensor-core products along the inner axis.

Weights of few bits (`forerun.models.packed`) are widened to 16 bits within the product. None of
their numbers and tables is loaded in units of 8 bits. The compiler would then permute the inner
axis, but only in tiles of few tokens, and sums would have other bits in these. So words have 16
bits from memory to the tensor core, tables of 8 bits are read in wider units, and a product has
exactly the bits of the product with the weights written out.

Such a matrix is a tuple: words, scales and more (`Packed`), and FORMAT says how to
read it; ("",) stands for a matrix that is not packed.

0 kind of number    1 parts in the same words    2 part
    3 inputs and 4 rows that share a scale
    5 the number that stands for zero, 6 or a table of them    7 a table of what is added
    8 how a weight is made of number and scale: "pairs", in the precision of the model, and "wide",
      in float32, are assembly, which is 13 and what follows for each part; "plain" is left to the
      compiler
    9 what the reading of a number's bits leaves out, which is multiplied into its scale
    10 what assembly adds to an integer, twice    11 words that hold a number of each part
    12 inputs that share a whole scale, of which scales are multiples; 0: there is none
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

WIDE = tl.constexpr(64)
"""From this number of rows on, the weights are the left operand of a product, because they then
need not pass through shared memory."""


@triton.jit
def _after_wait(begin):
    """Wait until the previous kernel has ended, and return 0. It depends on the step, so that it
    stays part of the loop over steps and of the pipeline that reads ahead."""
    zero = tl.inline_asm_elementwise(
        "griddepcontrol.wait; mov.u32 $0, 0; // $1",
        "=r,r",
        [begin],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    return tl.multiple_of(zero, 16)


@triton.jit
def products(
    x, at, keep, first, second, inside, K: tl.constexpr, BK: tl.constexpr, MP: tl.constexpr,
    BN: tl.constexpr, PAIR: tl.constexpr, MASKED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute x @ first.T, and x @ second.T if PAIR, for one tile.

    x: the rows `at` (MP,) of length K; only those with `keep` are read. If PDL, the previous kernel
    may still be writing x: the first weights are requested, then that kernel is waited for. first,
    second: addresses of the first of BN consecutive rows of weights, each of length K; only rows
    with `inside` (BN,) exist.
    """
    columns = tl.arange(0, BN)
    a = tl.zeros((MP, BN), tl.float32)
    b = tl.zeros((MP, BN), tl.float32)
    for begin in range(0, K, BK):
        k = begin + tl.arange(0, BK)
        rows, weights = keep[:, None], inside[:, None]
        if K % BK != 0:
            rows = rows & (k < K)[None, :]
            weights = weights & (k < K)[None, :]
        where = columns[:, None] * K + k[None, :]
        if MASKED or K % BK != 0:
            wa = tl.load(first + where, mask=weights, other=0.0, eviction_policy="evict_first")
        else:
            wa = tl.load(first + where, eviction_policy="evict_first")
        if PAIR:
            if MASKED or K % BK != 0:
                wb = tl.load(second + where, mask=weights, other=0.0, eviction_policy="evict_first")
            else:
                wb = tl.load(second + where, eviction_policy="evict_first")
        made = x + _after_wait(begin) if PDL else x
        values = tl.load(made + at[:, None] * K + k[None, :], mask=rows, other=0.0)
        a = tl.dot(values, tl.trans(wa), a)
        if PAIR:
            b = tl.dot(values, tl.trans(wb), b)
    if PDL:
        gdc_launch_dependents()
    return a, b


@triton.jit
def bulk_products(
    x, row, w, first, second, K: tl.constexpr, BK: tl.constexpr, MP: tl.constexpr,
    BN: tl.constexpr, PAIR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute a tile of `products` that begins at these rows of x and w. Both are tensor
    descriptors, from which the bulk copy engine loads tiles; entries outside of them are 0."""
    if PDL:
        gdc_wait()
    a = tl.zeros((MP, BN), tl.float32)
    b = tl.zeros((MP, BN), tl.float32)
    for begin in range(0, K, BK):
        values = x.load([row, begin])
        wa = w.load([first, begin])
        a = tl.dot(values, wa.T, a)
        if PAIR:
            wb = w.load([second, begin])
            b = tl.dot(values, wb.T, b)
    if PDL:
        gdc_launch_dependents()
    return a, b


@triton.jit
def _words(at, inside, MASKED: tl.constexpr):
    """Load a tile of words; a pass reads each word once."""
    if MASKED:
        found = tl.load(at, mask=inside[:, None], other=0, eviction_policy="evict_first")
    else:
        found = tl.load(at, eviction_policy="evict_first")
    return found


@triton.jit
def _others(at, words, inside, MASKED: tl.constexpr, FORMAT: tl.constexpr):
    """Load the second and third tile of words of a step if a number's bits are spread over three
    words; else return the first tile again."""
    if FORMAT[11] == 3:
        more = _words(at + FORMAT[2], inside, MASKED)
        high = _words(at + 2 * FORMAT[2], inside, MASKED)
    else:
        more, high = words, words
    return more, high


@triton.jit
def _numbers(words, more, high, P: tl.constexpr, FORMAT: tl.constexpr):
    """The numbers of part P as float32. Small floats get the exponent of a bfloat16 with the same
    bits, so they still lack the factor that FORMAT[9] stands for."""
    wide = words.to(tl.int32)
    if FORMAT[0] == "e4m3":
        bits = wide & 0x87F0 if P == 0 else ((wide << 4) & 0x80F0) | ((wide >> 4) & 0x0700)
        found = (bits << 16).to(tl.float32, bitcast=True)
    elif FORMAT[0] == "e2m1":
        four = wide >> (4 * P)
        found = (((four & 0x7) << 22) | ((four & 0x8) << 28)).to(tl.float32, bitcast=True)
    elif FORMAT[0] == "int6":
        low = wide if P < 4 else more.to(tl.int32)
        six = ((low >> (4 * (P % 4))) & 0xF) | (((high.to(tl.int32) >> (2 * P)) & 0x3) << 4)
        found = six.to(tl.float32)
    else:
        BITS: tl.constexpr = 16 // FORMAT[1]
        found = ((wide >> (BITS * P)) & ((1 << BITS) - 1)).to(tl.float32)
    return found


@triton.jit
def _entries(
    table, n, inside, step, P: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr,
    FORMAT: tl.constexpr,
):  # fmt: skip
    """Read the entries (BN, 1) for part P of a step from a table with an entry for every GROUP
    inputs of each row n.

    Entries of fewer than 32 bits are read in words of 32, which are copied ahead of the step that
    needs them; each step would have to wait for narrower loads. Only entries whose place in their
    word is the same in all steps can be read so: a shift by a number that differs would move the
    weights made of it through shared memory. Other entries of 8 bits are read in pairs, one load
    for the first of each pair and another one for the second, because loads of 8 bits would do the
    same.
    """
    kind: tl.constexpr = table.dtype.element_ty
    BITS: tl.constexpr = kind.primitive_bitwidth
    IN_WORD: tl.constexpr = 32 // BITS
    IN_ROW: tl.constexpr = K // GROUP
    INPUTS: tl.constexpr = FORMAT[1] * FORMAT[2]  # of a step
    IN_STEP: tl.constexpr = INPUTS // GROUP
    PLACE: tl.constexpr = P * FORMAT[2] // GROUP  # in a step
    if IN_WORD > 1 and INPUTS % GROUP == 0 and IN_STEP % IN_WORD == 0 and IN_ROW % IN_WORD == 0:
        words = table.to(tl.pointer_type(tl.int32)) + n * (IN_ROW // IN_WORD)
        words += step * (IN_STEP // IN_WORD) + PLACE // IN_WORD
        found = tl.load(words, mask=inside, other=0) >> (PLACE % IN_WORD * BITS)
        found = found.to(tl.int16 if BITS == 16 else tl.int8).to(kind, bitcast=True)
    else:
        at = n * IN_ROW + (step * FORMAT[1] + P) * FORMAT[2] // GROUP
        if BITS == 8:
            pairs = table.to(tl.pointer_type(tl.uint16)) + at // 2
            low = tl.load(pairs, mask=inside & (at % 2 == 0), other=0)
            high = tl.load(pairs, mask=inside & (at % 2 == 1), other=0)
            found = (low & 0xFF | high >> 8).to(kind)
        else:
            found = tl.load(table + at, mask=inside, other=0)
    return found[:, None]


@triton.jit
def _scales(
    like, w, n, inside, step, P: tl.constexpr, K: tl.constexpr, FORMAT: tl.constexpr
):  # fmt: skip
    """Load the scales of part P of a step in the form that `_weights` expects."""
    scale = _entries(w[1], n // FORMAT[4], inside, step, P, FORMAT[3], K, FORMAT)
    if FORMAT[8] == "pairs":
        scale = scale * tl.full((1, 1), FORMAT[9], like.dtype.element_ty)
        bits = scale.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        found = bits | (bits << 16)
    elif FORMAT[12]:
        whole = _entries(w[4], n, inside, step, P, FORMAT[12], K, FORMAT)
        found = whole.to(tl.float32) * scale.to(tl.float32)
    else:
        found = scale.to(tl.float32) * FORMAT[9]
    return found


@triton.jit
def _weights(
    like, words, more, high, w, scale, n, inside, step, P: tl.constexpr, K: tl.constexpr,
    FORMAT: tl.constexpr,
):  # fmt: skip
    """Compute the weights of part P of a tile, in the dtype of the pointer `like`."""
    if FORMAT[8] == "pairs":
        if FORMAT[6]:
            zero = _entries(w[2], n // FORMAT[4], inside, step, P, FORMAT[3], K, FORMAT)
            zero = zero.to(tl.int32)
            zero = zero * 0x10001 + FORMAT[10]
        else:
            zero = tl.full((1, 1), FORMAT[5] * 0x10001 + FORMAT[10], tl.int32)
        made = tl.inline_asm_elementwise(
            FORMAT[13 + P],
            "=r,r,r,r,r,r",
            [words, scale, zero],
            dtype=like.dtype.element_ty,
            is_pure=True,
            pack=2,
        )
    elif FORMAT[8] == "wide":
        made = tl.inline_asm_elementwise(
            FORMAT[13 + P],
            "=r,r,f,f",
            [words, scale],
            dtype=like.dtype.element_ty,
            is_pure=True,
            pack=2,
        )
    else:
        values = _numbers(words, more, high, P, FORMAT)
        if FORMAT[6]:
            zero = _entries(w[2], n // FORMAT[4], inside, step, P, FORMAT[3], K, FORMAT)
            values -= zero.to(tl.float32)
        elif FORMAT[5] > 0:
            values -= FORMAT[5]
        if FORMAT[7]:
            offset = _entries(w[3], n // FORMAT[4], inside, step, P, FORMAT[3], K, FORMAT)
            offset = offset.to(tl.float32)
            if FORMAT[12]:
                whole = _entries(w[5], n, inside, step, P, FORMAT[12], K, FORMAT)
                offset *= -whole.to(tl.float32)
            values = tl.fma(values, scale, offset)  # rounds once, as float32 holds the product
        else:
            values *= scale
        made = values.to(like.dtype.element_ty)
    return made


@triton.jit
def packed_products(
    x, at, keep, w, first, second, inside, K: tl.constexpr, BK: tl.constexpr, MP: tl.constexpr,
    BN: tl.constexpr, PAIR: tl.constexpr, MASKED: tl.constexpr, FORMAT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute what `products` does for a packed matrix w, with the BN rows from `first` on, and
    those from `second` on if PAIR. BK: the inputs of the steps that are taken at once."""
    PER: tl.constexpr = FORMAT[1]
    PART: tl.constexpr = FORMAT[2]
    ONE_SCALE: tl.constexpr = FORMAT[3] == K
    columns, h = tl.arange(0, BN), tl.arange(0, PART)
    n_a, n_b = first + columns, second + columns
    WIDTH: tl.constexpr = K // PER * FORMAT[11]
    rows_a = w[0] + tl.cast(first, tl.int64) * WIDTH
    rows_b = w[0] + tl.cast(second, tl.int64) * WIDTH
    if MP >= WIDE:
        a = tl.zeros((BN, MP), tl.float32)
        b = tl.zeros((BN, MP), tl.float32)
    else:
        a = tl.zeros((MP, BN), tl.float32)
        b = tl.zeros((MP, BN), tl.float32)
    if ONE_SCALE:
        scale_a = _scales(x, w, n_a, inside, 0, 0, K, FORMAT)
        if PAIR:
            scale_b = _scales(x, w, n_b, inside, 0, 0, K, FORMAT)
    for step in tl.range(0, K // (PER * PART), loop_unroll_factor=BK // (PER * PART)):
        where = columns[:, None] * WIDTH + (step * (PART * FORMAT[11]) + h)[None, :]
        words_a = _words(rows_a + where, inside, MASKED)
        more_a, high_a = _others(rows_a + where, words_a, inside, MASKED, FORMAT)
        if PAIR:
            words_b = _words(rows_b + where, inside, MASKED)
            more_b, high_b = _others(rows_b + where, words_b, inside, MASKED, FORMAT)
        made = x + _after_wait(step) if PDL else x
        for p in tl.static_range(PER):
            k = (step * PER + p) * PART + h
            values = tl.load(made + at[:, None] * K + k[None, :], mask=keep[:, None], other=0.0)
            if not ONE_SCALE:
                scale_a = _scales(x, w, n_a, inside, step, p, K, FORMAT)
            wa = _weights(x, words_a, more_a, high_a, w, scale_a, n_a, inside, step, p, K, FORMAT)
            a = tl.dot(wa, tl.trans(values), a) if MP >= WIDE else tl.dot(values, tl.trans(wa), a)
            if PAIR:
                if not ONE_SCALE:
                    scale_b = _scales(x, w, n_b, inside, step, p, K, FORMAT)
                wb = _weights(
                    x, words_b, more_b, high_b, w, scale_b, n_b, inside, step, p, K, FORMAT
                )
                if MP >= WIDE:
                    b = tl.dot(wb, tl.trans(values), b)
                else:
                    b = tl.dot(values, tl.trans(wb), b)
    if PDL:
        gdc_launch_dependents()
    if MP >= WIDE:
        a, b = tl.trans(a), tl.trans(b)
    return a, b


@triton.jit
def tile_products(
    x, row, at, keep, w, first, second, inside, K: tl.constexpr, BK: tl.constexpr,
    MP: tl.constexpr, BN: tl.constexpr, PAIR: tl.constexpr, MASKED: tl.constexpr,
    BULK: tl.constexpr, FORMAT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute x @ w[first:first + BN].T, and x @ w[second:second + BN].T if PAIR, for one tile.

    x: the rows `at` (MP,) of length K, of which only those with `keep` are read; if BULK, the rows
    from `row` on. w: a matrix, its tensor descriptor if BULK, or a packed one. inside: (BN,), which
    of the rows of w exist.
    """
    if BULK:
        a, b = bulk_products(x, row, w, first, second, K, BK, MP, BN, PAIR, PDL)
    elif FORMAT[0] != "":
        a, b = packed_products(
            x, at, keep, w, first, second, inside, K, BK, MP, BN, PAIR, MASKED, FORMAT, PDL
        )
    else:
        one = w + tl.cast(first, tl.int64) * K
        other = w + tl.cast(second, tl.int64) * K
        a, b = products(x, at, keep, one, other, inside, K, BK, MP, BN, PAIR, MASKED, PDL)
    return a, b


@triton.jit
def write_out(w, y, N, K: tl.constexpr, BN: tl.constexpr, FORMAT: tl.constexpr):
    """Write the weights y (N, K) of a packed matrix; program (i, j) writes step j of BN rows."""
    PER: tl.constexpr = FORMAT[1]
    PART: tl.constexpr = FORMAT[2]
    n, h, step = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, PART), tl.program_id(1)
    inside, rows = n < N, n.to(tl.int64)[:, None]
    at = w[0] + rows * (K // PER * FORMAT[11]) + (step * (PART * FORMAT[11]) + h)[None, :]
    words = _words(at, inside, True)
    more, high = _others(at, words, inside, True, FORMAT)
    for p in tl.static_range(PER):
        scale = _scales(y, w, n, inside, step, p, K, FORMAT)
        made = _weights(y, words, more, high, w, scale, n, inside, step, p, K, FORMAT)
        k = (step * PER + p) * PART + h
        tl.store(y + rows * K + k[None, :], made, mask=inside[:, None])
