/* Products of 8-bit activations with 8-bit weights: exact sums in int32, then
   float(sum) * row_scale * column_scale + bias, every step rounded to float32, so that the bits are the same on every
   instruction set and in the reference.

   Inner loops, over words of four k:
     VNNI     AVX512_VNNI or AVX_VNNI (VPDPBUSD). It wants one side unsigned: the weights are taken as w + 128 and
              128 x the row's sum is taken off again
     pairs    elsewhere: both sides widened to 16 bits and multiplied two k at a time, even bytes of a word together and odd
              ones together */
#include "pool.h"
#include "tiles.h"

#include <stdatomic.h>

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
#if defined(__AVX512BW__)
#define DOT(acc, w, x) ((acc) + (vi)_mm512_madd_epi16((__m512i)(w), (__m512i)(x)))
#elif defined(__AVX2__)
#define DOT(acc, w, x) ((acc) + (vi)_mm256_madd_epi16((__m256i)(w), (__m256i)(x)))
#else
#define DOT(acc, w, x) ((acc) + ((vi)((vu)(w) << 16) >> 16) * ((vi)((vu)(x) << 16) >> 16) + ((vi)(w) >> 16) * ((vi)(x) >> 16))
#endif
#endif
#define STEPS (VNNI ? 1 : 2) /* of the inner loop for four k */

typedef struct {
    const Linear *w;
    const uint32_t *x; /* [m][steps] as the inner loop wants it */
    const int32_t *row_sums;
    const float *row_scales;
    void *y;
    int y_bf16, gate;
    long m, steps;
    atomic_int failed;
} Product;

/* c [rows][PANEL] = x [rows][steps] . b [steps][PANEL] */
INLINE void tile(int rows, long steps, const uint32_t *x, const uint32_t *b, int32_t *c) {
    vi acc[TALL][2] = {0};
    for (long i = 0; i < steps; i++) {
        vu b0 = *(const vuu *)(b + i * PANEL), b1 = *(const vuu *)(b + i * PANEL + VL);
        if (VNNI) b0 ^= 0x80808080u, b1 ^= 0x80808080u;
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            vi word = visplat((int32_t)x[r * steps + i]);
            acc[r][0] = DOT(acc[r][0], b0, word);
            acc[r][1] = DOT(acc[r][1], b1, word);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) *(viu *)(c + r * PANEL + v * VL) = acc[r][v];
}

static void run_tile(long rows, long steps, const uint32_t *x, const uint32_t *b, int32_t *c) {
    switch (rows) {
        case 1: tile(1, steps, x, b, c); break;
        case 2: tile(2, steps, x, b, c); break;
        case 4: tile(4, steps, x, b, c); break;
#if TALL > 8
        case 8: tile(8, steps, x, b, c); break;
#endif
        default: tile(TALL, steps, x, b, c); break;
    }
}

