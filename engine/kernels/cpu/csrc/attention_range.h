/* One range of a tile: where its keys and values lie, scores, weights, weighted values, and the merge with the ranges
   before it. What a tile and a range are is said in attention.c. */
#ifndef SEATRIAL_ATTENTION_RANGE_H
#define SEATRIAL_ATTENTION_RANGE_H

#include "four_bits.h"

#define RANGE 128
#define STRIP 64
#define PIECES (RANGE / PIECE)
#define NO_WINDOW 0
#define NOINLINE __attribute__((noinline, noclone)) /* where each copy would take long to compile */

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

/* The row of a query: a division of 32 bits, which takes a third of the time of one of 64. */
INLINE long row_of(const Tile *t, long query) { return (uint32_t)query / (uint32_t)t->group; }

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
    long size = c->block_size, dim = c->dim, bytes = BYTES_OF(c->kind);
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

INLINE void copy_position4(const Tile *t, long start, long j) {
    const Cache *c = t->cache;
    long offset = (start + j) % c->block_size, head = t->table[(start + j) / c->block_size] * c->kv_heads + t->head;
    float *keys = t->keys + j / PIECE * c->dim * PIECE + j % PIECE, *values = t->values + j * t->padded;
    for (long d = 0; d < c->dim; d++) keys[d * PIECE] = key4(c, head, offset, d), values[d] = value4(c, head, offset, d);
}

/* As copy_as, with scales and bases in the copy. */
static void copy_as4(const Tile *t, long start, Seen any, Place *p) {
    const Cache *c = t->cache;
    int whole = c->block_size % PIECE == 0 && c->dim % PIECE == 0;
    for (long i = any.from / PIECE; i * PIECE < any.count; i++) {
        float *keys = t->keys + i * c->dim * PIECE, *values = t->values + i * PIECE * t->padded;
        if (whole) {
            long at = start + i * PIECE, head = t->table[at / c->block_size] * c->kv_heads + t->head;
            widen_keys(c, c->block_size, head, at % c->block_size, keys);
            widen_values(c, c->block_size, head, at % c->block_size, values);
        } else {
            for (long j = MAX(any.from, i * PIECE); j < MIN(any.count, (i + 1) * PIECE); j++) copy_position4(t, start, j);
        }
        p->keys[i] = (const char *)keys, p->values[i] = (const char *)values;
    }
    fill_place(p, any);
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
        case KV_INT4: copy_as4(t, start, any, p); break;
        default: copy_as(KV_F32, t, start, any, p); break;
    }
}

/* How many of the queries that are left go side by side next: as many as there is a case for below. */
INLINE int queries_next(const Tile *t, long left) {
    int most = t->direct && t->cache->kind != KV_F32 ? SIDE_BY_SIDE_DIRECT : SIDE_BY_SIDE;
    return left >= most ? most : left == 5 ? 4 : (int)left;
}

#define FOR_QUERIES(t, i, n, first, stop) \
    for (long i = first, n; i < stop && (n = queries_next(t, stop - i)); i += n)

/* CALL(kind, n) with both constant in it: keys and values are read as they are stored, or as a copy in float32. */
#define ANY_QUERIES(kind, n, CALL)        \
    switch (n) {                          \
        case 1: CALL(kind, 1); break;     \
        case 2: CALL(kind, 2); break;     \
        case 3: CALL(kind, 3); break;     \
        default: CALL(kind, 4); break;    \
    }
#define ANY_KIND(t, n, CALL)                                              \
    switch ((t)->direct ? (t)->cache->kind : KV_F32) {                    \
        case KV_BF16: ANY_QUERIES(KV_BF16, n, CALL) break;                \
        case KV_INT8: ANY_QUERIES(KV_INT8, n, CALL) break;                \
        default:                                                          \
            if (n == SIDE_BY_SIDE)                                        \
                CALL(KV_F32, SIDE_BY_SIDE);                               \
            else                                                          \
                ANY_QUERIES(KV_F32, n, CALL)                              \
    }

/* Scores of queries i ... i + n - 1 with the pieces that hold positions from ... count - 1, all of one strip. */
INLINE void score_pieces(int kind, int n, const Tile *t, long i, const Place *p, Seen s) {
    const int full = WIDTH(n) / PARTS, half = MAX(1, full / 2);
    long slab = t->rows * t->group * SLAB, dim = t->cache->dim, stride = t->direct ? t->cache->block_size : PIECE;
    for (long at = s.from / PIECE / full * full; at * PIECE < s.count; at += full) {
        const char *const *ahead = n <= SIDE_BY_SIDE_DIRECT ? p->values + at : NULL;
        float *scores = t->scores + i * RANGE + at * PIECE;
        if (s.count <= (at + half) * PIECE)
            score_tile(kind, n, half, t->queries + i * SLAB, slab, dim, p->keys + at, stride, ahead, scores, RANGE);
        else
            score_tile(kind, n, full, t->queries + i * SLAB, slab, dim, p->keys + at, stride, ahead, scores, RANGE);
    }
}
static NOINLINE void score(const Tile *t, long i, long n, const Place *p, Seen s) {
#define SCORE(kind, n) score_pieces(kind, n, t, i, p, s)
    if (s.from < s.count) ANY_KIND(t, n, SCORE)
#undef SCORE
}

