/* y [M, N] = x [M, K] . w [N, K]^T for weights stored as bfloat16, float32 or 4-bit groups.

   A row's bits never depend on the other rows: every output element is one chain of fused multiply-adds over k in
   order, whatever the tile it is computed in; row tiles of different heights differ only in how many chains run side
   by side. Weights lie in panels of PANEL output columns, and a panel is worked through in slices of SLICE values
   of k: the slice is brought to the form the inner loop wants once, in the first-level cache, then met by all row tiles.

   Two inner loops:
     float     one multiply-add a step; bf16 weights are widened (exact)
     bf16 dot  AVX512_BF16 only: pairs of k at once (VDPBF16PS), float32 accumulators

   Panel of bf16 weights: uint32 [ceil(K/2)][PANEL], low half the even k. Panel of float32 weights: [K][PANEL].
   Panel of 4-bit weights: uint32 [K/8][PANEL], nibble j of word i is k = 8i + j, lowest bits first; scales bf16 and
   zero points uint8 [K/group][PANEL], the group a multiple of 8; weight = (q - zero) * scale. */
#include "common.h"

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
#define PANEL (2 * VL)
#define SLICE 128

typedef float vf __attribute__((vector_size(VL * 4)));
typedef float vfu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint32_t vuu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef uint8_t vb __attribute__((vector_size(VL), aligned(1), may_alias));
typedef uint16_t vh __attribute__((vector_size(VL * 2), aligned(2), may_alias));

enum { W_BF16 = 0, W_F32 = 1, W_INT4 = 2 };

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

/* Scale and -zero * scale of the group that k lies in, for one panel. Both are exact in float32. */
INLINE void group_scales(const Weights *w, long panel, long k, vf scale[2], vf shift[2]) {
    long at = (panel * (w->k / w->group) + k / w->group) * PANEL;
    for (int v = 0; v < 2; v++) {
        scale[v] = (vf)(__builtin_convertvector(*(const vh *)(w->scales + at + v * VL), vu) << 16);
        shift[v] = -__builtin_convertvector(__builtin_convertvector(*(const vb *)(w->zeros + at + v * VL), vi), vf) * scale[v];
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

/* x [M][K] to row tiles [tile][K][rows] (pairs: [tile][ceil(K/2)][rows]), rows padded with zeros. Tile t begins at
   row t * TALL, and at element t * TALL * K of `out`. */
static void pack_rows(const void *x, int x_bf16, long m, long k, int dot, void *out, int threads) {
    long pairs = (k + 1) / 2;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (m > TALL)
    for (long r0 = 0; r0 < m; r0 += TALL) {
        long rows = tile_rows(m - r0);
        for (long r = 0; r < rows; r++) {
            long row = r0 + r;
            if (dot) {
                uint32_t *o = (uint32_t *)out + r0 * pairs + r;
                const uint16_t *in = (const uint16_t *)x + row * k;
                for (long i = 0; i < pairs; i++) {
                    uint32_t low = row < m ? in[2 * i] : 0, high = row < m && 2 * i + 1 < k ? in[2 * i + 1] : 0;
                    o[i * rows] = low | high << 16;
                }
            } else {
                float *o = (float *)out + r0 * k + r;
                for (long i = 0; i < k; i++)
                    o[i * rows] = row >= m ? 0.0f
                                  : x_bf16 ? bf16_to_float(((const uint16_t *)x)[row * k + i])
                                           : ((const float *)x)[row * k + i];
            }
        }
    }
}

/* x and y: bfloat16 where *_bf16, else float32. dot: use the bf16 loop (x bf16, weights not float32). round: round
   4-bit weights to bf16. bias float32 [N] or NULL. Returns 0, or 1 where memory ran out. */
API int gemm(const void *x, int x_bf16, void *y, int y_bf16, const void *panels, const uint16_t *scales,
             const uint8_t *zeros, const float *bias, long m, long k, long n, long group, int kind, int dot, int round,
             int threads) {
    Weights w = {panels, scales, zeros, k, n, group, kind};
    long count = (n + PANEL - 1) / PANEL, padded = (m + TALL - 1) / TALL * TALL;
    void *a = aligned_alloc(64, (sizeof(float) * padded * (k + 1) + 63) / 64 * 64);
    if (!a) return 1;
    pack_rows(x, x_bf16, m, k, dot, a, threads);
    int failed = 0;
#pragma omp parallel num_threads(threads) if (count > 1) reduction(| : failed)
    {
        float *c = aligned_alloc(64, sizeof(float) * padded * PANEL);
        float *slice = aligned_alloc(64, sizeof(float) * SLICE * PANEL);
        failed = !c || !slice;
#pragma omp for schedule(dynamic, 1) /* a core taken by another process costs one panel, not half of them */
        for (long p = 0; p < count; p++) {
            if (!c || !slice) continue;
            memset(c, 0, sizeof(float) * padded * PANEL);
            for (long k0 = 0; k0 < k; k0 += SLICE) {
                long part = MIN(SLICE, k - k0);
#if HAVE_DOT
                if (dot) {
                    const uint32_t *b = slice_dot(&w, p, k0, part, (uint32_t *)slice);
                    for (long r = 0; r < m; r += TALL) {
                        long rows = tile_rows(m - r);
                        run_tile_dot(rows, (part + 1) / 2, (const uint32_t *)a + r * ((k + 1) / 2) + k0 / 2 * rows, b,
                                     c + r * PANEL);
                    }
                    continue;
                }
#endif
                const float *b = slice_float(&w, p, k0, part, round, slice);
                for (long r = 0; r < m; r += TALL) {
                    long rows = tile_rows(m - r);
                    run_tile_float(rows, part, (const float *)a + r * k + k0 * rows, b, c + r * PANEL);
                }
            }
            long width = MIN(PANEL, n - p * PANEL);
            for (long r = 0; r < m; r++)
                for (long j = 0; j < width; j++) {
                    long at = r * n + p * PANEL + j;
                    float value = c[r * PANEL + j] + (bias ? bias[p * PANEL + j] : 0.0f);
                    if (y_bf16)
                        ((uint16_t *)y)[at] = float_to_bf16(value);
                    else
                        ((float *)y)[at] = value;
                }
        }
        free(c);
        free(slice);
    }
    free(a);
    return failed;
}
