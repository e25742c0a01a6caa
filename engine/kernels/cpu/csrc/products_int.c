/* Products of 8-bit activations with weights of 8 bits or of 4-bit groups. Sums are exact, in int32; what is done with
   them in float32 is fixed step by step, so that the bits are the same on every instruction set and in the reference:

     W_INT8     y = float(sum over k of w * x) * row_scale * column_scale (+ bias), each step rounded
     W_INT4A8   t = 0; for each group in order: t = fma(float(sum over the group of (q - zero) * x), group_scale, t);
                y = t * row_scale (+ bias)

   An item is a block of rows and a run of panels. Rows are read where the caller has them; a panel is brought to the
   form that the inner loop likes best (dots.h) if several row tiles meet it. A tile keeps its sums in registers over
   all of k, or of a group. */
#include "dots.h"
#include "pool.h"

#include <stdatomic.h>

#define BLOCK_BYTES (384 * 1024) /* of x, so that a block stays in the second-level cache */
#define ITEM_COST 1200000        /* multiplications that are worth an item; a byte of weights costs READ_COST of them */
#define READ_COST 16

typedef struct {
    const Linear *w;
    const uint32_t *x; /* [m][stride] words of four k, or of two (dots.h) */
    const int32_t *starts; /* [m][groups]: see start_of */
    const float *row_scales;
    void *y;
    int y_bf16, gate;
    long m, stride, words, groups;
    long block, blocks, units, runs; /* rows of a block; blocks; panels, or pairs of them; runs of units */
    atomic_int failed;
} Product;

/* Where the sums of a row begin. The loop takes w + 128 for w, and q for q - zero: `start` is -128, or -1, times the sum
   of the row over the group. */
INLINE vi start_of(int kind, int32_t start, vi zeros) {
    return kind == W_INT8 ? visplat(start) : visplat(start) * zeros;
}

/* Zero points and scales of a group of a panel. */
INLINE void group_of(const Product *p, long panel, long g, vi zeros[2], vf scales[2]) {
    for (int v = 0; v < 2; v++) {
        long at = (panel * p->groups + g) * PANEL + v * VL;
        vh wide = __builtin_convertvector(*(const vb *)(p->w->zeros + at), vh); /* by way of 16 bits; see load_int8 */
        zeros[v] = __builtin_convertvector(wide, vi);
        scales[v] = (vf)(__builtin_convertvector(*(const vh *)((const uint16_t *)p->w->scales + at), vu) << 16);
    }
}

/* Results of `rows` rows from r0 on for one panel to out [rows][PANEL]. b: the panel in `form`. */
INLINE void tile(int rows, int kind, int form, const Product *p, long panel, long r0, const uint32_t *b, float *out) {
    const uint32_t *x = p->x + r0 * p->stride;
    long words = p->words / p->groups;
    for (long g = 0; g < p->groups; g++) {
        vi acc[TALL][2], zeros[2] = {{0}};
        vf scales[2];
        if (kind == W_INT4A8) group_of(p, panel, g, zeros, scales);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) acc[r][v] = start_of(kind, p->starts[(r0 + r) * p->groups + g], zeros[v]);
        dot_words(rows, form, g * words, words, x, p->stride, b, acc);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) {
                vf sum = __builtin_convertvector(acc[r][v], vf), *t = (vf *)(out + r * PANEL + v * VL);
                *t = kind == W_INT8 ? sum : fused(sum, scales[v], g ? *t : (vf){0});
            }
    }
}

static void scale_tile(const Product *p, long rows, long panel, long r0, float *out) {
    const Linear *w = p->w;
    long first = panel * PANEL, width = MIN(PANEL, w->n - first);
    float scales[PANEL] = {0}, bias[PANEL] = {0};
    if (w->kind == W_INT8) memcpy(scales, (const float *)w->scales + first, sizeof(float) * width);
    if (w->bias) memcpy(bias, w->bias + first, sizeof(float) * width);
    for (long r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) {
            vf *y = (vf *)(out + r * PANEL + v * VL), value = *y * p->row_scales[r0 + r];
            if (w->kind == W_INT8) value = value * *(const vfu *)(scales + v * VL);
            *y = w->bias ? rounded(value) + *(const vfu *)(bias + v * VL) : value;
        }
}

