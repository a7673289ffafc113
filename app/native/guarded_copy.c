#define _GNU_SOURCE /* SA_ONSTACK */
#include "guarded_copy.h"

#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

struct guard {
    sigjmp_buf before;
    uintptr_t first, end;
};

/* In the thread's own static block: the handler may not allocate, as other models of thread-local storage do. */
static _Thread_local struct guard *volatile active __attribute__((tls_model("initial-exec")));
static _Thread_local volatile sig_atomic_t chaining __attribute__((tls_model("initial-exec")));

/* The handler before ours. Two, because one may be in use while the other is written. */
static struct sigaction previous[2];
static atomic_int latest;

/* Do what the kernel does without any handler. */
static void end_process(const siginfo_t *info)
{
    struct sigaction none = {.sa_handler = SIG_DFL};
    sigaction(SIGBUS, &none, NULL);
    if (info->si_code <= 0) /* sent by a process; a fault happens again when the handler has returned */
        raise(SIGBUS);
}

/* Have the previous handler decide. A handler that sends the signal again, to those that it knows as its previous
ones, as Python's faulthandler does, may reach this one a second time. */
static void chain(int number, siginfo_t *info, void *context)
{
    const struct sigaction *before = &previous[atomic_load(&latest)];
    if (before->sa_handler == SIG_IGN && info->si_code <= 0)
        return;
    if (chaining || before->sa_handler == SIG_DFL || before->sa_handler == SIG_IGN) {
        end_process(info);
        return;
    }
    chaining = 1;
    if (before->sa_flags & SA_SIGINFO)
        before->sa_sigaction(number, info, context);
    else
        before->sa_handler(number);
    chaining = 0;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    struct guard *guard = active;
    uintptr_t address = (uintptr_t)info->si_addr;
    if (guard != NULL && info->si_code > 0 && address >= guard->first && address < guard->end) {
        active = NULL;
        siglongjmp(guard->before, 1);
    }
    chain(number, info, context);
}

int guard_copies(void)
{
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) < 0)
        return -1;
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_bus_error)
        return 0;
    int next = !atomic_load(&latest);
    previous[next] = now;
    atomic_store(&latest, next);
    /* SA_NODEFER: the signal is not blocked in the handler, so that leaving it by a jump has nothing to restore. */
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    return sigaction(SIGBUS, &ours, NULL);
}

int guarded_copy(void *to, const void *from, size_t nbytes, const void *mapping, size_t mapped)
{
    struct guard guard = {.first = (uintptr_t)mapping, .end = (uintptr_t)mapping + mapped};
    if (sigsetjmp(guard.before, 0))
        return -1;
    active = &guard;
    atomic_signal_fence(memory_order_seq_cst);
    memcpy(to, from, nbytes);
    atomic_signal_fence(memory_order_seq_cst);
    active = NULL;
    return 0;
}
