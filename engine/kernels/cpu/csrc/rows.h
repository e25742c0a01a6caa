/* Row-wise operations, included once for each dtype: T, LOAD, STORE, LOAD1, STORE1 and NAME(x) are macros of the
   including file. A row is worked through from left to right in vectors of 16, then one by one. Each operation is a
   function of one row and its arguments in a struct; EACH_ROW makes the exported function around them. */

/* What several operations have in common is a function of its own and not inlined: a compiler may contract
   multiplications and additions otherwise in another place, and the bits must be those of the plain operation. */
#define SHARED static __attribute__((noinline))

/* 1 / sqrt(mean of squares + eps) */
SHARED float NAME(norm_factor)(const T *in, long width, float eps) {
    v16 squares = splat(0.0f);
    float tail = 0.0f;
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        v16 v = LOAD(in + i);
        squares += v * v;
    }
    for (; i < width; i++) tail += LOAD1(in + i) * LOAD1(in + i);
    return 1.0f / sqrtf((sum_lanes(squares) + tail) / (float)width + eps);
}

/* out may be in. */
SHARED void NAME(norm_one)(const T *in, const float *weight, T *out, long width, float eps) {
    float factor = NAME(norm_factor)(in, width, eps);
    long i = 0;
    for (; i + LANES <= width; i += LANES) STORE(out + i, LOAD(in + i) * splat(factor) * load_f32(weight + i));
    for (; i < width; i++) STORE1(out + i, LOAD1(in + i) * factor * weight[i]);
}

/* int8 per row; see int8_scale. */
SHARED void NAME(quantise_one)(const T *in, int8_t *out, float *scale, long width) {
    long i = 0;
    i16v most = {0};
    for (; i + LANES <= width; i += LANES) most = magnitude_bits(most, LOAD(in + i));
    for (; i < width; i++) most = magnitude_bits(most, splat(LOAD1(in + i)));
    *scale = int8_scale(most);
    for (i = 0; i + LANES <= width; i += LANES) store_int8(out + i, round_int8(LOAD(in + i), *scale));
    for (; i < width; i++) out[i] = (int8_t)round_int8(splat(LOAD1(in + i)), *scale)[0];
}

typedef struct {
    const T *x, *residual;
    const float *weight;
    T *out, *total;
    int8_t *q;
    float *scales;
    long width;
    float eps;
} NAME(Norm);

/* residual NULL: out = norm(x). Else total = x + residual (rounded to T), out = norm(total). q and scales not NULL: out
   quantised, too. */
INLINE void NAME(norm_row)(const NAME(Norm) *p, long r) {
    long width = p->width, at = r * width;
    const T *in = p->x + at;
    if (p->residual) {
        const T *residual = p->residual + at;
        T *sum = p->total + at;
        long i = 0;
        for (; i + LANES <= width; i += LANES) STORE(sum + i, LOAD(in + i) + LOAD(residual + i));
        for (; i < width; i++) STORE1(sum + i, LOAD1(in + i) + LOAD1(residual + i));
        in = sum;
    }
    NAME(norm_one)(in, p->weight, p->out + at, width, p->eps);
    if (p->q) NAME(quantise_one)(p->out + at, p->q + at, p->scales + r, width);
}

EACH_ROW(NAME(norm_items), NAME(Norm), NAME(norm_row))

API void NAME(rms_norm)(const T *x, const T *residual, const float *weight, T *out, T *total, long rows, long width,
                        float eps, int threads) {
    NAME(Norm) p = {x, residual, weight, out, total, NULL, NULL, width, eps};
    RUN_ROWS(NAME(norm_items), p, rows, threads);
}

void NAME(norm_quantise)(const void *x, const void *residual, const float *weight, void *out, void *total, int8_t *q,
                         float *scales, long rows, long width, float eps, int threads) {
    NAME(Norm) p = {x, residual, weight, out, total, q, scales, width, eps};
    RUN_ROWS(NAME(norm_items), p, rows, threads);
}

