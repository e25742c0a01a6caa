/* The two products of attention, in registers: scores = queries . keys and values weighted and summed.

   Every element is one chain of fused multiply-adds, over the head dimension or over the keys, in order; how many
   chains run side by side depends on the registers and on how many queries there are, the bits do not. */
#ifndef SEATRIAL_ATTENTION_TILES_H
#define SEATRIAL_ATTENTION_TILES_H

#include "cache.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define VL 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define VL 8
#else
#define VL 4
#endif
#define PIECE LANES      /* neighbouring positions: one vector of scores, of 16 lanes whatever the machine has */
#define PARTS (LANES / VL) /* of such a vector */

#define SLAB 128 /* values of a query that lie together: a constant distance between neighbouring queries */

/* Queries side by side at most, and vectors side by side for n of them, so that the sums stay in registers. */
#define SIDE_BY_SIDE 6
#define WIDTH(n) (VL == 16 || (n) <= 3 ? 4 : MAX(2, PARTS))
_Static_assert(WIDTH(SIDE_BY_SIDE) >= PARTS, "a piece is worked on whole");
/* Where no converted copy of keys and values is made: the queries of one row, whose conversions take registers. */
#define SIDE_BY_SIDE_DIRECT 4

typedef float vf __attribute__((vector_size(VL * 4)));
typedef float vfu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2), aligned(2), may_alias));
typedef int16_t vs __attribute__((vector_size(VL * 2)));
typedef int8_t vb __attribute__((vector_size(VL), aligned(1), may_alias));

/* Written out: a loop over the lanes compiles to one masked insert for each. */
INLINE vf vsplat(float x) {
#if VL == 16
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#elif VL == 8
    return (vf){x, x, x, x, x, x, x, x};
#else
    return (vf){x, x, x, x};
#endif
}
INLINE vf vload(const float *p) { return *(const vfu *)p; }
INLINE void vstore(float *p, vf x) { *(vfu *)p = x; }

/* a > b ? a : b: where one is not a number, b. */
INLINE vf vmax(vf a, vf b) {
#if VL == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    vi more = a > b;
    return (vf)((more & (vi)a) | (~more & (vi)b));
#endif
}

/* The highest of 16 values, none of which is NaN, in PARTS vectors. */
INLINE float vtop(const vf x[PARTS]) {
#if VL == 16
    return _mm512_reduce_max_ps((__m512)x[0]);
#elif VL == 8
    __m256 both = _mm256_max_ps((__m256)x[0], (__m256)x[1]);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
    vf most = vmax(vmax(x[0], x[1]), vmax(x[2], x[3]));
    return MAX(MAX(most[0], most[1]), MAX(most[2], most[3]));
#endif
}

/* VL neighbouring stored values; an int8 is still to be scaled. */
INLINE vf vget(int kind, const void *x, long i) {
    if (kind == KV_F32) return vload((const float *)x + i);
    if (kind == KV_BF16) return (vf)(__builtin_convertvector(*(const vh *)((const uint16_t *)x + i), vu) << 16);
    const int8_t *p = (const int8_t *)x + i;
#if VL == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#elif VL == 8
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
#else
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(*(const vb *)p, vs), vi), vf);
#endif
}

/* 2^x for x <= 0: x = n + r with |r| <= 1/2, a polynomial for 2^r (minimax of the relative error with p(0) = 1; it and
   its rounding stay below 1.6e-7), times 2^n. Below -126 it fades to 0, -inf included. NaN stays NaN. */
INLINE vf vexp2(vf x) {
    const vf magic = vsplat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vf y = vmax(vsplat(-127.0f), x);
    vf shifted = y + magic;
    vf r = y - (shifted - magic);
    vf p = vsplat(1.3264727e-3f);
    p = p * r + vsplat(9.671513e-3f);
    p = p * r + vsplat(5.5507336e-2f);
    p = p * r + vsplat(2.4022242e-1f);
    p = p * r + vsplat(6.93147e-1f);
    p = p * r + vsplat(1.0f);
    vi power = (vi)shifted << 23; /* n, from its lowest bits */
    return p * (vf)(power + (vi)vsplat(1.0f));
}

/* Brings `ahead` closer, where the vector read at element i begins a cache line. */
INLINE void approach(int kind, const char *ahead, long i) {
    long bytes = i * (kind == KV_F32 ? 4 : kind == KV_BF16 ? 2 : 1);
    if (bytes % 64 == 0) __builtin_prefetch(ahead + bytes);
}

/* scores [n][row] = queries . `pieces` pieces of keys [dim][stride]. Queries lie in slabs of SLAB values of the head
   dimension, [slab][slab_size / SLAB][SLAB]. ahead: what is read next, or NULL. */
INLINE void score_tile(int kind, int n, int pieces, const float *q, long slab_size, long dim, const char *const *keys,
                       long stride, const char *const *ahead, float *scores, long row) {
    vf acc[SIDE_BY_SIDE][4];
    for (int i = 0; i < n; i++)
        for (int v = 0; v < pieces * PARTS; v++) acc[i][v] = vsplat(0.0f);
    for (long from = 0; from < dim; from += SLAB, q += slab_size)
        for (long d = from; d < MIN(dim, from + SLAB); d++) {
            vf key[4];
            for (int v = 0; v < pieces * PARTS; v++) {
                key[v] = vget(kind, keys[v / PARTS], d * stride + v % PARTS * VL);
                if (ahead && v % PARTS == 0) approach(kind, ahead[v / PARTS], d * PIECE);
            }
#pragma GCC unroll 6
            for (int i = 0; i < n; i++) {
                vf x = vsplat(q[i * SLAB + d - from]);
                for (int v = 0; v < pieces * PARTS; v++) acc[i][v] += x * key[v];
            }
        }
    for (int i = 0; i < n; i++)
        for (int v = 0; v < pieces * PARTS; v++) vstore(scores + i * row + v * VL, acc[i][v]);
}

/* acc [n][padded], `width` vectors of it, += weights [n][row] . the values of keys from ... count - 1, which lie in
   pieces of [PIECE][stride]. */
INLINE void value_tile(int kind, int n, int width, const float *weights, long row, const char *const *values, long at,
                       long stride, const char *const *ahead, long from, long count, float *acc, long padded) {
    vf a[SIDE_BY_SIDE][4];
    for (int i = 0; i < n; i++)
        for (int v = 0; v < width; v++) a[i][v] = vload(acc + i * padded + v * VL);
    for (long j = from; j < count;) {
        const char *piece = values[j / PIECE];
        for (long stop = MIN(count, (j / PIECE + 1) * PIECE); j < stop; j++) {
            vf value[4];
            for (int v = 0; v < width; v++) {
                value[v] = vget(kind, piece, j % PIECE * stride + at + v * VL);
                if (ahead) approach(kind, ahead[j / PIECE], j % PIECE * stride + at + v * VL);
            }
#pragma GCC unroll 6
            for (int i = 0; i < n; i++) {
                vf x = vsplat(weights[i * row + j]);
                for (int v = 0; v < width; v++) a[i][v] += x * value[v];
            }
        }
    }
    for (int i = 0; i < n; i++)
        for (int v = 0; v < width; v++) vstore(acc + i * padded + v * VL, a[i][v]);
}

#endif
