/* A step of the model in one call: a list of operations that was recorded once (program.py) is run for the tokens of a
   step. An operation says what to call and where its buffers lie; how many rows there are is the step's.

   Every buffer lies in one stretch of memory, at its offset a row times the rows of the step: the fewer rows, the closer
   they lie, so that those of a decode step stay in the cache. */
#include "kernels.h"
#include "pool.h"
#include "tiles.h"

#include <time.h>

enum {
    EMBED,       /* tokens -> out[0]; linear, number: factor */
    NORM,        /* in[0] (+ in[1] -> out[1]) -> out[0], and as int8 -> out[2], scales out[3]; weights[0], number: eps */
    QUANTISE,    /* in[0] -> int8 out[2], scales out[3]; width */
    PRODUCT,     /* in[0] -> out[0]; linear, activation */
    PRODUCT_INT, /* int8 in[0], scales in[1] -> out[0]; linear, activation */
    GATED,       /* in[0] -> out[0]; width, activation */
    QUERIES,     /* in[0] q, k, v -> out[0] q; heads, kv_heads, dim, weights (of head norms), number: eps, cos, sin, cache */
    ATTEND,      /* in[0] q -> out[0]; heads, kv_heads, dim, window, number: scale, cache */
    JOIN,        /* in[0] [width] -> out[0] [stride] from `column` on */
    PICK,        /* the wanted rows of in[0] -> out[0]; width */
    BEST         /* in[0] [width], float32: the first of the largest values of each row, into the step's best */
};

/* Buffers: bytes a row in the working memory, or one of these. */
enum { NONE = -1, HIDDEN = -2, LOGITS = -3 };

/* Mirrored in program.py. */
typedef struct {
    int32_t kind, layer, picked, activation; /* picked: the rows are the wanted ones, not all of the step */
    int64_t in[2], out[4];
    const Linear *linear;
    const void *weights[2];
    const float *cos, *sin;
    KvPointers cache;
    int64_t width, stride, column, heads, kv_heads, dim, window;
    float number;
} Op;

typedef struct {
    const Op *ops;
    int64_t count;
    char *memory;
    double *seconds; /* NULL, or [count]: what each operation took is added */
    int32_t bf16, dot, threads;
} Program;

typedef struct {
    const int64_t *tokens, *positions, *slots; /* [rows] */
    const int32_t *starts, *lengths, *tables;  /* [requests + 1], [requests], [requests][max_blocks] */
    const int64_t *wanted;                     /* [num_wanted], which of the rows */
    int64_t rows, requests, max_blocks, num_wanted;
    void *hidden;        /* [num_wanted][hidden] of the compute dtype */
    float *logits;       /* [num_wanted][vocab], or NULL: the program ends with the hidden states */
    int64_t *best;       /* [num_wanted] */
    float *best_values;  /* [num_wanted] */
} Inputs;

#define CALL(f, ...) (p->bf16 ? f##_bf16(__VA_ARGS__) : f##_f32(__VA_ARGS__))

static char *address(const Program *p, const Inputs *in, int64_t buffer) {
    switch (buffer) {
        case NONE: return NULL;
        case HIDDEN: return in->hidden;
        case LOGITS: return (char *)in->logits;
        default: return p->memory + buffer * in->rows;
    }
}

typedef struct {
    const float *x;
    int64_t *best;
    float *values;
    long width;
} Best;

/* NaN where there is one in the row: whoever draws refuses what is not finite. */
static void best_row(void *context, long r) {
    const Best *b = context;
    const float *x = b->x + r * b->width;
    i16v broken = {0};
    v16 top = splat(-INFINITY);
    long i = 0;
    for (; i + LANES <= b->width; i += LANES) {
        v16 v = load_f32(x + i);
        broken |= v != v;
        top = select16(v > top, v, top);
    }
    float most = max_lanes(top);
    int nan = 0;
    for (int j = 0; j < LANES; j++) nan |= broken[j] != 0;
    for (; i < b->width; i++) nan |= x[i] != x[i], most = MAX(most, x[i]);
    long first = 0;
    if (!nan)
        while (x[first] != most) first++;
    b->best[r] = first;
    b->values[r] = nan ? NAN : most;
}

