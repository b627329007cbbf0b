/* The wall clock of one process, which a test sets: loaded by LD_PRELOAD, see wall_clock.py.
 *
 * CLOCK_STEP names a file of eight bytes: how many nanoseconds the process's clock is ahead of the machine's. A wait
 * that ends at a moment of the wall clock behaves as in the kernel: it is under way for longer when the clock is set
 * back meanwhile, and it is not interrupted by that. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static int64_t none;
static volatile int64_t *step = &none;

__attribute__((constructor)) static void look(void) {
    const char *path = getenv("CLOCK_STEP");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) step = found;
    close(file);
}

static struct timespec parts(int64_t ns) { return (struct timespec){ns / SECOND, ns % SECOND}; }

static int64_t now(void) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    return t.tv_sec * SECOND + t.tv_nsec + *step;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) return (int)syscall(SYS_clock_gettime, id, t);
    *t = parts(now());
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec found = parts(now());
    (void)zone;
    t->tv_sec = found.tv_sec;
    t->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    time_t seconds = now() / SECOND;
    if (t) *t = seconds;
    return seconds;
}

int timespec_get(struct timespec *t, int base) {
    if (base == TIME_UTC) *t = parts(now());
    return base;
}

int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until) {
    if (c->__data.__wrefs & 2) return pthread_cond_clockwait(c, m, CLOCK_MONOTONIC, until);
    int64_t end = until->tv_sec * SECOND + until->tv_nsec;
    for (;;) {
        struct timespec machines = parts(end - *step);
        int found = pthread_cond_clockwait(c, m, CLOCK_REALTIME, &machines);
        if (found != ETIMEDOUT || now() >= end) return found; /* else it was set back meanwhile */
    }
}

int cnd_timedwait(cnd_t *restrict c, mtx_t *restrict m, const struct timespec *restrict until) {
    int found = pthread_cond_timedwait((pthread_cond_t *)c, (pthread_mutex_t *)m, until);
    return found == 0 ? thrd_success : found == ETIMEDOUT ? thrd_timedout : thrd_error;
}
