/* Attention of requests that compute one token each: what attention.c does for such rows, in the same order
   and so with the same bits, for the common shapes only (step_attention_fits) and without what those do not need.

   An item is one request and KV head. It reads the cache as a sequence of strips, keys of a range first and then its
   values, and while a strip is multiplied the following one is on its way: to the next item's first, since a thread that
   waits for memory at the beginning of each of its items waits most of the time. Keys and values of 4
   bits are widened where they are multiplied, each as four_bits.h does it. */
#include "four_bits.h"
#include "kernels.h"
#include "pool.h"

#define RANGE 128
#define STRIP 64
#define PIECES (RANGE / PIECE)
#define STRIP_PIECES (STRIP / PIECE)
#define ITEMS_A_THREAD 6L /* with fewer, attention.c shares the ranges of an item */
#define MOST_QUERIES 4
#define MOST_DIM 256
#define SIDE (VL == 16 ? 4 : PARTS) /* vectors side by side: their sums stay in registers */
#define LOG2_E 1.44269504088896341f

typedef struct {
    Cache cache;
    const void *q;
    void *out;
    const int32_t *lengths, *tables;
    long max_blocks, heads, items;
    int q_kind, threads;
    float scale;
} Step;

/* One item: where its keys and values lie, and what it has so far. */
typedef struct {
    const Step *s;
    const int32_t *table;
    long request, head, length;
    float queries[MOST_QUERIES][MOST_DIM], acc[MOST_QUERIES][MOST_DIM], sums[MOST_QUERIES][MOST_DIM];
    float scores[MOST_QUERIES][RANGE], top[MOST_QUERIES], total[MOST_QUERIES];
} Item;

INLINE long bytes_of(int kind) { return kind == KV_F32 ? 4 : kind == KV_BF16 ? 2 : 1; }
INLINE long piece_bytes(int kind, long dim) { return kind == KV_INT4 ? PIECE * dim / 2 : PIECE * dim * bytes_of(kind); }

/* As vget, where the compiler makes several instructions of one. */
INLINE vf widened(int kind, const char *x) {
#if VL == 16
    if (kind == KV_BF16) return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)x)), 16);
#elif VL == 8
    if (kind == KV_BF16) return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)x)), 16);
#endif
    return vget(kind, x, 0);
}

/* The pieces of a strip from `start` on, of keys or values; those beyond the end stand for others. Behind them, of 4 bits,
   their scales. */
INLINE void find_strip(int kind, const Item *t, const void *cache, long start, const char *pieces[2 * STRIP_PIECES]) {
    const Cache *c = &t->s->cache;
    long size = piece_bytes(kind, c->dim), last = (t->length - 1) / PIECE;
    for (int i = 0; i < STRIP_PIECES; i++) {
        long head = t->table[MIN(start / PIECE + i, last)] * c->kv_heads + t->head;
        pieces[i] = (const char *)cache + head * size;
        if (kind == KV_INT4)
            pieces[STRIP_PIECES + i] = (const char *)(cache == c->k ? group_at(c, c->k_scale, KEY_GROUP, head, 0)
                                                                    : group_at(c, c->v_scale, VALUE_GROUP, head, 0));
    }
}

/* The first strip of keys of the item that this thread has next, if threads go on as evenly as they did. */
INLINE void find_next(int kind, const Step *s, long item, const char *pieces[2 * STRIP_PIECES]) {
    Item next;
    item = MIN(item + s->threads, s->items - 1);
    next.s = s, next.request = item / s->cache.kv_heads, next.head = item % s->cache.kv_heads;
    next.table = s->tables + next.request * s->max_blocks, next.length = s->lengths[next.request];
    find_strip(kind, &next, s->cache.k, 0, pieces);
}

