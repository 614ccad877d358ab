/* A hot loop of the cheapest call there is: CALLS getppid(2) in each of THREADS threads.
 * Prints the wall time of one call as its thread saw it, in ns. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long calls;

static void *loop(void *unused)
{
    (void)unused;
    for (long i = 0; i < calls; i++)
        syscall(SYS_getppid);
    return NULL;
}

int main(int argc, char **argv)
{
    calls = argc > 1 ? atol(argv[1]) : 10000;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    pthread_t others[64];
    if (threads < 1 || threads > 64 || calls < 1)
        return 2;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, loop, NULL) != 0)
            return 1;
    loop(NULL);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
    printf("%.1f\n", ns / calls / threads);
    return 0;
}
