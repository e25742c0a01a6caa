/* Row-wise operations, included once for each dtype: T, LOAD, STORE, LOAD1, STORE1 and NAME(x) are macros of the
   including file. A row is worked through from left to right in vectors of 16, then one by one. Each operation is a
   function of one row and its arguments in a struct; EACH_ROW makes the exported function around them. */

typedef struct {
    const T *x, *residual;
    const float *weight;
    T *out, *total;
    long width;
    float eps;
} NAME(Norm);

/* residual NULL: out = norm(x). Else total = x + residual (rounded to T), out = norm(total). */
INLINE void NAME(norm_row)(const NAME(Norm) *p, long r) {
    const T *x = p->x, *residual = p->residual;
    const float *weight = p->weight;
    T *out = p->out, *total = p->total;
    long width = p->width;
    float eps = p->eps;
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
    for (i = 0; i + LANES <= width; i += LANES) STORE(o + i, LOAD(in + i) * splat(scale) * load_f32(weight + i));
    for (; i < width; i++) STORE1(o + i, LOAD1(in + i) * scale * weight[i]);
}

EACH_ROW(NAME(norm_items), NAME(Norm), NAME(norm_row))

API void NAME(rms_norm)(const T *x, const T *residual, const float *weight, T *out, T *total, long rows, long width,
                        float eps, int threads) {
    NAME(Norm) p = {x, residual, weight, out, total, width, eps};
    RUN_ROWS(NAME(norm_items), p, rows, threads);
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

typedef struct {
    const T *q, *k;
    const float *cos, *sin;
    T *q_out, *k_out;
    long q_stride, k_stride, heads, kv_heads, dim;
} NAME(Rope);

INLINE void NAME(rope_row)(const NAME(Rope) *p, long r) {
    const float *c = p->cos + r * p->dim, *s = p->sin + r * p->dim;
    for (long h = 0; h < p->heads; h++)
        NAME(rotate)(p->q + r * p->q_stride + h * p->dim, p->q_out + (r * p->heads + h) * p->dim, c, s, p->dim);
    for (long h = 0; h < p->kv_heads; h++)
        NAME(rotate)(p->k + r * p->k_stride + h * p->dim, p->k_out + (r * p->kv_heads + h) * p->dim, c, s, p->dim);
}

EACH_ROW(NAME(rope_items), NAME(Rope), NAME(rope_row))

/* q and k may be slices of the fused product: consecutive rows are *_stride elements apart. Outputs are contiguous. */
API void NAME(rope)(const T *q, long q_stride, const T *k, long k_stride, const float *cos, const float *sin, T *q_out,
                    T *k_out, long rows, long heads, long kv_heads, long dim, int threads) {
    NAME(Rope) p = {q, k, cos, sin, q_out, k_out, q_stride, k_stride, heads, kv_heads, dim};
    RUN_ROWS(NAME(rope_items), p, rows, threads);
}

typedef struct {
    const T *gate_up;
    T *out;
    long width;
    int activation;
} NAME(Gated);

/* Called with the activation known, so that its branch folds. */
INLINE void NAME(gated_as)(const NAME(Gated) *p, long r, int activation) {
    const T *gate = p->gate_up + 2 * r * p->width, *up = gate + p->width;
    T *o = p->out + r * p->width;
    long i = 0;
    for (; i + LANES <= p->width; i += LANES) {
        v16 g = LOAD(gate + i);
        STORE(o + i, activate16(g, activation) * LOAD(up + i));
    }
    for (; i < p->width; i++) {
        float g = LOAD1(gate + i);
        STORE1(o + i, activate16(splat(g), activation)[0] * LOAD1(up + i));
    }
}

INLINE void NAME(gated_row)(const NAME(Gated) *p, long r) {
    if (p->activation == SILU)
        NAME(gated_as)(p, r, SILU);
    else
        NAME(gated_as)(p, r, GELU_TANH);
}

EACH_ROW(NAME(gated_items), NAME(Gated), NAME(gated_row))

API void NAME(gated_mul)(const T *gate_up, T *out, long rows, long width, int activation, int threads) {
    NAME(Gated) p = {gate_up, out, width, activation};
    RUN_ROWS(NAME(gated_items), p, rows, threads);
}

typedef struct {
    const T *x;
    int8_t *out;
    float *scales;
    long width;
} NAME(Quantise);

/* int8 per row, symmetric, absmax / 127; an all-zero row gets scale 1. */
INLINE void NAME(quantise_row)(const NAME(Quantise) *p, long r) {
    typedef int8_t b16 __attribute__((vector_size(16), aligned(1), may_alias));
    const v16 magic = splat(12582912.0f); /* rounds half to even for |v| < 2^22 */
    const T *in = p->x + r * p->width;
    long i = 0, width = p->width;
    v16 top = splat(0.0f);
    float most = 0.0f;
    for (; i + LANES <= width; i += LANES) {
        v16 v = (v16)((i16v)LOAD(in + i) & 0x7fffffff);
        top = select16(v > top, v, top);
    }
    for (; i < width; i++) most = MAX(most, fabsf(LOAD1(in + i)));
    most = MAX(most, max_lanes(top));
    float scale = most / 127.0f;
    if (!(scale > 0.0f)) scale = 1.0f;
    p->scales[r] = scale;
    int8_t *o = p->out + r * width;
    for (i = 0; i + LANES <= width; i += LANES) {
        v16 v = (LOAD(in + i) / splat(scale) + magic) - magic;
        v = select16(v > splat(127.0f), splat(127.0f), v);
        v = select16(v < splat(-127.0f), splat(-127.0f), v);
        *(b16 *)(o + i) = __builtin_convertvector(__builtin_convertvector(v, i16v), b16);
    }
    for (; i < width; i++) {
        float v = (LOAD1(in + i) / scale + 12582912.0f) - 12582912.0f;
        o[i] = (int8_t)MAX(-127.0f, MIN(127.0f, v));
    }
}

EACH_ROW(NAME(quantise_items), NAME(Quantise), NAME(quantise_row))

API void NAME(quantise_rows)(const T *x, int8_t *out, float *scales, long rows, long width, int threads) {
    NAME(Quantise) p = {x, out, scales, width};
    RUN_ROWS(NAME(quantise_items), p, rows, threads);
}
