/* The paged cache of keys and values, as write_kv.c fills it and attention.c reads it.

   Values lie [blocks, kv_heads, block_size, dim], keys transposed within their block, [blocks, kv_heads, dim,
   block_size], so that the scores of 16 neighbouring keys are one vector and no lanes are summed. Scales of int8 ones
   lie [blocks, kv_heads, block_size]. For keys and values of 4 bits see four_bits.h. */
#ifndef SEATRIAL_CACHE_H
#define SEATRIAL_CACHE_H

#include "common.h"

enum { KV_F32 = 0, KV_BF16 = 1, KV_INT8 = 2, KV_INT4 = 3 };

typedef struct {
    void *k, *v;
    float *k_scale, *v_scale; /* of KV_INT8; those of KV_INT4 are bfloat16 */
    int kind;
    long kv_heads, dim, block_size;
} Cache;

/* One value of any kind; 16 neighbouring ones. An int8 is still to be scaled. */
INLINE float get(int kind, const void *x, long i) {
    return kind == KV_BF16 ? bf16_to_float(((const uint16_t *)x)[i])
           : kind == KV_INT8 ? (float)((const int8_t *)x)[i]
                             : ((const float *)x)[i];
}
INLINE v16 get16(int kind, const void *x, long i) {
    return kind == KV_BF16 ? load_bf16((const uint16_t *)x + i)
           : kind == KV_INT8 ? load_int8((const int8_t *)x + i)
                             : load_f32((const float *)x + i);
}
/* The reverse; an int8 is given scaled and rounded. */
INLINE void put(int kind, void *x, long i, float value) {
    if (kind == KV_BF16)
        ((uint16_t *)x)[i] = float_to_bf16(value);
    else if (kind == KV_INT8)
        ((int8_t *)x)[i] = (int8_t)value;
    else
        ((float *)x)[i] = value;
}
INLINE void put16(int kind, void *x, long i, v16 value) {
    if (kind == KV_BF16)
        store_bf16((uint16_t *)x + i, value);
    else if (kind == KV_INT8)
        store_int8((int8_t *)x + i, value);
    else
        store_f32((float *)x + i, value);
}

#endif
