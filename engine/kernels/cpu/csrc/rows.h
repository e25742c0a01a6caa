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

/* int8 per row; see int8_scale. */
INLINE void NAME(quantise_row)(const NAME(Quantise) *p, long r) {
    const T *in = p->x + r * p->width;
    long i = 0, width = p->width;
    i16v most = {0};
    for (; i + LANES <= width; i += LANES) most = magnitude_bits(most, LOAD(in + i));
    for (; i < width; i++) most = magnitude_bits(most, splat(LOAD1(in + i)));
    float scale = p->scales[r] = int8_scale(most);
    int8_t *o = p->out + r * width;
    for (i = 0; i + LANES <= width; i += LANES) store_int8(o + i, round_int8(LOAD(in + i), scale));
    for (; i < width; i++) o[i] = (int8_t)round_int8(splat(LOAD1(in + i)), scale)[0];
}

EACH_ROW(NAME(quantise_items), NAME(Quantise), NAME(quantise_row))

API void NAME(quantise_rows)(const T *x, int8_t *out, float *scales, long rows, long width, int threads) {
    NAME(Quantise) p = {x, out, scales, width};
    RUN_ROWS(NAME(quantise_items), p, rows, threads);
}