#define HEIGHT(rows) \
    case rows: tile(rows, kind, form, p, panel, r0, b, out); break;
#if TALL > 6
#define HIGHER HEIGHT(8) HEIGHT(10) HEIGHT(12)
#else
#define HIGHER
#endif
#define TILES(name, kind_, form_)                                                                                 \
    static void name(const Product *p, long rows, long panel, long r0, const uint32_t *b, float *out) {            \
        const int kind = kind_, form = form_;                                                                     \
        switch (rows) { HEIGHT(1) HEIGHT(2) HEIGHT(3) HEIGHT(4) HEIGHT(5) HEIGHT(6) HIGHER }                       \
    }
TILES(bytes, W_INT8, BYTES)
TILES(nibbles, W_INT4A8, NIBBLES)
TILES(dense_nibbles, W_INT4A8, DENSE)
#if VNNI
#define dense_bytes bytes
#else
TILES(dense_bytes, W_INT8, DENSE)
#endif

/* Height of the tile that comes next when `left` rows are left: one that there is, and none much lower than others. */
static long height(long left) {
    if (left <= 6) return left;
    if (left >= 2 * TALL || left == TALL) return TALL;
    long half = (left + 1) / 2;
    return half > 6 ? half + half % 2 : half;
}

static void run_tile(const Product *p, long rows, long panel, long r0, const uint32_t *b, int dense, float *out) {
    if (p->w->kind == W_INT8)
        (dense ? dense_bytes : bytes)(p, rows, panel, r0, b, out);
    else
        (dense ? dense_nibbles : nibbles)(p, rows, panel, r0, b, out);
    scale_tile(p, rows, panel, r0, out);
}

/* Panels `first` and, with a gate, `first` of the other half against rows r0 ... r1 - 1. */
static void run_unit(const Product *p, long first, long r0, long r1, float *scratch) {
    const Linear *w = p->w;
    int panels = p->gate == NO_GATE ? 1 : 2, form = w->kind == W_INT8 ? BYTES : NIBBLES;
    int dense = (!VNNI || form == NIBBLES) && r1 - r0 > TALL;
    long n = w->n / panels, in = p->words / (form == NIBBLES ? 2 : 1) * PANEL;
    const uint32_t *b[2];
    for (int i = 0; i < panels; i++) {
        b[i] = (const uint32_t *)w->panels + (first + i * (n / PANEL)) * in;
        if (dense) {
            uint32_t *out = (uint32_t *)scratch + (2 * TALL + i * p->words * STEPS) * PANEL;
            if (form == BYTES)
                unpack(BYTES, p->words, b[i], out);
            else
                unpack(NIBBLES, p->words, b[i], out);
            b[i] = out;
        }
    }
    for (long r = r0, rows; r < r1; r += rows) {
        rows = height(r1 - r);
        for (int i = 0; i < panels; i++)
            run_tile(p, rows, first + i * (n / PANEL), r, b[i], dense, scratch + i * TALL * PANEL);
        for (long j = 0; j < rows; j++) {
            float *row = scratch + j * PANEL;
            if (panels == 2) gate_row(row, row + TALL * PANEL, p->y_bf16, p->gate, row);
            store_row(row, p->y, p->y_bf16, n, r + j, first * PANEL, MIN(PANEL, n - first * PANEL));
        }
    }
}

