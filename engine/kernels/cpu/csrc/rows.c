/* Norm, rope, activation and int8 quantisation for float32 and bfloat16. */
#include "common.h"

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
