/* Matrix products y [m, n] = x [m, k] . w [n, k]^T + bias, where a row's bits never depend on the other rows.

   Weights lie in panels of PANEL output columns (tiles.h), zero columns at the end:
     W_BF16    uint32 [ceil(k/2)][PANEL], low half the even k
     W_F32     float [k][PANEL]
     W_INT4    uint32 [k/8][PANEL]: byte b of word i is k = 8i + b in its low half and k = 8i + 4 + b in its high half;
     W_INT4A8  scales bf16 and zeros uint8 [k/group][PANEL], the group a multiple of 8; weight = (q - zero) * scale
     W_INT8    uint32 [ceil(k/4)][PANEL]: byte j of word i is weight + 128 of k = 4i + j; scales float32 [n]
   The kind says what the weights are multiplied with, too: W_INT8 and W_INT4A8 with 8-bit activations (product_int),
   the others with bfloat16 or float32 ones (product_float). */
#ifndef SEATRIAL_PRODUCTS_H
#define SEATRIAL_PRODUCTS_H

#include "common.h"

enum { W_BF16 = 0, W_F32 = 1, W_INT4 = 2, W_INT8 = 3, W_INT4A8 = 4 };

/* Mirrored in products.py. */
typedef struct {
    int kind;
    const void *panels;
    const void *scales; /* NULL where the kind has none; so are zeros */
    const uint8_t *zeros;
    const float *bias; /* [n] or NULL */
    long k, n, group;  /* group: 0 where the kind has none */
} Linear;

/* x int8 [m][k], row_scales [m]; y [m][n], bfloat16 where y_bf16, else float32. With a gate (activation.h) other than
   NO_GATE y is [m][n/2]: activation of the first half of the columns times the second half, each half rounded to y's
   dtype first, which gives the bits of gated_mul on the plain product. Returns 0, or 1 where memory ran out. */
API int product_int(const Linear *w, const int8_t *x, const float *row_scales, void *y, int y_bf16, int gate, long m,
                int threads);

/* The same for x bfloat16 (x_bf16) or float32. dot: use the bf16 loop (x bf16, weights not float32). round: round 4-bit
   weights to bf16. */
API int product_float(const Linear *w, const void *x, int x_bf16, void *y, int y_bf16, int dot, int round, int gate, long m,
                  int threads);

#endif
