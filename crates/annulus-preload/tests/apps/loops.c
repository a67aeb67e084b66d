/* Connections of an event loop: listeners and the result of accept, slow connects, IPv6, listeners that several
 * processes share; and whole servers with many clients. The rule: a connection belongs to the process that accepts it,
 * and to no process before that. */
#include "app.h"

static void accept_returns_the_peers_address(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port);
    add(set, listener, EPOLLIN, 1);
    print_now(set);
    GOT(accept(listener, NULL, NULL));
    for (int way = 0; way < 5; way++) {
        struct pair pair = {.peer = peer_connect(port)};
        struct sockaddr_in own, from = {0};
        socklen_t own_length = sizeof own, length = way == 3 ? 4 : sizeof from;
        MUST(syscall(SYS_getsockname, pair.peer, &own, &own_length));
        print_next(set);
        if (way == 0)
            pair.app = accept(listener, (struct sockaddr *)&from, &length);
        else if (way == 4)
            pair.app = accept4(listener, NULL, &length, SOCK_CLOEXEC);
        else
            pair.app = accept4(listener, (struct sockaddr *)&from, &length, way == 1 ? SOCK_NONBLOCK : SOCK_CLOEXEC);
        print("length %u, family %d, the peer's port: %s\n", length, from.sin_family,
            from.sin_port == own.sin_port ? "yes" : "no");
        print("nonblocking %d, close on exec %d\n", !!(fcntl(pair.app, F_GETFL) & O_NONBLOCK),
              fcntl(pair.app, F_GETFD));
        print_now(set);
        peer_send(&pair, "hello");
        await_delivery(&pair);
        print_read(pair.app, 10);
        MUST(close(pair.app));
        peer_close(&pair);
    }
}

static void accept_errors_are_unchanged(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port);
    struct pair pair = pair_on(listener, port, SOCK_NONBLOCK);
    add(set, listener, EPOLLIN, 1);
    add(set, pair.app, EPOLLIN, 2);
    print_now(set);
    GOT(accept(pair.app, NULL, NULL));
    GOT(accept(0, NULL, NULL));
    GOT(accept(set, NULL, NULL));
    GOT(accept4(listener, NULL, NULL, 1));
    struct sockaddr_in from;
    socklen_t negative = (socklen_t)-1;
    int first = peer_connect(port);
    print_next(set);
    GOT(accept(listener, (struct sockaddr *)&from, &negative));
    print_now(set);
    int second = peer_connect(port);
    print_next(set);
    GOT(accept(listener, (struct sockaddr *)8, &(socklen_t){sizeof from}));
    MUST(syscall(SYS_close, first));
    MUST(syscall(SYS_close, second));
    print_now(set);
}

static void a_peer_that_is_gone_is_accepted_with_its_address(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port);
    add(set, listener, EPOLLIN, 1);
    for (int i = 0; i < 2; i++) {
        struct pair pair = {.peer = peer_connect(port)};
        struct sockaddr_in own, from = {0};
        socklen_t length = sizeof own;
        MUST(syscall(SYS_getsockname, pair.peer, &own, &length));
        if (i == 0) {
            peer_send(&pair, "goodbye");
            peer_close(&pair);
        } else {
            peer_reset(&pair);
        }
        print_next(set);
        pair.app = accept4(listener, (struct sockaddr *)&from, &length, SOCK_NONBLOCK);
        print("accepted: %s, the peer's port: %s\n", pair.app >= 0 ? "yes" : "no",
            from.sin_port == own.sin_port ? "yes" : "no");
        await_state(pair.app, i == 0 ? STATE_CLOSE_WAIT : STATE_CLOSED);
        add(set, pair.app, EPOLLIN | EPOLLRDHUP, 2);
        print_now(set);
        print_read(pair.app, 100);
        print_read(pair.app, 100);
        MUST(close(pair.app));
    }
}

