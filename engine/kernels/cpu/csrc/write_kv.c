/* New keys and values to the paged cache. */
#include "four_bits.h"
#include "kernels.h"
#include "pool.h"

typedef struct {
    Cache cache;
    const void *k, *v;
    const int64_t *slots;
    long k_stride, v_stride, rows;
    int x_kind;
} Write;

/* dim values of x from `from` on to the cache at `at`, `step` elements apart; their scale to scales[token]. */
INLINE void write_head(int kind, const Write *p, const void *x, long from, void *cache, long at, long step, float *scales,
                       long token) {
    long dim = p->cache.dim, d = 0;
    float scale = 1.0f;
    if (kind == KV_INT8) {
        i16v most = {0};
        for (; d + LANES <= dim; d += LANES) most = magnitude_bits(most, get16(p->x_kind, x, from + d));
        for (; d < dim; d++) most = magnitude_bits(most, splat(get(p->x_kind, x, from + d)));
        scale = scales[token] = int8_scale(most);
    }
    for (d = 0; d + LANES <= dim; d += LANES) {
        v16 value = get16(p->x_kind, x, from + d);
        if (kind == KV_INT8) value = round_int8(value, scale);
        if (step == 1)
            put16(kind, cache, at + d, value);
        else
            for (int j = 0; j < LANES; j++) put(kind, cache, at + (d + j) * step, value[j]);
    }
    for (; d < dim; d++) {
        float value = get(p->x_kind, x, from + d);
        put(kind, cache, at + d * step, kind == KV_INT8 ? round_int8(splat(value), scale)[0] : value);
    }
}

/* Codes of a group of n <= size values of x, and what they are read with; size is a multiple of LANES. */
INLINE void quantise4(const Write *p, const void *x, long from, long n, long size, uint8_t *codes, uint16_t *scale,
                      uint16_t *base) {
    float values[VALUE_GROUP];
    long d = 0;
    for (; d + LANES <= n; d += LANES) store_f32(values + d, get16(p->x_kind, x, from + d));
    for (; d < n; d++) values[d] = get(p->x_kind, x, from + d);
    for (; d < size; d++) values[d] = values[0];
    v16 low = load_f32(values), high = low;
    i16v nan = {0};
    for (d = 0; d < size; d += LANES) {
        v16 v = load_f32(values + d);
        low = lower16(v, low), high = higher16(v, high), nan |= v != v;
    }
    float lowest = -max_lanes(-low), highest = max_lanes(high);
    for (int i = 0; i < LANES; i++)
        if (nan[i]) lowest = NAN;
    *scale = float_to_bf16((highest - lowest) / 15.0f), *base = float_to_bf16(lowest);
    if (*scale == 0) *scale = 0x3f80; /* 1 */
    const v16 magic = splat(12582912.0f), from_base = splat(bf16_to_float(*base)), step = splat(bf16_to_float(*scale));
    for (d = 0; d < size; d += LANES) {
        v16 v = ((load_f32(values + d) - from_base) / step + magic) - magic; /* to whole numbers, half to even */
        v = higher16(v, splat(0.0f));                                        /* 0 where it is not a number */
        store_int8((int8_t *)codes + d, lower16(v, splat(15.0f)));
    }
}

/* dim values of x from `from` on to the cache at `at`, bytes `step` apart; group: of the token's first scale. */
INLINE void write_head4(const Write *p, const void *x, long from, long size, uint8_t *at, long step, uint16_t *group) {
    long dim = p->cache.dim, block_size = p->cache.block_size;
    for (long d = 0; d < dim; d += size, group += 2 * block_size) {
        uint8_t codes[VALUE_GROUP];
        long n = MIN(size, dim - d);
        quantise4(p, x, from + d, n, size, codes, group, group + block_size);
        for (long i = 0; i < n; i += 2) at[(d + i) / 2 * step] = codes[i] | codes[i + 1] << 4;
    }
}

static void write_row4(const Write *p, long r) {
    const Cache *c = &p->cache;
    long block = p->slots[r] / c->block_size, offset = p->slots[r] % c->block_size;
    for (long h = 0; h < c->kv_heads; h++) {
        long head = block * c->kv_heads + h;
        write_head4(p, p->k, r * p->k_stride + h * c->dim, KEY_GROUP, key_codes(c, head, offset), c->block_size,
                    group_at(c, c->k_scale, KEY_GROUP, head, 0) + offset);
        write_head4(p, p->v, r * p->v_stride + h * c->dim, VALUE_GROUP, value_codes(c, head, offset), 1,
                    group_at(c, c->v_scale, VALUE_GROUP, head, 0) + offset);
    }
}

INLINE void write_row(int kind, const Write *p, long r) {
    const Cache *c = &p->cache;
    long block = p->slots[r] / c->block_size, offset = p->slots[r] % c->block_size;
    for (long h = 0; h < c->kv_heads; h++) {
        long first = (block * c->kv_heads + h) * c->block_size, token = first + offset;
        write_head(kind, p, p->k, r * p->k_stride + h * c->dim, c->k, first * c->dim + offset, c->block_size, c->k_scale,
                   token);
        write_head(kind, p, p->v, r * p->v_stride + h * c->dim, c->v, token * c->dim, 1, c->v_scale, token);
    }
}

#define ROWS_AN_ITEM 8
static void write_rows(void *context, long item) {
    const Write *p = context;
    for (long r = item * ROWS_AN_ITEM; r < MIN(p->rows, (item + 1) * ROWS_AN_ITEM); r++)
        switch (p->cache.kind) {
            case KV_BF16: write_row(KV_BF16, p, r); break;
            case KV_INT8: write_row(KV_INT8, p, r); break;
            case KV_INT4: write_row4(p, r); break;
            default: write_row(KV_F32, p, r); break;
        }
}

/* k and v: bfloat16 or float32, consecutive rows *_stride elements apart. */
API void write_kv(const void *k, long k_stride, const void *v, long v_stride, int x_bf16, void *k_cache, void *v_cache,
                  float *k_scale, float *v_scale, int kind, const int64_t *slots, long rows, long kv_heads, long dim,
                  long block_size, int threads) {
    Write p = {{k_cache, v_cache, k_scale, v_scale, kind, kv_heads, dim, block_size}, k, v, slots, k_stride, v_stride,
               rows, x_bf16 ? KV_BF16 : KV_F32};
    pool_run(write_rows, &p, (rows + ROWS_AN_ITEM - 1) / ROWS_AN_ITEM, threads);
}
