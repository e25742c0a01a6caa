/* Causal attention over the paged cache.

   A row's positions are taken in ranges of RANGE that start at absolute multiples. Within a range all scores of a query
   come first, then their maximum, the weights, and the weighted values in order; the ranges are then merged in order
   (Milakov and Gimelshein 2018). So what is done for a row depends on its own position only, while a range can be
   computed by itself: where a step has few rows, threads share the ranges of one and whoever ends last merges them.

   The heads of a row that share a KV head go together, and so do neighbouring rows of a request (a tile): they meet a
   strip of keys or values while it is in the first-level cache. A single row reads the cache as it is stored; a tile
   makes a copy in float32 first where the cache holds something else. Both multiply the same numbers in the same order:
   the scale of an int8 key is applied to its scores, that of a value to its weights. Of 4 bits a copy is always made. */
#include "attention_range.h"
#include "kernels.h"
#include "pool.h"

#include <stdatomic.h>

#define TILE_QUERIES 96 /* rows x heads of a tile, about */
#define TILE_ROWS 32    /* of a tile, at most */
#define ITEMS_A_THREAD 6L /* with fewer, some threads would wait for others */
#define LOG2_E 1.44269504088896341f

/* The part of a tile's first range is what there is so far; rows that see nothing of it have nothing. */
static void begin(Tile *t, Rows rows) {
    Sums part = t->part;
    t->part = t->all, t->all = part;
    long stop = t->rows * t->group;
    for (long q = rows.stop * t->group; q < stop; q++) {
        t->all.top[q] = -INFINITY, t->all.total[q] = 0.0f;
        memset(t->all.acc + q * t->padded, 0, sizeof(float) * t->padded);
    }
}

/* Ranges first ... stop, RANGE apart, one after the other. */
static void attend_ranges(Tile *t, long first, long stop) {
    long start = first;
    Place places[2], *now = places, *next = places + 1;
    Rows rows = rows_of(t, start), rows_next = rows;
    if (t->direct) place_direct(t, start, rows.any, now);
    for (; start < stop; start += RANGE, rows = rows_next) {
        int more = start + RANGE < stop;
        if (more) rows_next = rows_of(t, start + RANGE);
        if (!t->direct)
            place_copy(t, start, rows.any, now);
        else if (more)
            place_direct(t, start + RANGE, rows_next.any, next);
        attend_range(t, start, rows, now, t->direct && more ? next : now);
        if (start == first)
            begin(t, rows);
        else
            merge_rows(t, rows);
        Place *p = now;
        now = next, next = p;
    }
}

/* Calls of few tiles are split: an item is then one range of a tile, and its part waits in memory of the call. */
typedef struct {
    Cache cache;
    const void *q;
    void *out;
    const int32_t *starts, *lengths, *tables;
    long max_blocks, requests, heads, tile_rows, padded, window, tiles, ranges;
    int q_kind;
    float scale;
    float *parts;      /* [tile][kv_head][range][queries][padded + 2] */
    atomic_long *left; /* [tile][kv_head]: ranges to be computed */
    atomic_int failed;
} Step;

INLINE Sums sums_at(float *memory, long queries, long padded) {
    return (Sums){memory, memory + queries * padded, memory + queries * (padded + 1)};
}

INLINE long floats_of_sums(const Step *s) {
    long floats = s->tile_rows * (s->heads / s->cache.kv_heads) * (s->padded + 2);
    return (floats + LANES - 1) / LANES * LANES;
}

/* The tile's place, but for its memory; returns its first row in the step. */
static long find_tile(const Step *s, long tile, long head, Tile *t) {
    long r = 0, own;
    for (;; r++, tile -= own) {
        own = (s->starts[r + 1] - s->starts[r] + s->tile_rows - 1) / s->tile_rows;
        if (tile < own) break;
    }
    long first = s->starts[r] + tile * s->tile_rows, end = s->starts[r + 1];
    *t = (Tile){.cache = &s->cache, .table = s->tables + r * s->max_blocks, .head = head,
                .rows = MIN(s->tile_rows, end - first), .group = s->heads / s->cache.kv_heads,
                .position = s->lengths[r] - (end - first), .window = s->window, .padded = s->padded};
    t->direct = s->cache.block_size % PIECE == 0 && s->cache.dim % PIECE == 0 && s->cache.kind != KV_INT4 &&
                (s->cache.kind == KV_F32 || t->rows == 1);
    return first;
}

