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
#define ITEM_COST 2000000        /* multiplications that are worth an item; a byte of weights costs READ_COST of them */
#define READ_COST 16
#define PREPARED_ROWS 32         /* in an item */

typedef struct {
    const Linear *w;
    const uint32_t *x; /* [m][stride] words of four k, or of two (dots.h) */
    const int32_t *starts; /* [m][groups]: see TOO_MUCH */
    const float *row_scales;
    void *y;
    int y_bf16, gate, dense; /* dense: panels are unpacked */
    long m, stride, words, groups;
    long block, blocks, units, runs; /* rows of a block; blocks; panels, or pairs of them; runs of units */
    atomic_int failed;
} Product;

/* The loop takes more than a weight: w + 128, q in place of q - zero, or q - zero + 15 where that has been unpacked.
   What it takes too much, times the sum of the row over the group, is where the sum of products begins: `start` is the
   sum of the row times -128, -1 or -15. (Sums in 16 bits have no room for the 15.) */
#define CENTRED (!SHORT)
#define TOO_MUCH(p) ((p)->w->kind == W_INT8 ? 128 : (p)->dense && CENTRED ? 15 : 1)

/* Zero points and scales of a group of a panel. */
INLINE void group_of(const Product *p, long panel, long g, vi zeros[2], vf scales[2]) {
    for (int v = 0; v < 2; v++) {
        long at = (panel * p->groups + g) * PANEL + v * VL;
        vh wide = __builtin_convertvector(*(const vb *)(p->w->zeros + at), vh); /* by way of 16 bits; see load_int8 */
        zeros[v] = __builtin_convertvector(wide, vi);
        scales[v] = (vf)(__builtin_convertvector(*(const vh *)((const uint16_t *)p->w->scales + at), vu) << 16);
    }
}

/* A panel in `form`, with what its columns are multiplied by and what is added. */
typedef struct {
    long panel;
    const uint32_t *b;
    float scales[PANEL], bias[PANEL];
} Panel;

/* `rows` rows from r0 on, before the scales of rows and of 8-bit columns, to out [rows][PANEL]: int32 sums where the
   weights have 8 bits, float32 where they have groups. */
INLINE void tile(int rows, int kind, int form, const Product *p, const Panel *n, long r0, vi out[MOST][2]) {
    const uint32_t *x = p->x + r0 * p->stride;
    const int32_t *starts = p->starts + r0 * p->groups;
    long words = p->words / p->groups;
    if (kind == W_INT4A8) memset(out, 0, sizeof(vi) * 2 * rows);
    for (long g = 0; g < p->groups; g++) {
        __asm__ volatile("" ::: "memory"); /* else the compiler holds `out` in registers that there are not */
        vi acc[MOST][2], zeros[2];
        vf scales[2];
        if (kind == W_INT4A8) group_of(p, n->panel, g, zeros, scales);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) {
                acc[r][v] = visplat(starts[r * p->groups + g]);
                if (kind == W_INT4A8 && !(form == DENSE && CENTRED)) acc[r][v] *= zeros[v];
            }
        dot_words(rows, kind, form, g * words, words, x, p->stride, n->b, acc);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++)
                out[r][v] = kind == W_INT8 ? acc[r][v]
                                           : (vi)fused(__builtin_convertvector(acc[r][v], vf), scales[v], (vf)out[r][v]);
        if (kind == W_INT8) break; /* one group */
    }
}

/* What a tile has made to rows of y, `step` apart. */
static void finish(const Product *p, long rows, const Panel *n, long r0, vi sums[MOST][2], float *y, long step) {
    int eight = p->w->kind == W_INT8, bias = p->w->bias != NULL;
    for (long r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) {
            vf value = eight ? __builtin_convertvector(sums[r][v], vf) : (vf)sums[r][v];
            value = value * p->row_scales[r0 + r];
            if (eight) value = value * *(const vfu *)(n->scales + v * VL);
            if (bias) value = rounded(value) + *(const vfu *)(n->bias + v * VL);
            *(vfu *)(y + r * step + v * VL) = value;
        }
}

#define HEIGHT(rows) \
    case rows: tile(rows, kind, form, p, n, r0, out); break;