/* A panel as the inner loop wants it: itself, or widened to 16 bits in `out`. */
static const uint32_t *widened(const Linear *w, long panel, uint32_t *out) {
    long words = (w->k + 3) / 4;
    const uint32_t *in = (const uint32_t *)w->panels + panel * words * PANEL;
    if (VNNI) return in;
    for (long i = 0; i < words; i++)
        for (int v = 0; v < 2; v++) {
            typedef int16_t vs __attribute__((vector_size(VL * 4)));
            vs word = (vs)*(const vuu *)(in + i * PANEL + v * VL);
            *(vuu *)(out + 2 * i * PANEL + v * VL) = (vu)((word << 8) >> 8);
            *(vuu *)(out + (2 * i + 1) * PANEL + v * VL) = (vu)(word >> 8);
        }
    return out;
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

/* Scaled sums of a panel for all rows: float in place of int32 in c. */
static void sum_panel(const Product *p, long panel, const uint32_t *b, int32_t *c) {
    const Linear *w = p->w;
    long first = panel * PANEL, width = MIN(PANEL, w->n - first);
    float scales[PANEL] = {0}, bias[PANEL] = {0};
    memcpy(scales, (const float *)w->scales + first, sizeof(float) * width);
    if (w->bias) memcpy(bias, w->bias + first, sizeof(float) * width);
    for (long r = 0; r < p->m; r += TALL)
        run_tile(tile_rows(p->m - r), p->steps, p->x + r * p->steps, b, c + r * PANEL);
    for (long r = 0; r < p->m; r++)
        for (int v = 0; v < 2; v++) {
            vi sum = *(const viu *)(c + r * PANEL + v * VL);
            if (VNNI) sum -= 128 * p->row_sums[r];
            vf value = __builtin_convertvector(sum, vf) * p->row_scales[r] * *(const vfu *)(scales + v * VL);
            if (w->bias) value = rounded(value) + *(const vfu *)(bias + v * VL);
            *(vfu *)(c + r * PANEL + v * VL) = value;
        }
}

/* One panel, or with a gate one of each half of the columns. */
static void run_panel(void *context, long panel) {
    Product *p = context;
    long n = p->w->n, size = (p->m + TALL - 1) / TALL * TALL * PANEL;
    float *c = pool_scratch(sizeof(float) * (2 * size + (VNNI ? 0 : p->steps * PANEL)));
    if (!c) {
        atomic_store(&p->failed, 1);
        return;
    }
    uint32_t *wide = (uint32_t *)(c + 2 * size);
    sum_panel(p, panel, widened(p->w, panel, wide), (int32_t *)c);
    if (p->gate != NO_GATE) {
        n /= 2;
        long other = panel + n / PANEL;
        sum_panel(p, other, widened(p->w, other, wide), (int32_t *)c + size);
        for (long r = 0; r < p->m; r++)
            gate_row(c + r * PANEL, c + size + r * PANEL, p->y_bf16, p->gate, c + r * PANEL);
    }
    long first = panel * PANEL, width = MIN(PANEL, n - first);
    for (long r = 0; r < p->m; r++) store_row(c + r * PANEL, p->y, p->y_bf16, n, r, first, width);
}

/* x to [padded][steps] with zeros at the end of rows and after the last one, and the sums of rows. */
static void prepare(const int8_t *x, long m, long padded, long k, uint32_t *out, int32_t *sums) {
    long words = (k + 3) / 4;
    for (long r = 0; r < m; r++) {
        const int8_t *in = x + r * k;
        int32_t sum = 0;
        for (long i = 0; i < k; i++) sum += in[i];
        sums[r] = sum;
        for (long i = 0; i < words; i++) {
            int8_t b[4] = {0};
            memcpy(b, in + 4 * i, MIN(4, k - 4 * i));
            if (VNNI) {
                memcpy(out + r * words + i, b, 4);
            } else {
                int16_t pairs[4] = {b[0], b[2], b[1], b[3]};
                memcpy(out + 2 * (r * words + i), pairs, 8);
            }
        }
    }
    memset(out + m * words * STEPS, 0, sizeof(uint32_t) * (padded - m) * words * STEPS);
}

API int product_int(const Linear *w, const int8_t *x, const float *row_scales, void *y, int y_bf16, int gate, long m,
                int threads) {
    long padded = (m + TALL - 1) / TALL * TALL, plain = gate != NO_GATE && !gate_by_panel(w);
    Product p = {.w = w, .row_scales = row_scales, .y = y, .y_bf16 = y_bf16, .gate = gate, .m = m,
                 .steps = (w->k + 3) / 4 * STEPS};
    static __thread Buffer packed, whole; /* of the calling thread; pool_scratch is taken by the items */
    uint32_t *words = buffer_of(&packed, sizeof(uint32_t) * padded * (p.steps + 1));
    if (!words) return 1;
    if (plain) {
        if (!(p.y = buffer_of(&whole, sizeof(float) * m * w->n))) return 1;
        p.gate = NO_GATE;
    }
    int32_t *sums = (int32_t *)words + padded * p.steps;
    prepare(x, m, padded, w->k, words, sums);
    p.x = words, p.row_sums = sums;
    pool_run(run_panel, &p, (w->n + PANEL - 1) / PANEL / (p.gate == NO_GATE ? 1 : 2), threads);
    if (plain) gate_rows(p.y, y, y_bf16, m, w->n, gate, threads);
    return atomic_load(&p.failed);
}