static void bytes_that_came_before_the_set_are_reported(void) {
    int set = new_set();
    struct pair pair = connected(), ended = connected();
    peer_send(&pair, "early bird");
    await_delivery(&pair);
    print_read(pair.app, 6);
    add(set, pair.app, EPOLLIN | EPOLLET, 1);
    print_now(set);
    print_now(set);
    print_read(pair.app, 100);
    MUST(write(ended.app, "direct, ", 8));
    peer_send(&ended, "all");
    peer_shutdown(&ended);
    await_delivery(&ended);
    add(set, ended.app, EPOLLIN | EPOLLRDHUP | EPOLLET, 2);
    MUST(write(ended.app, "then queued", 11));
    print_now(set);
    peer_gets(&ended, 19);
    print_read(ended.app, 100);
    print_read(ended.app, 100);
}

static int connect_to(int port) {
    struct sockaddr_in address = loopback(port);
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    got("connect", connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

static int raw_accept(int listener) { return (int)MUST(syscall(SYS_accept, listener, NULL, NULL)); }

/* Clients in servers: a proxy's upstream, a replica's master. */
static void a_connect_that_takes_its_time_becomes_writable(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    for (int edge = 0; edge < 2; edge++) {
        struct pair pair = {.app = connect_to(port)};
        add(set, pair.app, EPOLLIN | EPOLLOUT | EPOLLRDHUP | (edge ? EPOLLET : 0), 1);
        print_next(set);
        print_error_option(pair.app);
        GOT(connect(pair.app, (struct sockaddr *)&(struct sockaddr_in){.sin_family = AF_INET}, 16));
        pair.peer = raw_accept(listener);
        mod(set, pair.app, EPOLLIN, 1);
        for (int i = 0; i < 3; i++) {
            MUST(write(pair.app, "request", 7));
            print_now(set);
            peer_gets(&pair, 7);
            peer_send(&pair, "result");
            await_delivery(&pair);
            print_next(set);
            print_read(pair.app, 100);
        }
        MUST(close(pair.app));
        poll_once(set);
        peer_gets(&pair, 1);
    }
}

static void a_connect_that_fails_is_an_error(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    MUST(close(listener));
    int fd = connect_to(port);
    add(set, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1);
    print_next(set);
    print_error_option(fd);
    print_error_option(fd);
    print_next(set);
    GOT(send(fd, "x", 1, MSG_NOSIGNAL));
    print_read(fd, 1);
}

static void a_socket_that_never_connected_hangs_up(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    add(set, fd, EPOLLIN | EPOLLOUT, 1);
    print_now(set);
    struct sockaddr_in address = loopback(port);
    got("connect", connect(fd, (struct sockaddr *)&address, sizeof address));
    struct pair pair = {.app = fd, .peer = raw_accept(listener)};
    print_next(set);
    MUST(write(fd, "hello", 5));
    poll_once(set);
    peer_gets(&pair, 5);
    peer_send(&pair, "hello");
    await_delivery(&pair);
    print_next(set);
    print_read(fd, 10);
}

static void a_client_that_connected_first_is_served(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct sockaddr_in address = loopback(port);
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(connect(fd, (struct sockaddr *)&address, sizeof address));
    MUST(fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK));
    struct pair pair = {.app = fd, .peer = raw_accept(listener)};
    add(set, fd, EPOLLIN, 1);
    for (int i = 0; i < 3; i++) {
        MUST(write(fd, "request", 7));
        print_now(set);
        peer_gets(&pair, 7);
        peer_send(&pair, "result");
        await_delivery(&pair);
        print_next(set);
        print_read(fd, 100);
    }
}

static void a_listener_that_is_shut_down_hangs_up(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port);
    struct pair pair = joined(set, EPOLLIN);
    add(set, listener, EPOLLIN, 2);
    exchange(set, &pair);
    GOT(shutdown(listener, SHUT_RDWR));
    print_now(set);
    print_now(set);
    GOT(accept(listener, NULL, NULL));
    mod(set, listener, 0, 3);
    print_now(set);
    MUST(close(listener));
    exchange(set, &pair);
}