#define LOW HEIGHT(1) HEIGHT(2)
#if MOST > 2
#define MIDDLE HEIGHT(3) HEIGHT(4)
#else
#define MIDDLE
#endif
#if MOST > 6
#define HIGH HEIGHT(6) HEIGHT(8) HEIGHT(12)
#elif MOST > 2
#define HIGH HEIGHT(6)
#else
#define HIGH
#endif
#define TILES(name, kind_, form_, heights)                                                          \
    static void name(const Product *p, long rows, const Panel *n, long r0, vi out[MOST][2]) {        \
        const int kind = kind_, form = form_;                                                       \
        switch (rows) { heights }                                                                   \
    }
#if VNNI
TILES(bytes, W_INT8, BYTES, LOW MIDDLE HIGH)
#define dense_bytes bytes
#else
TILES(bytes, W_INT8, BYTES, LOW MIDDLE)
TILES(dense_bytes, W_INT8, DENSE, LOW MIDDLE HIGH)
#endif
TILES(nibbles, W_INT4A8, NIBBLES, LOW MIDDLE)
TILES(dense_nibbles, W_INT4A8, DENSE, LOW MIDDLE HIGH)
#define UNPACKED_FROM (MIN(MOST, 4) + 1) /* rows */

/* Height of the tile that comes next when so many rows are left: one that there is, none much lower than others. */
static long height(long left) {
#if MOST == 12
    static const char next[] = {0, 1, 2, 3, 4, 3, 6, 4, 8, 6, 6, 8, 12, 12, 8, 12, 8, 8, 12, 8, 12, 12, 12, 12};
#elif MOST == 6
    static const char next[] = {0, 1, 2, 3, 4, 3, 6, 4, 4, 6, 6, 4};
#else
    static const char next[] = {0, 1, 2, 2};
#endif
    return left < 2 * MOST ? next[left] : MOST;
}

static void run_tile(const Product *p, long rows, const Panel *n, long r0, float *y, long step) {
    vi sums[MOST][2];
    if (p->w->kind == W_INT8)
        (p->dense ? dense_bytes : bytes)(p, rows, n, r0, sums);
    else
        (p->dense ? dense_nibbles : nibbles)(p, rows, n, r0, sums);
    finish(p, rows, n, r0, sums, y, step);
}

/* A panel to DENSE form. */
static void unpack(const Product *p, const Panel *n, uint32_t *out) {
    vu more[2] = {{0}};
    if (p->w->kind == W_INT8) {
        densify(W_INT8, BYTES, 0, p->words, n->b, more, out);
        return;
    }
    long words = p->words / p->groups;
    for (long g = 0; g < p->groups; g++) {
        vi zeros[2];
        vf scales[2];
        group_of(p, n->panel, g, zeros, scales);
        for (int v = 0; v < 2 && CENTRED; v++) more[v] = (vu)(0x01010101 * (15 - zeros[v]));
        densify(W_INT4A8, NIBBLES, g * words, words, n->b, more, out);
    }
}

/* unpacked: where it may be unpacked to. */
static void find_panel(const Product *p, long panel, uint32_t *unpacked, Panel *n) {
    const Linear *w = p->w;
    long width = MIN(PANEL, w->n - panel * PANEL), in = p->words * PANEL / (w->kind == W_INT8 ? 1 : 2);
    n->panel = panel;
    n->b = (const uint32_t *)w->panels + panel * in;
    if (p->dense) unpack(p, n, unpacked), n->b = unpacked;
    memset(n->scales, 0, sizeof n->scales);
    memset(n->bias, 0, sizeof n->bias);
    if (w->kind == W_INT8) memcpy(n->scales, (const float *)w->scales + panel * PANEL, sizeof(float) * width);
    if (w->bias) memcpy(n->bias, w->bias + panel * PANEL, sizeof(float) * width);
}

