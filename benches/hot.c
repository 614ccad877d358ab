/* A hot loop of a cheap call through the C library: CALLS times getppid(2) in each of THREADS
 * threads. For benches/fast. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static long calls;

static void *loop(void *unused)
{
    (void)unused;
    for (long i = 0; i < calls; i++)
        getppid();
    return NULL;
}

int main(int argc, char **argv)
{
    calls = argc > 1 ? atol(argv[1]) : 10000;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    pthread_t others[64];
    if (threads < 1 || threads > 64 || calls < 1)
        return 2;
    for (int i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, loop, NULL) != 0)
            return 1;
    loop(NULL);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    return 0;
}