static void run_item(void *context, long item) {
    Product *p = context;
    long run = item % p->runs, r0 = item / p->runs * p->block, r1 = MIN(p->m, r0 + p->block);
    float *scratch = pool_scratch(sizeof(float) * 2 * PANEL * (TALL + p->words * STEPS));
    if (!scratch) {
        atomic_store(&p->failed, 1);
        return;
    }
    for (long unit = run * p->units / p->runs; unit < (run + 1) * p->units / p->runs; unit++)
        run_unit(p, unit, r0, r1, scratch);
}

/* Row blocks small enough for the cache, and runs of panels long enough to be worth an item, of which every thread
   gets as many as the others. */
static void divide(Product *p, int threads) {
    int panels = p->gate == NO_GATE ? 1 : 2;
    p->units = (p->w->n + PANEL - 1) / PANEL / panels;
    long fit = MAX(BLOCK_BYTES / (p->stride * 4) / TALL, 1) * TALL;
    p->blocks = MAX((p->m + fit - 1) / fit, 1);
    p->block = ((p->m + p->blocks - 1) / p->blocks + TALL - 1) / TALL * TALL;
    p->blocks = (p->m + p->block - 1) / MAX(p->block, 1);
    long cost = p->words * 4 * PANEL * panels * (MIN(p->block, p->m) + READ_COST);
    long runs = (p->units * cost + ITEM_COST - 1) / ITEM_COST;
    p->runs = MIN(p->units, (runs + threads - 1) / threads * threads);
}

typedef struct {
    const Product *p;
    const int8_t *x;
    uint32_t *out;
    int32_t *starts;
} Prepare;

/* A row's starts, and the row as the inner loop wants it if that is not as it is. */
static void prepare_row(void *context, long r) {
    const Prepare *q = context;
    const Product *p = q->p;
    long k = p->w->k, group = k / p->groups;
    const int8_t *in = q->x + r * k;
    for (long g = 0; g < p->groups; g++) {
        int32_t sum = 0;
        for (long i = g * group; i < (g + 1) * group; i++) sum += in[i];
        q->starts[r * p->groups + g] = sum * (p->w->kind == W_INT8 ? -128 : -1);
    }
    if (!q->out) return;
    for (long i = 0; i < p->words; i++) {
        int8_t b[4] = {0};
        memcpy(b, in + 4 * i, MIN(4, k - 4 * i));
        int16_t pairs[4] = {b[0], b[2], b[1], b[3]};
        memcpy(q->out + r * p->stride + i * STEPS, VNNI ? (const void *)b : pairs, 4 * STEPS);
    }
}

API int product_int(const Linear *w, const int8_t *x, const float *row_scales, void *y, int y_bf16, int gate, long m,
                    int threads) {
    long whole = gate != NO_GATE && !gate_by_panel(w), words = (w->k + 3) / 4;
    Product p = {.w = w, .row_scales = row_scales, .y = y, .y_bf16 = y_bf16, .gate = whole ? NO_GATE : gate, .m = m,
                 .stride = words * STEPS, .words = words, .groups = w->kind == W_INT8 ? 1 : w->k / w->group};
    static __thread Buffer starts, widened, plain; /* of the calling thread; pool_scratch is taken by the items */
    Prepare q = {&p, x, NULL, buffer_of(&starts, sizeof(int32_t) * m * p.groups)};
    if (!q.starts) return 1;
    if (!VNNI || w->k % 4) {
        if (!(q.out = buffer_of(&widened, sizeof(uint32_t) * m * p.stride))) return 1;
    }
    if (whole && !(p.y = buffer_of(&plain, sizeof(float) * m * w->n))) return 1;
    p.x = q.out ? q.out : (const uint32_t *)x;
    p.starts = q.starts;
    divide(&p, threads);
    pool_run(prepare_row, &q, m, m > 8 ? threads : 1);
    pool_run(run_item, &p, p.blocks * p.runs, threads);
    if (whole) gate_rows(p.y, y, y_bf16, m, w->n, gate, threads);
    return atomic_load(&p.failed);
}
