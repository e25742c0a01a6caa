/* Vectors, bfloat16 and exp for the kernels. GCC and Clang vector extensions: no intrinsics, any instruction set. */
#ifndef SEATRIAL_COMMON_H
#define SEATRIAL_COMMON_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define API __attribute__((visibility("default")))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Sixteen lanes whatever the machine has: the compiler splits them where registers are narrower. A fixed width keeps
   the order of every reduction the same on all of them. */
#define LANES 16
typedef float v16 __attribute__((vector_size(64)));
typedef float v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t i16v __attribute__((vector_size(64)));
typedef uint32_t u16v __attribute__((vector_size(64)));
typedef uint16_t h16v __attribute__((vector_size(32)));
typedef int16_t s16v __attribute__((vector_size(32)));
typedef int8_t b16v __attribute__((vector_size(16)));
typedef int8_t b16vu __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t h16vu __attribute__((vector_size(32), aligned(2), may_alias));

INLINE v16 splat(float x) { return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

INLINE v16 select16(i16v mask, v16 yes, v16 no) { return (v16)((mask & (i16v)yes) | (~mask & (i16v)no)); }

/* a < b ? a : b, a > b ? a : b: where one is not a number, b. Named where there are instructions that GCC 12 does not find. */
INLINE v16 lower16(v16 a, v16 b) {
#if defined(__AVX512F__)
    return (v16)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return select16(a < b, a, b);
#endif
}
INLINE v16 higher16(v16 a, v16 b) {
#if defined(__AVX512F__)
    return (v16)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return select16(a > b, a, b);
#endif
}

INLINE float bf16_to_float(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest, ties to even; NaN stays NaN. */
INLINE uint16_t float_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f) return 0x7fc0;
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

INLINE v16 load_f32(const float *p) { return *(const v16u *)p; }
INLINE void store_f32(float *p, v16 x) { *(v16u *)p = x; }
INLINE v16 load_bf16(const uint16_t *p) { return (v16)(__builtin_convertvector(*(const h16vu *)p, u16v) << 16); }
INLINE void store_bf16(uint16_t *p, v16 x) {
    u16v u = (u16v)x;
    u16v rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    u16v nan = (u16v)(x != x);
    *(h16vu *)p = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0), h16v);
}
INLINE float load1_f32(const float *p) { return *p; }
INLINE void store1_f32(float *p, float x) { *p = x; }
INLINE float load1_bf16(const uint16_t *p) { return bf16_to_float(*p); }
INLINE void store1_bf16(uint16_t *p, float x) { *p = float_to_bf16(x); }

/* Widths doubled and halved one at a time: GCC 12 takes greater steps lane by lane, and even these in several
   instructions where AVX-512 has one. */
INLINE v16 load_int8(const int8_t *p) {
    s16v s = __builtin_convertvector(*(const b16vu *)p, s16v);
    return __builtin_convertvector(__builtin_convertvector(s, i16v), v16);
}
INLINE void store_int8(int8_t *p, v16 x) {
#if defined(__AVX512F__)
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32((__m512)x)));
#else
    s16v s = __builtin_convertvector(__builtin_convertvector(x, i16v), s16v);
    *(b16vu *)p = __builtin_convertvector(s, b16v);
#endif
}

/* Symmetric int8: scale = absmax / 127, or 1 where all is zero. The largest magnitude is sought among the bits, where
   NaN is above infinity is above numbers: what is not finite is kept, in the scale. */
INLINE i16v magnitude_bits(i16v most, v16 x) {
    i16v bits = (i16v)x & 0x7fffffff;
#if defined(__AVX512F__)
    return (i16v)_mm512_max_epi32((__m512i)bits, (__m512i)most);
#else
    i16v more = bits > most;
    return (bits & more) | (most & ~more);
#endif
}
INLINE float int8_scale(i16v most) {
    int32_t top = 0;
    for (int i = 0; i < LANES; i++) top = MAX(top, most[i]);
    float magnitude;
    memcpy(&magnitude, &top, 4);
    return top == 0 ? 1.0f : magnitude / 127.0f;
}
/* Rounds half to even. */
INLINE v16 round_int8(v16 x, float scale) {
    const v16 magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    v16 v = (x / splat(scale) + magic) - magic;
    return higher16(splat(-127.0f), lower16(splat(127.0f), v));
}

/* Sum of the lanes: halves are added to each other until one is left. */
INLINE float sum_lanes(v16 x) {
    typedef float v8 __attribute__((vector_size(32)));
    typedef float v4 __attribute__((vector_size(16)));
    v8 eight = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    v4 four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    v4 two = four + __builtin_shufflevector(four, four, 2, 3, 0, 1);
    return two[0] + two[1];
}

INLINE float max_lanes(v16 x) {
    float s[8];
    for (int i = 0; i < 8; i++) s[i] = MAX(x[i], x[i + 8]);
    for (int i = 0; i < 4; i++) s[i] = MAX(s[i], s[i + 4]);
    return MAX(MAX(s[0], s[2]), MAX(s[1], s[3]));
}

/* exp: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for exp(r) (coefficients of Cephes' expf, S. Moshier),
   times 2^n. Below -87 the result is 0, -inf included. */
INLINE v16 exp16(v16 x) {
    const v16 magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    i16v gone = x < splat(-87.0f);
    v16 y = lower16(splat(88.0f), higher16(splat(-87.0f), x));
    v16 n = (y * splat(1.44269504088896341f) + magic) - magic;
    v16 r = y - n * splat(0.693359375f);
    r = r + n * splat(2.12194440e-4f);
    v16 p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * (r * r) + r;
    p = p + splat(1.0f);
    i16v power = (__builtin_convertvector(n, i16v) + 127) << 23;
    v16 result = p * (v16)power;
    return select16(gone, splat(0.0f), result);
}

#endif