static long floats_of_tile(const Step *s) {
    long queries = s->tile_rows * (s->heads / s->cache.kv_heads);
    long slabs = (s->cache.dim + SLAB - 1) / SLAB;
    return queries * (slabs * SLAB + RANGE) + 2 * floats_of_sums(s) + RANGE * (s->cache.dim + s->padded + 2);
}

static void lay_out(const Step *s, Tile *t, float *memory) {
    long queries = t->rows * t->group;
    t->scores = memory, memory += queries * RANGE;
    t->part = sums_at(memory, queries, s->padded), memory += floats_of_sums(s);
    t->all = sums_at(memory, queries, s->padded), memory += floats_of_sums(s);
    t->values = memory, memory += RANGE * s->padded;
    t->keys = memory, memory += RANGE * s->cache.dim;
    t->k_scales = memory, t->v_scales = memory + RANGE, memory += 2 * RANGE;
    t->queries = memory;
    if (s->padded > s->cache.dim && !t->direct) memset(t->values, 0, sizeof(float) * RANGE * s->padded);
}

INLINE void load_queries_as(int kind, const Step *s, const Tile *t, long first) {
    long dim = s->cache.dim, slab = t->rows * t->group * SLAB;
    float scale = s->scale * LOG2_E, *to = t->queries; /* weights are powers of 2 */
    for (long row = 0; row < t->rows; row++)
        for (long head = t->head * t->group; head < (t->head + 1) * t->group; head++, to += SLAB) {
            long at = ((first + row) * s->heads + head) * dim, d = 0;
            for (; d + LANES <= dim; d += LANES) /* SLAB is a multiple of LANES */
                store_f32(to + d / SLAB * slab + d % SLAB, splat(scale) * get16(kind, s->q, at + d));
            for (; d < dim; d++) to[d / SLAB * slab + d % SLAB] = scale * get(kind, s->q, at + d);
        }
}
static void load_queries(const Step *s, const Tile *t, long first) {
    if (s->q_kind == KV_BF16)
        load_queries_as(KV_BF16, s, t, first);
    else
        load_queries_as(KV_F32, s, t, first);
}

INLINE void store_out_as(int kind, const Step *s, const Tile *t, long first) {
    long dim = s->cache.dim, query = 0;
    for (long row = 0; row < t->rows; row++)
        for (long head = t->head * t->group; head < (t->head + 1) * t->group; head++, query++) {
            long at = ((first + row) * s->heads + head) * dim, d = 0;
            const float *acc = t->all.acc + query * t->padded;
            float share = 1.0f / t->all.total[query];
            for (; d + LANES <= dim; d += LANES) put16(kind, s->out, at + d, load_f32(acc + d) * splat(share));
            for (; d < dim; d++) put(kind, s->out, at + d, acc[d] * share);
        }
}
static void store_out(const Step *s, const Tile *t, long first) {
    if (s->q_kind == KV_BF16)
        store_out_as(KV_BF16, s, t, first);
    else
        store_out_as(KV_F32, s, t, first);
}

