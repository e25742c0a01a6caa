/* Causal attention over the paged cache.

   Layout of a cache: values [blocks, kv_heads, block_size, dim], keys transposed within their block,
   [blocks, kv_heads, dim, block_size], so that the scores of 16 neighbouring keys are one vector and no lanes are
   summed. Softmax runs over chunks of 16 positions that start at absolute multiples of 16, in order. The
   heads of a query row that share a KV head go together; a tile of rows shares the conversion of a chunk to float32 and
   nothing else: what is done for a row depends on its own position only. */
#include "common.h"
#include "pool.h"

#include <stdatomic.h>

#define CHUNK 16
#define ROWS 16  /* query rows of a tile */
#define GROUP 4  /* heads worked on at once */
#define NO_WINDOW 0
#define DIMV 4   /* vectors of the head dimension held in registers at once */

typedef struct {
    const void *k, *v;
    void *k_cache, *v_cache;
    const int64_t *slots;
    long k_stride, v_stride, rows, kv_heads, dim, block_size;
    int x_bf16, kv_bf16;
} Write;

#define ROWS_AN_ITEM 8
static void write_rows(void *context, long item) {
    const Write *p = context;
    long dim = p->dim, size = p->block_size;
    for (long r = item * ROWS_AN_ITEM; r < MIN(p->rows, (item + 1) * ROWS_AN_ITEM); r++) {
        long block = p->slots[r] / size, offset = p->slots[r] % size;
        for (long h = 0; h < p->kv_heads; h++) {
            long at = (block * p->kv_heads + h) * dim * size;
            for (long d = 0; d < dim; d++) {
                long ki = r * p->k_stride + h * dim + d, vi = r * p->v_stride + h * dim + d;
                long kt = at + d * size + offset, vt = at + offset * dim + d;
                if (p->x_bf16 && p->kv_bf16) {
                    ((uint16_t *)p->k_cache)[kt] = ((const uint16_t *)p->k)[ki];
                    ((uint16_t *)p->v_cache)[vt] = ((const uint16_t *)p->v)[vi];
                    continue;
                }
                float kf = p->x_bf16 ? bf16_to_float(((const uint16_t *)p->k)[ki]) : ((const float *)p->k)[ki];
                float vf = p->x_bf16 ? bf16_to_float(((const uint16_t *)p->v)[vi]) : ((const float *)p->v)[vi];
                if (p->kv_bf16) {
                    ((uint16_t *)p->k_cache)[kt] = float_to_bf16(kf);
                    ((uint16_t *)p->v_cache)[vt] = float_to_bf16(vf);
                } else {
                    ((float *)p->k_cache)[kt] = kf;
                    ((float *)p->v_cache)[vt] = vf;
                }
            }
        }
    }
}

API void write_kv(const void *k, long k_stride, const void *v, long v_stride, int x_bf16, void *k_cache, void *v_cache,
                  int kv_bf16, const int64_t *slots, long rows, long kv_heads, long dim, long block_size, int threads) {
    Write p = {k, v, k_cache, v_cache, slots, k_stride, v_stride, rows, kv_heads, dim, block_size, x_bf16, kv_bf16};
    pool_run(write_rows, &p, (rows + ROWS_AN_ITEM - 1) / ROWS_AN_ITEM, threads);
}

typedef struct {
    const void *k, *v;
    int bf16;
    const int32_t *table;
    long head, kv_heads, dim, padded, block_size;
} Paged;

/* Positions start ... start + count - 1 of one request and KV head to float32: keys [dim][CHUNK], values
   [CHUNK][padded]. Lanes beyond count are zero. */
