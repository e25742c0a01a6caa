/* Threads for the kernels; see pool.c. */
#ifndef SEATRIAL_POOL_H
#define SEATRIAL_POOL_H

#include <stddef.h>

/* Calls work(context, i) for i in 0 ... count - 1, on the calling thread and up to threads - 1 helpers, in any order. */
void pool_run(void (*work)(void *context, long item), void *context, long count, int threads);

/* A buffer of the calling thread, 64-byte aligned, valid until its next call; NULL where memory ran out. */
void *pool_scratch(size_t bytes);

#endif