static void attend_item(void *context, long item) {
    Step *s = context;
    Tile t;
    long range = item % s->ranges, of = item / s->ranges;
    long first = find_tile(s, s->tiles - 1 - of % s->tiles, of / s->tiles, &t); /* late tiles see most: begin with them */
    long start = first_start(&t), stop = t.position + t.rows;
    if (s->ranges > 1 && start + range * RANGE >= stop) return; /* another tile has as many */
    float *scratch = pool_scratch(sizeof(float) * floats_of_tile(s));
    if (!scratch) {
        atomic_store(&s->failed, 1);
        return;
    }
    lay_out(s, &t, scratch);
    load_queries(s, &t, first);
    if (s->ranges == 1) {
        attend_ranges(&t, start, stop);
        store_out(s, &t, first);
        return;
    }
    float *parts = s->parts + of * s->ranges * floats_of_sums(s);
    long queries = t.rows * t.group, own = start + range * RANGE;
    t.part = sums_at(parts + range * floats_of_sums(s), queries, s->padded);
    Place place;
    Rows rows = rows_of(&t, own);
    if (t.direct)
        place_direct(&t, own, rows.any, &place);
    else
        place_copy(&t, own, rows.any, &place);
    attend_range(&t, own, rows, &place, &place);
    if (atomic_fetch_add(&s->left[of], 1) + 1 < (stop - start + RANGE - 1) / RANGE) return;
    t.part = sums_at(parts, queries, s->padded);
    begin(&t, rows_of(&t, start));
    for (long i = 1; start + i * RANGE < stop; i++) {
        t.part = sums_at(parts + i * floats_of_sums(s), queries, s->padded);
        merge_rows(&t, rows_of(&t, start + i * RANGE));
    }
    store_out(s, &t, first);
}

/* Ranges that the longest tile has, where there are too few tiles to keep the threads busy evenly; else 1. */
static long ranges_to_split(const Step *s, int threads) {
    if (threads <= 1 || s->tiles * s->cache.kv_heads >= ITEMS_A_THREAD * threads) return 1;
    long most = 1;
    for (long r = 0; r < s->requests; r++) {
        long length = s->lengths[r], rows = s->starts[r + 1] - s->starts[r];
        if (rows == 0) continue;
        long from = s->window == NO_WINDOW ? 0 : MAX(0, length - rows - s->window + 1);
        most = MAX(most, (length + RANGE - 1) / RANGE - from / RANGE);
    }
    return most;
}

/* window: how many positions one sees, its own included, or NO_WINDOW. Returns 0, or 1 where memory ran out. */
API int paged_attention(const void *q, int q_bf16, void *out, void *k_cache, void *v_cache, float *k_scale, float *v_scale,
                        int kind, const int32_t *starts, const int32_t *lengths, const int32_t *tables, long max_blocks,
                        long requests, long heads, long kv_heads, long dim, long block_size, long window, float scale,
                        int threads) {
    Step s = {.cache = {k_cache, v_cache, k_scale, v_scale, kind, kv_heads, dim, block_size}, .q = q, .out = out,
              .starts = starts, .lengths = lengths, .tables = tables, .max_blocks = max_blocks, .requests = requests,
              .heads = heads, .window = window, .q_kind = q_bf16 ? KV_BF16 : KV_F32, .scale = scale};
    s.padded = (dim + LANES - 1) / LANES * LANES;
    long most = 1;
    for (long r = 0; r < requests; r++) most = MAX(most, starts[r + 1] - starts[r]);
    s.tile_rows = MIN(most, MAX(1, MIN(TILE_ROWS, TILE_QUERIES / (heads / kv_heads))));
    for (long r = 0; r < requests; r++) s.tiles += (starts[r + 1] - starts[r] + s.tile_rows - 1) / s.tile_rows;
    s.ranges = ranges_to_split(&s, threads);
    if (s.ranges > 1) {
        static __thread void *memory; /* of the calling thread; pool_scratch is taken by the items */
        static __thread size_t size;
        long items = s.tiles * kv_heads;
        size_t parts = sizeof(float) * items * s.ranges * floats_of_sums(&s), need = parts + sizeof(atomic_long) * items;
        if (need > size) {
            free(memory);
            size = (need + 4095) / 4096 * 4096;
            memory = aligned_alloc(64, size);
            if (!memory) size = 0;
            if (!memory) return 1;
        }
        s.parts = memory;
        s.left = (atomic_long *)((char *)memory + parts);
        for (long i = 0; i < items; i++) atomic_init(&s.left[i], 0);
    }
    pool_run(attend_item, &s, s.tiles * kv_heads * s.ranges, threads);
    return atomic_load(&s.failed);
}