/* Adds what queries i ... i + n - 1 take from the values of positions from ... count - 1 of a range; fresh: to nothing. */
INLINE void add_dims(int kind, int n, const Tile *t, long i, const Place *p, const Place *next, Seen s,
                     int fresh) {
    const float *weights = t->scores + i * RANGE;
    const char *const *ahead = n <= SIDE_BY_SIDE_DIRECT ? next->keys : NULL;
    float *acc = t->part.acc + i * t->padded;
    long d = 0;
    for (; d + WIDTH(n) * VL <= t->padded; d += WIDTH(n) * VL)
        value_tile(kind, n, WIDTH(n), weights, RANGE, p->values, d, t->padded, ahead, s.from, s.count, acc + d, t->padded,
                   fresh);
    for (; d < t->padded; d += LANES)
        value_tile(kind, n, PARTS, weights, RANGE, p->values, d, t->padded, ahead, s.from, s.count, acc + d, t->padded,
                   fresh);
}
static NOINLINE void add(const Tile *t, long i, long n, const Place *p, const Place *next, Seen s, int fresh) {
#define ADD(kind, n) add_dims(kind, n, t, i, p, next, s, fresh)
    if (s.from < s.count) ANY_KIND(t, n, ADD)
#undef ADD
}

/* The scores of a query as they count, and their maximum. first and stop: the pieces that have what the query sees. */
INLINE void find_top(int scaled, long first, long stop, const Tile *t, long query, Seen s, const Place *p) {
    float *scores = t->scores + query * RANGE;
    if (scaled)
        for (long j = first; j < stop; j += VL)
            vstore(scores + j, vload(scores + j) * vload(p->k_scales[j / PIECE] + j % PIECE));
    for (long j = first; j < s.from; j++) scores[j] = -INFINITY;
    for (long j = s.count; j < stop; j++) scores[j] = -INFINITY;
    vf most[PARTS];
    for (int v = 0; v < PARTS; v++) most[v] = vload(scores + first + v * VL);
    for (long j = first + PIECE; j < stop; j += PIECE)
        for (int v = 0; v < PARTS; v++) most[v] = vmax(vload(scores + j + v * VL), most[v]);
    t->part.top[query] = vtop(most);
}

/* The scores of a query to weights, with the scales of int8 values in them, and their sum, without. */
INLINE void find_weights(int scaled, long first, long stop, const Tile *t, long query, const Place *p) {
    float *scores = t->scores + query * RANGE, lanes[LANES];
    vf sum[PARTS], top = vsplat(t->part.top[query]);
    for (int v = 0; v < PARTS; v++) sum[v] = vsplat(0.0f);
    for (long j = first; j < stop;) {
        int many = stop - j >= EXP_AT_ONCE * VL;
        vf w[EXP_AT_ONCE];
        int n = many ? EXP_AT_ONCE : PARTS;
        for (int v = 0; v < n; v++) w[v] = vload(scores + j + v * VL) - top;
        if (many)
            vexp2_of(w, EXP_AT_ONCE);
        else
            vexp2_of(w, PARTS);
        for (int v = 0; v < n; v++, j += VL) {
            sum[v % PARTS] += w[v];
            vstore(scores + j, scaled ? w[v] * vload(p->v_scales[j / PIECE] + j % PIECE) : w[v]);
        }
    }
    for (int v = 0; v < PARTS; v++) vstore(lanes + v * VL, sum[v]);
    t->part.total[query] = sum_lanes(load_f32(lanes));
}

/* Scores of queries i ... i + n - 1 to weights. Whole ranges are worth loops of known length. */
INLINE void weigh_as(int scaled, const Tile *t, long i, long n, long start, const Place *p) {
    Seen seen[SIDE_BY_SIDE];
    for (long q = 0; q < n; q++) {
        Seen s = seen[q] = seen_of(t, row_of(t, i + q), start);
        long first = s.from / PIECE * PIECE, stop = (s.count + PIECE - 1) / PIECE * PIECE;
        if (s.from == 0 && s.count == RANGE)
            find_top(scaled, 0, RANGE, t, i + q, s, p);
        else
            find_top(scaled, first, stop, t, i + q, s, p);
    }
    for (long q = 0; q < n; q++) {
        long first = seen[q].from / PIECE * PIECE, stop = (seen[q].count + PIECE - 1) / PIECE * PIECE;
        if (first == 0 && stop == RANGE)
            find_weights(scaled, 0, RANGE, t, i + q, p);
        else
            find_weights(scaled, first, stop, t, i + q, p);
    }
}
static NOINLINE void weigh(const Tile *t, long i, long n, long start, const Place *p) {
    if (t->cache->kind == KV_INT8)
        weigh_as(1, t, i, n, start, p);
    else
        weigh_as(0, t, i, n, start, p);
}