/* out may be in. cos and sin [dim / 2] turn both halves. */
SHARED void NAME(rotate)(const T *in, T *out, const float *cos, const float *sin, long dim) {
    long half = dim / 2, i = 0;
    for (; i + LANES <= half; i += LANES) {
        v16 low = LOAD(in + i), high = LOAD(in + half + i), c = load_f32(cos + i), s = load_f32(sin + i);
        STORE(out + i, low * c - high * s);
        STORE(out + half + i, high * c + low * s);
    }
    for (; i < half; i++) {
        float low = LOAD1(in + i), high = LOAD1(in + half + i);
        STORE1(out + i, low * cos[i] - high * sin[i]);
        STORE1(out + half + i, high * cos[i] + low * sin[i]);
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

INLINE void NAME(quantise_row)(const NAME(Quantise) *p, long r) {
    NAME(quantise_one)(p->x + r * p->width, p->out + r * p->width, p->scales + r, p->width);
}

EACH_ROW(NAME(quantise_items), NAME(Quantise), NAME(quantise_row))

API void NAME(quantise_rows)(const T *x, int8_t *out, float *scales, long rows, long width, int threads) {
    NAME(Quantise) p = {x, out, scales, width};
    RUN_ROWS(NAME(quantise_items), p, rows, threads);
}

typedef struct {
    T *qkv, *q;
    const Queries *s;
} NAME(Place);

/* Heads of one row, from `in` on: normed in place where there is a weight, then turned to `out`. */
INLINE void NAME(turn_heads)(const Queries *s, T *in, T *out, long heads, const float *norm, long position) {
    const float *cos = s->cos + position * (s->dim / 2), *sin = s->sin + position * (s->dim / 2);
    for (long at = 0; at < heads * s->dim; at += s->dim) {
        if (norm) NAME(norm_one)(in + at, norm, in + at, s->dim, s->eps);
        NAME(rotate)(in + at, out + at, cos, sin, s->dim);
    }
}

INLINE void NAME(place_row)(const NAME(Place) *p, long r) {
    const Queries *s = p->s;
    long q = s->heads * s->dim, kv = s->kv_heads * s->dim;
    T *row = p->qkv + r * (q + 2 * kv);
    NAME(turn_heads)(s, row, p->q + r * q, s->heads, s->q_norm, s->positions[r]);
    NAME(turn_heads)(s, row + q, row + q, s->kv_heads, s->k_norm, s->positions[r]);
    const KvPointers *c = &s->cache;
    write_kv(row + q, 0, row + q + kv, 0, sizeof(T) == 2, c->k, c->v, c->k_scale, c->v_scale, c->kind, s->slots + r, 1,
             s->kv_heads, s->dim, c->block_size, 1);
}

EACH_ROW(NAME(place_items), NAME(Place), NAME(place_row))

void NAME(place_queries)(void *qkv, void *q, const Queries *s, long rows, int threads) {
    NAME(Place) p = {qkv, q, s};
    RUN_ROWS(NAME(place_items), p, rows, threads);
}

typedef struct {
    const Linear *w;
    const int64_t *tokens;
    T *out;
    float scale;
} NAME(Embed);

/* A row of the weights [n][k], which lie in panels; see products.h. */
INLINE void NAME(embed_row)(const NAME(Embed) *p, long r) {
    long k = p->w->k, panel = p->tokens[r] / PANEL, column = p->tokens[r] % PANEL;
    T *out = p->out + r * k;
    if (p->w->kind == W_F32) {
        const float *from = (const float *)p->w->panels + panel * k * PANEL + column;
        for (long i = 0; i < k; i++) STORE1(out + i, from[i * PANEL] * p->scale);
    } else {
        const uint32_t *from = (const uint32_t *)p->w->panels + panel * ((k + 1) / 2) * PANEL + column;
        for (long i = 0; i < k; i++)
            STORE1(out + i, bf16_to_float((uint16_t)(from[i / 2 * PANEL] >> i % 2 * 16)) * p->scale);
    }
}

EACH_ROW(NAME(embed_items), NAME(Embed), NAME(embed_row))

void NAME(embed_rows)(const Linear *w, const int64_t *tokens, void *out, float scale, long rows, int threads) {
    NAME(Embed) p = {w, tokens, out, scale};
    RUN_ROWS(NAME(embed_items), p, rows, threads);
}
