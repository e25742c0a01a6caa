/* Causal attention over the paged cache.

   A row's positions are taken in ranges of RANGE that start at absolute multiples. Within a range all scores of a query
   come first, then their maximum, the weights, and the weighted values in order; the ranges are then merged in order
   (Milakov and Gimelshein 2018). So what is done for a row depends on its own position only, while a range can be
   computed by itself: where a step has few rows, threads share the ranges of one and whoever ends last merges them.

   The heads of a row that share a KV head go together, and so do neighbouring rows of a request (a tile): they meet a
   strip of keys or values while it is in the first-level cache. A single row reads the cache as it is stored; a tile
   makes a copy in float32 first where the cache holds something else. Both multiply the same numbers in the same order:
   the scale of an int8 key is applied to its scores, that of a value to its weights. */
#include "attention_tiles.h"
#include "kernels.h"
#include "pool.h"

#include <stdatomic.h>

#define RANGE 128
#define STRIP 64
#define PIECES (RANGE / PIECE)
#define TILE_QUERIES 48 /* rows x heads of a tile, about */
#define TILE_ROWS 32    /* of a tile, at most */
#define ITEMS_A_THREAD 6L /* with fewer, some threads would wait for others */
#define NO_WINDOW 0
#define LOG2_E 1.44269504088896341f

/* Where the pieces of a range lie. */
typedef struct {
    const char *keys[PIECES], *values[PIECES];
    const float *k_scales[PIECES], *v_scales[PIECES];
} Place;

/* Results for each query of a tile, of one range or of those so far: acc [queries][padded], the highest score and the
   sum of the weights [queries]. */
typedef struct {
    float *acc, *top, *total;
} Sums;

/* Some rows of one request for one KV head, the first at `position`. */
typedef struct {
    const Cache *cache;
    const int32_t *table;
    long head, rows, group, position, window, padded;
    int direct;                 /* the cache is read as it is stored */
    float *queries, *scores;    /* scaled, in slabs of [rows * group][SLAB]; [rows * group][RANGE] */
    float *keys, *values;       /* a range in float32: pieces of [dim][PIECE]; [RANGE][padded] */
    float *k_scales, *v_scales; /* [RANGE] */
    Sums part, all;
} Tile;

/* What a row sees of a range: positions from ... count - 1, counted from its start. None: from >= count. */
typedef struct {
    long from, count;
} Seen;

INLINE long oldest(const Tile *t, long position) { return t->window == NO_WINDOW ? 0 : MAX(0, position - t->window + 1); }

INLINE Seen seen_of(const Tile *t, long row, long start) {
    long position = t->position + row;
    return (Seen){MAX(0, oldest(t, position) - start), MIN(RANGE, position - start + 1)};
}

/* The rows that see anything of a range, and the positions that any of them sees. */
typedef struct {
    long first, stop;
    Seen any;
} Rows;

INLINE Rows rows_of(const Tile *t, long start) {
    Rows r = {MAX(0, start - t->position), t->rows, {0}};
    while (seen_of(t, r.stop - 1, start).from >= RANGE) r.stop--;
    r.any = (Seen){seen_of(t, r.first, start).from, seen_of(t, r.stop - 1, start).count};
    return r;
}

INLINE long first_start(const Tile *t) { return oldest(t, t->position) / RANGE * RANGE; }

/* Pieces outside those seen stand for others: their scores are not used. */
static void fill_place(Place *p, Seen any) {
    long first = any.from / PIECE, last = (any.count - 1) / PIECE;
    for (long i = 0; i < PIECES; i++) {
        p->keys[i] = p->keys[MIN(MAX(i, first), last)];
        p->values[i] = p->values[MIN(MAX(i, first), last)];
    }
}

/* In the cache itself, where pieces do not cross blocks. */
static void place_direct(const Tile *t, long start, Seen any, Place *p) {
    const Cache *c = t->cache;
    long size = c->block_size, dim = c->dim, bytes = c->kind == KV_F32 ? 4 : c->kind == KV_BF16 ? 2 : 1;
    long first = any.from / PIECE * PIECE, block = (start + first) / size, offset = (start + first) % size;
    for (long i = first; i < any.count; i += PIECE) {
        long at = (t->table[block] * c->kv_heads + t->head) * size;
        p->keys[i / PIECE] = (const char *)c->k + (at * dim + offset) * bytes;
        p->values[i / PIECE] = (const char *)c->v + (at + offset) * dim * bytes;
        if (c->kind == KV_INT8) p->k_scales[i / PIECE] = c->k_scale + at + offset, p->v_scales[i / PIECE] = c->v_scale + at + offset;
        offset += PIECE;
        if (offset == size) offset = 0, block++;
    }
    fill_place(p, any);
}

