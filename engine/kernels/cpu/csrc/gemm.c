/* y [M, N] = x [M, K] . w [N, K]^T for weights stored as bfloat16, float32 or 4-bit groups.

   Weights of 8 bits meet activations of 8 bits, exactly, in int32; scales of row and column are applied at the end.

   A row's bits never depend on the other rows: every output element is one chain of fused multiply-adds over k in
   order, whatever the tile it is computed in; row tiles of different heights differ only in how many chains run side
   by side. Weights lie in panels of PANEL output columns, and a panel is worked through in slices of SLICE values
   of k: the slice is brought to the form the inner loop wants once, in the first-level cache, then met by all row tiles.

   Inner loops:
     float      one multiply-add a step; bf16 weights are widened (exact). 8-bit values go through it, too: the sum over
                a slice stays below 2^24 and so is exact
     bf16 dot   AVX512_BF16 only: pairs of k at once (VDPBF16PS), float32 accumulators
     int8 dot   AVX512_VNNI or AVX_VNNI only: four k at once (VPDPBUSD). It wants one side unsigned, so the activations
                are shifted by 128 and 128 x the column's sum is taken off again

   Panel of bf16 weights: uint32 [ceil(K/2)][PANEL], low half the even k. Panel of float32 weights: [K][PANEL].
   Panel of 4-bit weights: uint32 [K/8][PANEL], nibble j of word i is k = 8i + j, lowest bits first; scales bf16 and
   zero points uint8 [K/group][PANEL], the group a multiple of 8; weight = (q - zero) * scale.
   Panel of 8-bit weights: uint32 [ceil(K/4)][PANEL], byte j of word i is k = 4i + j. */
#include "common.h"
#include "pool.h"

#include <stdatomic.h>

#if defined(__AVX512BF16__) && defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define HAVE_DOT 1
#else
#define HAVE_DOT 0
#endif

#if defined(__AVX512F__)
#define VL 16
#define TALL 12 /* rows of the highest tile: TALL x 2 accumulators fit the registers */
#else
#define VL 8
#define TALL 6
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#include <immintrin.h>
#define HAVE_INT8 1
#define DOT4(acc, a, b) ((vi)_mm512_dpbusd_epi32((__m512i)(acc), (__m512i)(a), (__m512i)(b)))
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
#include <immintrin.h>
#define HAVE_INT8 1
#define DOT4(acc, a, b) ((vi)_mm256_dpbusd_avx_epi32((__m256i)(acc), (__m256i)(a), (__m256i)(b)))
#else
#define HAVE_INT8 0
#endif
#define PANEL (2 * VL)
#define SLICE 128

typedef float vf __attribute__((vector_size(VL * 4)));
typedef float vfu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef int32_t viu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint32_t vuu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef uint8_t vb __attribute__((vector_size(VL), aligned(1), may_alias));
typedef uint16_t vh __attribute__((vector_size(VL * 2), aligned(2), may_alias));

enum { W_BF16 = 0, W_F32 = 1, W_INT4 = 2, W_INT8 = 3 };
enum { LOOP_FLOAT, LOOP_DOT, LOOP_INT8 };

typedef struct {
    const void *panels;
    const uint16_t *scales;
    const uint8_t *zeros;
    long k, n, group;
    int kind;
} Weights;

API int gemm_panel(void) { return PANEL; }
API int gemm_has_dot(void) { return HAVE_DOT; }

/* Written out: a loop over the lanes compiles to one masked insert for each. */
INLINE vf vsplat(float x) {
#if VL == 16
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#else
    return (vf){x, x, x, x, x, x, x, x};
#endif
}
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

#if HAVE_INT8
/* The same over fours: a uint32 [fours][rows] of unsigned bytes, b [fours][PANEL] of signed ones, c int32. */
INLINE void tile_int8(int rows, long fours, const uint32_t *a, const uint32_t *b, int32_t *c) {
    vi acc[TALL][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) acc[r][v] = *(const viu *)(c + r * PANEL + v * VL);
    for (long i = 0; i < fours; i++) {
        vu b0 = *(const vuu *)(b + i * PANEL), b1 = *(const vuu *)(b + i * PANEL + VL);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            float word;
            memcpy(&word, a + i * rows + r, 4);
            vf x = vsplat(word);
            acc[r][0] = DOT4(acc[r][0], x, b0);
            acc[r][1] = DOT4(acc[r][1], x, b1);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) *(viu *)(c + r * PANEL + v * VL) = acc[r][v];
}
#endif