/* scores of n queries with `count` pieces of keys, from position `at` of the range on. */
INLINE void score_strip(int kind, int n, Item *t, const char *const *keys, const char *const *ahead, long count, long at) {
    const long bytes = bytes_of(kind), quarter = t->s->cache.dim / STRIP_PIECES;
    const int width = SIDE / PARTS; /* pieces side by side */
    for (int first = 0; first < count; first += width) {
        vf acc[MOST_QUERIES][SIDE];
        for (int i = 0; i < n; i++)
            for (int v = 0; v < SIDE; v++) acc[i][v] = vsplat(0.0f);
        long d = 0;
        for (int part = 0; part < STRIP_PIECES; part++) {
            const char *next = ahead[part];
            for (long stop = d + quarter; d < stop; d++, next += 64 * bytes) {
                vf key[SIDE];
                if (first == 0)
#pragma GCC unroll 4
                    for (long line = 0; line < bytes; line++) __builtin_prefetch(next + 64 * line);
#pragma GCC unroll 4
                for (int v = 0; v < SIDE; v++)
                    key[v] = widened(kind, keys[first + v / PARTS] + (d * PIECE + v % PARTS * VL) * bytes);
#pragma GCC unroll 4
                for (int i = 0; i < n; i++) {
                    vf x = vsplat(t->queries[i][d]);
#pragma GCC unroll 4
                    for (int v = 0; v < SIDE; v++) acc[i][v] += x * key[v];
                }
            }
        }
        for (int i = 0; i < n; i++)
            for (int v = 0; v < SIDE; v++) vstore(t->scores[i] + at + first * PIECE + v * VL, acc[i][v]);
    }
}

/* sums += weights, from position `at` of the range on, times `count` values. */
INLINE void add_strip(int kind, int n, Item *t, const char *const *values, const char *const *ahead, long count, long at) {
    const long bytes = bytes_of(kind), dim = t->s->cache.dim;
    for (long d = 0; d < dim; d += SIDE * VL) {
        vf acc[MOST_QUERIES][SIDE];
        for (int i = 0; i < n; i++)
            for (int v = 0; v < SIDE; v++) acc[i][v] = vload(t->sums[i] + d + v * VL);
        for (long j = 0; j < count;) {
            const char *value = values[j / PIECE] + d * bytes, *next = ahead[j / PIECE] + d * PIECE * bytes;
            for (long stop = MIN(count, j + PIECE); j < stop; j++, value += dim * bytes, next += SIDE * VL * bytes) {
                vf x[SIDE];
#pragma GCC unroll 4
                for (long line = 0; line < SIDE * VL * bytes; line += 64) __builtin_prefetch(next + line);
#pragma GCC unroll 4
                for (int v = 0; v < SIDE; v++) x[v] = widened(kind, value + v * VL * bytes);
#pragma GCC unroll 4
                for (int i = 0; i < n; i++) {
                    vf w = vsplat(t->scores[i][at + j]);
#pragma GCC unroll 4
                    for (int v = 0; v < SIDE; v++) acc[i][v] += w * x[v];
                }
            }
        }
        for (int i = 0; i < n; i++)
            for (int v = 0; v < SIDE; v++) vstore(t->sums[i] + d + v * VL, acc[i][v]);
    }
}