/* Position start + j to lane j of its piece of keys and to row j of the values, in float32, unscaled. */
INLINE void copy_position(int kind, const Tile *t, long start, long j) {
    const Cache *c = t->cache;
    long dim = c->dim, size = c->block_size, offset = (start + j) % size;
    long first = (t->table[(start + j) / size] * c->kv_heads + t->head) * size;
    float *keys = t->keys + j / PIECE * dim * PIECE + j % PIECE, *values = t->values + j * t->padded;
    for (long d = 0; d < dim; d++) {
        keys[d * PIECE] = get(kind, c->k, first * dim + d * size + offset);
        values[d] = get(kind, c->v, (first + offset) * dim + d);
    }
    if (kind == KV_INT8) t->k_scales[j] = c->k_scale[first + offset], t->v_scales[j] = c->v_scale[first + offset];
}

INLINE void copy_as(int kind, const Tile *t, long start, Seen any, Place *p) {
    const Cache *c = t->cache;
    long dim = c->dim, size = c->block_size;
    int whole = size % PIECE == 0 && dim % PIECE == 0;
    if (whole) place_direct(t, start, any, p);
    for (long i = any.from / PIECE; i * PIECE < any.count; i++) {
        float *keys = t->keys + i * dim * PIECE, *values = t->values + i * PIECE * t->padded;
        if (whole) {
            for (long d = 0; d < dim; d++)
                for (long v = 0; v < PIECE; v += VL) vstore(keys + d * PIECE + v, vget(kind, p->keys[i], d * size + v));
            for (long d = 0; d < PIECE * dim; d += VL) vstore(values + d, vget(kind, p->values[i], d));
        } else {
            for (long j = MAX(any.from, i * PIECE); j < MIN(any.count, (i + 1) * PIECE); j++) copy_position(kind, t, start, j);
            p->k_scales[i] = t->k_scales + i * PIECE, p->v_scales[i] = t->v_scales + i * PIECE;
        }
        p->keys[i] = (const char *)keys, p->values[i] = (const char *)values;
    }
    fill_place(p, any);
}

static void place_copy(const Tile *t, long start, Seen any, Place *p) {
    switch (t->cache->kind) {
        case KV_BF16: copy_as(KV_BF16, t, start, any, p); break;
        case KV_INT8: copy_as(KV_INT8, t, start, any, p); break;
        default: copy_as(KV_F32, t, start, any, p); break;
    }
}

/* CALL(n) for the next n queries, at most `most`: n is a constant in it. */
#define FOR_QUERIES(first, stop, most, CALL)         \
    for (long i = first; i < stop;) {                \
        int n = (int)MIN(most, stop - i);            \
        switch (n) {                                 \
            case 1: CALL(1); break;                  \
            case 2: CALL(2); break;                  \
            case 3: CALL(3); break;                  \
            default:                                 \
                if (most > 4 && n == 6)              \
                    CALL(6);                         \
                else                                 \
                    n = 4, CALL(4);                  \
        }                                            \
        i += n;                                      \
    }

/* Scores of queries first ... stop - 1 with pieces from ... to - 1 of a strip. */
INLINE void score_pieces(int kind, int n, const Tile *t, long i, const Place *p, long stride, long from, long to) {
    int full = WIDTH(n) / PARTS, half = MAX(1, full / 2);
    long slab = t->rows * t->group * SLAB, dim = t->cache->dim;
    for (long at = from / full * full; at < to; at += full) {
        const char *const *ahead = n <= SIDE_BY_SIDE_DIRECT ? p->values + at : NULL;
        float *scores = t->scores + i * RANGE + at * PIECE;
        if (to - at <= half)
            score_tile(kind, n, half, t->queries + i * SLAB, slab, dim, p->keys + at, stride, ahead, scores, RANGE);
        else
            score_tile(kind, n, full, t->queries + i * SLAB, slab, dim, p->keys + at, stride, ahead, scores, RANGE);
    }
}
INLINE void score_as(int kind, const Tile *t, long first, long stop, const Place *p, long from, long to) {
    long stride = t->direct ? t->cache->block_size : PIECE;
    int most = kind == KV_F32 ? SIDE_BY_SIDE : SIDE_BY_SIDE_DIRECT;
#define SCORE(n) score_pieces(kind, n, t, i, p, stride, from, to)
    FOR_QUERIES(first, stop, most, SCORE)
#undef SCORE
}
static void score(const Tile *t, long first, long stop, const Place *p, long from, long to) {
    switch (t->direct ? t->cache->kind : KV_F32) {
        case KV_BF16: score_as(KV_BF16, t, first, stop, p, from, to); break;
        case KV_INT8: score_as(KV_INT8, t, first, stop, p, from, to); break;
        default: score_as(KV_F32, t, first, stop, p, from, to); break;
    }
}

