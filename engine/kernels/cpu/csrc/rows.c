/* Norm, rope, activation, int8 quantisation and embedding for float32 and bfloat16. */
#include "kernels.h"
#include "pool.h"
#include "tiles.h"

#define ROWS_AN_ITEM 8L /* at most; where there are few, every thread has as many as the others */
typedef struct {
    const void *arguments;
    long rows, each; /* rows of an item */
} Each;

#define EACH_ROW(items, Arguments, row)                                                \
    static void items(void *context, long item) {                                      \
        const Each *e = context;                                                       \
        long stop = MIN(e->rows, (item + 1) * e->each);                                \
        for (long r = item * e->each; r < stop; r++) row((const Arguments *)e->arguments, r); \
    }
#define RUN_ROWS(items, p, rows, threads)                                              \
    do {                                                                               \
        Each e = {&(p), (rows), MAX(1, MIN(ROWS_AN_ITEM, ((rows) + (threads) - 1) / (threads)))}; \
        pool_run(items, &e, ((rows) + e.each - 1) / e.each, threads);                  \
    } while (0)

#define T float
#define NAME(x) x##_f32
#define LOAD load_f32
#define STORE store_f32
#define LOAD1 load1_f32
#define STORE1 store1_f32
#include "rows.h"
#undef T
#undef NAME
#undef LOAD
#undef STORE
#undef LOAD1
#undef STORE1

#define T uint16_t
#define NAME(x) x##_bf16
#define LOAD load_bf16
#define STORE store_bf16
#define LOAD1 load1_bf16
#define STORE1 store1_bf16
#include "rows.h"
