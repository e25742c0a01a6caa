/* The inner loops of the integer products: sums of words of four k in int32, rows x PANEL columns in registers.

   VNNI     AVX512_VNNI or AVX_VNNI (VPDPBUSD): a word of x, signed, meets a word of every column, unsigned
   bytes    without it, for 4-bit weights (VPMADDUBSW): the same, but sums of two products go to 16 bits, which hold
            those of CHUNK words; then they are added to the sums in int32
   pairs    elsewhere: both sides widened to 16 bits and multiplied two k at a time, the even bytes of a word first, then the
            odd ones

   A panel comes to the loop in one of the forms below; DENSE is the quickest, and what the others are brought to where
   several row tiles meet the panel. */
#ifndef SEATRIAL_DOTS_H
#define SEATRIAL_DOTS_H

#include "tiles.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define REGISTER "v"
#else
#define REGISTER "x"
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#define VNNI 1
#define DOT(acc, w, x) acc = (vi)_mm512_dpbusd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(x))
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
#define VNNI 1
#define DOT(acc, w, x) acc = (vi)_mm256_dpbusd_avx_epi32((__m256i)(acc), (__m256i)(w), (__m256i)(x))
#else
#define VNNI 0
#endif

/* Multiply and add as one, for the compiler would multiply for all rows first and run out of registers. */
#define MULTIPLY_ADD(multiply, add, acc, w, x)                                                          \
    do {                                                                                                \
        vi product;                                                                                     \
        __asm__(multiply " %3, %2, %1\n\t" add " %1, %0, %0" : "+" REGISTER(acc), "=&" REGISTER(product) \
                : REGISTER(w), REGISTER(x));                                                            \
    } while (0)
#define LOW16(x) ((vi)((vu)(x) << 16) >> 16)
#if !VNNI && (defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__)))
#define SHORT 1 /* bytes are summed in 16 bits */
#define DOT(acc, w, x) MULTIPLY_ADD("vpmaddwd", "vpaddd", acc, w, x)
#define DOT_SHORT(acc, w, x) MULTIPLY_ADD("vpmaddubsw", "vpaddw", acc, w, x)
#else
#define SHORT 0
#define DOT_SHORT(acc, w, x)
#endif
#ifndef DOT
#define DOT(acc, w, x) acc += LOW16(w) * LOW16(x) + ((vi)(w) >> 16) * ((vi)(x) >> 16)
#endif

#if defined(__AVX__) || !defined(__SSE2__)
#define MOST TALL /* rows of the highest tile here */
#else
#define MOST 2 /* a vector takes two registers */
#endif
#define AHEAD(rows) ((rows) > 2 ? 1024 : 2048) /* bytes of a panel that are fetched ahead; measured */
#define CHUNK 8 /* words whose products, of 4 bits and 8, may be summed in 16 bits: 2 x 8 x 15 x 128 < 2^15 */

/* Steps of the inner loop for a word of four k, and words of x: two where both sides are widened. */
#define STEPS(kind) (VNNI || (SHORT && (kind) == W_INT4A8) ? 1 : 2)

enum {
    BYTES,   /* [words][PANEL] of four unsigned bytes */
    NIBBLES, /* [words/2][PANEL] of eight nibbles (products.h) */
    DENSE    /* [words][steps][PANEL], what the loop takes */
};

/* Vector `v` of word `i` of a panel, plus `more`, step by step. */
INLINE void load_word(int form, int steps, const uint32_t *b, long i, int v, vu more, vu step[2]) {
    if (form == DENSE) {
        for (int s = 0; s < steps; s++) step[s] = *(const vuu *)(b + (i * steps + s) * PANEL + v * VL);
        return;
    }
    vu word = *(const vuu *)(b + (form == NIBBLES ? i / 2 : i) * PANEL + v * VL);
    if (form == NIBBLES) word = ((i % 2 ? word >> 4 : word) & 0x0f0f0f0f) + more;
    step[0] = steps == 1 ? word : word & 0x00ff00ff;
    step[1] = (word >> 8) & 0x00ff00ff;
}

/* acc += words first ... first + count - 1 of `rows` rows of x, which are `stride` apart, times the panel's. */
INLINE void add_words(int rows, int kind, int form, long first, long count, const uint32_t *x, long stride,
                      const uint32_t *b, vi acc[MOST][2]) {
    const int at_once = form == NIBBLES ? 2 : 1, steps = STEPS(kind); /* at_once: so that i % 2 is known */
    for (long at = first; at < first + count; at += at_once)
#pragma GCC unroll 2
        for (int j = 0; j < at_once; j++) {
            vu b0[2], b1[2];
            const uint32_t *word = b + (form == NIBBLES ? at / 2 : form == DENSE ? at * steps : at) * PANEL;
            if (form != DENSE && j == 0)
                for (int line = 0; line < PANEL * 4; line += 64)
                    __builtin_prefetch((const char *)word + AHEAD(rows) + line);
            load_word(form, steps, word, j, 0, (vu){0}, b0), load_word(form, steps, word, j, 1, (vu){0}, b1);
#pragma GCC unroll 2
            for (int s = 0; s < steps; s++)
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++) {
                    vi value = visplat((int32_t)x[r * stride + (at + j) * steps + s]);
                    if (SHORT && steps == 1) {
                        DOT_SHORT(acc[r][0], b0[s], value);
                        DOT_SHORT(acc[r][1], b1[s], value);
                    } else {
                        DOT(acc[r][0], b0[s], value);
                        DOT(acc[r][1], b1[s], value);
                    }
                }
        }
}

/* The same, where need be by way of sums in 16 bits. */
INLINE void dot_words(int rows, int kind, int form, long first, long count, const uint32_t *x, long stride,
                      const uint32_t *b, vi acc[MOST][2]) {
    if (!SHORT || STEPS(kind) == 2) {
        add_words(rows, kind, form, first, count, x, stride, b, acc);
        return;
    }
    for (long at = 0; at < count; at += CHUNK) {
        vi part[MOST][2];
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) part[r][0] = part[r][1] = (vi){0};
        add_words(rows, kind, form, first + at, MIN(CHUNK, count - at), x, stride, b, part);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) acc[r][v] += LOW16(part[r][v]) + (part[r][v] >> 16);
    }
}

/* Words first ... first + count - 1 of a panel from `form` to DENSE, each byte of them plus one of `more`. */
INLINE void densify(int kind, int form, long first, long count, const uint32_t *b, const vu more[2], uint32_t *out) {
    const int at_once = form == NIBBLES ? 2 : 1, steps = STEPS(kind);
    for (long at = first; at < first + count; at += at_once)
#pragma GCC unroll 2
        for (int j = 0; j < at_once; j++)
            for (int v = 0; v < 2; v++) {
                vu step[2];
                load_word(form, steps, b + (form == NIBBLES ? at / 2 : at) * PANEL, j, v, more[v], step);
                for (int s = 0; s < steps; s++) *(vuu *)(out + ((at + j) * steps + s) * PANEL + v * VL) = step[s];
            }
}

/* The compiler may not fuse what comes before with what comes after. */
INLINE vf rounded(vf x) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(x));
#elif defined(__AVX__)
    __asm__("" : "+x"(x));
#else
    __asm__("" : "+m"(x));
#endif
    return x;
}

/* a * b + c, rounded once. */
INLINE vf fused(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < VL; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

#endif
