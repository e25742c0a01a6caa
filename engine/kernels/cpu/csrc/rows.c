/* Norm, rope, activation, int8 quantisation and embedding for float32 and bfloat16. */
#include "kernels.h"
#include "pool.h"
#include "tiles.h"

#define ROWS_AN_ITEM 8
typedef struct {
    const void *arguments;
    long rows;
} Each;

#define EACH_ROW(items, Arguments, row)                                                \
    static void items(void *context, long item) {                                      \
        const Each *e = context;                                                       \
        long stop = MIN(e->rows, (item + 1) * ROWS_AN_ITEM);                           \
        for (long r = item * ROWS_AN_ITEM; r < stop; r++) row((const Arguments *)e->arguments, r); \
    }
#define RUN_ROWS(items, p, rows, threads)                                              \
    do {                                                                               \
        Each each = {&(p), (rows)};                                                    \
        pool_run(items, &each, ((rows) + ROWS_AN_ITEM - 1) / ROWS_AN_ITEM, threads);   \
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
