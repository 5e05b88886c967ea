/* Preloaded into a server: gives it a wall clock that a test shifts, and counts how often the server goes to sleep, and the writes in a
   round of its event loop. The file that SLUICE_TEST_CLOCK names holds the shift in nanoseconds, as 8 bytes that may change at any time,
   then the counts, then the nanoseconds by which every reading in the main thread sets the clock forward, then the time at which the
   machine's clock is frozen (nanoseconds since 1970; 0: it runs).
   CLOCK_MONOTONIC stays as it is. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

struct shared {
    int64_t shift;
    int64_t sleeps;
    int64_t most_writes;
    int64_t per_reading;
    int64_t frozen_at;
};

static struct shared unshifted;
static struct shared *shared = &unshifted;

/* The writes of the main thread in this round. */
static int64_t writes;

__attribute__((constructor)) static void find_shared(void)
{
    const char *path = getenv("SLUICE_TEST_CLOCK");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found != MAP_FAILED)
        shared = found;
    close(file);
}

/* The kernel is asked, not the C library: that would take a pointer to the function that this one replaces, which is
   not there yet when the first caller is another library's constructor. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t step = __atomic_load_n(&shared->per_reading, __ATOMIC_RELAXED);
    if (step != 0 && syscall(SYS_gettid) == getpid())
        __atomic_fetch_add(&shared->shift, step, __ATOMIC_RELAXED);
    int64_t ns = __atomic_load_n(&shared->frozen_at, __ATOMIC_RELAXED);
    if (ns == 0)
        ns = now->tv_sec * SECOND + now->tv_nsec;
    ns += __atomic_load_n(&shared->shift, __ATOMIC_RELAXED);
    now->tv_sec = ns / SECOND;
    now->tv_nsec = ns % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *copy)
{
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    if (copy)
        *copy = precise.tv_sec;
    return precise.tv_sec;
}

/* The event loop of the main thread sleeps here. Without a timeout it only looks whether there is something to do. */
int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    if (syscall(SYS_gettid) == getpid()) {
        writes = 0;
        if (timeout != 0)
            __atomic_fetch_add(&shared->sleeps, 1, __ATOMIC_RELAXED);
    }
    return syscall(SYS_epoll_pwait, epoll, events, most, timeout, NULL, 8);
}

static void count_write(void)
{
    if (syscall(SYS_gettid) == getpid() && ++writes > __atomic_load_n(&shared->most_writes, __ATOMIC_RELAXED))
        __atomic_store_n(&shared->most_writes, writes, __ATOMIC_RELAXED);
}

ssize_t write(int file, const void *bytes, size_t length)
{
    count_write();
    return syscall(SYS_write, file, bytes, length);
}

ssize_t writev(int file, const struct iovec *parts, int count)
{
    count_write();
    return syscall(SYS_writev, file, parts, count);
}

/* Valkey 8.1 and later prefer, for a module, the symbols of the libraries that it names (RTLD_DEEPBIND): the module would
   ask the C library for the time, and not us. */
void *dlopen(const char *path, int flags)
{
    void *(*next)(const char *, int);
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    return next(path, flags & ~RTLD_DEEPBIND);
}
