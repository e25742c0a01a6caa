/* What this machine can do at most: the measure that the kernels are held against, no kernel itself.

   The arithmetic loops are assembly with registers named one by one: a compiler that runs out of registers here, and
   GCC 12 does, measures its own spills instead. A chain of one accumulator waits for itself, so there are as many
   chains as a core with two units of four or five cycles needs, and more. */
#include "common.h"
#include "pool.h"

#include <time.h>

typedef struct {
    const uint8_t *bytes;
    long length, turns;
    int threads;
    volatile uint64_t sink;
} Task;

static double seconds_of(void (*work)(void *, long), Task *task) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    pool_run(work, task, task->threads, task->threads);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* Reads a thread's share of the buffer as eight streams, as a product reads the panels of several outputs at once. */
static void read_share(void *context, long item) {
    Task *task = context;
    long share = task->length / task->threads / 512 * 512, stream = share / 8;
    const uint8_t *from = task->bytes + item * share;
    u16v sum[8] = {0};
    for (long i = 0; i < stream; i += 64)
        for (int s = 0; s < 8; s++) sum[s] ^= *(const u16v *)(from + s * stream + i);
    for (int s = 1; s < 8; s++) sum[0] ^= sum[s];
    task->sink ^= sum[0][0] + sum[0][15];
}

/* Seconds in which `threads` threads read `length` bytes (a multiple of 512 * threads, 64-byte aligned) once. */
API double ceiling_read(const void *bytes, long length, int threads) {
    Task task = {bytes, length, 0, threads, 0};
    return seconds_of(read_share, &task);
}

/* Turns of the same instruction (or group of them) on each chain. OPS: what a turn counts for, a multiplication and an
   addition a lane. Operands are small normal numbers, so that nothing overflows or becomes subnormal. */
#define LOOP(START, BODY, VALUE, ...)                                                                                 \
    long turns = ((Task *)context)->turns;                                                                            \
    (void)item;                                                                                                       \
    __asm__ volatile(START "1:\n" BODY "dec %0\n jnz 1b\n" : "+r"(turns) : "m"(VALUE) : "cc", __VA_ARGS__)

#define EACH12(F) F("0") F("1") F("2") F("3") F("4") F("5") F("6") F("7") F("8") F("9") F("10") F("11")
#define EACH24(F) \
    EACH12(F) F("12") F("13") F("14") F("15") F("16") F("17") F("18") F("19") F("20") F("21") F("22") F("23")
#define XMM12                                                                                                         \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
#define XMM16 XMM12, "xmm12", "xmm13", "xmm14", "xmm15"
#define XMM32                                                                                                         \
    XMM16, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26",         \
        "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"

#define ZERO512(r) "vpxord %%zmm" r ", %%zmm" r ", %%zmm" r "\n"
#define ZERO256(r) "vpxor %%ymm" r ", %%ymm" r ", %%ymm" r "\n"
#define START512 "vpbroadcastd %1, %%zmm30\n vpbroadcastd %1, %%zmm31\n" EACH24(ZERO512)
#define START256 "vpbroadcastd %1, %%ymm12\n vpbroadcastd %1, %%ymm13\n" EACH12(ZERO256)

static const float SMALL_FLOAT = 0.03125f;
static const uint32_t SMALL_INT8 = 0x03020103, SMALL_BF16 = 0x3d003d00; /* four int8; two times 0.03125 */

#if defined(__AVX512F__)
#define FMA(r) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" r "\n"
#define FLOAT_NAME "AVX-512"
#define FLOAT_OPS (24 * 32)
static void run_float(void *context, long item) {
    LOOP(START512, EACH24(FMA), SMALL_FLOAT, XMM32);
}
#elif defined(__AVX2__) && defined(__FMA__)
#define FMA(r) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" r "\n"
#define FLOAT_NAME "AVX2, FMA"
#define FLOAT_OPS (12 * 16)
static void run_float(void *context, long item) {
    LOOP(START256, EACH12(FMA), SMALL_FLOAT, XMM16);
}
#else
#define FLOAT_NAME "as the compiler has it"
#define FLOAT_OPS (8 * 4 * 2)
typedef float v4 __attribute__((vector_size(16)));
static void run_float(void *context, long item) {
    (void)item;
    Task *task = context;
    float s = SMALL_FLOAT;
    v4 x = {s, s, s, s}, a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0}, h = {0};
    for (long i = 0; i < task->turns; i++) {
        a += x * x, b += x * x, c += x * x, d += x * x, e += x * x, f += x * x, g += x * x, h += x * x;
        __asm__ volatile("" : "+m"(task->sink)); /* the turns are not to be folded into one */
    }
    a += b + c + d + e + f + g + h;
    task->sink ^= (uint64_t)(a[0] + a[3]);
}
#endif

#if defined(__AVX512VNNI__)
#define DOT8(r) "vpdpbusd %%zmm30, %%zmm31, %%zmm" r "\n"
#define INT8_NAME "AVX-512 VNNI"
#define INT8_OPS (24 * 128)
static void run_int8(void *context, long item) {
    LOOP(START512, EACH24(DOT8), SMALL_INT8, XMM32);
}
#elif defined(__AVXVNNI__)
#define DOT8(r) "%{vex%} vpdpbusd %%ymm12, %%ymm13, %%ymm" r "\n"
#define INT8_NAME "AVX-VNNI"
#define INT8_OPS (12 * 64)
static void run_int8(void *context, long item) {
    LOOP(START256, EACH12(DOT8), SMALL_INT8, XMM16);
}
#elif defined(__AVX2__)
/* Pairs of products in 16 bits, pairs of those in 32, then the sum: three instructions where VNNI has one. */
#define DOT8(r)                                                                                                       \
    "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\n vpmaddwd %%ymm14, %%ymm13, %%ymm15\n vpaddd %%ymm15, %%ymm" r ", %%ymm" r "\n"
#define INT8_NAME "AVX2, vpmaddubsw"
#define INT8_OPS (12 * 64)
static void run_int8(void *context, long item) {
    LOOP(START256, EACH12(DOT8), SMALL_INT8, XMM16);
}
#endif

#if defined(__AVX512BF16__)
#define DOTB(r) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" r "\n"
#define BF16_NAME "AVX-512 BF16"
#define BF16_OPS (24 * 64)
static void run_bf16(void *context, long item) {
    LOOP(START512, EACH24(DOTB), SMALL_BF16, XMM32);
}
#endif

/* What the peak named `what` ("float32", "int8", "bf16") was compiled for, and what a turn of a thread counts for;
   NULL where this instruction set has no such peak. */
API const char *ceiling_name(const char *what, long *ops) {
    if (!strcmp(what, "float32")) return *ops = FLOAT_OPS, FLOAT_NAME;
#ifdef INT8_NAME
    if (!strcmp(what, "int8")) return *ops = INT8_OPS, INT8_NAME;
#endif
#ifdef BF16_NAME
    if (!strcmp(what, "bf16")) return *ops = BF16_OPS, BF16_NAME;
#endif
    return NULL;
}

/* Seconds in which `threads` threads take `turns` turns (at least one) each; negative where there is no such peak. */
API double ceiling_turns(const char *what, long turns, int threads) {
    Task task = {NULL, 0, MAX(turns, 1), threads, 0};
    if (!strcmp(what, "float32")) return seconds_of(run_float, &task);
#ifdef INT8_NAME
    if (!strcmp(what, "int8")) return seconds_of(run_int8, &task);
#endif
#ifdef BF16_NAME
    if (!strcmp(what, "bf16")) return seconds_of(run_bf16, &task);
#endif
    return -1.0;
}
