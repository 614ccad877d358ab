/*
 * THREADS threads call getppid for ever. Prints their rate, in calls a ms, over the first half
 * second, and that from then to SIGUSR1, which ends it.
 *
 * usage: rate THREADS
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct {
    volatile long made;
    char apart[120];
} counts[64];

static void *loop(void *count)
{
    for (;;) {
        syscall(SYS_getppid);
        ++*(volatile long *)count;
    }
    return 0;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static long all(int threads)
{
    long sum = 0;
    for (int i = 0; i < threads; i++)
        sum += counts[i].made;
    return sum;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (threads < 1 || threads > 64)
        return 2;
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, 0);
    double begun = now_ms();
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, loop, (void *)&counts[i].made))
            return 2;
    }
    usleep(500000);
    long made = all(threads);
    double then = now_ms();
    printf("%.1f\n", made / (then - begun));
    fflush(stdout);
    int signal;
    sigwait(&usr1, &signal);
    printf("%.1f\n", (all(threads) - made) / (now_ms() - then));
    return 0;
}