static void ipv6_is_served_alike(void) {
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT}, from = {0};
    socklen_t length = sizeof address;
    int set = new_set(), listener = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0) {
        print("no IPv6 here\n");
        return;
    }
    MUST(listen(listener, 8));
    MUST(getsockname(listener, (struct sockaddr *)&address, &length));
    struct pair pair = {.peer = (int)MUST(syscall(SYS_socket, AF_INET6, SOCK_STREAM, 0))};
    MUST(syscall(SYS_connect, pair.peer, &address, sizeof address));
    add(set, listener, EPOLLIN, 1);
    print_next(set);
    pair.app = (int)MUST(accept4(listener, (struct sockaddr *)&from, &length, SOCK_NONBLOCK));
    print("length %u, family %d\n", length, from.sin6_family);
    add(set, pair.app, EPOLLIN, 2);
    for (int i = 0; i < 3; i++) {
        peer_send(&pair, "hello");
        await_delivery(&pair);
        print_next(set);
        print_read(pair.app, 10);
        MUST(write(pair.app, "world", 5));
        print_now(set);
        peer_gets(&pair, 5);
    }
}

/* A process whose set holds a listener takes no connection that it does not accept. */
static void a_connection_goes_to_the_process_that_accepts(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port), two[2];
    add(set, listener, EPOLLIN | EPOLLEXCLUSIVE, 1);
    print_now(set);
    MUST(pipe(two));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        struct pollfd query = {listener, POLLIN, 0};
        for (int i = 0; i < 3; i++) {
            MUST(poll(&query, 1, 20000));
            int fd = (int)MUST(accept4(listener, NULL, NULL, 0));
            MUST(write(fd, "from the child", 14));
            MUST(close(fd));
        }
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        struct pair pair = {.peer = peer_connect(port)};
        peer_gets(&pair, 100);
        peer_close(&pair);
    }
    MUST(waitpid(child, NULL, 0));
    print_now(set);
    struct pair pair = {.peer = peer_connect(port)};
    print_next(set);
    pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    MUST(write(pair.app, "from the parent", 15));
    MUST(close(pair.app));
    peer_gets(&pair, 100);
}

static void closing_a_listener_refuses_waiting_connections(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port);
    add(set, listener, EPOLLIN, 1);
    struct pair pair = {.peer = peer_connect(port)};
    print_next(set);
    MUST(close(listener));
    peer_gets_the_end(&pair);
    print_now(set);
}

enum { CLIENTS = 60, ROUNDS = 30 };

/* The clients of the servers below, in a separate process, by direct calls; each checks all its responses. */
static pid_t clients(int port, size_t most, size_t pipelined) {
    pid_t child = (pid_t)MUST(fork());
    if (child)
        return child;
    static unsigned char bytes[200000], back[200000];
    int fds[CLIENTS];
    uint64_t random = 4711, places[CLIENTS] = {0};
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = peer_connect(port);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < CLIENTS; i++) {
            size_t length = next_random(&random) % most + 1, got = 0;
            fill(bytes, length, places[i]);
            for (size_t k = 0, part = length / pipelined + 1; k < length; k += part)
                MUST(syscall(SYS_write, fds[i], bytes + k, length - k < part ? length - k : part));
            while (got < length) {
                long done = syscall(SYS_read, fds[i], back + got, length - got);
                if (done <= 0)
                    syscall(SYS_exit_group, 1);
                got += (size_t)done;
            }
            if (memcmp(bytes, back, length))
                syscall(SYS_exit_group, 2);
            places[i] += length;
        }
    for (int i = 0; i < CLIENTS; i++)
        syscall(SYS_close, fds[i]);
    syscall(SYS_exit_group, 0);
    return 0;
}

struct client {
    size_t length, sent;
    unsigned char bytes[65536];
};

