/* fork, exec, wait4, and nothing else: what the untraced timing of `bench` is held against.
 * usage: bare COMMAND...      prints wall, user and sys time in ns, and the peak in KiB */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long ns(struct timeval t) { return t.tv_sec * 1000000000LL + t.tv_usec * 1000LL; }

int main(int argc, char **argv) {
    if (argc < 2)
        return 125;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    long long begin = now();
    pid_t pid = fork();
    if (pid == 0) {
        for (int fd = 0; fd < 3; fd++)
            dup2(null, fd);
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    struct rusage usage;
    int status;
    if (pid < 0 || wait4(pid, &status, 0, &usage) != pid || status != 0)
        return 126;
    long long end = now();
    printf("%lld %lld %lld %ld\n", end - begin, ns(usage.ru_utime), ns(usage.ru_stime),
           usage.ru_maxrss);
    return 0;
}
