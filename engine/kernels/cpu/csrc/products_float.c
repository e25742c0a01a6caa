/* Products of bfloat16 or float32 activations with bfloat16, float32 or 4-bit weights.

   Every output element is one chain of fused multiply-adds over k in order. A panel is worked through in slices of SLICE
   values of k: the slice is brought to the form the inner loop wants once, in the first-level cache, then met by all
   row tiles.

   Inner loops:
     float      one multiply-add a step; bf16 weights are widened and 4-bit ones expanded (exact): few rows do so in
                registers, as memory has to deliver the weights, not the first-level cache
     bf16 dot   AVX512_BF16 only: pairs of k at once (VDPBF16PS), float32 accumulators */
#include "pool.h"
#include "tiles.h"

#include <stdatomic.h>

#if defined(__AVX512BF16__) && defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define HAVE_DOT 1
#else
#define HAVE_DOT 0
#endif

#define SLICE 128
#define FEW(kind) ((kind) == W_BF16 ? 2 * TALL : TALL) /* rows up to which weights go to registers directly */
#define AHEAD 1024     /* words that memory is asked for in advance */

enum { LOOP_FLOAT, LOOP_DOT };

API int products_panel(void) { return PANEL; }
API int products_have_dot(void) { return HAVE_DOT; }

INLINE vf vround_bf16(vf x) {
    vu u = (vu)x;
    return (vf)((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u);
}

/* c [rows][PANEL] += a [k][rows] . b [k][PANEL] */
INLINE void tile_float(int rows, long k, const float *a, const float *b, float *c) {
    vf acc[TALL][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) acc[r][v] = *(const vfu *)(c + r * PANEL + v * VL);
    for (long i = 0; i < k; i++) {
        vf b0 = *(const vfu *)(b + i * PANEL), b1 = *(const vfu *)(b + i * PANEL + VL);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            vf x = vsplat(a[i * rows + r]);
            acc[r][0] += x * b0;
            acc[r][1] += x * b1;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) *(vfu *)(c + r * PANEL + v * VL) = acc[r][v];
}

#if HAVE_DOT
/* The same over pairs: a uint32 [pairs][rows], b uint32 [pairs][PANEL]. */
INLINE void tile_dot(int rows, long pairs, const uint32_t *a, const uint32_t *b, float *c) {
    __m512 acc[TALL][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) acc[r][v] = _mm512_loadu_ps(c + r * PANEL + v * VL);
    for (long i = 0; i < pairs; i++) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b + i * PANEL), b1 = (__m512bh)_mm512_loadu_si512(b + i * PANEL + VL);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i * rows + r]);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x, b0);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x, b1);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) _mm512_storeu_ps(c + r * PANEL + v * VL, acc[r][v]);
}
#endif

static void run_tile_float(long rows, long k, const float *a, const float *b, float *c) {
    switch (rows) {
        case 1: tile_float(1, k, a, b, c); break;
        case 2: tile_float(2, k, a, b, c); break;
        case 4: tile_float(4, k, a, b, c); break;
#if TALL > 8
        case 8: tile_float(8, k, a, b, c); break;
#endif
        default: tile_float(TALL, k, a, b, c); break;
    }
}

#if HAVE_DOT
static void run_tile_dot(long rows, long pairs, const uint32_t *a, const uint32_t *b, float *c) {
    switch (rows) {
        case 1: tile_dot(1, pairs, a, b, c); break;
        case 2: tile_dot(2, pairs, a, b, c); break;
        case 4: tile_dot(4, pairs, a, b, c); break;
        case 8: tile_dot(8, pairs, a, b, c); break;
        default: tile_dot(TALL, pairs, a, b, c); break;
    }
}
#endif

/* A nibble that lies at bit `at` of a word is a float at once where the exponent says so: 2^(23 - at) + q. */
#define MAGIC(at) ((float)(1 << (23 - (at))))
enum { AT_8, AT_12, AT_16, PLACES };

/* What makes (q - zero) * scale of such floats, for the group that k lies in and one panel: a multiply-add of scale and
   shift. It is exact: neither (2^15 + 15) * scale nor the rest has more than 24 bits. */
typedef struct {
    vf scale[2], shift[2][PLACES];
} Group;

INLINE Group group_of(const Linear *w, long panel, long k) {
    long at = (panel * (w->k / w->group) + k / w->group) * PANEL;
    Group g;
    for (int v = 0; v < 2; v++) {
        vf scale = (vf)(__builtin_convertvector(*(const vh *)((const uint16_t *)w->scales + at + v * VL), vu) << 16);
        vh zeros = __builtin_convertvector(*(const vb *)(w->zeros + at + v * VL), vh); /* by way of 16 bits; see load_int8 */
        vf zero = __builtin_convertvector(__builtin_convertvector(zeros, vi), vf);
        g.scale[v] = scale;
        g.shift[v][AT_8] = -(zero + vsplat(MAGIC(8))) * scale;
        g.shift[v][AT_12] = -(zero + vsplat(MAGIC(12))) * scale;
        g.shift[v][AT_16] = -(zero + vsplat(MAGIC(16))) * scale;
    }
    return g;
}