/* Rows of the tile that comes next when `left` rows are left: the widest that is not mostly padding. */
INLINE long tile_rows(long left) {
    if (left >= TALL) return TALL;
    if (left == 1) return 1;
    if (left == 2) return 2;
    if (left <= 4) return 4;
    if (TALL > 8 && left <= 8) return 8;
    return TALL;
}

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

#if HAVE_INT8
static void run_tile_int8(long rows, long fours, const uint32_t *a, const uint32_t *b, int32_t *c) {
    switch (rows) {
        case 1: tile_int8(1, fours, a, b, c); break;
        case 2: tile_int8(2, fours, a, b, c); break;
        case 4: tile_int8(4, fours, a, b, c); break;
#if TALL > 8
        case 8: tile_int8(8, fours, a, b, c); break;
#endif
        default: tile_int8(TALL, fours, a, b, c); break;
    }
}
#endif

/* Scale and -zero * scale of the group that k lies in, for one panel. Both are exact in float32. */
INLINE void group_scales(const Weights *w, long panel, long k, vf scale[2], vf shift[2]) {
    long at = (panel * (w->k / w->group) + k / w->group) * PANEL;
    for (int v = 0; v < 2; v++) {
        scale[v] = (vf)(__builtin_convertvector(*(const vh *)(w->scales + at + v * VL), vu) << 16);
        vh zeros = __builtin_convertvector(*(const vb *)(w->zeros + at + v * VL), vh); /* by way of 16 bits; see load_int8 */
        shift[v] = -__builtin_convertvector(__builtin_convertvector(zeros, vi), vf) * scale[v];
    }
}

/* Nibble `at` of every word. */
INLINE vf unpack_int4(vu words, int at, vf scale, vf shift) {
    return __builtin_convertvector((vi)((words >> (4 * at)) & 15), vf) * scale + shift;
}

/* Slice k0 ... k0 + count - 1 of a panel as floats [count][PANEL]; the weights themselves where they are that already. */
static const float *slice_float(const Weights *w, long panel, long k0, long count, int round, float *out) {
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
    if (w->kind == W_INT8) {
        const uint32_t *fours = (const uint32_t *)w->panels + (panel * ((w->k + 3) / 4) + k0 / 4) * PANEL;
        for (long i = 0; i < (count + 3) / 4; i++)
            for (int v = 0; v < 2; v++) {
                vu word = *(const vuu *)(fours + i * PANEL + v * VL);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) /* to the top, then down again with the sign */
                    *(vfu *)(out + (4 * i + j) * PANEL + v * VL) =
                        __builtin_convertvector((vi)(word << (24 - 8 * j)) >> 24, vf);
            }
        return out;
    }
    const uint32_t *words = (const uint32_t *)w->panels + (panel * w->k + k0) / 8 * PANEL;
    for (long i = 0; i < count;) {
        long stop = MIN(count, ((k0 + i) / w->group + 1) * w->group - k0);
        vf scale[2], shift[2];
        group_scales(w, panel, k0 + i, scale, shift);
        for (; i < stop; i += 8)
            for (int v = 0; v < 2; v++) {
                vu word = *(const vuu *)(words + i / 8 * PANEL + v * VL);
#pragma GCC unroll 8
                for (int j = 0; j < 8; j++) {
                    vf x = unpack_int4(word, j, scale[v], shift[v]);
                    *(vfu *)(out + (i + j) * PANEL + v * VL) = round ? vround_bf16(x) : x;
                }
            }
    }
    return out;
}

#if HAVE_DOT
/* The same as pairs [count/2][PANEL], rounded to bf16. */
static const uint32_t *slice_dot(const Weights *w, long panel, long k0, long count, uint32_t *out) {
    if (w->kind == W_BF16) return (const uint32_t *)w->panels + (panel * ((w->k + 1) / 2) + k0 / 2) * PANEL;
    const uint32_t *words = (const uint32_t *)w->panels + (panel * w->k + k0) / 8 * PANEL;
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                                21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (long i = 0; i < count;) {
        long stop = MIN(count, ((k0 + i) / w->group + 1) * w->group - k0);
        vf scale[2], shift[2];
        group_scales(w, panel, k0 + i, scale, shift);
        for (; i < stop; i += 8)
            for (int v = 0; v < 2; v++) {
                vu word = *(const vuu *)(words + i / 8 * PANEL + v * VL);
#pragma GCC unroll 4
                for (int j = 0; j < 8; j += 2) {
                    vf even = unpack_int4(word, j, scale[v], shift[v]);
                    vf odd = unpack_int4(word, j + 1, scale[v], shift[v]);
                    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
                    _mm512_storeu_si512(out + (i + j) / 2 * PANEL + v * VL, _mm512_permutexvar_epi16(interleave, both));
                }
            }
    }
    return out;
}
#endif

