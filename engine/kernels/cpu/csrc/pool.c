/* A small pool of helper threads.

   Why not OpenMP: its regions end in a barrier that every thread must reach, and its idle threads spin for
   milliseconds, which on two cores shared with a load generator costs many times the work itself. Here the caller waits only for
   helpers that have begun an item: a helper the system does not schedule is simply not there, and the caller does its
   share. Idle helpers look for work for SPIN_NS, which bridges the gaps between the kernels of one step, then sleep.

   Items are claimed one at a time, so the order and the thread of an item vary; kernels may not depend on either.

       caller   fill in the job -> left = count -> work -> wait until unfinished == 0
       helper   see left > 0 -> work

       work     claim items (left--) and run them until none is left; then take their number off unfinished

   There is no lock on this path. A job stays as it is until unfinished is 0, and whoever has claimed an item has not
   yet taken it off: what is read after a claim is the job that the item belongs to, even by a helper that was delayed
   since it looked at `left`. Locks are for those that sleep, whom the other side wakes if it sees that they do: each
   announces itself before it looks once more for what it waits for, each other side acts before it looks for sleepers. */
#define _GNU_SOURCE /* names and affinities of threads */
#include "common.h"
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define SPIN_NS 50000
#define CALLER_PAUSES 1000 /* of the caller, before it sleeps until its helpers are done */
#define MAX_HELPERS 255
#define OWN_LINE __attribute__((aligned(128))) /* written by several threads: nothing else is on its cache lines */

static OWN_LINE atomic_long left;       /* items of the job that nobody has claimed */
static OWN_LINE atomic_long unfinished; /* items of the job whose end has not been reported */
static OWN_LINE atomic_int sleepers;    /* helpers that sleep or are about to */
static atomic_int caller_sleeps, places; /* helpers 0 ... places - 1 take part */
static OWN_LINE atomic_flag in_use = ATOMIC_FLAG_INIT; /* from here on: changed by the thread that has set this one */
static void (*job)(void *, long);
static void *job_context;
static long job_count, helpers; /* helpers: started */
static pthread_t threads_of[MAX_HELPERS];
static int pinned;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held by those that fall asleep or wake others */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, idle = PTHREAD_COND_INITIALIZER;

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

static long claim(void) {
    long seen = atomic_load_explicit(&left, memory_order_relaxed);
    while (seen > 0)
        if (atomic_compare_exchange_weak(&left, &seen, seen - 1)) return seen;
    return 0;
}

/* Returns whether the job ended with it. */
static int work(void) {
    long place = claim(), done = 0;
    if (!place) return 0;
    void (*run)(void *, long) = job;
    void *context = job_context;
    long count = job_count;
    for (; place; place = claim(), done++) run(context, count - place);
    return atomic_fetch_sub(&unfinished, done) == done;
}

static void wake_all(pthread_cond_t *condition) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(condition);
    pthread_mutex_unlock(&lock);
}

static int wanted(long helper) { return atomic_load(&left) > 0 && helper < atomic_load(&places); }

#ifdef __linux__
/* Helper h on the CPU h + 1 of those that the calling thread may use, begun again where there are no more; or on all of
   them. The caller's own thread is left to the system, which finds the first one free: what a thread starts later would
   inherit its place. Returns 0 or an error number. */
static int place(long h) {
    cpu_set_t all, one;
    int error = pthread_getaffinity_np(pthread_self(), sizeof all, &all);
    if (error) return error;
    long skip = (h + 1) % CPU_COUNT(&all), cpu = 0;
    for (; !CPU_ISSET(cpu, &all) || skip-- > 0; cpu++) {}
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return pthread_setaffinity_np(threads_of[h], sizeof one, pinned ? &one : &all);
}
static void name_helper(void) { pthread_setname_np(pthread_self(), "seatrial-pool"); }
#else
static int place(long h) {
    (void)h;
    return ENOSYS;
}
static void name_helper(void) {}
#endif

static void *help(void *number) {
    long helper = (long)number;
    name_helper();
    for (;;) {
        for (long end = now_ns() + SPIN_NS; !wanted(helper) && now_ns() < end;)
            for (int i = 0; i < 32 && !wanted(helper); i++) pause_cpu();
        if (!wanted(helper)) {
            pthread_mutex_lock(&lock);
            atomic_fetch_add(&sleepers, 1);
            while (!wanted(helper)) pthread_cond_wait(&wake, &lock);
            atomic_fetch_sub(&sleepers, 1);
            pthread_mutex_unlock(&lock);
        }
        if (work() && atomic_load(&caller_sleeps)) wake_all(&idle);
    }
    return NULL;
}

/* A forked child has no helpers; it starts its own. */
static void forget(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&wake, NULL);
    pthread_cond_init(&idle, NULL);
    atomic_store(&left, 0);
    atomic_store(&unfinished, 0);
    atomic_store(&sleepers, 0);
    atomic_store(&caller_sleeps, 0);
    helpers = 0;
    atomic_flag_clear(&in_use);
}

/* Where a thread cannot be started, fewer help. */
static void start_helpers(long count) {
    if (helpers == 0) {
        static int registered;
        if (!registered) registered = pthread_atfork(NULL, NULL, forget) == 0;
    }
    while (helpers < count && helpers < MAX_HELPERS) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, (void *)helpers) != 0) return;
        pthread_detach(thread);
        threads_of[helpers++] = thread;
        if (pinned) place(helpers - 1);
    }
}

/* The helpers of so many threads, and those to come, each keep to a CPU from now on, or (on = 0) no longer do. Waits for a
   job that runs. Returns 0, or an error number: this system does not do it. */
API int pool_pin(int on, int threads) {
    while (atomic_flag_test_and_set(&in_use)) sched_yield();
    int error = 0;
    if (on) start_helpers(threads - 1);
    if (on != pinned) {
        pinned = on;
        for (long h = 0; h < helpers && !error; h++) error = place(h);
        if (error) pinned = !on;
    }
    atomic_flag_clear(&in_use);
    return error;
}

/* Helpers may still hold items: looks for their end for a moment, then sleeps. */
static void await_helpers(void) {
    for (int i = 0; i < CALLER_PAUSES; i++) {
        if (!atomic_load(&unfinished)) return;
        pause_cpu();
    }
    pthread_mutex_lock(&lock);
    atomic_store(&caller_sleeps, 1);
    while (atomic_load(&unfinished)) pthread_cond_wait(&idle, &lock);
    atomic_store(&caller_sleeps, 0);
    pthread_mutex_unlock(&lock);
}

void pool_run(void (*run)(void *, long), void *context, long count, int threads) {
    /* Someone else's job is running (another Python thread): do this one alone. */
    if (threads <= 1 || count <= 1 || atomic_flag_test_and_set(&in_use)) {
        for (long i = 0; i < count; i++) run(context, i);
        return;
    }
    if (helpers < threads - 1) start_helpers(threads - 1);
    job = run, job_context = context, job_count = count;
    atomic_store(&places, threads - 1);
    atomic_store(&unfinished, count);
    atomic_store(&left, count);
    if (atomic_load(&sleepers)) wake_all(&wake);
    if (!work()) await_helpers();
    atomic_flag_clear(&in_use);
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