/* Value j of every word, where v is the half of the panel. */
INLINE vf unpack_int4(vu words, int j, const Group *g, int v) {
    int from = NIBBLE(j), at = from == 0 || from == 8 || from == 20 ? 8 : from == 16 || from == 28 ? 16 : 12;
    vu moved = from < at ? words << 8 : from > at ? words >> 12 : words;
    vf x = (vf)((moved & (vu)visplat(15 << at)) | (vu)vsplat(MAGIC(at)));
    return x * g->scale[v] + g->shift[v][at == 8 ? AT_8 : at == 12 ? AT_12 : AT_16];
}

/* Slice k0 ... k0 + count - 1 of a panel as floats [count][PANEL]; the weights themselves where they are that already. */
static const float *slice_float(const Linear *w, long panel, long k0, long count, int round, float *out) {
    if (w->kind == W_F32) return (const float *)w->panels + (panel * w->k + k0) * PANEL;
    if (w->kind == W_BF16) {
        const uint32_t *pairs = (const uint32_t *)w->panels + (panel * ((w->k + 1) / 2) + k0 / 2) * PANEL;
        for (long i = 0; i < (count + 1) / 2; i++)
            for (int v = 0; v < 2; v++) {
                vu u = *(const vuu *)(pairs + i * PANEL + v * VL);
                *(vfu *)(out + 2 * i * PANEL + v * VL) = (vf)(u << 16);
                *(vfu *)(out + (2 * i + 1) * PANEL + v * VL) = (vf)(u & 0xffff0000u);
            }
        return out;
    }
    const uint32_t *words = (const uint32_t *)w->panels + (panel * w->k + k0) / 8 * PANEL;
    for (long i = 0; i < count;) {
        long stop = MIN(count, ((k0 + i) / w->group + 1) * w->group - k0);
        Group g = group_of(w, panel, k0 + i);
        for (; i < stop; i += 8)
            for (int v = 0; v < 2; v++) {
                vu word = *(const vuu *)(words + i / 8 * PANEL + v * VL);
#pragma GCC unroll 8
                for (int j = 0; j < 8; j++) {
                    vf x = unpack_int4(word, j, &g, v);
                    *(vfu *)(out + (i + j) * PANEL + v * VL) = round ? vround_bf16(x) : x;
                }
            }
    }
    return out;
}

/* acc [rows][2] += row k of a [][rows] . one row of weights. */
INLINE void step_float(int rows, const float *a, vf b0, vf b1, vf acc[TALL][2]) {
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        vf x = vsplat(a[r]);
        acc[r][0] += x * b0;
        acc[r][1] += x * b1;
    }
}