/* score_strip and add_strip of 4 bits, with scales and bases. */
INLINE void score_strip4(int n, Item *t, const char *const *keys, const char *const *ahead, long count, long at) {
    const int width = SIDE / PARTS; /* pieces side by side */
    const long dim = t->s->cache.dim, line = 64;
    for (int first = 0; first < count; first += width) {
        vf acc[MOST_QUERIES][SIDE];
        for (int i = 0; i < n; i++)
            for (int v = 0; v < SIDE; v++) acc[i][v] = vsplat(0.0f);
        for (long d = 0; d < dim; d += KEY_GROUP) {
            vf scale[SIDE], base[SIDE];
#pragma GCC unroll 4
            for (int v = 0; v < SIDE; v++) {
                const char *group = keys[STRIP_PIECES + first + v / PARTS];
                scale[v] = vget(KV_BF16, group, d / KEY_GROUP * 2 * PIECE + v % PARTS * VL);
                base[v] = vget(KV_BF16, group, (d / KEY_GROUP * 2 + 1) * PIECE + v % PARTS * VL);
            }
            if (first == 0)
#pragma GCC unroll 4
                for (int i = 0; i < STRIP_PIECES; i++) {
                    __builtin_prefetch(ahead[i] + d * PIECE / 2), __builtin_prefetch(ahead[i] + d * PIECE / 2 + line);
                    __builtin_prefetch(ahead[STRIP_PIECES + i] + d / KEY_GROUP * line);
                }
            for (long own = d; own < d + KEY_GROUP; own += 2) {
                vf low[SIDE], high[SIDE];
#pragma GCC unroll 4
                for (int v = 0; v < SIDE; v++) {
                    vi both = load_bytes((const uint8_t *)keys[first + v / PARTS] + own / 2 * PIECE + v % PARTS * VL);
                    low[v] = __builtin_convertvector(both & 15, vf) * scale[v] + base[v];
                    high[v] = __builtin_convertvector(both >> 4, vf) * scale[v] + base[v];
                }
#pragma GCC unroll 4
                for (int i = 0; i < n; i++) {
                    vf x = vsplat(t->queries[i][own]), y = vsplat(t->queries[i][own + 1]);
#pragma GCC unroll 4
                    for (int v = 0; v < SIDE; v++) acc[i][v] += x * low[v];
#pragma GCC unroll 4
                    for (int v = 0; v < SIDE; v++) acc[i][v] += y * high[v];
                }
            }
        }
        for (int i = 0; i < n; i++)
            for (int v = 0; v < SIDE; v++) vstore(t->scores[i] + at + first * PIECE + v * VL, acc[i][v]);
    }
}

INLINE void add_strip4(int n, Item *t, const char *const *values, const char *const *ahead, long count, long at) {
    const long dim = t->s->cache.dim, line = 64;
    for (long d = 0; d < dim; d += SIDE * VL) { /* of one group: VALUE_GROUP is a multiple */
        float scales[STRIP], bases[STRIP];
        for (long j = 0; j < count; j += VL) {
            long group = d / VALUE_GROUP * 2 * PIECE + j % PIECE;
            const char *own = values[STRIP_PIECES + j / PIECE];
            vstore(scales + j, vget(KV_BF16, own, group)), vstore(bases + j, vget(KV_BF16, own, group + PIECE));
        }
        vf acc[MOST_QUERIES][SIDE];
        for (int i = 0; i < n; i++)
            for (int v = 0; v < SIDE; v++) acc[i][v] = vload(t->sums[i] + d + v * VL);
        for (long j = 0; j < count;) {
            const char *value = values[j / PIECE] + d / 2, *next = ahead[j / PIECE];
            if (d == 0)
                for (long i = 0; i < dim; i += KEY_GROUP)
                    __builtin_prefetch(ahead[STRIP_PIECES + j / PIECE] + i / KEY_GROUP * line);
            for (long stop = MIN(count, j + PIECE); j < stop; j++, value += dim / 2, next += dim / 2) {
                vf x[SIDE], scale = vsplat(scales[j]), base = vsplat(bases[j]);
                if (d / 2 % line == 0) __builtin_prefetch(next + d / 2);
#pragma GCC unroll 4
                for (int v = 0; v < SIDE; v++)
                    x[v] = __builtin_convertvector(load_codes((const uint8_t *)value + v * VL / 2), vf) * scale + base;
#pragma GCC unroll 4
                for (int i = 0; i < n; i++) {
                    vf w = vsplat(t->scores[i][at + j]);
#pragma GCC unroll 4
                    for (int v = 0; v < SIDE; v++) acc[i][v] += w * x[v];
                }
            }
        }
        for (int i = 0; i < n; i++)
            for (int v = 0; v < SIDE; v++) vstore(t->sums[i] + d + v * VL, acc[i][v]);
    }
}