INLINE void load_chunk(const Paged *p, long start, long count, float *keys, float *values) {
    long dim = p->dim, size = p->block_size;
    long first = start / size, inside = start % size;
    if (count == CHUNK && inside + CHUNK <= size) {
        long at = ((long)p->table[first] * p->kv_heads + p->head) * dim * size;
        for (long d = 0; d < dim; d++) {
            long i = at + d * size + inside;
            store_f32(keys + d * CHUNK, p->bf16 ? load_bf16((const uint16_t *)p->k + i) : load_f32((const float *)p->k + i));
        }
    } else {
        memset(keys, 0, sizeof(float) * dim * CHUNK);
        for (long j = 0; j < count; j++) {
            long at = ((long)p->table[(start + j) / size] * p->kv_heads + p->head) * dim * size + (start + j) % size;
            for (long d = 0; d < dim; d++) {
                long i = at + d * size;
                keys[d * CHUNK + j] = p->bf16 ? bf16_to_float(((const uint16_t *)p->k)[i]) : ((const float *)p->k)[i];
            }
        }
    }
    for (long j = 0; j < count; j++) {
        long pos = start + j;
        long at = (((long)p->table[pos / size] * p->kv_heads + p->head) * size + pos % size) * dim;
        long d = 0;
        if (p->bf16) {
            const uint16_t *v = (const uint16_t *)p->v + at;
            for (; d + LANES <= dim; d += LANES) store_f32(values + j * p->padded + d, load_bf16(v + d));
            for (; d < dim; d++) values[j * p->padded + d] = bf16_to_float(v[d]);
        } else {
            const float *v = (const float *)p->v + at;
            for (; d + LANES <= dim; d += LANES) store_f32(values + j * p->padded + d, load_f32(v + d));
            for (; d < dim; d++) values[j * p->padded + d] = v[d];
        }
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
static void attend_tile(const void *q, int q_bf16, void *out, long first, long rows, long position, const Paged *p,
                        long heads, long window, float scale, float *scratch) {
    long dim = p->dim, padded = p->padded, group = heads / p->kv_heads;
    float *keys = scratch, *values = keys + dim * CHUNK, *queries = values + CHUNK * padded;
    float *acc = queries + ROWS * group * dim, *highest = acc + ROWS * group * padded, *total = highest + ROWS * group;
    memset(values, 0, sizeof(float) * CHUNK * padded);
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < group * dim; j++) {
            long at = ((first + i) * heads + p->head * group) * dim + j;
            queries[i * group * dim + j] =
                scale * (q_bf16 ? bf16_to_float(((const uint16_t *)q)[at]) : ((const float *)q)[at]);
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
                long at = ((first + i) * heads + p->head * group + h) * dim + d;
                if (q_bf16)
                    ((uint16_t *)out)[at] = float_to_bf16(value);
                else
                    ((float *)out)[at] = value;
            }
}

typedef struct {
    const void *q, *k_cache, *v_cache;
    void *out;
    const int32_t *starts, *lengths, *tables;
    long max_blocks, tiles, heads, kv_heads, dim, padded, block_size, window, floats;
    int q_bf16, kv_bf16;
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
    long tile = s->tiles - 1 - item / s->kv_heads, r = 0; /* late tiles see most keys: begin with them */
    for (;; r++) {
        long own = (s->starts[r + 1] - s->starts[r] + ROWS - 1) / ROWS;
        if (tile < own) break;
        tile -= own;
    }
    long first = s->starts[r] + tile * ROWS, end = s->starts[r + 1];
    Paged p = {s->k_cache, s->v_cache, s->kv_bf16, s->tables + r * s->max_blocks, item % s->kv_heads,
               s->kv_heads, s->dim, s->padded, s->block_size};
    attend_tile(s->q, s->q_bf16, s->out, first, MIN(ROWS, end - first), s->lengths[r] - (end - first), &p, s->heads,
                s->window, s->scale, scratch);
}

/* window: how many positions one sees, its own included, or NO_WINDOW. Returns 0, or 1 where memory ran out. */
API int paged_attention(const void *q, int q_bf16, void *out, const void *k_cache, const void *v_cache, int kv_bf16,
                        const int32_t *starts, const int32_t *lengths, const int32_t *tables, long max_blocks,
                        long requests, long heads, long kv_heads, long dim, long block_size, long window, float scale,
                        int threads) {
    long tiles = 0;
    for (long r = 0; r < requests; r++) tiles += (starts[r + 1] - starts[r] + ROWS - 1) / ROWS;
    long padded = (dim + LANES - 1) / LANES * LANES, group = heads / kv_heads;
    long floats = dim * CHUNK + CHUNK * padded + ROWS * group * (dim + padded + 2);
    Step s = {q, k_cache, v_cache, out, starts, lengths, tables, max_blocks, tiles, heads, kv_heads, dim, padded,
              block_size, window, floats, q_bf16, kv_bf16, scale, 0};
    pool_run(attend_item, &s, tiles * kv_heads, threads);
    return atomic_load(&s.failed);
}