/* As tile_float, with the weights k0 ... k0 + count - 1 of a panel as they are stored. */
INLINE void tile_direct(int rows, int kind, const Linear *w, long panel, long k0, long count, const float *a, float *c) {
    vf acc[TALL][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) acc[r][v] = *(const vfu *)(c + r * PANEL + v * VL);
    if (kind == W_BF16) {
        const uint32_t *pairs = (const uint32_t *)w->panels + (panel * ((w->k + 1) / 2) + k0 / 2) * PANEL;
        for (long i = 0; i < count; i += 2, pairs += PANEL) {
            vu u0 = *(const vuu *)pairs, u1 = *(const vuu *)(pairs + VL);
            __builtin_prefetch(pairs + AHEAD), __builtin_prefetch(pairs + AHEAD + VL);
            step_float(rows, a + i * rows, (vf)(u0 << 16), (vf)(u1 << 16), acc);
            if (i + 1 < count) step_float(rows, a + (i + 1) * rows, (vf)(u0 & 0xffff0000u), (vf)(u1 & 0xffff0000u), acc);
        }
    } else {
        const uint32_t *words = (const uint32_t *)w->panels + (panel * w->k + k0) / 8 * PANEL;
        for (long i = 0; i < count;) {
            long stop = MIN(count, ((k0 + i) / w->group + 1) * w->group - k0);
            Group g = group_of(w, panel, k0 + i);
            for (; i < stop; i += 8, words += PANEL) {
                vu w0 = *(const vuu *)words, w1 = *(const vuu *)(words + VL);
                __builtin_prefetch(words + AHEAD), __builtin_prefetch(words + AHEAD + VL);
#pragma GCC unroll 8
                for (int j = 0; j < 8; j++)
                    step_float(rows, a + (i + j) * rows, unpack_int4(w0, j, &g, 0), unpack_int4(w1, j, &g, 1), acc);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) *(vfu *)(c + r * PANEL + v * VL) = acc[r][v];
}

INLINE void tile_direct_as(int kind, long rows, const Linear *w, long panel, long k0, long count, const float *a, float *c) {
    switch (rows) {
        case 1: tile_direct(1, kind, w, panel, k0, count, a, c); break;
        case 2: tile_direct(2, kind, w, panel, k0, count, a, c); break;
        case 4: tile_direct(4, kind, w, panel, k0, count, a, c); break;
#if TALL > 8
        case 8: tile_direct(8, kind, w, panel, k0, count, a, c); break;
#endif
        default: tile_direct(TALL, kind, w, panel, k0, count, a, c); break;
    }
}

static void run_tile_direct(long rows, const Linear *w, long panel, long k0, long count, const float *a, float *c) {
    if (w->kind == W_BF16)
        tile_direct_as(W_BF16, rows, w, panel, k0, count, a, c);
    else
        tile_direct_as(W_INT4, rows, w, panel, k0, count, a, c);
}

#if HAVE_DOT
/* The same as pairs [count/2][PANEL], rounded to bf16. */
static const uint32_t *slice_dot(const Linear *w, long panel, long k0, long count, uint32_t *out) {
    if (w->kind == W_BF16) return (const uint32_t *)w->panels + (panel * ((w->k + 1) / 2) + k0 / 2) * PANEL;
    const uint32_t *words = (const uint32_t *)w->panels + (panel * w->k + k0) / 8 * PANEL;
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                                21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (long i = 0; i < count;) {
        long stop = MIN(count, ((k0 + i) / w->group + 1) * w->group - k0);
        Group g = group_of(w, panel, k0 + i);
        for (; i < stop; i += 8)
            for (int v = 0; v < 2; v++) {
                vu word = *(const vuu *)(words + i / 8 * PANEL + v * VL);
#pragma GCC unroll 4
                for (int j = 0; j < 8; j += 2) {
                    vf even = unpack_int4(word, j, &g, v);
                    vf odd = unpack_int4(word, j + 1, &g, v);
                    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
                    _mm512_storeu_si512(out + (i + j) / 2 * PANEL + v * VL, _mm512_permutexvar_epi16(interleave, both));
                }
            }
    }
    return out;
}
#endif

typedef struct {
    const Linear *w;
    const void *x;
    void *y, *a; /* a: x in row tiles */
    long m, steps; /* steps: of the inner loop over all of k */
    int x_bf16, y_bf16, loop, round, gate;
    atomic_int failed;
} Product;

/* Values of x in one step of the inner loop: a float, a pair of bf16. */
static const int VALUES_A_STEP[] = {1, 2};

/* Step i of a row of x, as the inner loop wants it. pack_tile calls it with p->loop known, so its branches fold. */
INLINE uint32_t step_of(const Product *p, long row, long i) {
    long k = p->w->k;
    if (p->loop == LOOP_DOT) {
        const uint16_t *in = (const uint16_t *)p->x + row * k + 2 * i;
        return in[0] | (2 * i + 1 < k ? (uint32_t)in[1] << 16 : 0);
    }
    if (p->x_bf16) return (uint32_t)((const uint16_t *)p->x)[row * k + i] << 16;
    return ((const uint32_t *)p->x)[row * k + i];
}

INLINE void pack_as(const Product *p, long r0, long rows) {
    uint32_t *o = (uint32_t *)p->a + r0 * p->steps;
    long real = MIN(rows, p->m - r0);
    for (long i = 0; i < p->steps; i++, o += rows) {
        for (long r = 0; r < real; r++) o[r] = step_of(p, r0 + r, i);
        for (long r = real; r < rows; r++) o[r] = 0;
    }
}

/* One row tile of x to [steps][rows], rows padded with zeros. The tile of row r begins at element r * steps. */
static void pack_tile(void *context, long tile) {
    Product p = *(const Product *)context;
    long rows = tile_rows(p.m - tile * TALL);
    if (p.loop == LOOP_DOT)
        p.loop = LOOP_DOT, pack_as(&p, tile * TALL, rows);
    else
        p.loop = LOOP_FLOAT, pack_as(&p, tile * TALL, rows);
}

/* Of `count` values of k of one panel, about: whether k is even does not matter to a prefetch. */
INLINE long bytes_of_slice(const Linear *w, long count) {
    return count * PANEL * (w->kind == W_F32 ? 8 : w->kind == W_BF16 ? 4 : 1) / 2;
}

/* All row tiles against one slice. */
static void run_slice(const Product *p, long panel, long k0, long part, float *c, float *slice) {
    int values = VALUES_A_STEP[p->loop];
    long steps = (part + values - 1) / values, done = k0 / values;
    const void *b = slice;
    int direct = p->loop == LOOP_FLOAT && p->m <= FEW(p->w->kind) && p->w->kind != W_F32 && !p->round;
    if (p->loop == LOOP_FLOAT && !direct) b = slice_float(p->w, panel, k0, part, p->round, slice);
#if HAVE_DOT
    if (p->loop == LOOP_DOT) b = slice_dot(p->w, panel, k0, part, (uint32_t *)slice);
#endif
    /* The slice that follows in memory comes while this one is worked on, a share for each tile. */
    long bytes = bytes_of_slice(p->w, part), share = bytes * TALL / p->m;
    const char *next = (const char *)p->w->panels + bytes_of_slice(p->w, panel * p->w->k + k0) + bytes;
    for (long r = 0; r < p->m; r += TALL) {
        long rows = tile_rows(p->m - r);
        const uint32_t *a = (const uint32_t *)p->a + r * p->steps + done * rows;
        if (!direct)
            for (long stop = MIN(bytes, (r / TALL + 1) * share), at = r / TALL * share; at < stop; at += 64)
                __builtin_prefetch(next + at, 0, 2);
        if (direct)
            run_tile_direct(rows, p->w, panel, k0, part, (const float *)a, c + r * PANEL);
        else if (p->loop == LOOP_FLOAT)
            run_tile_float(rows, steps, (const float *)a, b, c + r * PANEL);
#if HAVE_DOT
        if (p->loop == LOOP_DOT) run_tile_dot(rows, steps, a, b, c + r * PANEL);
#endif
    }
}

/* The sums of one panel, with its bias, to c [m][PANEL]. */
static void sum_panel(const Product *p, long panel, float *c, float *slice) {
    long n = p->w->n, first = panel * PANEL;
    memset(c, 0, sizeof(float) * p->m * PANEL);
    for (long k0 = 0; k0 < p->w->k; k0 += SLICE) run_slice(p, panel, k0, MIN(SLICE, p->w->k - k0), c, slice);
    if (!p->w->bias) return;
    float bias[PANEL] = {0};
    memcpy(bias, p->w->bias + first, sizeof(float) * MIN(PANEL, n - first));
    for (long r = 0; r < p->m; r++)
        for (int v = 0; v < 2; v++) *(vfu *)(c + r * PANEL + v * VL) += *(const vfu *)(bias + v * VL);
}

/* One panel, or with a gate one of each half of the columns. */
static void run_panel(void *context, long panel) {
    Product *p = context;
    long n = p->w->n, size = (p->m + TALL - 1) / TALL * TALL * PANEL;
    float *c = pool_scratch(sizeof(float) * (2 * size + SLICE * PANEL)), *slice = c + 2 * size;
    if (!c) {
        atomic_store(&p->failed, 1);
        return;
    }
    sum_panel(p, panel, c, slice);
    if (p->gate != NO_GATE) {
        n /= 2;
        sum_panel(p, panel + n / PANEL, c + size, slice);
        for (long r = 0; r < p->m; r++)
            gate_row(c + r * PANEL, c + size + r * PANEL, p->y_bf16, p->gate, c + r * PANEL);
    }
    long first = panel * PANEL, width = MIN(PANEL, n - first);
    for (long r = 0; r < p->m; r++) store_row(c + r * PANEL, p->y, p->y_bf16, n, r, first, width);
}

API int product_float(const Linear *w, const void *x, int x_bf16, void *y, int y_bf16, int dot, int round, int gate, long m,
                  int threads) {
    if (m == 0) return 0;
    Product p = {.w = w, .x = x, .y = y, .m = m, .x_bf16 = x_bf16, .y_bf16 = y_bf16,
                 .loop = dot ? LOOP_DOT : LOOP_FLOAT, .round = round, .gate = gate};
    long padded = (m + TALL - 1) / TALL * TALL, plain = gate != NO_GATE && !gate_by_panel(w);
    p.steps = (w->k + VALUES_A_STEP[p.loop] - 1) / VALUES_A_STEP[p.loop];
    static __thread Buffer packed, whole; /* of the calling thread; pool_scratch is taken by the items */
    if (!(p.a = buffer_of(&packed, sizeof(uint32_t) * padded * p.steps))) return 1;
    if (plain) {
        if (!(p.y = buffer_of(&whole, sizeof(float) * m * w->n))) return 1;
        p.gate = NO_GATE;
    }
    pool_run(pack_tile, &p, padded / TALL, threads);
    pool_run(run_panel, &p, (w->n + PANEL - 1) / PANEL / (p.gate == NO_GATE ? 1 : 2), threads);
    if (plain) gate_rows(p.y, y, y_bf16, m, w->n, gate, threads);
    return atomic_load(&p.failed);
}
