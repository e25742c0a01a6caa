/* Activations of gated products, on their own (rows.c) and as the end of a product. */
#ifndef SEATRIAL_ACTIVATION_H
#define SEATRIAL_ACTIVATION_H

#include "common.h"

enum { NO_GATE = -1, SILU = 0, GELU_TANH = 1 };

/* x sigmoid(z): z = x is SiLU; z = 2 sqrt(2 / pi) (x + 0.044715 x^3) is GELU in its tanh form, as
   (1 + tanh(z / 2)) / 2 = sigmoid(z). */
INLINE v16 activate16(v16 x, int activation) {
    v16 z = activation == SILU ? x : splat(1.5957691216057308f) * (x + splat(0.044715f) * (x * x * x));
    return x / (splat(1.0f) + exp16(-z));
}

#endif
