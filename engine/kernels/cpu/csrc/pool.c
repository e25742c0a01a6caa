/* A small pool of helper threads.

   Why not OpenMP: its regions end in a barrier that every thread must reach, and its idle threads spin for
   milliseconds, which on two cores shared with a load generator costs many times the work itself. Here the caller waits only for
   helpers that have begun an item: a helper the system does not schedule is simply not there, and the caller does its
   share. Idle helpers look for work for SPIN_NS, which bridges the gaps between the kernels of one step, then sleep.

   Items are claimed one at a time, so the order and the thread of an item vary; kernels may not depend on either.

       caller   publish job -> work -> close job -> wait until active == 0
       helper   see generation change -> join (active++) if open -> work -> active--                             */
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define SPIN_NS 50000
#define MAX_HELPERS 255

static pthread_mutex_t in_use = PTHREAD_MUTEX_INITIALIZER; /* held for the length of a job */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   /* guards everything below that is not atomic */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, idle = PTHREAD_COND_INITIALIZER;
static atomic_ulong generation;
static atomic_long next_item;
static atomic_int active; /* helpers inside the job; changed under the lock, read anywhere */
static void (*job)(void *, long);
static void *job_context;
static long job_count;
static int places, sleeping, helpers; /* helpers that may still join; asleep; started */

static void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void work(void) {
    void (*run)(void *, long) = job;
    void *context = job_context;
    long count = job_count;
    for (long i; (i = atomic_fetch_add(&next_item, 1)) < count;) run(context, i);
}

static void *help(void *unused) {
    (void)unused;
    unsigned long seen = 0;
    for (;;) {
        for (long end = now_ns() + SPIN_NS; atomic_load(&generation) == seen && now_ns() < end;)
            for (int i = 0; i < 32 && atomic_load(&generation) == seen; i++) pause_cpu();
        pthread_mutex_lock(&lock);
        while (atomic_load(&generation) == seen) {
            sleeping++;
            pthread_cond_wait(&wake, &lock);
            sleeping--;
        }
        seen = atomic_load(&generation);
        if (places > 0 && atomic_load(&next_item) < job_count) {
            places--;
            atomic_fetch_add(&active, 1);
            pthread_mutex_unlock(&lock);
            work();
            pthread_mutex_lock(&lock);
            if (atomic_fetch_sub(&active, 1) == 1) pthread_cond_signal(&idle);
        }
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* A forked child has no helpers; it starts its own. */
static void forget(void) {
    pthread_mutex_init(&in_use, NULL);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&wake, NULL);
    pthread_cond_init(&idle, NULL);
    atomic_store(&active, 0);
    places = sleeping = helpers = 0;
}

/* Under the lock. Where a thread cannot be started, fewer help. */
static void start_helpers(int wanted) {
    if (helpers == 0) {
        static int registered;
        if (!registered) registered = pthread_atfork(NULL, NULL, forget) == 0;
    }
    while (helpers < wanted && helpers < MAX_HELPERS) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, NULL) != 0) return;
        pthread_detach(thread);
        helpers++;
    }
}

void pool_run(void (*run)(void *, long), void *context, long count, int threads) {
    /* Someone else's job is running (another Python thread): do this one alone. */
    if (threads <= 1 || count <= 1 || pthread_mutex_trylock(&in_use) != 0) {
        for (long i = 0; i < count; i++) run(context, i);
        return;
    }
    int wanted = threads - 1 < count - 1 ? threads - 1 : (int)(count - 1);
    pthread_mutex_lock(&lock);
    start_helpers(threads - 1);
    job = run, job_context = context, job_count = count;
    atomic_store(&next_item, 0);
    places = wanted;
    atomic_fetch_add(&generation, 1);
    if (sleeping) pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
    work();
    for (int i = 0; i < 1000 && atomic_load(&active); i++) pause_cpu();
    pthread_mutex_lock(&lock);
    places = 0; /* nobody joins a finished job */
    while (atomic_load(&active)) pthread_cond_wait(&idle, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&in_use);
}

/* Kept for the life of the thread: kernels run on the step loop and the helpers, which live as long as the process. */
void *pool_scratch(size_t bytes) {
    static __thread void *buffer;
    static __thread size_t size;
    if (bytes > size) {
        free(buffer);
        size = (bytes + 4095) / 4096 * 4096;
        buffer = aligned_alloc(64, size);
        if (!buffer) size = 0;
    }
    return buffer;
}
