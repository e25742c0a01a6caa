/* Causal attention over the paged cache.

   Layout of a cache: values [blocks, kv_heads, block_size, dim], keys transposed within their block,
   [blocks, kv_heads, dim, block_size], so that the scores of 16 neighbouring keys are one vector and no lanes are
   summed; scales of int8 ones [blocks, kv_heads, block_size]. Softmax runs over chunks of 16 positions that start at
   absolute multiples of 16, in order. The heads of a query row that share a KV head go together; a tile of rows
   shares the conversion of a chunk to float32 and nothing else: what is done for a row depends on its own position
   only. */
#include "kernels.h"
#include "pool.h"

#include <stdatomic.h>

#define CHUNK 16
#define ROWS 16  /* query rows of a tile */
#define GROUP 4  /* heads worked on at once */
#define NO_WINDOW 0
#define DIMV 4   /* vectors of the head dimension held in registers at once */

enum { KV_F32 = 0, KV_BF16 = 1, KV_INT8 = 2 };

typedef struct {
    void *k, *v;
    float *k_scale, *v_scale; /* of KV_INT8 */
    int kind;
    long kv_heads, dim, block_size;
} Cache;

/* One value of any kind; 16 neighbouring ones. An int8 is still to be scaled. */
INLINE float get(int kind, const void *x, long i) {
    return kind == KV_BF16 ? bf16_to_float(((const uint16_t *)x)[i])
           : kind == KV_INT8 ? (float)((const int8_t *)x)[i]
                             : ((const float *)x)[i];
}
INLINE v16 get16(int kind, const void *x, long i) {
    return kind == KV_BF16 ? load_bf16((const uint16_t *)x + i)
           : kind == KV_INT8 ? load_int8((const int8_t *)x + i)
                             : load_f32((const float *)x + i);
}
/* The reverse; an int8 is given scaled and rounded. */
INLINE void put(int kind, void *x, long i, float value) {
    if (kind == KV_BF16)
        ((uint16_t *)x)[i] = float_to_bf16(value);
    else if (kind == KV_INT8)
        ((int8_t *)x)[i] = (int8_t)value;
    else
        ((float *)x)[i] = value;
}
INLINE void put16(int kind, void *x, long i, v16 value) {
    if (kind == KV_BF16)
        store_bf16((uint16_t *)x + i, value);
    else if (kind == KV_INT8)
        store_int8((int8_t *)x + i, value);
    else
        store_f32((float *)x + i, value);
}

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

/* One request and KV head. */
typedef struct {
    const Cache *cache;
    const int32_t *table;
    long head, padded;
} Paged;

/* Index of a token in a [blocks, kv_heads, block_size] array. */
INLINE long token_at(const Paged *p, long position) {
    const Cache *c = p->cache;
    return (p->table[position / c->block_size] * c->kv_heads + p->head) * c->block_size + position % c->block_size;
}

INLINE void load_chunk_as(int kind, const Paged *p, long start, long count, float *keys, float *values) {
    const Cache *c = p->cache;
    long dim = c->dim, size = c->block_size, inside = start % size;
    if (count == CHUNK && inside + CHUNK <= size) {
        long at = token_at(p, start), first = (at - inside) * dim + inside;
        v16 scale = kind == KV_INT8 ? load_f32(c->k_scale + at) : splat(1.0f);
        for (long d = 0; d < dim; d++) {
            v16 key = get16(kind, c->k, first + d * size);
            store_f32(keys + d * CHUNK, kind == KV_INT8 ? key * scale : key);
        }
    } else {
        memset(keys, 0, sizeof(float) * dim * CHUNK);
        for (long j = 0; j < count; j++) {
            long at = token_at(p, start + j), offset = (start + j) % size, first = (at - offset) * dim + offset;
            for (long d = 0; d < dim; d++) {
                float key = get(kind, c->k, first + d * size);
                keys[d * CHUNK + j] = kind == KV_INT8 ? key * c->k_scale[at] : key;
            }
        }
    }
    for (long j = 0; j < count; j++) {
        long at = token_at(p, start + j), d = 0;
        float scale = kind == KV_INT8 ? c->v_scale[at] : 1.0f, *out = values + j * p->padded;
        for (; d + LANES <= dim; d += LANES) {
            v16 value = get16(kind, c->v, at * dim + d);
            store_f32(out + d, kind == KV_INT8 ? value * splat(scale) : value);
        }
        for (; d < dim; d++) {
            float value = get(kind, c->v, at * dim + d);
            out[d] = kind == KV_INT8 ? value * scale : value;
        }
    }
}

