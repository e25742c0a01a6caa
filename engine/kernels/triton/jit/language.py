"""What Triton's language lacks here, and what its interpreter (triton 3.6 and 3.7.1) gets wrong.

The interpreter computes with NumPy, which has no bfloat16: its ``tl.dot`` multiplies the bits, its casts cut off. So
there all bfloat16 is widened and rounded on the bits, and products are summed in float64, where neither the order of
additions nor the shape of a tile is seen in what is left after rounding: on a GPU the tensor cores see to that.

Functions that kernels call are plain Python in the interpreter: a jitted one would look through the whole language for
what to replace at each of its calls, which takes milliseconds. ``tl.sum`` and ``tl.max`` are such functions, too.
"""

import triton
import triton.language as tl

INTERPRET = tl.constexpr(triton.knobs.runtime.interpret)


# Arguments that change from step to step. Triton would compile a kernel anew for each of 1, multiples of 16 and other
# numbers among them, seconds each, while requests wait; and none of them says anything of an address's alignment.
BY_STEP = ("rows", "count", "requests", "tokens", "table_stride")
kernel = triton.jit(do_not_specialize=BY_STEP)  # what the host launches


def device(fn):
    """A function for kernels to call."""
    return fn if INTERPRET.value else triton.jit(fn)


def count_with_one_number(interpreter):
    """Lets kernels loop over a ``range`` of tensors in triton 3.6: there a scalar is an array of one element, which
    NumPy has taken for a whole number up to 2.3 only. Triton 3.7 takes the element out, as is done here."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched


if INTERPRET.value:
    if triton.__version__.startswith("3.6."):
        from triton.runtime import interpreter

        count_with_one_number(interpreter)

    def row_sum(x):
        """[R, C] -> [R]."""
        return tl.reduce(x, 1, tl.standard._sum_combine)

    def row_max(x):
        """[R, C] -> [R]. Whether NaN counts is not said."""
        return tl.reduce(x, 1, tl.standard._elementwise_max)

    def line_max(x):
        """[C] -> a number. Whether NaN counts is not said."""
        return tl.reduce(x, 0, tl.standard._elementwise_max)

else:

    @triton.jit
    def row_sum(x):
        """[R, C] -> [R]."""
        return tl.sum(x, 1)

    @triton.jit
    def row_max(x):
        """[R, C] -> [R]. Whether NaN counts is not said."""
        return tl.max(x, 1)

    @triton.jit
    def line_max(x):
        """[C] -> a number. Whether NaN counts is not said."""
        return tl.max(x, 0)


@device
def widen(x):
    """To float32, exactly."""
    if INTERPRET and x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@device
def narrow(x, dtype: tl.constexpr):
    """float32 to ``dtype``, to the nearest, halves to even."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        rounded = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
        return (rounded >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(dtype)


@device
def decode_e4m3(codes, dtype: tl.constexpr, NAN: tl.constexpr):
    """uint8 to ``dtype``, exactly: the bits of a float16 256 times as small (Micikevicius et al. 2022, table 1). Not
    NAN: its codes become 480."""
    bits = ((codes & 0x80).to(tl.int16) << 8) | ((codes & 0x7F).to(tl.int16) << 7)
    wide = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    if NAN:
        wide = tl.where((codes & 0x7F) == 0x7F, float("nan"), wide)
    return narrow(wide, dtype)


@device
def encode_e4m3(x):
    """float32 to uint8, to the nearest, halves to even; what is beyond 448 becomes 448."""
    size = tl.minimum(tl.abs(x), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = ((size * 512.0 + 12582912.0) - 12582912.0).to(tl.int32)  # 1.5 * 2^23: multiples of 2^-9 are left
    code = tl.where(size < 0.015625, small, normal)
    code = tl.where(x == x, code, 0x7F) | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)
    return code.to(tl.uint8)


@device
def convert(x, dtype: tl.constexpr):
    """Between bfloat16, float32 and int8 values that ``dtype`` holds, and from e4m3 codes, of which those for NaN have
    a scale that is; float32 to bfloat16 as ``narrow``."""
    if x.dtype == dtype:
        return x
    elif x.dtype == tl.uint8:
        return decode_e4m3(x, dtype, False)
    elif INTERPRET:
        return narrow(widen(x), dtype)
    else:
        return x.to(dtype)


@device
def dot(a, b, acc):
    """acc + a @ b: float32 from two of bfloat16 or float32, int32 from two of int8."""
    if a.dtype == tl.int8:
        return tl.dot(a, b, acc, out_dtype=tl.int32)
    elif INTERPRET:
        return acc + tl.dot(widen(a).to(tl.float64), widen(b).to(tl.float64), out_dtype=tl.float64).to(tl.float32)
    else:
        return tl.dot(a, b, acc, input_precision="ieee")


@device
def fused_multiply_add(a, b, c):
    """a * b + c, rounded once. In the interpreter by way of float64, which is the same but in one of 2^29 cases."""
    if INTERPRET:
        return (a.to(tl.float64) * b.to(tl.float64) + c.to(tl.float64)).to(tl.float32)
    else:
        return tl.fma(a, b, c)


@device
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@device
def activate(x, GELU: tl.constexpr):
    """silu(x), or gelu_tanh(x): (1 + tanh(u)) / 2 is sigmoid(2 u)."""
    if GELU:
        return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        return x * sigmoid(x)


@device
def scaled(x, MOST: tl.constexpr):
    """float32 [R, C], 0 beyond the row's end -> (x / scale, float32 scale [R]), whose largest is MOST."""
    bad = row_max((x != x).to(tl.int32)) > 0  # the largest of numbers and NaN may be a number
    largest = row_max(tl.abs(x))
    scale = tl.div_rn(largest, tl.full(largest.shape, MOST, tl.float32))
    scale = tl.where(scale == 0.0, 1.0, scale)
    scale = tl.where(bad, float("nan"), scale)
    return tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape)), scale


@device
def quantise_e4m3(x):
    """As ``quantise``, to uint8: codes, as ``engine.kernels.reference.backend.quantise_rows_fp8``."""
    q, scale = scaled(x, 448.0)
    return encode_e4m3(q), scale


@device
def quantise(x):
    """float32 [R, C], 0 beyond the row's end -> (int8 [R, C], float32 scale [R]), as
    ``engine.kernels.reference.backend.quantise_rows``."""
    q, scale = scaled(x, 127.0)
    q = (q + 12582912.0) - 12582912.0  # 1.5 * 2^23: what is left is rounded to a whole number, halves to even
    q = tl.where(q == q, q, 0.0)
    return q.to(tl.int8), scale