/* Panel `first` and, with a gate, its counterpart in the other half of the columns against rows r0 ... r1 - 1. */
static void run_unit(const Product *p, long first, long r0, long r1, float *scratch) {
    int panels = p->gate == NO_GATE ? 1 : 2;
    long n = p->w->n / panels, width = MIN(PANEL, n - first * PANEL);
    float *own = panels == 1 && width == PANEL && !p->y_bf16 ? (float *)p->y + first * PANEL : NULL;
    Panel panel[2];
    for (int i = 0; i < panels; i++) {
        uint32_t *unpacked = (uint32_t *)scratch + (2 * MOST * PANEL + i * p->stride * PANEL);
        find_panel(p, first + i * (n / PANEL), unpacked, &panel[i]);
    }
    for (long r = r0, rows; r < r1; r += rows) {
        rows = height(r1 - r);
        if (own) {
            run_tile(p, rows, panel, r, own + r * n, n);
            continue;
        }
        for (int i = 0; i < panels; i++)
            run_tile(p, rows, panel + i, r, scratch + i * MOST * PANEL, PANEL);
        for (long j = 0; j < rows; j++) {
            float *row = scratch + j * PANEL;
            if (panels == 2) gate_row(row, row + MOST * PANEL, p->y_bf16, p->gate, row);
            store_row(row, p->y, p->y_bf16, n, r + j, first * PANEL, width);
        }
    }
}

static void run_item(void *context, long item) {
    Product *p = context;
    long run = item % p->runs, r0 = item / p->runs * p->block, r1 = MIN(p->m, r0 + p->block);
    float *scratch = pool_scratch(sizeof(float) * 2 * PANEL * (MOST + p->stride));
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
    long fit = MAX(BLOCK_BYTES / (p->stride * 4) / MOST, 1) * MOST;
    p->blocks = MAX((p->m + fit - 1) / fit, 1);
    p->block = ((p->m + p->blocks - 1) / p->blocks + MOST - 1) / MOST * MOST;
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
static void prepare_row(const Prepare *q, long r) {
    const Product *p = q->p;
    long k = p->w->k, group = k / p->groups, steps = STEPS(p->w->kind);
    const int8_t *in = q->x + r * k;
    for (long g = 0; g < p->groups; g++) {
        int32_t sum = 0;
        for (long i = g * group; i < (g + 1) * group; i++) sum += in[i];
        q->starts[r * p->groups + g] = -TOO_MUCH(p) * sum;
    }
    if (!q->out) return;
    for (long i = 0; i < p->words; i++) {
        int8_t b[4] = {0};
        memcpy(b, in + 4 * i, MIN(4, k - 4 * i));
        int16_t pairs[4] = {b[0], b[2], b[1], b[3]};
        memcpy(q->out + r * p->stride + i * steps, steps == 1 ? (const void *)b : pairs, 4 * steps);
    }
}

static void prepare_rows(void *context, long item) {
    const Prepare *q = context;
    for (long r = item * PREPARED_ROWS; r < MIN(q->p->m, (item + 1) * PREPARED_ROWS); r++) prepare_row(q, r);
}

API int product_int(const Linear *w, const int8_t *x, const float *row_scales, void *y, int y_bf16, int gate, long m,
                    int threads) {
    long whole = gate != NO_GATE && !gate_by_panel(w), words = (w->k + 3) / 4;
    Product p = {.w = w, .row_scales = row_scales, .y = y, .y_bf16 = y_bf16, .gate = whole ? NO_GATE : gate, .m = m,
                 .stride = words * STEPS(w->kind), .words = words, .groups = w->kind == W_INT8 ? 1 : w->k / w->group};
    static __thread Buffer starts, widened, plain; /* of the calling thread; pool_scratch is taken by the items */
    Prepare q = {&p, x, NULL, buffer_of(&starts, sizeof(int32_t) * m * p.groups)};
    if (!q.starts) return 1;
    if (STEPS(w->kind) > 1 || w->k % 4) {
        if (!(q.out = buffer_of(&widened, sizeof(uint32_t) * m * p.stride))) return 1;
    }
    if (whole && !(p.y = buffer_of(&plain, sizeof(float) * m * w->n))) return 1;
    p.x = q.out ? q.out : (const uint32_t *)x;
    p.starts = q.starts;
    divide(&p, threads);
    p.dense = (!VNNI || w->kind != W_INT8) && MIN(p.block, m) >= UNPACKED_FROM;
    pool_run(prepare_rows, &q, (m + PREPARED_ROWS - 1) / PREPARED_ROWS, threads);
    pool_run(run_item, &p, p.blocks * p.runs, threads);
    if (whole) gate_rows(p.y, y, y_bf16, m, w->n, gate, threads);
    return atomic_load(&p.failed);
}
