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

#define SLAB 64 /* values of a query that lie together: a constant distance between neighbouring queries */

/* Queries side by side at most, and vectors side by side for n of them, so that the sums stay in registers. */
#define SIDE_BY_SIDE 6
#define WIDTH(n) (VL == 16 || (n) <= 3 ? 4 : MAX(2, PARTS))
_Static_assert(WIDTH(SIDE_BY_SIDE) >= PARTS, "a piece is worked on whole");
#define EXP_AT_ONCE (VL == 16 ? 8 : 4) /* exponentials side by side at most */
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

/* x less the integer that is nearest to it, which is given. */
INLINE vf vrest(vf x, vf nearest) {
#if VL == 16 && defined(__AVX512DQ__)
    return (vf)_mm512_reduce_ps((__m512)x, 0);
#else
    return x - nearest;
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

#define BYTES_OF(kind) ((kind) == KV_F32 ? 4 : (kind) == KV_BF16 ? 2 : 1)

/* VL neighbouring stored values; an int8 is still to be scaled. */
INLINE vf vget(int kind, const void *x, long i) {
    if (kind == KV_F32) return vload((const float *)x + i);
    const uint16_t *half = (const uint16_t *)x + i;
    const int8_t *p = (const int8_t *)x + i;
#if VL == 16 /* named: GCC 12 makes four instructions of the conversions as they are written below */
    if (kind == KV_BF16) return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)half)), 16);
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#elif VL == 8
    if (kind == KV_BF16) return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)half)), 16);
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
#else
    if (kind == KV_BF16) return (vf)(__builtin_convertvector(*(const vh *)half, vu) << 16);
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(*(const vb *)p, vs), vi), vf);
#endif
}

/* Each of n x becomes 2^x, for x <= 0: x = m + r with |r| <= 1/2, a polynomial for 2^r (minimax of the relative error
   with p(0) = 1; it and its rounding stay below 1.6e-7), times 2^m. Below -126 it fades to 0, -inf included. NaN stays
   NaN. A step of all n comes before the next step of any, so that none waits for the one before. */
INLINE void vexp2_of(vf *x, int n) {
    const float steps[] = {9.671513e-3f, 5.5507336e-2f, 2.4022242e-1f, 6.93147e-1f, 1.0f};
    const vf magic = vsplat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vf shifted[EXP_AT_ONCE], p[EXP_AT_ONCE];
    for (int i = 0; i < n; i++) x[i] = vmax(vsplat(-127.0f), x[i]);
    for (int i = 0; i < n; i++) shifted[i] = x[i] + magic;
    for (int i = 0; i < n; i++) x[i] = vrest(x[i], shifted[i] - magic);
    for (int i = 0; i < n; i++) p[i] = vsplat(1.3264727e-3f);
#pragma GCC unroll 5
    for (int step = 0; step < 5; step++)
        for (int i = 0; i < n; i++) p[i] = p[i] * x[i] + vsplat(steps[step]);
    for (int i = 0; i < n; i++) {
        vi power = (vi)shifted[i] << 23; /* m, from its lowest bits */
        x[i] = p[i] * (vf)(power + (vi)vsplat(1.0f));
    }
}

INLINE vf vexp2(vf x) {
    vexp2_of(&x, 1);
    return x;
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
                if (ahead && v % PARTS == 0 && d * PIECE * BYTES_OF(kind) % 64 == 0)
                    __builtin_prefetch(ahead[v / PARTS] + d * PIECE * BYTES_OF(kind));
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
   pieces of [PIECE][stride]. fresh: acc is taken for zeros. */
INLINE void value_tile(int kind, int n, int width, const float *weights, long row, const char *const *values, long at,
                       long stride, const char *const *ahead, long from, long count, float *acc, long padded, int fresh) {
    vf a[SIDE_BY_SIDE][4];
    for (int i = 0; i < n; i++)
        for (int v = 0; v < width; v++) a[i][v] = fresh ? vsplat(0.0f) : vload(acc + i * padded + v * VL);
    for (unsigned long j = from, stop; j < (unsigned long)count;) {
        long skipped = (j % PIECE * stride + at) * BYTES_OF(kind);
        const char *value = values[j / PIECE] + skipped, *next = ahead ? ahead[j / PIECE] + skipped : NULL;
        for (stop = MIN((unsigned long)count, (j / PIECE + 1) * PIECE); j < stop; j++) {
            vf x[4];
            for (int v = 0; v < width; v++) {
                x[v] = vget(kind, value, v * VL);
                if (ahead && v * VL * BYTES_OF(kind) % 64 == 0) __builtin_prefetch(next + v * VL * BYTES_OF(kind));
            }
            value += stride * BYTES_OF(kind), next += stride * BYTES_OF(kind);
#pragma GCC unroll 6
            for (int i = 0; i < n; i++) {
                vf weight = vsplat(weights[i * row + j]);
                for (int v = 0; v < width; v++) a[i][v] += weight * x[v];
            }
        }
    }
    for (int i = 0; i < n; i++)
        for (int v = 0; v < width; v++) vstore(acc + i * padded + v * VL, a[i][v]);
}

#endif