/* The positions of a strip that are among those seen. */
INLINE Seen in_strip(Seen s, long strip) { return (Seen){MAX(s.from, strip), MIN(s.count, strip + STRIP)}; }

/* Of queries i ... i + n - 1: what any of them sees, what all do. */
INLINE Seen any_of(const Tile *t, long i, long n, long start) {
    return (Seen){seen_of(t, row_of(t, i), start).from, seen_of(t, row_of(t, i + n - 1), start).count};
}
INLINE Seen all_of(const Tile *t, long i, long n, long start) {
    Seen s = {seen_of(t, row_of(t, i + n - 1), start).from, seen_of(t, row_of(t, i), start).count};
    return s.from < s.count ? s : (Seen){RANGE, RANGE};
}

/* Adds what each row of queries i ... i + n - 1 sees alone, before (or else after) what all of them see. */
static NOINLINE void add_alone(const Tile *t, long i, long n, const Place *p, const Place *next, long start, int before) {
    Seen all = all_of(t, i, n, start);
    for (long r = row_of(t, i); r * t->group < i + n; r++) {
        Seen s = seen_of(t, r, start);
        s = before ? (Seen){s.from, MIN(s.count, all.from)} : (Seen){MAX(all.count, s.from), s.count};
        if (s.from < s.count)
            FOR_QUERIES(t, j, m, MAX(i, r * t->group), MIN(i + n, (r + 1) * t->group)) add(t, j, m, p, next, s, 0);
    }
}

/* One range, into the part. next: the place of the range that follows, if any, to bring it closer. */
static void attend_range(const Tile *t, long start, Rows rows, const Place *p, const Place *next) {
    long first = rows.first * t->group, stop = rows.stop * t->group;
    long from = rows.any.from / STRIP * STRIP, last = (rows.any.count - 1) / STRIP * STRIP;
    for (long strip = from; strip <= last; strip += STRIP)
        FOR_QUERIES(t, i, n, first, stop) {
            score(t, i, n, p, in_strip(any_of(t, i, n, start), strip));
            if (strip == last) weigh(t, i, n, start, p); /* while they are near */
        }
    int begin_at_zero = t->window == NO_WINDOW; /* else what is seen alone comes first */
    if (!begin_at_zero) {
        memset(t->part.acc + first * t->padded, 0, sizeof(float) * (stop - first) * t->padded);
        FOR_QUERIES(t, i, n, first, stop) add_alone(t, i, n, p, next, start, 1);
    }
    for (long strip = from; strip <= last; strip += STRIP)
        FOR_QUERIES(t, i, n, first, stop) {
            add(t, i, n, p, next, in_strip(all_of(t, i, n, start), strip), begin_at_zero && strip == 0);
            if (strip == last) add_alone(t, i, n, p, next, start, 0);
        }
}

/* The next range of a query to those so far; fade: of what has the lower maximum. The other is scaled by 1, so that there
   is one rounding to agree on. */
INLINE void merge(const Tile *t, long query, int higher, float fade) {
    const float *from = t->part.acc + query * t->padded;
    float *to = t->all.acc + query * t->padded, *total = t->all.total + query;
    vf all = vsplat(fade);
    if (higher) {
        t->all.top[query] = t->part.top[query];
        *total = *total * fade + t->part.total[query];
        for (long d = 0; d < t->padded; d += VL) vstore(to + d, vload(to + d) * all + vload(from + d));
    } else {
        *total = t->part.total[query] * fade + *total;
        for (long d = 0; d < t->padded; d += VL) vstore(to + d, vload(from + d) * all + vload(to + d));
    }
}

/* Fades are worked out for VL queries at once. */
static void merge_rows(const Tile *t, Rows rows) {
    long stop = rows.stop * t->group;
    for (long q = rows.first * t->group, n; q < stop; q += n) {
        n = MIN(VL, stop - q);
        float all[VL] = {0}, part[VL] = {0}, fades[VL];
        memcpy(all, t->all.top + q, sizeof(float) * n), memcpy(part, t->part.top + q, sizeof(float) * n);
        vf a = vload(all), b = vload(part);
        vi higher = b > a;
        vstore(fades, vexp2((vf)(((vi)(a - b) & higher) | ((vi)(b - a) & ~higher))));
        for (long i = 0; i < n; i++) merge(t, q + i, part[i] > all[i], fades[i]);
    }
}

#endif