enum { X_F32 = 0, X_BF16 = 1, X_INT8 = 2 };

typedef struct {
    Weights w;
    const void *x;
    void *y, *a; /* a: x in row tiles */
    const float *bias, *row_scales, *col_scales;
    const int32_t *col_sums;
    long m, steps; /* steps: of the inner loop over all of k */
    int x_kind, y_bf16, loop, round;
    atomic_int failed;
} Product;

/* Values of x in one step of the inner loop: a float, a pair of bf16, four unsigned bytes. */
static const int VALUES_A_STEP[] = {1, 2, 4};

/* Step i of a row of x, as the inner loop wants it. pack_tile calls it with p->loop known, so its branches fold. */
INLINE uint32_t step_of(const Product *p, long row, long i) {
    long k = p->w.k;
    if (p->loop == LOOP_DOT) {
        const uint16_t *in = (const uint16_t *)p->x + row * k + 2 * i;
        return in[0] | (2 * i + 1 < k ? (uint32_t)in[1] << 16 : 0);
    }
    if (p->loop == LOOP_INT8) {
        const uint8_t *in = (const uint8_t *)p->x + row * k + 4 * i;
        uint32_t word = 0;
        if (4 * i + 4 <= k) {
            memcpy(&word, in, 4);
            return word ^ 0x80808080u;
        }
        for (long j = 0; j < k - 4 * i; j++) word |= (uint32_t)(in[j] ^ 0x80) << 8 * j;
        return word;
    }
    float value = p->x_kind == X_BF16   ? bf16_to_float(((const uint16_t *)p->x)[row * k + i])
                  : p->x_kind == X_INT8 ? (float)((const int8_t *)p->x)[row * k + i]
                                        : ((const float *)p->x)[row * k + i];
    uint32_t word;
    memcpy(&word, &value, 4);
    return word;
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
    else if (p.loop == LOOP_INT8)
        p.loop = LOOP_INT8, pack_as(&p, tile * TALL, rows);
    else
        pack_as(&p, tile * TALL, rows);
}

/* All row tiles against one slice. */
static void run_slice(const Product *p, long panel, long k0, long part, float *c, float *slice) {
    int values = VALUES_A_STEP[p->loop];
    long steps = (part + values - 1) / values, done = k0 / values;
    const void *b = slice;
    if (p->loop == LOOP_FLOAT) b = slice_float(&p->w, panel, k0, part, p->round, slice);
#if HAVE_DOT
    if (p->loop == LOOP_DOT) b = slice_dot(&p->w, panel, k0, part, (uint32_t *)slice);
#endif
#if HAVE_INT8
    if (p->loop == LOOP_INT8) b = (const uint32_t *)p->w.panels + (panel * p->steps + done) * PANEL;
#endif
    for (long r = 0; r < p->m; r += TALL) {
        long rows = tile_rows(p->m - r);
        const uint32_t *a = (const uint32_t *)p->a + r * p->steps + done * rows;
        if (p->loop == LOOP_FLOAT) run_tile_float(rows, steps, (const float *)a, b, c + r * PANEL);
#if HAVE_DOT
        if (p->loop == LOOP_DOT) run_tile_dot(rows, steps, a, b, c + r * PANEL);
#endif
#if HAVE_INT8
        if (p->loop == LOOP_INT8) run_tile_int8(rows, steps, a, b, (int32_t *)c + r * PANEL);
#endif
    }
}

