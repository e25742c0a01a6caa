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


def device(fn):
    """A function for kernels to call."""
    return fn if INTERPRET.value else triton.jit(fn)


if INTERPRET.value:

    def row_sum(x):
        """[R, C] -> [R]."""
        return tl.reduce(x, 1, tl.standard._sum_combine)

    def row_max(x):
        """[R, C] -> [R]. Whether NaN counts is not said."""
        return tl.reduce(x, 1, tl.standard._elementwise_max)

else:

    @triton.jit
    def row_sum(x):
        """[R, C] -> [R]."""
        return tl.sum(x, 1)

    @triton.jit
    def row_max(x):
        """[R, C] -> [R]. Whether NaN counts is not said."""
        return tl.max(x, 1)


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
def convert(x, dtype: tl.constexpr):
    """Between bfloat16, float32 and int8 values that ``dtype`` holds; float32 to bfloat16 as ``narrow``."""
    if x.dtype == dtype:
        return x
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
def quantise(x):
    """float32 [R, C], 0 beyond the row's end -> (int8 [R, C], float32 scale [R]), as
    ``engine.kernels.reference.backend.quantise_rows``."""
    bad = row_max((x != x).to(tl.int32)) > 0  # the largest of numbers and NaN may be a number
    largest = row_max(tl.abs(x))
    scale = tl.div_rn(largest, tl.full(largest.shape, 127.0, tl.float32))
    scale = tl.where(scale == 0.0, 1.0, scale)
    scale = tl.where(bad, float("nan"), scale)
    q = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    q = (q + 12582912.0) - 12582912.0  # 1.5 * 2^23: what is left is rounded to a whole number, halves to even
    q = tl.where(q == q, q, 0.0)
    return q.to(tl.int8), scale