/* Adds what queries i ... i + n - 1 take from the values of positions from ... count - 1 of a range. */
INLINE void add_dims(int kind, int n, const Tile *t, long i, const Place *p, const Place *next, long from, long count) {
    const float *weights = t->scores + i * RANGE;
    const char *const *ahead = n <= SIDE_BY_SIDE_DIRECT ? next->keys : NULL;
    float *acc = t->part.acc + i * t->padded;
    long d = 0;
    for (; d + WIDTH(n) * VL <= t->padded; d += WIDTH(n) * VL)
        value_tile(kind, n, WIDTH(n), weights, RANGE, p->values, d, t->padded, ahead, from, count, acc + d, t->padded);
    for (; d < t->padded; d += LANES)
        value_tile(kind, n, PARTS, weights, RANGE, p->values, d, t->padded, ahead, from, count, acc + d, t->padded);
}
INLINE void add_as(int kind, const Tile *t, long first, long stop, const Place *p, const Place *next, Seen s) {
    int most = kind == KV_F32 ? SIDE_BY_SIDE : SIDE_BY_SIDE_DIRECT;
#define ADD(n) add_dims(kind, n, t, i, p, next, s.from, s.count)
    FOR_QUERIES(first, stop, most, ADD)
#undef ADD
}
static void add(const Tile *t, long first_row, long stop_row, const Place *p, const Place *next, Seen s) {
    long first = first_row * t->group, stop = stop_row * t->group;
    if (s.from >= s.count) return;
    switch (t->direct ? t->cache->kind : KV_F32) {
        case KV_BF16: add_as(KV_BF16, t, first, stop, p, next, s); break;
        case KV_INT8: add_as(KV_INT8, t, first, stop, p, next, s); break;
        default: add_as(KV_F32, t, first, stop, p, next, s); break;
    }
}

/* The scores of a query to weights, their maximum and sum to the part. Where the cache is int8, weights are left with
   the scales of the values in them. first and stop: the pieces that have what the query sees. */
INLINE void weigh_as(int scaled, long first, long stop, const Tile *t, long query, Seen s, const Place *p) {
    float *scores = t->scores + query * RANGE;
    if (scaled)
        for (long j = first; j < stop; j += VL)
            vstore(scores + j, vload(scores + j) * vload(p->k_scales[j / PIECE] + j % PIECE));
    for (long j = first; j < s.from; j++) scores[j] = -INFINITY;
    for (long j = s.count; j < stop; j++) scores[j] = -INFINITY;
    vf most[PARTS], sum[PARTS];
    for (int v = 0; v < PARTS; v++) most[v] = vsplat(-INFINITY), sum[v] = vsplat(0.0f);
    for (long j = first; j < stop; j += PIECE)
        for (int v = 0; v < PARTS; v++) most[v] = vmax(vload(scores + j + v * VL), most[v]);
    float top = vtop(most);
    for (long j = first; j < stop; j += PIECE)
        for (int v = 0; v < PARTS; v++) {
            vf w = vexp2(vload(scores + j + v * VL) - vsplat(top));
            sum[v] += w;
            vstore(scores + j + v * VL, scaled ? w * vload(p->v_scales[j / PIECE] + v * VL) : w);
        }
    float lanes[LANES];
    for (int v = 0; v < PARTS; v++) vstore(lanes + v * VL, sum[v]);
    t->part.top[query] = top;
    t->part.total[query] = sum_lanes(load_f32(lanes));
}

/* Those of one row. Whole ranges are worth a loop of known length. */
static void weigh(const Tile *t, long row, Seen s, const Place *p) {
    long first = s.from / PIECE * PIECE, stop = (s.count + PIECE - 1) / PIECE * PIECE;
    int whole = first == 0 && stop == RANGE;
    for (long q = row * t->group; q < (row + 1) * t->group; q++)
        if (t->cache->kind == KV_INT8)
            weigh_as(1, first, stop, t, q, s, p);
        else if (whole)
            weigh_as(0, 0, RANGE, t, q, s, p);
        else
            weigh_as(0, first, stop, t, q, s, p);
}