/* Scales, bias and rounding; the results of one panel to y. */
static void finish_panel(const Product *p, long panel, const float *c, const int32_t *sums) {
    long n = p->w.n, first = panel * PANEL, width = MIN(PANEL, n - first);
    int integers = p->w.kind == W_INT8;
    float bias[PANEL] = {0}, col_scales[PANEL] = {0}, row[PANEL];
    int32_t shift[PANEL] = {0};
    for (long j = 0; j < width; j++) {
        if (p->bias) bias[j] = p->bias[first + j];
        if (integers) col_scales[j] = p->col_scales[first + j];
        if (p->loop == LOOP_INT8) shift[j] = 128 * p->col_sums[first + j];
    }
    for (long r = 0; r < p->m; r++) {
        for (int v = 0; v < 2; v++) {
            vf value = *(const vfu *)(c + r * PANEL + v * VL);
            if (integers) {
                vi sum = *(const viu *)(sums + r * PANEL + v * VL) - *(const viu *)(shift + v * VL);
                value = __builtin_convertvector(sum, vf) * p->row_scales[r] * *(const vfu *)(col_scales + v * VL);
            }
            if (p->bias) value += *(const vfu *)(bias + v * VL);
            *(vfu *)(row + v * VL) = value;
        }
        if (!p->y_bf16) {
            memcpy((float *)p->y + r * n + first, row, sizeof(float) * width);
        } else {
            uint16_t *y = (uint16_t *)p->y + r * n + first;
            long j = 0;
            for (; j + LANES <= width; j += LANES) store_bf16(y + j, load_f32(row + j));
            for (; j < width; j++) y[j] = float_to_bf16(row[j]);
        }
    }
}

static void run_panel(void *context, long panel) {
    Product *p = context;
    long k = p->w.k, size = (p->m + TALL - 1) / TALL * TALL * PANEL;
    int integers = p->w.kind == W_INT8, by_slice = integers && p->loop == LOOP_FLOAT;
    float *c = pool_scratch(sizeof(float) * (2 * size + SLICE * PANEL));
    if (!c) {
        atomic_store(&p->failed, 1);
        return;
    }
    int32_t *sums = (int32_t *)c + (by_slice ? size : 0); /* int8 in the float loop: exact within a slice only */
    float *slice = c + 2 * size;
    memset(c, 0, sizeof(float) * (by_slice ? 2 : 1) * size);
    for (long k0 = 0; k0 < k; k0 += SLICE) {
        run_slice(p, panel, k0, MIN(SLICE, k - k0), c, slice);
        if (by_slice)
            for (long i = 0; i < p->m * PANEL; i++) sums[i] += (int32_t)c[i], c[i] = 0.0f;
    }
    finish_panel(p, panel, c, sums);
}

static int run_product(Product *p, int threads) {
    long padded = (p->m + TALL - 1) / TALL * TALL;
    p->steps = (p->w.k + VALUES_A_STEP[p->loop] - 1) / VALUES_A_STEP[p->loop];
    static __thread void *a; /* of the calling thread; pool_scratch is taken by the items */
    static __thread size_t a_size;
    size_t need = (sizeof(uint32_t) * padded * p->steps + 4095) / 4096 * 4096;
    if (need > a_size) {
        free(a);
        a = aligned_alloc(64, need);
        a_size = a ? need : 0;
        if (!a) return 1;
    }
    p->a = a;
    pool_run(pack_tile, p, padded / TALL, threads);
    pool_run(run_panel, p, (p->w.n + PANEL - 1) / PANEL, threads);
    return atomic_load(&p->failed);
}

/* x and y: bfloat16 where *_bf16, else float32. dot: use the bf16 loop (x bf16, weights not float32). round: round
   4-bit weights to bf16. bias float32 [N] or NULL. Returns 0, or 1 where memory ran out. */
API int gemm(const void *x, int x_bf16, void *y, int y_bf16, const void *panels, const uint16_t *scales,
             const uint8_t *zeros, const float *bias, long m, long k, long n, long group, int kind, int dot, int round,
             int threads) {
    Product p = {.w = {panels, scales, zeros, k, n, group, kind}, .x = x, .y = y, .bias = bias, .m = m,
                 .x_kind = x_bf16 ? X_BF16 : X_F32, .y_bf16 = y_bf16, .loop = dot ? LOOP_DOT : LOOP_FLOAT,
                 .round = round};
    return run_product(&p, threads);
}

/* x int8 [M][K] with row_scales [M]; col_scales, col_sums (of the weights over k) and bias [N]. */
API int gemm_int8(const int8_t *x, const float *row_scales, void *y, int y_bf16, const void *panels,
                  const float *col_scales, const int32_t *col_sums, const float *bias, long m, long k, long n,
                  int threads) {
    Product p = {.w = {panels, NULL, NULL, k, n, 1, W_INT8}, .x = x, .y = y, .bias = bias, .row_scales = row_scales,
                 .col_scales = col_scales, .col_sums = col_sums, .m = m, .x_kind = X_INT8, .y_bf16 = y_bf16,
                 .loop = HAVE_INT8 ? LOOP_INT8 : LOOP_FLOAT};
    return run_product(&p, threads);
}