/* Positions start ... start + count - 1 to float32: keys [dim][CHUNK], values [CHUNK][padded]. Lanes of keys beyond
   count are zero. */
static void load_chunk(const Paged *p, long start, long count, float *keys, float *values) {
    switch (p->cache->kind) {
        case KV_BF16: load_chunk_as(KV_BF16, p, start, count, keys, values); break;
        case KV_INT8: load_chunk_as(KV_INT8, p, start, count, keys, values); break;
        default: load_chunk_as(KV_F32, p, start, count, keys, values); break;
    }
}

/* Adds nv vectors of the head dimension: acc = acc * shrink + weights . values, keys from ... count - 1 in order. */
INLINE void add_values(int heads, int nv, const float *weights, const float *shrink, const float *values, long padded,
                       long from, long count, float *acc) {
    v16 a[GROUP][DIMV];
    for (int h = 0; h < heads; h++)
        for (int v = 0; v < nv; v++) a[h][v] = load_f32(acc + h * padded + v * LANES) * splat(shrink[h]);
    for (long j = from; j < count; j++) {
        v16 row[DIMV];
        for (int v = 0; v < nv; v++) row[v] = load_f32(values + j * padded + v * LANES);
        for (int h = 0; h < heads; h++) {
            v16 w = splat(weights[h * CHUNK + j]);
            for (int v = 0; v < nv; v++) a[h][v] += w * row[v];
        }
    }
    for (int h = 0; h < heads; h++)
        for (int v = 0; v < nv; v++) store_f32(acc + h * padded + v * LANES, a[h][v]);
}

/* Keys from ... count - 1 of one chunk for the `heads` heads of one query row: q [heads][dim], state highest, total
   [heads], acc [heads][padded]. At least one key is seen. */
INLINE void attend(int heads, const float *q, long dim, long padded, const float *keys, const float *values, long from,
                   long count, float *highest, float *total, float *acc) {
    v16 scores[GROUP];
    for (int h = 0; h < heads; h++) scores[h] = splat(0.0f);
    for (long d = 0; d < dim; d++) {
        v16 key = load_f32(keys + d * CHUNK);
        for (int h = 0; h < heads; h++) scores[h] += splat(q[h * dim + d]) * key;
    }
    const i16v lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    i16v seen = (lane < ((i16v){} + (int32_t)count)) & (lane >= ((i16v){} + (int32_t)from));
    float weights[GROUP * CHUNK], shrink[LANES];
    v16 change = splat(0.0f);
    for (int h = 0; h < heads; h++) {
        v16 s = select16(seen, scores[h], splat(-INFINITY));
        float top = MAX(highest[h], max_lanes(s));
        change[h] = highest[h] - top;
        highest[h] = top;
        v16 w = exp16(s - splat(top));
        store_f32(weights + h * CHUNK, w);
        scores[h] = w;
    }
    store_f32(shrink, exp16(change));
    for (int h = 0; h < heads; h++) total[h] = total[h] * shrink[h] + sum_lanes(scores[h]);
    long v = 0;
    for (; v + DIMV * LANES <= padded; v += DIMV * LANES)
        add_values(heads, DIMV, weights, shrink, values + v, padded, from, count, acc + v);
    for (; v < padded; v += LANES) add_values(heads, 1, weights, shrink, values + v, padded, from, count, acc + v);
}

static void attend_row(long group, const float *q, long dim, long padded, const float *keys, const float *values, long from,
                       long count, float *highest, float *total, float *acc) {
    for (long h = 0; h < group; h += GROUP) {
        const float *qh = q + h * dim;
        float *a = acc + h * padded;
        switch (MIN(GROUP, group - h)) {
            case 1: attend(1, qh, dim, padded, keys, values, from, count, highest + h, total + h, a); break;
            case 2: attend(2, qh, dim, padded, keys, values, from, count, highest + h, total + h, a); break;
            case 3: attend(3, qh, dim, padded, keys, values, from, count, highest + h, total + h, a); break;
            default: attend(4, qh, dim, padded, keys, values, from, count, highest + h, total + h, a); break;
        }
    }
}

/* The oldest position that one at `position` sees. */
INLINE long oldest(long position, long window) { return window == NO_WINDOW ? 0 : MAX(0, position - window + 1); }

