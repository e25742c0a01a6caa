/* Row-wise operations, included once for each dtype: T, LOAD, STORE, LOAD1, STORE1 and NAME(x) are macros of the
   including file. A row is worked through from left to right in vectors of 16, then one by one. */

API void NAME(rms_norm)(const T *x, const T *residual, const T *weight, T *out, T *total, long rows, long width, float eps,
                        int threads) {
    /* residual NULL: out = norm(x). Else total = x + residual (rounded to T), out = norm(total). */
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads) if (rows > 8)
    for (long r = 0; r < rows; r++) {
        const T *in = x + r * width;
        if (residual) {
            T *sum = total + r * width;
            long i = 0;
            for (; i + LANES <= width; i += LANES) STORE(sum + i, LOAD(in + i) + LOAD(residual + r * width + i));
            for (; i < width; i++) STORE1(sum + i, LOAD1(in + i) + LOAD1(residual + r * width + i));
            in = sum;
        }
        v16 squares = splat(0.0f);
        float tail = 0.0f;
        long i = 0;
        for (; i + LANES <= width; i += LANES) {
            v16 v = LOAD(in + i);
            squares += v * v;
        }
        for (; i < width; i++) tail += LOAD1(in + i) * LOAD1(in + i);
        float scale = 1.0f / sqrtf((sum_lanes(squares) + tail) / (float)width + eps);
        T *o = out + r * width;
        for (i = 0; i + LANES <= width; i += LANES) STORE(o + i, LOAD(in + i) * splat(scale) * LOAD(weight + i));
        for (; i < width; i++) STORE1(o + i, LOAD1(in + i) * scale * LOAD1(weight + i));
    }
}

INLINE void NAME(rotate)(const T *in, T *out, const float *cos, const float *sin, long dim) {
    long half = dim / 2, i = 0;
    for (; i + LANES <= half; i += LANES) {
        v16 low = LOAD(in + i), high = LOAD(in + half + i);
        STORE(out + i, low * load_f32(cos + i) - high * load_f32(sin + i));
        STORE(out + half + i, high * load_f32(cos + half + i) + low * load_f32(sin + half + i));
    }
    for (; i < half; i++) {
        float low = LOAD1(in + i), high = LOAD1(in + half + i);
        STORE1(out + i, low * cos[i] - high * sin[i]);
        STORE1(out + half + i, high * cos[half + i] + low * sin[half + i]);
    }
}

/* q and k may be slices of the fused product: consecutive rows are *_stride elements apart. Outputs are contiguous. */
API void NAME(rope)(const T *q, long q_stride, const T *k, long k_stride, const float *cos, const float *sin, T *q_out,
                    T *k_out, long rows, long heads, long kv_heads, long dim, int threads) {
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads) if (rows > 8)
    for (long r = 0; r < rows; r++) {
        const float *c = cos + r * dim, *s = sin + r * dim;
        for (long h = 0; h < heads; h++)
            NAME(rotate)(q + r * q_stride + h * dim, q_out + (r * heads + h) * dim, c, s, dim);
        for (long h = 0; h < kv_heads; h++)
            NAME(rotate)(k + r * k_stride + h * dim, k_out + (r * kv_heads + h) * dim, c, s, dim);
    }
}

API void NAME(silu_mul)(const T *gate_up, T *out, long rows, long width, int threads) {
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads) if (rows > 8)
    for (long r = 0; r < rows; r++) {
        const T *gate = gate_up + 2 * r * width, *up = gate + width;
        T *o = out + r * width;
        long i = 0;
        for (; i + LANES <= width; i += LANES) {
            v16 g = LOAD(gate + i);
            STORE(o + i, g / (splat(1.0f) + exp16(-g)) * LOAD(up + i));
        }
        for (; i < width; i++) {
            float g = LOAD1(gate + i);
            STORE1(o + i, g / (1.0f + exp16(splat(-g))[0]) * LOAD1(up + i));
        }
    }
}

/* int8 per row, symmetric, absmax / 127; an all-zero row gets scale 1. */
API void NAME(quantise_rows)(const T *x, int8_t *out, float *scales, long rows, long width, int threads) {
    const v16 magic = splat(12582912.0f); /* rounds half to even for |v| < 2^22 */
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads) if (rows > 8)
    for (long r = 0; r < rows; r++) {
        const T *in = x + r * width;
        v16 top = splat(0.0f);
        float most = 0.0f;
        long i = 0;
        for (; i + LANES <= width; i += LANES) {
            v16 v = LOAD(in + i);
            v = (v16)((i16v)v & 0x7fffffff);
            top = select16(v > top, v, top);
        }
        for (; i < width; i++) most = MAX(most, fabsf(LOAD1(in + i)));
        most = MAX(most, max_lanes(top));
        float scale = most > 0.0f ? most / 127.0f : 1.0f;
        if (!(scale > 0.0f)) scale = 1.0f;
        scales[r] = scale;
        int8_t *o = out + r * width;
        for (i = 0; i + LANES <= width; i += LANES) {
            v16 v = (LOAD(in + i) / splat(scale) + magic) - magic;
            v = select16(v > splat(127.0f), splat(127.0f), v);
            v = select16(v < splat(-127.0f), splat(-127.0f), v);
            i16v n = __builtin_convertvector(v, i16v);
            typedef int8_t b16 __attribute__((vector_size(16), aligned(1), may_alias));
            *(b16 *)(o + i) = __builtin_convertvector(n, b16);
        }
        for (; i < width; i++) {
            float v = (LOAD1(in + i) / scale + 12582912.0f) - 12582912.0f;
            o[i] = (int8_t)MAX(-127.0f, MIN(127.0f, v));
        }
    }
}

/* out = product * row scale * column scale (+ bias). */
API void NAME(rescale)(const int32_t *product, const float *row_scale, const float *col_scale, const float *bias, T *out,
                       long rows, long width, int threads) {
    typedef int32_t i16u __attribute__((vector_size(64), aligned(4), may_alias));
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads) if (rows > 8)
    for (long r = 0; r < rows; r++) {
        const int32_t *p = product + r * width;
        T *o = out + r * width;
        long i = 0;
        for (; i + LANES <= width; i += LANES) {
            v16 v = __builtin_convertvector(*(const i16u *)(p + i), v16) * splat(row_scale[r]) * load_f32(col_scale + i);
            STORE(o + i, bias ? v + load_f32(bias + i) : v);
        }
        for (; i < width; i++) {
            float v = (float)p[i] * row_scale[r] * col_scale[i];
            STORE1(o + i, bias ? v + bias[i] : v);
        }
    }
}
