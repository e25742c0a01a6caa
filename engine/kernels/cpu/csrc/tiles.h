/* What the products share: vectors as wide as the machine's, panels, row tiles, and the end of a row.

   Every output element is one chain of additions over k in order, whatever the tile it is computed in; row tiles of
   different heights differ only in how many chains run side by side. */
#ifndef SEATRIAL_TILES_H
#define SEATRIAL_TILES_H

#include "activation.h"
#include "common.h"
#include "products.h"

#if defined(__AVX512F__)
#define VL 16
#define TALL 12 /* rows of the highest tile: TALL x 2 accumulators fit the registers */
#else
#define VL 8
#define TALL 6
#endif
#define PANEL (2 * VL)

typedef float vf __attribute__((vector_size(VL * 4)));
typedef float vfu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint32_t vuu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef uint8_t vb __attribute__((vector_size(VL), aligned(1), may_alias));
typedef uint16_t vh __attribute__((vector_size(VL * 2), aligned(2), may_alias));

/* Written out: a loop over the lanes compiles to one masked insert for each. */
INLINE vf vsplat(float x) {
#if VL == 16
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#else
    return (vf){x, x, x, x, x, x, x, x};
#endif
}
INLINE vi visplat(int32_t x) {
#if VL == 16
    return (vi){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#else
    return (vi){x, x, x, x, x, x, x, x};
#endif
}

/* Rows of the tile that comes next when `left` rows are left: the widest that is not mostly padding. */
INLINE long tile_rows(long left) {
    if (left >= TALL) return TALL;
    if (left == 1) return 1;
    if (left == 2) return 2;
    if (left <= 4) return 4;
    if (TALL > 8 && left <= 8) return 8;
    return TALL;
}

/* Where a nibble of a 4-bit word lies: the shift that brings k = 8i + j down. */
#define NIBBLE(j) (8 * ((j) & 3) + 4 * ((j) >> 2))

/* Memory that a thread keeps from call to call, 64-byte aligned. */
typedef struct {
    void *memory;
    size_t size;
} Buffer;

/* NULL where memory ran out. */
INLINE void *buffer_of(Buffer *b, size_t bytes) {
    if (bytes > b->size || !b->memory) {
        free(b->memory);
        b->size = (bytes / 4096 + 1) * 4096;
        b->memory = aligned_alloc(64, b->size);
        if (!b->memory) b->size = 0;
    }
    return b->memory;
}

/* `width` results of a row, from column `first` on, to y [m][n]. */
INLINE void store_row(const float row[PANEL], void *y, int y_bf16, long n, long r, long first, long width) {
    if (!y_bf16) {
        float *out = (float *)y + r * n + first;
        if (width == PANEL)
            memcpy(out, row, sizeof(float) * PANEL);
        else
            memcpy(out, row, sizeof(float) * width);
        return;
    }
    uint16_t *out = (uint16_t *)y + r * n + first;
    long j = 0;
    for (; j + LANES <= width; j += LANES) store_bf16(out + j, load_f32(row + j));
    for (; j < width; j++) out[j] = float_to_bf16(row[j]);
}

/* row = activation(gate) * up, with the roundings of the unfused path: gated_mul on results stored in y's dtype. */
INLINE void gate_row(const float gate[PANEL], const float up[PANEL], int y_bf16, int activation, float row[PANEL]) {
    for (long j = 0; j < PANEL; j += LANES) {
        v16 g = load_f32(gate + j), u = load_f32(up + j);
        if (y_bf16) {
            uint16_t halves[LANES];
            store_bf16(halves, g), g = load_bf16(halves);
            store_bf16(halves, u), u = load_bf16(halves);
        }
        store_f32(row + j, (activation == SILU ? activate16(g, SILU) : activate16(g, GELU_TANH)) * u);
    }
}

/* Whether panels of the first half of the columns have counterparts in the second half. */
INLINE int gate_by_panel(const Linear *w) { return w->n % (2 * PANEL) == 0; }

/* In rows.c: gate_up [rows][2 width] -> out [rows][width]. */
void gated_mul_f32(const float *gate_up, float *out, long rows, long width, int activation, int threads);
void gated_mul_bf16(const uint16_t *gate_up, uint16_t *out, long rows, long width, int activation, int threads);

INLINE void gate_rows(const void *gate_up, void *y, int y_bf16, long m, long n, int activation, int threads) {
    if (y_bf16)
        gated_mul_bf16(gate_up, y, m, n / 2, activation, threads);
    else
        gated_mul_f32(gate_up, y, m, n / 2, activation, threads);
}

#endif