/* Query rows first ... first + rows - 1 (of the step) of one request, the first at `position`, for one KV head. */
static void attend_tile(const void *q, int q_kind, void *out, long first, long rows, long position, const Paged *p,
                        long heads, long window, float scale, float *scratch) {
    long dim = p->cache->dim, padded = p->padded, group = heads / p->cache->kv_heads;
    float *keys = scratch, *values = keys + dim * CHUNK, *queries = values + CHUNK * padded;
    float *acc = queries + ROWS * group * dim, *highest = acc + ROWS * group * padded, *total = highest + ROWS * group;
    memset(values, 0, sizeof(float) * CHUNK * padded);
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < group * dim; j++) {
            long at = ((first + i) * heads + p->head * group) * dim + j;
            queries[i * group * dim + j] = scale * get(q_kind, q, at);
        }
    memset(acc, 0, sizeof(float) * rows * group * padded);
    for (long i = 0; i < rows * group; i++) highest[i] = -INFINITY, total[i] = 0.0f;
    long last = position + rows - 1;
    for (long start = oldest(position, window) / CHUNK * CHUNK; start <= last; start += CHUNK) {
        load_chunk(p, start, MIN(CHUNK, last - start + 1), keys, values);
        for (long i = MAX(0, start - position); i < rows; i++) {
            long from = MAX(0, oldest(position + i, window) - start);
            if (from < CHUNK) /* else the row sees nothing of this chunk */
                attend_row(group, queries + i * group * dim, dim, padded, keys, values, from,
                           MIN(CHUNK, position + i - start + 1), highest + i * group, total + i * group,
                           acc + i * group * padded);
        }
    }
    for (long i = 0; i < rows; i++)
        for (long h = 0; h < group; h++)
            for (long d = 0; d < dim; d++) {
                float value = acc[(i * group + h) * padded + d] / total[i * group + h];
                put(q_kind, out, ((first + i) * heads + p->head * group + h) * dim + d, value);
            }
}

typedef struct {
    Cache cache;
    const void *q;
    void *out;
    const int32_t *starts, *lengths, *tables;
    long max_blocks, tiles, heads, padded, window, floats;
    int q_kind;
    float scale;
    atomic_int failed;
} Step;

static void attend_item(void *context, long item) {
    Step *s = context;
    float *scratch = pool_scratch(sizeof(float) * s->floats);
    if (!scratch) {
        atomic_store(&s->failed, 1);
        return;
    }
    long tile = s->tiles - 1 - item / s->cache.kv_heads, r = 0; /* late tiles see most keys: begin with them */
    for (;; r++) {
        long own = (s->starts[r + 1] - s->starts[r] + ROWS - 1) / ROWS;
        if (tile < own) break;
        tile -= own;
    }
    long first = s->starts[r] + tile * ROWS, end = s->starts[r + 1];
    Paged p = {&s->cache, s->tables + r * s->max_blocks, item % s->cache.kv_heads, s->padded};
    attend_tile(s->q, s->q_kind, s->out, first, MIN(ROWS, end - first), s->lengths[r] - (end - first), &p, s->heads,
                s->window, s->scale, scratch);
}

/* window: how many positions one sees, its own included, or NO_WINDOW. Returns 0, or 1 where memory ran out. */
API int paged_attention(const void *q, int q_bf16, void *out, void *k_cache, void *v_cache, float *k_scale, float *v_scale,
                        int kind, const int32_t *starts, const int32_t *lengths, const int32_t *tables, long max_blocks,
                        long requests, long heads, long kv_heads, long dim, long block_size, long window, float scale,
                        int threads) {
    long tiles = 0;
    for (long r = 0; r < requests; r++) tiles += (starts[r + 1] - starts[r] + ROWS - 1) / ROWS;
    long padded = (dim + LANES - 1) / LANES * LANES, group = heads / kv_heads;
    long floats = dim * CHUNK + CHUNK * padded + ROWS * group * (dim + padded + 2);
    Cache cache = {k_cache, v_cache, k_scale, v_scale, kind, kv_heads, dim, block_size};
    Step s = {cache, q, out, starts, lengths, tables, max_blocks, tiles, heads, padded, window, floats,
              q_bf16 ? KV_BF16 : KV_F32, scale, 0};
    pool_run(attend_item, &s, tiles * kv_heads, threads);
    return atomic_load(&s.failed);
}