/* One range, into the part. next: the place of the range that follows, if any, to bring it closer. */
static void attend_range(const Tile *t, long start, Rows rows, const Place *p, const Place *next) {
    long group = t->group;
    for (long strip = rows.any.from / STRIP * STRIP; strip < rows.any.count; strip += STRIP) {
        long first = MAX(rows.first, start + strip - t->position); /* rows before see nothing of the strip */
        score(t, first * group, rows.stop * group, p, MAX(rows.any.from, strip) / PIECE,
              (MIN(rows.any.count, strip + STRIP) + PIECE - 1) / PIECE);
    }
    for (long r = rows.first; r < rows.stop; r++) weigh(t, r, seen_of(t, r, start), p);
    memset(t->part.acc + rows.first * group * t->padded, 0, sizeof(float) * (rows.stop - rows.first) * group * t->padded);
    /* What all see together; before and after it each row what it sees alone. */
    Seen all = {seen_of(t, rows.stop - 1, start).from, seen_of(t, rows.first, start).count};
    if (all.from >= all.count) all = (Seen){RANGE, RANGE};
    for (long r = rows.first; r < rows.stop; r++) {
        Seen s = seen_of(t, r, start);
        add(t, r, r + 1, p, next, (Seen){s.from, MIN(s.count, all.from)});
    }
    for (long strip = all.from / STRIP * STRIP; strip < all.count; strip += STRIP)
        add(t, rows.first, rows.stop, p, next, (Seen){MAX(all.from, strip), MIN(all.count, strip + STRIP)});
    for (long r = rows.first; r < rows.stop; r++)
        add(t, r, r + 1, p, next, (Seen){MAX(all.count, seen_of(t, r, start).from), seen_of(t, r, start).count});
}

/* The next range of a query to those so far. One of the two is scaled by 1, so that there is one rounding to agree on. */
static void merge(const Tile *t, long query) {
    const float *from = t->part.acc + query * t->padded;
    float *to = t->all.acc + query * t->padded, *total = t->all.total + query, top = t->part.top[query];
    int higher = top > t->all.top[query];
    vf fade = vexp2(vsplat(higher ? t->all.top[query] - top : top - t->all.top[query]));
    if (higher) {
        t->all.top[query] = top;
        *total = *total * fade[0] + t->part.total[query];
        for (long d = 0; d < t->padded; d += VL) vstore(to + d, vload(to + d) * fade + vload(from + d));
    } else {
        *total = t->part.total[query] * fade[0] + *total;
        for (long d = 0; d < t->padded; d += VL) vstore(to + d, vload(from + d) * fade + vload(to + d));
    }
}

static void merge_rows(const Tile *t, Rows rows) {
    for (long q = rows.first * t->group; q < rows.stop * t->group; q++) merge(t, q);
}

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
    t->direct = s->cache.block_size % PIECE == 0 && s->cache.dim % PIECE == 0 &&
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

static void load_queries(const Step *s, const Tile *t, long first) {
    long dim = s->cache.dim, queries = t->rows * t->group;
    float scale = s->scale * LOG2_E; /* weights are powers of 2 */
    for (long query = 0; query < queries; query++) {
        long at = ((first + query / t->group) * s->heads + t->head * t->group + query % t->group) * dim, d = 0;
        float *to = t->queries + query * SLAB; /* SLAB is a multiple of LANES */
        for (; d + LANES <= dim; d += LANES)
            store_f32(to + d / SLAB * queries * SLAB + d % SLAB, splat(scale) * get16(s->q_kind, s->q, at + d));
        for (; d < dim; d++) to[d / SLAB * queries * SLAB + d % SLAB] = scale * get(s->q_kind, s->q, at + d);
    }
}

static void store_out(const Step *s, const Tile *t, long first) {
    long dim = s->cache.dim, queries = t->rows * t->group;
    for (long query = 0; query < queries; query++) {
        long at = ((first + query / t->group) * s->heads + t->head * t->group + query % t->group) * dim, d = 0;
        const float *acc = t->all.acc + query * t->padded;
        float share = 1.0f / t->all.total[query];
        for (; d + LANES <= dim; d += LANES) put16(s->q_kind, s->out, at + d, load_f32(acc + d) * splat(share));
        for (; d < dim; d++) put(s->q_kind, s->out, at + d, acc[d] * share);
    }
}

static void attend_item(void *context, long item) {
    Step *s = context;
    Tile t;
    long kv_heads = s->cache.kv_heads, range = item % s->ranges, of = item / s->ranges;
    long first = find_tile(s, s->tiles - 1 - of / kv_heads, of % kv_heads, &t); /* late tiles see most: begin with them */
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
