/* The kernels beside the products that step.c calls; those of rows.h once for each dtype. */
#ifndef SEATRIAL_KERNELS_H
#define SEATRIAL_KERNELS_H

#include "common.h"
#include "products.h"

/* The cache of one layer, as attention.c has it. */
typedef struct {
    void *k, *v;
    float *k_scale, *v_scale; /* of int8 and int4; else NULL */
    long kind, block_size;
} KvPointers;

API void write_kv(const void *k, long k_stride, const void *v, long v_stride, int x_bf16, void *k_cache, void *v_cache,
                  float *k_scale, float *v_scale, int kind, const int64_t *slots, long rows, long kv_heads, long dim,
                  long block_size, int threads);

API int paged_attention(const void *q, int q_bf16, void *out, void *k_cache, void *v_cache, float *k_scale, float *v_scale,
                        int kind, const int32_t *starts, const int32_t *lengths, const int32_t *tables, long max_blocks,
                        long requests, long heads, long kv_heads, long dim, long block_size, long window, float scale,
                        int threads);

/* In attention_step.c: the same, with the same bits, for requests of one row each and for shapes that fit. */
int step_attention_fits(long requests, long heads, long kv_heads, long dim, long block_size, long window, int threads);
void step_attention(const void *q, int q_bf16, void *out, const KvPointers *cache, const int32_t *lengths,
                    const int32_t *tables, long max_blocks, long requests, long heads, long kv_heads, long dim, float scale,
                    int threads);

/* What is done to the fused rows of q, k and v of a layer. */
typedef struct {
    const float *cos, *sin;       /* [positions][dim / 2] */
    const float *q_norm, *k_norm; /* [dim], or NULL where heads are not normed */
    const int64_t *positions, *slots;
    KvPointers cache;
    long heads, kv_heads, dim;
    float eps;
} Queries;

/* norm_quantise: as rms_norm, and the result to int8 rows q with their scales, too, unless they are NULL. out may be x,
   total may be residual.
   place_queries: qkv [rows][(heads + 2 kv_heads) dim]: norms and turns q and k, writes k and v into the cache and the
   turned q to q. Works in place, so that qkv is not what it was.
   embed_rows: rows `tokens` of a weight matrix, times scale. */
#define ROW_KERNELS(suffix)                                                                                           \
    void norm_quantise_##suffix(const void *x, const void *residual, const float *weight, void *out, void *total,     \
                                int8_t *q, float *scales, long rows, long width, float eps, int threads);             \
    void place_queries_##suffix(void *qkv, void *q, const Queries *s, long rows, int threads);                        \
    void embed_rows_##suffix(const Linear *w, const int64_t *tokens, void *out, float scale, long rows, int threads);
ROW_KERNELS(f32)
ROW_KERNELS(bf16)

API void quantise_rows_f32(const float *x, int8_t *out, float *scales, long rows, long width, int threads);
API void quantise_rows_bf16(const uint16_t *x, int8_t *out, float *scales, long rows, long width, int threads);
API void gated_mul_f32(const float *gate_up, float *out, long rows, long width, int activation, int threads);
API void gated_mul_bf16(const uint16_t *gate_up, uint16_t *out, long rows, long width, int activation, int threads);

#endif