/* Scores to weights, with the scales of int8 values in them; the maximum and the sum without those to the caller. */
INLINE void weigh(int kind, Item *t, int i, long start, long count, float *top, float *total) {
    float *scores = t->scores[i], lanes[LANES];
    const float *k_scales[PIECES], *v_scales[PIECES];
    long stop = (count + PIECE - 1) / PIECE * PIECE;
    if (kind == KV_INT8)
        for (long j = 0; j < stop; j += PIECE) {
            long at = (t->table[(start + j) / PIECE] * t->s->cache.kv_heads + t->head) * PIECE;
            k_scales[j / PIECE] = t->s->cache.k_scale + at, v_scales[j / PIECE] = t->s->cache.v_scale + at;
        }
    if (kind == KV_INT8)
        for (long j = 0; j < stop; j += VL) vstore(scores + j, vload(scores + j) * vload(k_scales[j / PIECE] + j % PIECE));
    for (long j = count; j < stop; j++) scores[j] = -INFINITY;
    vf most[PARTS], sum[PARTS];
    for (int v = 0; v < PARTS; v++) most[v] = vsplat(-INFINITY), sum[v] = vsplat(0.0f);
    for (long j = 0; j < stop; j += PIECE)
        for (int v = 0; v < PARTS; v++) most[v] = vmax(vload(scores + j + v * VL), most[v]);
    *top = vtop(most);
    for (long j = 0; j < stop; j += PIECE)
        for (int v = 0; v < PARTS; v++) {
            vf w = vexp2(vload(scores + j + v * VL) - vsplat(*top));
            sum[v] += w;
            vstore(scores + j + v * VL, kind == KV_INT8 ? w * vload(v_scales[j / PIECE] + v * VL) : w);
        }
    for (int v = 0; v < PARTS; v++) vstore(lanes + v * VL, sum[v]);
    *total = sum_lanes(load_f32(lanes));
}

/* The sums of a range to those so far. One of the two is scaled by 1; see attention.c. */
INLINE void merge(Item *t, int i, float top, float total) {
    float *to = t->acc[i], *from = t->sums[i];
    long dim = t->s->cache.dim;
    int higher = top > t->top[i];
    vf fade = vexp2(vsplat(higher ? t->top[i] - top : top - t->top[i]));
    if (higher) {
        t->top[i] = top;
        t->total[i] = t->total[i] * fade[0] + total;
        for (long d = 0; d < dim; d += VL) vstore(to + d, vload(to + d) * fade + vload(from + d));
    } else {
        t->total[i] = total * fade[0] + t->total[i];
        for (long d = 0; d < dim; d += VL) vstore(to + d, vload(from + d) * fade + vload(to + d));
    }
}