/* Requests that compute one token come first in a step; together, if there are enough of them. Returns as run_op. */
static int attend(const Program *p, const Op *op, const Inputs *in, const void *q, void *out) {
    const KvPointers *c = &op->cache;
    long single = 0;
    while (single < in->requests && in->starts[single + 1] - in->starts[single] == 1) single++;
    if (!step_attention_fits(single, op->heads, op->kv_heads, op->dim, c->block_size, op->window, p->threads)) single = 0;
    if (single)
        step_attention(q, p->bf16, out, c, in->lengths, in->tables, in->max_blocks, single, op->heads, op->kv_heads,
                       op->dim, op->number, p->threads);
    if (single == in->requests) return 0;
    return paged_attention(q, p->bf16, out, c->k, c->v, c->k_scale, c->v_scale, c->kind, in->starts + single,
                           in->lengths + single, in->tables + single * in->max_blocks, in->max_blocks,
                           in->requests - single, op->heads, op->kv_heads, op->dim, c->block_size, op->window, op->number,
                           p->threads);
}

/* Returns 0, or 1 where memory ran out. */
static int run_op(const Program *p, const Op *op, const Inputs *in) {
    long rows = op->picked ? in->num_wanted : in->rows;
    long size = p->bf16 ? 2 : 4;
    void *x = address(p, in, op->in[0]), *second = address(p, in, op->in[1]);
    void *y = address(p, in, op->out[0]), *total = address(p, in, op->out[1]);
    int8_t *q = (int8_t *)address(p, in, op->out[2]);
    float *scales = (float *)address(p, in, op->out[3]);
    int y_bf16 = p->bf16 && op->out[0] != LOGITS;
    const KvPointers *c = &op->cache;
    switch (op->kind) {
        case EMBED: CALL(embed_rows, op->linear, in->tokens, y, op->number, rows, p->threads); return 0;
        case NORM:
            CALL(norm_quantise, x, second, op->weights[0], y, total, q, scales, rows, op->width, op->number, p->threads);
            return 0;
        case QUANTISE: CALL(quantise_rows, x, q, scales, rows, op->width, p->threads); return 0;
        case PRODUCT:
            return product_float(op->linear, x, p->bf16, y, y_bf16, p->dot && op->linear->kind != W_F32, p->bf16,
                                 op->activation, rows, p->threads);
        case PRODUCT_INT: return product_int(op->linear, x, second, y, y_bf16, op->activation, rows, p->threads);
        case GATED: CALL(gated_mul, x, y, rows, op->width, op->activation, p->threads); return 0;
        case QUERIES: {
            Queries s = {op->cos, op->sin, op->weights[0], op->weights[1], in->positions, in->slots, *c,
                         op->heads, op->kv_heads, op->dim, op->number};
            CALL(place_queries, x, y, &s, rows, p->threads);
            return 0;
        }
        case ATTEND: return attend(p, op, in, x, y);
        case JOIN:
            for (long r = 0; r < rows; r++)
                memcpy((char *)y + (r * op->stride + op->column) * size, (char *)x + r * op->width * size, op->width * size);
            return 0;
        case PICK:
            for (long r = 0; r < rows; r++)
                memcpy((char *)y + r * op->width * size, (char *)x + in->wanted[r] * op->width * size, op->width * size);
            return 0;
        default: { /* BEST */
            Best b = {x, in->best, in->best_values, op->width};
            pool_run(best_row, &b, rows, p->threads);
            return 0;
        }
    }
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Returns 0, or where memory ran out the number of the operation, from 1 on. */
API long run_program(const Program *p, const Inputs *in) {
    double before = p->seconds ? now_s() : 0;
    for (long i = 0; i < p->count; i++) {
        const Op *op = p->ops + i;
        if (!in->logits && (op->in[0] == LOGITS || op->out[0] == LOGITS)) continue;
        if ((op->picked ? in->num_wanted : in->rows) > 0 && run_op(p, op, in)) return i + 1;
        if (p->seconds) {
            double after = now_s();
            p->seconds[i] += after - before;
            before = after;
        }
    }
    return 0;
}