/* Reads everything, unless a response is pending, and writes as much as possible. Edge-triggered sets require this, and
 * it is correct for level-triggered ones too. */
static bool echo(int fd, struct client *client) {
    for (;;) {
        while (client->sent < client->length) {
            long done = write(fd, client->bytes + client->sent, client->length - client->sent);
            if (done < 0)
                return errno == EAGAIN;
            client->sent += (size_t)done;
        }
        long done = read(fd, client->bytes, sizeof client->bytes);
        if (done < 0)
            return errno == EAGAIN;
        if (done == 0)
            return false;
        client->length = (size_t)done;
        client->sent = 0;
    }
}

static void serve_clients(uint32_t mask, size_t most, size_t pipelined) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port), open = 0, accepted = 0, status;
    static struct client all[1024];
    add(set, listener, EPOLLIN, 0);
    pid_t child = clients(port, most, pipelined);
    while (accepted < CLIENTS || open > 0) {
        struct epoll_event events[16];
        int count = epoll_wait(set, events, 16, 20000);
        if (count <= 0) {
            got("epoll_wait", count);
            break;
        }
        for (int i = 0; i < count; i++) {
            int fd = (int)events[i].data.u64;
            if (fd == 0) {
                int fresh = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
                all[fresh] = (struct client){0};
                add(set, fresh, mask, (uint64_t)fresh);
                accepted++;
                open++;
            } else if (!echo(fd, &all[fd])) {
                MUST(close(fd));
                open--;
            } else if (!(mask & EPOLLET) && all[fd].sent == all[fd].length) {
                mod(set, fd, EPOLLIN, (uint64_t)fd);
            } else if (mask & EPOLLONESHOT || !(mask & EPOLLET)) {
                mod(set, fd, mask | EPOLLOUT, (uint64_t)fd);
            }
        }
    }
    MUST(waitpid(child, &status, 0));
    print("accepted %d, open %d, the clients' verdict %d\n", accepted, open, WEXITSTATUS(status));
}

static void a_level_server_serves_all_its_clients(void) { serve_clients(EPOLLIN, 300, 1); }
static void an_edge_server_serves_all_its_clients(void) {
    serve_clients(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 300, 1);
}
static void a_oneshot_server_serves_all_its_clients(void) { serve_clients(EPOLLIN | EPOLLONESHOT, 300, 1); }
static void a_server_of_pipelined_clients_serves_all(void) { serve_clients(EPOLLIN, 4000, 16); }
static void a_server_of_large_messages_serves_all(void) {
    serve_clients(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 60000, 2);
}

static const struct app_case cases[] = {
    CASE(accept_returns_the_peers_address, "passes"),
    CASE(accept_errors_are_unchanged, ""),
    CASE(a_peer_that_is_gone_is_accepted_with_its_address, ""),
    CASE(bytes_that_came_before_the_set_are_reported, "served:read"),
    CASE(a_connect_that_takes_its_time_becomes_writable, ""),
    CASE(a_connect_that_fails_is_an_error, "passed:not_connected"),
    CASE(a_socket_that_never_connected_hangs_up, "passed:not_connected"),
    CASE(a_client_that_connected_first_is_served, "served:read served:write"),
    CASE(a_listener_that_is_shut_down_hangs_up, "served:read"),
    CASE(ipv6_is_served_alike, "served:read"),
    CASE(a_connection_goes_to_the_process_that_accepts, "passes"),
    CASE(closing_a_listener_refuses_waiting_connections, "passes"),
    CASE(a_level_server_serves_all_its_clients, "served:read served:write"),
    CASE(an_edge_server_serves_all_its_clients, "served:read served:write"),
    CASE(a_oneshot_server_serves_all_its_clients, "served:read served:write"),
    CASE(a_server_of_pipelined_clients_serves_all, "served:read served:write"),
    CASE(a_server_of_large_messages_serves_all, "served:read served:write"),
};

int main(int argc, char **argv) { return RUN(cases); }
