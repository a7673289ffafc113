/* Has a worker of Ray look for signals ten times a second instead of a hundred.

   The main thread of a worker runs an event loop of Boost.Asio, on which Ray 2.60 calls Python each 10 ms to look for
   signals (`CoreWorker::RunTaskExecutionLoop`, a constant): two thirds of what an idle replica costs. Nothing else
   there waits for less than a second, and what arrives wakes the loop at once.

   The fork server is started with this library before the C library (LD_PRELOAD), and so its forks have it; Ray's
   extension then calls this function. Programs that they start do not have it. */

#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define RAY_NS 10000000L
#define OURS_NS 100000000L

/* Sets a timer as timerfd_settime(2) does; a single period of at most Ray's, on the main thread, becomes ours. */
int timerfd_settime(int timer, int flags, const struct itimerspec *given, struct itimerspec *before)
{
    struct itimerspec set = *given;
    struct timespec *first = &set.it_value;
    int is_short = first->tv_sec == 0 && first->tv_nsec > 1 && first->tv_nsec <= RAY_NS;
    int is_single = set.it_interval.tv_sec == 0 && set.it_interval.tv_nsec == 0;

    if (flags == 0 && is_short && is_single && syscall(SYS_gettid) == getpid())
        first->tv_nsec = OURS_NS;
    return (int)syscall(SYS_timerfd_settime, timer, flags, &set, before);
}
