/*
 * An echo server with the given number of threads, each with its own listener and epoll set. It counts its calls on
 * connections, and the library's counters must equal these counts.
 *
 * It prints the port of each thread. Then it reads commands from standard input, one per line, until its end:
 *
 *   counts   prints the number of calls of read and write on connections, and of epoll_wait
 *   close    closes all descriptors from 3 on except listeners, sets and connections, as daemons do
 *   fork     forks a child that is such a server with one thread and ends with its parent; prints its process ID and
 *            its port
 *
 * A message that begins with `d` makes the server duplicate its connection for a moment.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_ulong reads, writes, waits;
static atomic_bool own_fds[1024];
/* The timeout of each wait: the variable ECHO_TIMEOUT_MS, or none. */
static int timeout_ms = -1;

static void check(int ret, const char *what) {
    if (ret < 0) {
        perror(what);
        exit(3);
    }
}

static void respond(int set, int fd) {
    char bytes[4096];
    ssize_t ret = read(fd, bytes, sizeof bytes);
    reads++;
    if (ret < 0 && errno == EAGAIN)
        return;
    if (ret <= 0) {
        check(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), "epoll_ctl");
        own_fds[fd] = false;
        close(fd);
        return;
    }
    if (bytes[0] == 'd')
        close(dup(fd));
    writes++;
    check(write(fd, bytes, ret) == ret ? 0 : -1, "write");
}

static void *serve(void *argument) {
    int listener = (int)(long)argument;
    int set = epoll_create1(EPOLL_CLOEXEC);
    check(set, "epoll_create1");
    own_fds[listener] = own_fds[set] = true;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
    for (;;) {
        struct epoll_event events[64];
        int count = epoll_wait(set, events, 64, timeout_ms);
        waits++;
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd != listener) {
                respond(set, events[i].data.fd);
                continue;
            }
            int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            check(fd, "accept4");
            own_fds[fd] = true;
            event.data.fd = fd;
            check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
        }
    }
    return NULL;
}

static void begin(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    check(listener, "socket");
    check(bind(listener, (struct sockaddr *)&address, bytes), "bind");
    check(listen(listener, 64), "listen");
    check(getsockname(listener, (struct sockaddr *)&address, &bytes), "getsockname");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    pthread_t thread;
    check(-pthread_create(&thread, NULL, serve, (void *)(long)listener), "pthread_create");
}

int main(int argc, char **argv) {
    if (getenv("ECHO_TIMEOUT_MS"))
        timeout_ms = atoi(getenv("ECHO_TIMEOUT_MS"));
    for (int threads = argc > 1 ? atoi(argv[1]) : 1; threads > 0; threads--)
        begin();
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "counts\n"))
            printf("%lu %lu %lu\n", reads, writes, waits);
        if (!strcmp(line, "close\n")) {
            for (int fd = 3; fd < 1024; fd++)
                if (!own_fds[fd])
                    close(fd);
            printf("closed\n");
        }
        if (!strcmp(line, "fork\n")) {
            pid_t child = fork();
            if (child == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                printf("%d\n", getpid());
                begin();
                pause();
            }
            continue;
        }
        fflush(stdout);
    }
    return 0;
}
