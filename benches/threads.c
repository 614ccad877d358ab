/*
 * For benches/repeat: eight threads that take turns by a mutex and a condition, and compute in
 * between. What they ask for in sum is fixed, but for who has to wait for whom.
 */
#include <pthread.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 50 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int turn;

static void *work(void *argument)
{
    int own = *(int *)argument;
    for (int i = 0; i < ROUNDS; i++) {
        for (volatile int n = 0; n < 20000; n++)
            ;
        pthread_mutex_lock(&lock);
        while (turn % THREADS != own)
            pthread_cond_wait(&changed, &lock);
        turn++;
        getppid();
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, work, &numbers[i]))
            return 1;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