INLINE void attend_range(int kind, int n, Item *t, long start, long item) {
    const Cache *c = &t->s->cache;
    long count = MIN(RANGE, t->length - start), strips = (count + STRIP - 1) / STRIP, dim = c->dim;
    const char *pieces[2][2 * STRIP_PIECES], **now = pieces[0], **next = pieces[1], **swap;
    find_strip(kind, t, c->k, start, now);
    for (long strip = 0; strip < strips; strip++, swap = now, now = next, next = swap) {
        if (strip + 1 < strips)
            find_strip(kind, t, c->k, start + (strip + 1) * STRIP, next);
        else
            find_strip(kind, t, c->v, start, next);
        long pieces_in = (MIN(STRIP, count - strip * STRIP) + PIECE - 1) / PIECE;
        if (kind == KV_INT4)
            score_strip4(n, t, now, next, pieces_in, strip * STRIP);
        else
            score_strip(kind, n, t, now, next, pieces_in, strip * STRIP);
    }
    float top[MOST_QUERIES], total[MOST_QUERIES];
    for (int i = 0; i < n; i++) {
        weigh(kind, t, i, start, count, top + i, total + i);
        memset(t->sums[i], 0, sizeof(float) * dim);
    }
    for (long strip = 0; strip < strips; strip++, swap = now, now = next, next = swap) {
        if (strip + 1 < strips)
            find_strip(kind, t, c->v, start + (strip + 1) * STRIP, next);
        else if (start + RANGE < t->length)
            find_strip(kind, t, c->k, start + RANGE, next);
        else
            find_next(kind, t->s, item, next);
        long keys_in = MIN(STRIP, count - strip * STRIP);
        if (kind == KV_INT4)
            add_strip4(n, t, now, next, keys_in, strip * STRIP);
        else
            add_strip(kind, n, t, now, next, keys_in, strip * STRIP);
    }
    for (int i = 0; i < n; i++)
        if (start == 0) {
            t->top[i] = top[i], t->total[i] = total[i];
            memcpy(t->acc[i], t->sums[i], sizeof(float) * dim);
        } else {
            merge(t, i, top[i], total[i]);
        }
}

INLINE void attend_as(int kind, int n, const Step *s, long item) {
    Item t;
    long dim = s->cache.dim;
    t.s = s, t.request = item / s->cache.kv_heads, t.head = item % s->cache.kv_heads;
    t.table = s->tables + t.request * s->max_blocks, t.length = s->lengths[t.request];
    long at = (t.request * s->heads + t.head * n) * dim;
    float scale = s->scale * LOG2_E; /* weights are powers of 2 */
    for (int i = 0; i < n; i++)
        for (long d = 0; d < dim; d += LANES)
            store_f32(t.queries[i] + d, splat(scale) * get16(s->q_kind, s->q, at + i * dim + d));
    for (long start = 0; start < t.length; start += RANGE) attend_range(kind, n, &t, start, item);
    for (int i = 0; i < n; i++) {
        float share = 1.0f / t.total[i];
        for (long d = 0; d < dim; d += LANES)
            put16(s->q_kind, s->out, at + i * dim + d, load_f32(t.acc[i] + d) * splat(share));
    }
}

#define ANY_QUERIES(kind)                             \
    switch (s->heads / s->cache.kv_heads) {           \
        case 1: attend_as(kind, 1, s, item); break;   \
        case 2: attend_as(kind, 2, s, item); break;   \
        case 3: attend_as(kind, 3, s, item); break;   \
        default: attend_as(kind, 4, s, item); break;  \
    }
static void attend_item(void *context, long item) {
    const Step *s = context;
    switch (s->cache.kind) {
        case KV_BF16: ANY_QUERIES(KV_BF16) break;
        case KV_INT8: ANY_QUERIES(KV_INT8) break;
        case KV_INT4: ANY_QUERIES(KV_INT4) break;
        default: ANY_QUERIES(KV_F32) break;
    }
}

int step_attention_fits(long requests, long heads, long kv_heads, long dim, long block_size, long window, int threads) {
    if (window || block_size != PIECE || dim % STRIP || dim > MOST_DIM || heads / kv_heads > MOST_QUERIES) return 0;
    return requests > 0 && (threads == 1 || requests * kv_heads >= ITEMS_A_THREAD * threads);
}

void step_attention(const void *q, int q_bf16, void *out, const KvPointers *c, const int32_t *lengths,
                    const int32_t *tables, long max_blocks, long requests, long heads, long kv_heads, long dim, float scale,
                    int threads) {
    Step s = {{c->k, c->v, c->k_scale, c->v_scale, (int)c->kind, kv_heads, dim, PIECE}, q, out, lengths, tables, max_blocks,
              heads, requests * kv_heads, q_bf16 ? KV_BF16 : KV_F32, threads, scale};
    pool_run(attend_item, &s, s.items, threads);
}
