/* The inner loops of the integer products: sums of words of four k in int32, rows x PANEL columns in registers.

   VNNI     AVX512_VNNI or AVX_VNNI (VPDPBUSD): a word of x, signed, meets a word of every column, unsigned
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

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#define VNNI 1
#define DOT(acc, w, x) ((vi)_mm512_dpbusd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(x)))
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
#define VNNI 1
#define DOT(acc, w, x) ((vi)_mm256_dpbusd_avx_epi32((__m256i)(acc), (__m256i)(w), (__m256i)(x)))
#else
#define VNNI 0
#if defined(__AVX512F__) && defined(__AVX512BW__)
#define DOT(acc, w, x) ((acc) + (vi)_mm512_madd_epi16((__m512i)(w), (__m512i)(x)))
#elif defined(__AVX2__)
#define DOT(acc, w, x) ((acc) + (vi)_mm256_madd_epi16((__m256i)(w), (__m256i)(x)))
#else
#define LOW16(x) ((vi)((vu)(x) << 16) >> 16)
#define DOT(acc, w, x) ((acc) + LOW16(w) * LOW16(x) + ((vi)(w) >> 16) * ((vi)(x) >> 16))
#endif
#endif

#define AHEAD(rows) ((rows) > 2 ? 1024 : 2048) /* bytes of a panel that are fetched ahead; measured */
#if defined(__AVX__) || !defined(__SSE2__)
#define MOST TALL /* rows of the highest tile here */
#else
#define MOST 2 /* a vector takes two registers */
#endif
#define STEPS (VNNI ? 1 : 2) /* of the inner loop for a word of four k; so many words of x, too */

enum {
    BYTES,   /* [words][PANEL] of four unsigned bytes */
    NIBBLES, /* [words/2][PANEL] of eight nibbles (products.h) */
    DENSE    /* [words][STEPS][PANEL], what DOT takes */
};

/* Vector `v` of word `i` of a panel, plus `more`, step by step. */
INLINE void load_word(int form, const uint32_t *b, long i, int v, vu more, vu step[STEPS]) {
    if (form == DENSE || (VNNI && form == BYTES)) {
        for (int s = 0; s < STEPS; s++) step[s] = *(const vuu *)(b + (i * STEPS + s) * PANEL + v * VL);
        return;
    }
    vu word = *(const vuu *)(b + (form == NIBBLES ? i / 2 : i) * PANEL + v * VL);
    if (form == NIBBLES) word = ((i % 2 ? word >> 4 : word) & 0x0f0f0f0f) + more;
    if (VNNI) {
        step[0] = word;
    } else {
        step[0] = word & 0x00ff00ff;
        step[STEPS - 1] = (word >> 8) & 0x00ff00ff;
    }
}

/* acc += words i ... i + count - 1 of `rows` rows of x, which are `stride` apart, times the panel's. */
INLINE void dot_words(int rows, int form, long first, long count, const uint32_t *x, long stride, const uint32_t *b,
                      vi acc[MOST][2]) {
    const int at_once = form == NIBBLES ? 2 : 1; /* so that i % 2 is known */
    for (long at = first; at < first + count; at += at_once)
#pragma GCC unroll 2
        for (int j = 0; j < at_once; j++) {
            vu b0[STEPS], b1[STEPS];
            if (form != DENSE && j == 0) {
                const char *ahead = (const char *)(b + (form == NIBBLES ? at / 2 : at) * PANEL) + AHEAD(rows);
                for (int line = 0; line < PANEL * 4; line += 64) __builtin_prefetch(ahead + line);
            }
            const uint32_t *word = b + (form == NIBBLES ? at / 2 : form == DENSE ? at * STEPS : at) * PANEL;
            load_word(form, word, j, 0, (vu){0}, b0), load_word(form, word, j, 1, (vu){0}, b1);
#pragma GCC unroll 2
            for (int s = 0; s < STEPS; s++)
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++) {
                    vi value = visplat((int32_t)x[r * stride + (at + j) * STEPS + s]);
                    acc[r][0] = DOT(acc[r][0], b0[s], value);
                    acc[r][1] = DOT(acc[r][1], b1[s], value);
                }
        }
}

/* Words first ... first + count - 1 of a panel from `form` to DENSE, each byte of them plus one of `more`. */
INLINE void densify(int form, long first, long count, const uint32_t *b, const vu more[2], uint32_t *out) {
    const int at_once = form == NIBBLES ? 2 : 1;
    for (long at = first; at < first + count; at += at_once)
#pragma GCC unroll 2
        for (int j = 0; j < at_once; j++)
            for (int v = 0; v < 2; v++) {
                vu step[STEPS];
                load_word(form, b + (form == NIBBLES ? at / 2 : at) * PANEL, j, v, more[v], step);
                for (int s = 0; s < STEPS; s++) *(vuu *)(out + ((at + j) * STEPS + s) * PANEL + v * VL) = step[s];
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
