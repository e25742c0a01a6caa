/* Keys and values of 4 bits in the paged cache: what they are is said at write_kv in engine/kernels/interface.py.

   Codes lie as cache.h has keys and values, with two neighbouring ones of the head dimension in a byte, the first in its
   lower half: keys [blocks, kv_heads, dim / 2, block_size], values [blocks, kv_heads, block_size, dim / 2]. So no two
   tokens share a byte. Scales and bases are bfloat16, [blocks, kv_heads, groups, 2, block_size]; the last group of a head
   may be smaller. A code times a scale is exact in float32, so that the value is the same with and without fused
   multiply-add. */
#ifndef SEATRIAL_FOUR_BITS_H
#define SEATRIAL_FOUR_BITS_H

#include "attention_tiles.h"

#define KEY_GROUP 16
#define VALUE_GROUP 64

INLINE long groups_of(long dim, long group) { return (dim + group - 1) / group; }

/* Scales of the group, for all tokens of a block; their bases follow, block_size further on. head: block * kv_heads +
   KV head. */
INLINE uint16_t *group_at(const Cache *c, const float *scales, long group_size, long head, long group) {
    return (uint16_t *)scales + (head * groups_of(c->dim, group_size) + group) * 2 * c->block_size;
}

INLINE uint8_t *key_codes(const Cache *c, long head, long offset) {
    return (uint8_t *)c->k + head * c->block_size * (c->dim / 2) + offset;
}
INLINE uint8_t *value_codes(const Cache *c, long head, long offset) {
    return (uint8_t *)c->v + (head * c->block_size + offset) * (c->dim / 2);
}

/* One value. */
INLINE float widen4(int code, const uint16_t *group, long offset, long block_size) {
    return (float)code * bf16_to_float(group[offset]) + bf16_to_float(group[block_size + offset]);
}
INLINE float key4(const Cache *c, long head, long offset, long d) {
    int both = key_codes(c, head, offset)[d / 2 * c->block_size];
    return widen4(both >> d % 2 * 4 & 15, group_at(c, c->k_scale, KEY_GROUP, head, d / KEY_GROUP), offset, c->block_size);
}
INLINE float value4(const Cache *c, long head, long offset, long d) {
    int both = value_codes(c, head, offset)[d / 2];
    return widen4(both >> d % 2 * 4 & 15, group_at(c, c->v_scale, VALUE_GROUP, head, d / VALUE_GROUP), offset, c->block_size);
}

/* VL bytes as numbers. */
INLINE vi load_bytes(const uint8_t *p) {
#if VL == 16
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
#elif VL == 8
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
#else
    return (vi){p[0], p[1], p[2], p[3]};
#endif
}

/* The VL codes of VL / 2 bytes, in order. Where a byte is widened to 64 bits, 28 bits further up its upper half begins at
   the upper 32 of them. */
INLINE vi load_codes(const uint8_t *p) {
#if VL == 16
    __m512i wide = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const void *)p));
    return (vi)_mm512_and_si512(_mm512_or_si512(wide, _mm512_slli_epi64(wide, 28)), _mm512_set1_epi64(0x0000000f0000000fLL));
#elif VL == 8
    int32_t four;
    memcpy(&four, p, 4);
    __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    return (vi)_mm256_and_si256(_mm256_or_si256(wide, _mm256_slli_epi64(wide, 28)), _mm256_set1_epi64x(0x0000000f0000000fLL));
#else
    return (vi){p[0] & 15, p[0] >> 4, p[1] & 15, p[1] >> 4};
#endif
}

/* A piece of keys in float32, [dim][PIECE]. PIECE divides the block size, `offset` and dim. */
INLINE void widen_keys(const Cache *c, long block_size, long head, long offset, float *out) {
    const uint8_t *codes = key_codes(c, head, offset);
    const uint16_t *group = group_at(c, c->k_scale, KEY_GROUP, head, 0) + offset;
    for (long d = 0; d < c->dim; d += KEY_GROUP, group += 2 * block_size)
        for (long v = 0; v < PIECE; v += VL) {
            vf scale = vget(KV_BF16, group, v), base = vget(KV_BF16, group, block_size + v);
            for (long i = 0; i < KEY_GROUP; i += 2) {
                vi both = load_bytes(codes + (d + i) / 2 * block_size + v);
                vstore(out + (d + i) * PIECE + v, __builtin_convertvector(both & 15, vf) * scale + base);
                vstore(out + (d + i + 1) * PIECE + v, __builtin_convertvector(both >> 4, vf) * scale + base);
            }
        }
}

/* A piece of values in float32, [PIECE][dim]. VL divides dim, too. */
INLINE void widen_values(const Cache *c, long block_size, long head, long offset, float *out) {
    const uint16_t *group = group_at(c, c->v_scale, VALUE_GROUP, head, 0) + offset;
    for (long d = 0; d < c->dim; d += VALUE_GROUP, group += 2 * block_size) {
        const uint8_t *codes = value_codes(c, head, offset) + d / 2;
        float *to = out + d, scales[PIECE], bases[PIECE];
        for (long v = 0; v < PIECE; v += VL) {
            vstore(scales + v, vget(KV_BF16, group, v));
            vstore(bases + v, vget(KV_BF16, group, block_size + v));
        }
        for (long j = 0; j < PIECE; j++, codes += c->dim / 2, to += c->dim) {
            vf scale = vsplat(scales[j]), base = vsplat(bases[j]);
            for (long i = 0; i < MIN(VALUE_GROUP, c->dim - d); i += VL)
                vstore(to + i, __builtin_convertvector(load_codes(codes + i / 2), vf) * scale + base);
        }
    }
}

#endif
