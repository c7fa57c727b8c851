"""The inner loop for limbs: a few tokens times a panel of few-bit weights, by products of bytes.

y[i, :] = sum over blocks of  scale * (d * (sum of limbs * q) + m * (sum of limbs))

The two inner sums are whole numbers and exact; the outer one runs over the blocks in order, so a
token's result does not depend on which tokens stand beside it.

A panel consists of strips. A strip has as many of the panel's outputs as one instruction of `dots`
has sums, for all inputs. A unit of a strip has a header as in `formats`, and blocks of rows of four
inputs of each output, which is what one instruction multiplies with four inputs of a token. A row
of low four bits holds two such: four inputs in the low half of each byte, and in the high half the
four that are half a block later. The row of the bits above follows them; it has those of the first
four inputs lowest. Two blocks of 16 inputs meet one cut block of activations. If a processor
multiplies faster than it reads activations, two strips are interleaved.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from forerun.lean.dots import FOUR, dot, finished, nothing_yet
from forerun.lean.formats import (
    BLOCK,
    BLOCKS,
    BYTE,
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    ZERO_6K,
    Format,
    declare,
    digits_of,
    fetch,
    read_scales,
    spread,
)
from forerun.lean.jit import intrinsic
from forerun.lean.limbs import COARSE, FINE, Cut, constant, same
from forerun.lean.shape import LANES
from forerun.lean.tile import AHEAD, address, repeat

# How the three limbs, the highest first, are divided among sums of 32 bits.  With 4-bit weights all
# three share one sum, because 32 * 15 * 2**22 is less than 2**31.  So is 16 * 32 * 2**22 for blocks
# of BLOCK6K, except where all q are -32: packing makes -1 of these, and 32 times the scale.  In the
# other formats one sum of all limbs could overflow.
LIMBS_PER_SUM = {
    Format.BLOCK8: (1, 2),
    Format.BLOCK6K: (3,),
    Format.BLOCK5K: (1, 2),
    Format.BLOCK5: (1, 2),
    Format.BLOCK4: (3,),
    Format.BLOCK4K: (3,),
}

Digits = list[list[Any]]
"""The numbers q of a block. For each group of four inputs, in order, there is one vector per
strip."""


def multiply_limbs_by(format: Format, cut: Cut = FINE) -> Callable[..., Any]:
    """Make the function that multiplies limbs with a panel of one block format."""

    @intrinsic
    def multiply(
        context: Any,
        x: Any,  # uint8: cut blocks, any shape
        x_at: Any,
        x_stride: Any,
        w: Any,  # uint8
        w_at: Any,
        num_blocks: Any,
        y: Any,  # float32
        y_at: Any,
        y_stride: Any,
        count: Any,  # 1 to `Dots.most_tokens`
    ) -> Any:
        """Multiply `count` rows of limbs, which are `x_stride` apart, with the panel that begins at
        `w_at`; the results go to y."""
        n = types.intp
        signature = types.void(x, n, n, w, n, n, y, n, n, n)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, x_at, x_stride, w, w_at, num_blocks, y, y_at, y_stride, count = values
            kinds = signature.args
            x = address(context, builder, kinds[0], x, x_at)
            w = address(context, builder, kinds[3], w, w_at)
            y = address(context, builder, kinds[6], y, y_at)
            function = define(builder.module, format, cut)
            builder.call(function, [x, x_stride, w, num_blocks, y, y_stride, count])
            return context.get_dummy_value()

        return signature, generate

    return multiply


multiply_limbs_block8 = multiply_limbs_by(Format.BLOCK8)
multiply_limbs_block6k = multiply_limbs_by(Format.BLOCK6K)
multiply_limbs_block5k = multiply_limbs_by(Format.BLOCK5K)
multiply_limbs_block5 = multiply_limbs_by(Format.BLOCK5)
multiply_limbs_block4 = multiply_limbs_by(Format.BLOCK4)
multiply_limbs_block4k = multiply_limbs_by(Format.BLOCK4K)
multiply_coarse_block8 = multiply_limbs_by(Format.BLOCK8, COARSE)
multiply_coarse_block4 = multiply_limbs_by(Format.BLOCK4, COARSE)


def define(module: Any, format: Format, cut: Cut) -> Any:
    """The LLVM function of this format, which a module contains once however often it is called."""
    dots = cut.dots
    name = f"forerun_{cut.limbs}_limbs_{format.name.lower()}_{dots.name}_{dots.most_tokens}"
    if name in module.globals:
        return module.globals[name]
    kind = ir.FunctionType(ir.VoidType(), [BYTE, I64, BYTE, I64, F32.as_pointer(), I64, I64])
    function = ir.Function(module, kind, name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    if dots.features:
        # llvmlite prints attributes as they are, but refuses to add one that it does not know.
        set.add(function.attributes, f'"target-features"="{dots.features}"')
    x, x_stride, w, num_blocks, y, y_stride, count = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    end = function.append_basic_block()
    choice = builder.switch(count, end)
    for tokens in range(1, dots.most_tokens + 1):
        block = function.append_basic_block()
        choice.add_case(I64(tokens), block)
        builder.position_at_end(block)
        rows = [builder.gep(x, [builder.mul(x_stride, I64(token))]) for token in range(tokens)]
        places = [builder.gep(y, [builder.mul(y_stride, I64(token))]) for token in range(tokens)]
        Tile(builder, format, cut, tokens).panel(rows, w, num_blocks, places)
        builder.branch(end)
    builder.position_at_end(end)
    builder.ret_void()
    return function


class Tile:
    """Writes the loops for a fixed number of tokens."""

    def __init__(self, builder: Any, format: Format, cut: Cut, tokens: int) -> None:
        self.builder, self.format, self.cut = builder, format, cut
        self.dots = dots = cut.dots
        self.nothing = nothing_yet(dots)
        self.limbs_per_sum = LIMBS_PER_SUM[format] if cut.limbs > 1 else (1,)
        self.words, self.floats, self.halves, self.shorts = (
            ir.VectorType(number, dots.sums) for number in (I32, F32, F16, I16)
        )
        self.row = ir.VectorType(I8, FOUR * dots.sums)
        self.about = BLOCKS[format]
        bits = 4 if self.about.bits == 4 else 8
        strips = 2 if (bits, tokens) in dots.pairs else dots.strips
        self.num_strips = min(strips, LANES // dots.sums)  # multiplied side by side
        self.unit_bytes = self.about.num_bytes * dots.sums
        self.cut_blocks = self.about.unit // BLOCK  # that meet a unit
        self.num_parts = BLOCK // self.about.inputs  # blocks that meet one cut block

    def panel(self, rows: list[Any], w: Any, num_blocks: Any, places: list[Any]) -> None:
        builder, outputs, count = self.builder, self.dots.sums, self.num_strips
        num_units = builder.sdiv(num_blocks, I64(self.cut_blocks))
        size = builder.mul(num_units, I64(self.unit_bytes))
        vectors = self.floats.as_pointer()

        def strips(index: Any, _: list[Any]) -> list[Any]:
            numbers = [builder.add(builder.mul(index, I64(count)), I64(i)) for i in range(count)]
            begins = [builder.gep(w, [builder.mul(number, size)]) for number in numbers]
            sums = iter(self._strips(rows, begins, num_units, size))
            for place in places:
                for number in numbers:
                    at = builder.gep(place, [builder.mul(number, I64(outputs))])
                    builder.store(next(sums), builder.bitcast(at, vectors), align=4)
            return []

        repeat(builder, I64(LANES // outputs // count), [], strips)

    def _strips(self, rows: list[Any], begins: list[Any], num_units: Any, length: Any) -> list[Any]:
        """The finished sums of strips side by side, a vector for each token and strip."""
        builder, count = self.builder, self.cut_blocks
        num_sums, ahead = len(rows) * len(begins), I64(AHEAD)
        share = -(-self.unit_bytes // count)  # bytes to prefetch with each cut block
        is_long = builder.icmp_signed(">", length, ahead)
        others = builder.select(is_long, builder.mul(length, I64(len(begins) - 1)), I64(0))

        def unit(index: Any, sums: list[Any]) -> list[Any]:
            offset = builder.mul(index, I64(self.unit_bytes))
            strips = [builder.gep(begin, [offset]) for begin in begins]
            is_last = builder.icmp_signed(">=", builder.add(offset, ahead), length)
            # What follows the end of a strip was read beside it; the next new strip lies behind.
            jump = builder.select(is_last, others, I64(0))
            wholes = [self._header(strip) for strip in strips]

            def block(number: Any, sums: list[Any]) -> list[Any]:
                later = builder.add(jump, builder.mul(number, I64(share)))
                for strip in strips:
                    fetch(builder, builder.gep(strip, [later]), AHEAD, share)
                at = builder.add(builder.mul(index, I64(count)), number)
                xs = [builder.gep(row, [builder.mul(at, I64(self.cut.num_bytes))]) for row in rows]
                for part in range(self.num_parts):
                    own = builder.add(builder.mul(number, I64(self.num_parts)), I64(part))
                    scales = [
                        self._scales(strip, own, whole)
                        for strip, whole in zip(strips, wholes, strict=True)
                    ]
                    products = self._products(self._digits(strips, own), xs, part)
                    added = itertools.product(xs, scales)
                    sums = [
                        self._add_block(numbers, x, product, total)
                        for (x, numbers), product, total in zip(added, products, sums, strict=True)
                    ]
                return sums

            return block(I64(0), sums) if count == 1 else repeat(builder, I64(count), sums, block)

        return repeat(builder, num_units, [constant(self.floats, 0.0)] * num_sums, unit)

    def _header(self, strip: Any) -> list[Any]:
        """The d, or d and m, of a unit of a strip, as float32 vectors."""
        places = range(0, 2 * self.dots.sums * self.about.numbers, 2 * self.dots.sums)
        halves = [self._read(self.halves, strip, at) for at in places]
        return [self.builder.fpext(half, self.floats) for half in halves]

    def _scales(self, strip: Any, block: Any, header: list[Any]) -> list[Any]:
        """The d, or d and m, of a block of the unit of a strip that has this header."""
        builder, outputs = self.builder, self.dots.sums
        scales = read_scales(builder, self.format, strip, block, header, outputs)
        if self.format is Format.BLOCK6K:
            bits = self._read(self.shorts, strip, 2 * outputs)
            bit = spread(builder, builder.shl(I16(1), builder.trunc(block, I16)), outputs)
            is_raised = builder.icmp_signed("==", builder.and_(bits, bit), bit)
            raised = builder.fmul(scales[0], constant(self.floats, 32.0))
            scales = [builder.select(is_raised, raised, scales[0])]
        return scales

    def _digits(self, strips: list[Any], block: Any) -> Digits:
        """The q of a block of the units at these places, one place for each strip."""
        builder, bits, outputs = self.builder, self.about.bits, self.dots.sums
        size, header = self.about.block_bytes * outputs, self.about.header * outputs
        at = builder.add(builder.mul(block, I64(size)), I64(header))
        digits = []
        for strip in strips:
            place = builder.gep(strip, [at])
            rows = [self._read(self.row, place, row) for row in range(0, size, FOUR * outputs)]
            digits.append(digits_of(builder, bits, rows))
        if self.format is Format.BLOCK6K and not self.dots.is_offset:
            zero = constant(self.row, ZERO_6K)
            digits = [[builder.sub(digit, zero) for digit in own] for own in digits]
        return [list(own) for own in zip(*digits, strict=True)]

    def _products(self, digits: Digits, xs: list[Any], part: int) -> list[Any]:
        """The sums of limbs * q over a block, for each token and strip, as float32.

        An addition has to wait for the previous one in the same sum, so several sums are computed
        at a time: those of several tokens and strips or, if there are few tokens, those of their
        limbs. Either way gives the same whole numbers. Groups are as large as registers allow.
        """
        if len(xs) < (self.dots.in_turn_of_6 if self.about.bits == 6 else self.dots.in_turn):
            lots = _even_groups(xs, -(-len(xs) // self.dots.abreast))
            return [product for xs in lots for product in self._limbs_abreast(digits, xs, part)]
        most = 4 if len(self.limbs_per_sum) == 1 else 3  # in a group
        return self._limb_by_limb(digits, _even_groups(xs, max(2, -(-len(xs) // most))), part)

    def _limb_by_limb(self, digits: Digits, groups: list[list[Any]], part: int) -> list[Any]:
        """The products with one sum for all limbs of a token: the sum of the higher limbs is
        multiplied by 256, and the next lower limb is added to it. While one group of sums is
        multiplied, another one is added to."""
        limb, words = 0, []
        for size in self.limbs_per_sum:
            lots: list[list[Any]] = [[] for _ in groups]
            for number, (index, xs) in itertools.product(range(size), enumerate(groups)):
                starts = [self._start(x, limb + number, part) for x in xs]
                sums = [start for start in starts for _ in range(self.num_strips)]
                if number:
                    raised = map(self._raise, lots[index])
                    sums = [self.builder.add(*pair) for pair in zip(raised, sums, strict=True)]
                limbs = [self._limb(x, limb + number, part) for x in xs]
                lots[index] = self._dot(digits, limbs, sums)
            limb += size
            words.append([total for sums in lots for total in sums])
        return [self._as_float(of_token) for of_token in zip(*words, strict=True)]

    def _limbs_abreast(self, digits: Digits, xs: list[Any], part: int) -> list[Any]:
        """The products with a separate sum for each limb: more sums run at a time, and they are
        joined at the end."""
        strips = range(self.num_strips)
        limbs = [self._limb(x, limb, part) for x in xs for limb in range(self.cut.limbs)]
        starts = [self._start(x, limb, part) for x in xs for limb in range(self.cut.limbs)]
        sums = self._dot(digits, limbs, [start for start in starts for _ in strips])
        products = []
        for token, strip in itertools.product(range(len(xs)), strips):
            first = token * self.cut.limbs * len(strips) + strip
            of_token = sums[first :: len(strips)][: self.cut.limbs]
            products.append(self._as_float(self._words(of_token)))
        return products

    def _words(self, limbs: Sequence[Any]) -> list[Any]:
        """Join the sums of a token's limbs, the highest first, into words of several limbs each, as
        `limbs_per_sum` says."""
        of_limbs, words = iter(limbs), []
        for size in self.limbs_per_sum:
            word = next(of_limbs)
            for _ in range(size - 1):
                word = self.builder.add(self._raise(word), next(of_limbs))
            words.append(word)
        return words

    def _start(self, x: Any, limb: int, part: int) -> Any:
        """The number that the sum of one limb begins with. It is zero, unless weights are stored
        higher. Then it is minus the contribution of this offset: for the highest limb its own, for
        the lowest limb that of all lower limbs together."""
        is_lifted = self.format in (Format.BLOCK8, Format.BLOCK6K) and self.dots.is_offset
        if not is_lifted or 0 < limb < self.cut.limbs - 1:
            return self.nothing
        begin = self.cut.starts_at(0 if self.num_parts == 1 else 1 + part)
        return self._everywhere(I32, x, begin + 4 * (limb > 0))

    def _limb(self, x: Any, limb: int, part: int) -> Any:
        """The address of one limb of a block's activations."""
        return self.builder.gep(x, [I64(limb * BLOCK + part * self.about.inputs)])

    def _raise(self, sums: Any) -> Any:
        """Multiply sums by 256, so that the next lower limb can be added."""
        return self.builder.shl(sums, constant(self.words, 8))

    def _dot(self, digits: Digits, limbs: list[Any], sums: list[Any]) -> list[Any]:
        """Return `sums` plus the products of a block's q with limbs. For each limb, `sums` has one
        vector per strip."""
        order = list(range(len(digits)))
        if (
            self.dots.words_read == 1 and self.about.bits < 8
        ):  # numbers of one row follow each other
            order.sort(key=lambda number: number % (len(digits) // 2))
        for number in order:
            added = []
            for index, limb in enumerate(limbs):
                x = self.builder.bitcast(self._four(limb, number), self.row)
                before = sums[index * self.num_strips : (index + 1) * self.num_strips]
                added += [
                    dot(self.builder, self.dots, total, row, x)
                    for total, row in zip(before, digits[number], strict=True)
                ]
            sums = added
        return [finished(self.builder, self.dots, total) for total in sums]

    def _four(self, limb: Any, number: int) -> Any:
        """Load inputs 4 * number to 4 * number + 3 of a token into all lanes of a vector."""
        count = self.dots.words_read
        if count == 1:
            return self._everywhere(I32, limb, FOUR * number)
        some = self._read(ir.VectorType(I32, count), limb, FOUR * (number - number % count))
        return same(self.builder, some, number % count, self.dots.sums)

    def _everywhere(self, number: Any, place: Any, offset: int) -> Any:
        """Load one number from memory into all lanes of a vector."""
        nothing = ir.Constant(ir.VectorType(number, self.dots.sums), ir.Undefined)
        first = self.builder.insert_element(nothing, self._read(number, place, offset), I32(0))
        return same(self.builder, first, 0, self.dots.sums)

    def _as_float(self, words: Sequence[Any]) -> Any:
        """Combine words, the highest first, into the whole numbers that they form, as float32."""
        total, *rest = (self.builder.sitofp(word, self.floats) for word in words)
        for size, word in zip(self.limbs_per_sum[1:], rest, strict=True):
            total = self._fused(total, constant(self.floats, float(1 << 8 * size)), word)
        return total

    def _add_block(self, header: list[Any], x: Any, product: Any, total: Any) -> Any:
        """`total` plus the contribution of one block for one token."""
        at = self.cut.scale_at
        if self.dots.words_read == 1:
            scale, sum_of_x = (self._everywhere(F32, x, at + 4 * i) for i in (0, 1))
        else:
            numbers = self._read(ir.VectorType(F32, 2), x, at)
            scale, sum_of_x = (same(self.builder, numbers, i, self.dots.sums) for i in (0, 1))
        product = self.builder.fmul(product, header[0])
        if len(header) > 1:
            product = self._fused(header[1], sum_of_x, product)
        return self._fused(product, scale, total)

    def _fused(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        name = f"llvm.fma.v{self.dots.sums}f32"
        fused = declare(self.builder, self.floats, [self.floats] * 3, name)
        return self.builder.call(fused, [a, b, c])

    def _read(self, kind: Any, place: Any, offset: int) -> Any:
        place = self.builder.gep(place, [I64(offset)])
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()), align=1)


def _even_groups(xs: list[Any], count: int) -> list[list[Any]]:
    """Cut a list into `count` runs whose lengths differ by at most 1."""
    ends = [-(-len(xs) * i // count) for i in range(count + 1)]
    return [xs[begin:end] for begin, end in itertools.pairwise(ends)]
