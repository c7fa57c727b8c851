"""The inner loop for limbs of sixteen tokens and more, by instructions that multiply matrices.

They take 16 tokens times 16 outputs at a time, where those of `dots` take one token.  The layout of
panels is the same: 4 inputs of 16 outputs, a row of a strip, are what such an instruction reads as
one row.  The sums over a block are the same whole numbers, and what follows is computed as in
`limb_tile`.  So a token's numbers are the same bits, whichever of the two it meets.

Rows of 4-bit numbers are first written out as bytes, a stretch of blocks at a time, for all tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from forerun.lean.formats import BLOCK, BYTE, F32, I8, I64, SIGNED, Format, declare
from forerun.lean.jit import intrinsic
from forerun.lean.limb_tile import Tile
from forerun.lean.limbs import FINE, constant
from forerun.lean.shape import LANES, known_features
from forerun.lean.tile import address, repeat, repeat_from

TOKENS = 16  # rows of an instruction
ROW = 64  # bytes of a row of products, or of weights
STRETCH = 16  # blocks
LIMB, SUM, WEIGHTS = 0, 3, 6  # registers: of three limbs, of their sums, and of the weights


def multiply_matrix_by(format: Format) -> Callable[..., Any]:
    """Make the function that multiplies limbs of many tokens with a panel of one block format."""

    @intrinsic
    def multiply(
        context: Any,
        x: Any,  # uint8: cut blocks of all tokens
        x_stride: Any,
        w: Any,  # uint8
        w_at: Any,
        num_blocks: Any,
        y: Any,  # float32
        y_stride: Any,
        groups: Any,  # from 1 on, of TOKENS tokens each
    ) -> Any:
        """Rows of limbs, `x_stride` apart, times a panel that begins at `w_at`, into y."""
        n = types.intp
        signature = types.void(x, n, w, n, n, y, n, n)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, x_stride, w, w_at, num_blocks, y, y_stride, groups = values
            kinds = signature.args
            x = address(context, builder, kinds[0], x, I64(0))
            w = address(context, builder, kinds[2], w, w_at)
            y = address(context, builder, kinds[5], y, I64(0))
            function = _define(builder.module, format)
            builder.call(function, [x, x_stride, w, num_blocks, y, y_stride, groups])
            return context.get_dummy_value()

        return signature, generate

    return multiply


multiply_matrix_block8 = multiply_matrix_by(Format.BLOCK8)
multiply_matrix_block6k = multiply_matrix_by(Format.BLOCK6K)
multiply_matrix_block5k = multiply_matrix_by(Format.BLOCK5K)
multiply_matrix_block4 = multiply_matrix_by(Format.BLOCK4)
multiply_matrix_block4k = multiply_matrix_by(Format.BLOCK4K)


def _define(module: Any, format: Format) -> Any:
    """The LLVM function of this format, which a module contains once however often it is called."""
    name = f"forerun_matrix_{format.name.lower()}"
    if name in module.globals:
        return module.globals[name]
    kind = ir.FunctionType(ir.VoidType(), [BYTE, I64, BYTE, I64, F32.as_pointer(), I64, I64])
    function = ir.Function(module, kind, name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    # llvmlite prints attributes as they are, but refuses to add one that it does not know.
    set.add(function.attributes, f'"target-features"="{known_features()}"')
    builder = ir.IRBuilder(function.append_basic_block())
    _MatrixTile(builder, format).panel(*function.args)
    builder.ret_void()
    return function


class _MatrixTile(Tile):
    """Writes the loops for all tokens of a pass."""

    def __init__(self, builder: Any, format: Format) -> None:
        super().__init__(builder, format, FINE, TOKENS)
        self.num_strips = 1
        self.header_bytes = self.about.header * self.about.header_bytes * self.dots.sums
        self.sums = self._room(2 * 3 * TOKENS * ROW)
        self.written_out = self._room(STRETCH * BLOCK // 4 * ROW) if self.about.bits == 4 else None

    def panel(  # type: ignore[override]
        self, x: Any, x_stride: Any, w: Any, num_blocks: Any, y: Any, y_stride: Any, groups: Any
    ) -> None:
        builder = self.builder
        self._configure()
        block_bytes = self.num_parts * self.block_bytes
        strip_bytes = builder.mul(num_blocks, I64(block_bytes))

        def strip(index: Any, _: list[Any]) -> list[Any]:
            begin = builder.gep(w, [builder.mul(index, strip_bytes)])
            out = builder.gep(y, [builder.mul(index, I64(self.dots.sums))])

            def clear(token: Any, _: list[Any]) -> list[Any]:
                self._store(constant(self.floats, 0.0), out, builder.mul(token, y_stride))
                return []

            repeat(builder, builder.mul(groups, I64(TOKENS)), [], clear)

            def stretch(first: Any, _: list[Any]) -> list[Any]:
                last = builder.add(first, I64(STRETCH))
                is_whole = builder.icmp_signed("<", last, num_blocks)
                count = builder.sub(builder.select(is_whole, last, num_blocks), first)
                place = builder.gep(begin, [builder.mul(first, I64(block_bytes))])
                inputs = builder.gep(x, [builder.mul(first, I64(self.cut.num_bytes))])
                self._write_out(place, count)

                def group(index: Any, _: list[Any]) -> list[Any]:
                    first = builder.mul(index, I64(TOKENS))
                    tokens = [builder.add(first, I64(i)) for i in range(TOKENS)]
                    rows = [builder.gep(inputs, [builder.mul(t, x_stride)]) for t in tokens]
                    outs = [builder.mul(t, y_stride) for t in tokens]
                    totals = [self._load(self.floats, out, at) for at in outs]
                    totals = self._blocks(rows, x_stride, place, count, totals)
                    for total, at in zip(totals, outs, strict=True):
                        self._store(total, out, at)
                    return []

                repeat(builder, groups, [], group)
                return []

            repeat_from(builder, I64(0), num_blocks, STRETCH, [], stretch)
            return []

        repeat(builder, I64(LANES // self.dots.sums), [], strip)
        self._call("tilerelease")

    def _blocks(
        self, rows: list[Any], x_stride: Any, place: Any, count: Any, totals: list[Any]
    ) -> list[Any]:
        """`totals` of TOKENS tokens and the outputs of a strip, plus `count` blocks.

        Products take long to come, so those of the next part are begun before the sums of the one
        at hand are used; they lie in two pieces of memory in turn.
        """
        builder, parts = self.builder, self.num_parts
        last = builder.sub(count, I64(1))

        def begin(index: Any, part: int) -> None:
            own = builder.gep(place, [builder.mul(index, I64(parts * self.block_bytes))])
            weights = builder.gep(own, [I64(part * self.block_bytes + self.header_bytes)])
            if self.written_out is not None:
                at = builder.mul(index, I64(BLOCK // 4 * ROW))
                weights = builder.gep(self.written_out, [at])
            x = builder.gep(rows[0], [builder.mul(index, I64(self.cut.num_bytes))])
            sums = self._sums_of(index, part)
            self._call("tileloadd64", I8(WEIGHTS), weights, I64(ROW))
            for limb in range(3):
                self._call("tileloadd64", I8(LIMB + limb), self._limb(x, limb, part), x_stride)
                self._call("tilezero", I8(SUM + limb))
                self._call("tdpbsud", I8(SUM + limb), I8(LIMB + limb), I8(WEIGHTS))
                out = builder.gep(sums, [I64(limb * TOKENS * ROW)])
                self._call("tilestored64", I8(SUM + limb), out, I64(ROW))

        def block(index: Any, totals: list[Any]) -> list[Any]:
            xs = [builder.gep(row, [builder.mul(index, I64(self.cut.num_bytes))]) for row in rows]
            for part in range(parts):
                if part + 1 < parts:
                    begin(index, part + 1)
                else:
                    is_last = builder.icmp_signed("==", index, last)
                    begin(builder.select(is_last, last, builder.add(index, I64(1))), 0)
                own = builder.gep(place, [builder.mul(index, I64(parts * self.block_bytes))])
                header = self._header(builder.gep(own, [I64(part * self.block_bytes)]))
                sums = self._sums_of(index, part)
                totals = [
                    self._add_block(header, x, self._product(sums, token, x, part), total)
                    for token, (x, total) in enumerate(zip(xs, totals, strict=True))
                ]
            return totals

        begin(I64(0), 0)
        return repeat(builder, count, totals, block)

    def _sums_of(self, index: Any, part: int) -> Any:
        """Where the products of a part of a block go."""
        number = self.builder.add(self.builder.mul(index, I64(self.num_parts)), I64(part))
        turn = self.builder.and_(number, I64(1))
        return self.builder.gep(self.sums, [self.builder.mul(turn, I64(3 * TOKENS * ROW))])

    def _product(self, sums: Any, token: int, x: Any, part: int) -> Any:
        """The sum of limbs * q over a block of one token, as float32."""
        places = [(limb * TOKENS + token) * ROW for limb in range(3)]
        limbs = [self._read(self.words, sums, at) for at in places]
        if self.format in SIGNED:
            limbs = [
                limb if start is self.nothing else self.builder.add(limb, start)
                for limb, start in zip(limbs, self._starts(x, part), strict=True)
            ]
        return self._as_float(self._words(limbs))

    def _write_out(self, place: Any, count: Any) -> None:
        """Write `count` blocks of 4-bit numbers out as bytes."""
        builder, out = self.builder, self.written_out
        if out is None:
            return

        def block(index: Any, _: list[Any]) -> list[Any]:
            own = builder.gep(place, [builder.mul(index, I64(self.block_bytes))])
            begin = builder.gep(out, [builder.mul(index, I64(BLOCK // 4 * ROW))])
            for number, (row,) in enumerate(self._digits([own])):
                at = builder.gep(begin, [I64(number * ROW)])
                builder.store(row, builder.bitcast(at, row.type.as_pointer()), align=ROW)
            return []

        repeat(builder, count, [], block)

    def _configure(self) -> None:
        """Set the shapes of registers: rows and bytes of a row."""
        inputs = self.about.inputs
        shapes = [(TOKENS, inputs)] * 3 + [(TOKENS, ROW)] * 3 + [(inputs // 4, ROW)]
        told = [1] + [0] * 15  # the palette, and what is reserved
        for _, size in shapes:
            told += [size, 0]
        told += [0] * (48 - len(told)) + [rows for rows, _ in shapes]
        told += [0] * (ROW - len(told))
        kind = ir.VectorType(I8, ROW)
        room = self._room(ROW)
        self.builder.store(ir.Constant(kind, told), self.builder.bitcast(room, kind.as_pointer()))
        self._call("ldtilecfg", room)

    def _room(self, size: int) -> Any:
        """Memory on the stack."""
        room = self.builder.alloca(ir.ArrayType(I8, size))
        room.align = ROW
        return self.builder.bitcast(room, BYTE)

    def _call(self, name: str, *arguments: Any) -> None:
        kinds = [argument.type for argument in arguments]
        function = declare(self.builder, ir.VoidType(), kinds, f"llvm.x86.{name}")
        self.builder.call(function, arguments)

    def _load(self, kind: Any, place: Any, offset: Any) -> Any:
        place = self.builder.gep(place, [offset])
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()), align=4)

    def _store(self, value: Any, place: Any, offset: Any) -> None:
        place = self.builder.gep(place, [offset])
        self.builder.store(value, self.builder.bitcast(place, value.type.as_pointer()), align=4)
