/*
 * A minimal epoll echo server with one thread, for bench/instructions: prints its port, serves one connection, and ends
 * when the peer closes it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int check(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = check(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket");
    check(bind(listener, (struct sockaddr *)&address, size), "bind");
    check(listen(listener, 1), "listen");
    check(getsockname(listener, (struct sockaddr *)&address, &size), "getsockname");
    int set = check(epoll_create1(0), "epoll_create1");
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        struct epoll_event ready;
        if (check(epoll_wait(set, &ready, 1, -1), "epoll_wait") == 0)
            continue;
        if (ready.data.fd == listener) {
            event.data.fd = check(accept4(listener, NULL, NULL, SOCK_NONBLOCK), "accept4");
            check(epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event), "epoll_ctl");
            continue;
        }
        char bytes[4096];
        ssize_t count = read(ready.data.fd, bytes, sizeof bytes);
        if (count < 0 && errno == EAGAIN)
            continue;
        if (check(count, "read") == 0)
            return 0;
        if (write(ready.data.fd, bytes, count) != count)
            check(-1, "write");
    }
}
