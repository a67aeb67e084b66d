/* Descriptors: duplicates, flags, options and queries of a served socket, poll and select, passing it to another
 * process, and running out of numbers. The rule: every process that can reach a socket gets all its bytes, and no query
 * shows that the library is loaded. */
#include "app.h"
#include <linux/filter.h>
#include <linux/ptrace.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/un.h>

/* Functions of programs that are built for large files, or with buffer checks. */
int fcntl64(int fd, int what, ...);
int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t capacity);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *signals,
                size_t bytes);

/* Makes the same exchange through any number of a socket, with bytes that the library may have buffered. */
static void exchange_through(int set, struct pair *pair, int other) {
    print_read(other, 3);
    MUST(write(pair->app, "one ", 4));
    MUST(write(other, "two ", 4));
    MUST(write(pair->app, "three", 5));
    peer_send(pair, " more");
    await_delivery(pair);
    print_now(set);
    peer_gets(pair, 13);
    print_read(pair->app, 4);
    print_read(other, 100);
    print_read(pair->app, 100);
}

static void a_duplicate_shares_the_stream(void) {
    for (int way = 0; way < 6; way++) {
        int set = new_set(), twin = -1, target = (int)MUST(dup(0));
        struct pair pair = joined(set, EPOLLIN);
        peer_send(&pair, "pending");
        await_delivery(&pair);
        print_next(set);
        MUST(write(pair.app, "zero ", 5));
        if (way == 0)
            twin = dup(pair.app);
        if (way == 1)
            twin = dup2(pair.app, target);
        if (way == 2)
            twin = dup3(pair.app, target, O_CLOEXEC);
        if (way == 3)
            twin = fcntl(pair.app, F_DUPFD, 50);
        if (way == 4)
            twin = fcntl(pair.app, F_DUPFD_CLOEXEC, 50);
        if (way == 5)
            twin = fcntl64(pair.app, F_DUPFD, 50);
        print("way %d: %s, close on exec %d\n", way, twin < 0 ? "failed" : "made", fcntl(twin, F_GETFD));
        peer_gets(&pair, 5);
        exchange_through(set, &pair, twin);
        MUST(close(pair.app));
        pair.app = twin;
        peer_send(&pair, "last");
        await_delivery(&pair);
        print_read(twin, 100);
        MUST(write(twin, "end", 3));
        MUST(close(twin));
        peer_gets(&pair, 10);
    }
}

/* Opens a connection that the program makes, and no set has had. */
static struct pair client(void) {
    int port, listener = listen_on(0, &port);
    struct sockaddr_in address = loopback(port);
    struct pair pair = {.app = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    MUST(connect(pair.app, (struct sockaddr *)&address, sizeof address));
    MUST(fcntl(pair.app, F_SETFL, O_RDWR | O_NONBLOCK));
    pair.peer = (int)MUST(syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC));
    MUST(close(listener));
    return pair;
}

static void a_duplicate_from_before_the_first_add_shares_the_stream(void) {
    for (int way = 0; way < 3; way++) {
        int set = new_set();
        struct pair pair = client();
        if (way)
            pair.app = passed_to_itself(pair.app);
        int twin = (int)MUST(way < 2 ? dup(pair.app) : dup2(pair.app, (int)MUST(dup(0))));
        add(set, pair.app, EPOLLIN, 1);
        print_now(set);
        peer_send(&pair, "pending");
        await_delivery(&pair);
        print_next(set);
        exchange_through(set, &pair, twin);
    }
    int set = new_set();
    struct pair served = joined(set, EPOLLIN);
    exchange(set, &served);
}

static void a_duplicate_of_an_inherited_connection_shares_the_stream(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        int twin = (int)MUST(dup(pair.app));
        for (int i = 0; i < 2; i++) {
            int own = new_set();
            add(own, i ? twin : pair.app, EPOLLIN, 1);
            print_now(own);
            peer_send(&pair, "pending");
            await_delivery(&pair);
            print_next(own);
            exchange_through(own, &pair, twin);
        }
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
}

static void duplication_errors_are_unchanged(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    GOT(dup3(0, pair.app, 12345));
    GOT(dup(-1));
    GOT(dup2(pair.app, -1));
    GOT(dup2(-1, pair.app));
    GOT(dup2(pair.app, pair.app) == pair.app);
    GOT(dup3(pair.app, pair.app, 0));
    GOT(dup3(pair.app, 100, 12345));
    GOT(fcntl(pair.app, F_DUPFD, -1));
    GOT(fcntl(pair.app, F_DUPFD, 1 << 30));
    GOT(fcntl(pair.app, 9999));
    peer_send(&pair, "x");
    print_next(set);
    print_read(pair.app, 10);
}

static void a_duplicate_over_a_member_closes_the_member(void) {
    int set = new_set();
    struct pair member = joined(set, EPOLLIN), other = connected();
    MUST(write(member.app, "bye", 3));
    peer_send(&other, "mine");
    GOT(dup2(other.app, member.app) == member.app);
    print_now(set);
    peer_gets(&member, 10);
    int taken = member.app;
    print_read(taken, 2);
    GOT(control(set, EPOLL_CTL_ADD, taken, EPOLLIN, 2));
    print_now(set);
    print_read(other.app, 10);
    print_now(set);
}

static void blocking_can_be_switched_on_and_off(void) {
    int set = new_set(), one = 1, zero = 0;
    struct pair pair = joined(set, EPOLLIN);
    print("flags: nonblocking %d\n", !!(fcntl(pair.app, F_GETFL) & O_NONBLOCK));
    peer_send(&pair, "0123456789");
    await_delivery(&pair);
    print_next(set);
    for (int i = 0; i < 2; i++) {
        if (i)
            GOT(ioctl(pair.app, FIONBIO, &zero));
        else
            GOT(fcntl(pair.app, F_SETFL, O_RDWR));
        print("flags: nonblocking %d\n", !!(fcntl(pair.app, F_GETFL) & O_NONBLOCK));
        print_read(pair.app, 3);
        print_now(set);
        MUST(write(pair.app, "result", 6));
        peer_gets(&pair, 6);
        if (i)
            GOT(ioctl(pair.app, FIONBIO, &one));
        else
            GOT(fcntl(pair.app, F_SETFL, O_RDWR | O_NONBLOCK));
        print("flags: nonblocking %d\n", !!(fcntl(pair.app, F_GETFL) & O_NONBLOCK));
        print_now(set);
        print_read(pair.app, 2);
    }
    GOT(fcntl(pair.app, F_SETFD, FD_CLOEXEC));
    GOT(fcntl(pair.app, F_GETFD));
    GOT(fcntl(pair.app, F_SETOWN, getpid()));
    GOT(fcntl(pair.app, F_GETOWN) == getpid());
}

static void queries_of_queue_lengths_succeed(void) {
    int set = new_set(), waiting = -1, unsent = -1;
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "12345");
    await_delivery(&pair);
    print_next(set);
    MUST(write(pair.app, "result", 6));
    GOT(ioctl(pair.app, SIOCINQ, &waiting));
    print("waiting: %d\n", waiting);
    print_now(set);
    peer_gets(&pair, 6);
    for (int i = 0; i < 500 && unsent != 0; i++, pause_ms(1))
        MUST(ioctl(pair.app, SIOCOUTQ, &unsent));
    print("unsent: %d\n", unsent);
    GOT(ioctl(pair.app, 0x12345678, &waiting));
    GOT(ioctl(pair.app, FIONREAD, NULL));
    GOT(ioctl(pair.app, FIONREAD, (int *)8));
    print_read(pair.app, 10);
}

static void bytes_that_are_not_acknowledged_are_counted(void) {
    int set = new_set(), unsent = -1;
    struct pair pair = joined(set, EPOLLIN);
    static char bytes[100000];
    long done = 0;
    while (done >= 0)
        done = write(pair.app, bytes, sizeof bytes);
    MUST(ioctl(pair.app, SIOCOUTQ, &unsent));
    print("unsent: %s\n", unsent > 0 ? "some" : "none");
    MUST(close(pair.app));
}

static void options_can_be_set_and_read(void) {
    int set = new_set(), one = 1, value = -1, size = 40000;
    socklen_t length = sizeof value;
    struct pair pair = joined(set, EPOLLIN);
    GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one));
    GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_KEEPIDLE, &size, sizeof size));
    GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof one));
    GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_KEEPCNT, &one, sizeof one));
    GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one));
    GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_USER_TIMEOUT, &size, sizeof size));
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_PRIORITY, &one, sizeof one));
    GOT(setsockopt(pair.app, SOL_SOCKET, 9999, &one, sizeof one));
    GOT(setsockopt(pair.app, 9999, 1, &one, sizeof one));
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_KEEPALIVE, NULL, sizeof one));
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_KEEPALIVE, &one, 1));
    static const int names[] = {SO_TYPE,      SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN,
                                SO_KEEPALIVE, SO_RCVBUF, SO_SNDBUF,   SO_ERROR};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        length = sizeof value;
        long result = getsockopt(pair.app, SOL_SOCKET, names[i], &value, &length);
        print("option %d: %ld, value %d, length %u\n", names[i], result, value, length);
    }
    GOT(getsockopt(pair.app, SOL_SOCKET, SO_ERROR, NULL, &length));
    GOT(getsockopt(pair.app, SOL_SOCKET, SO_ERROR, &value, NULL));
    length = 2;
    GOT(getsockopt(pair.app, SOL_SOCKET, SO_ERROR, &value, &length));
    print("length %u\n", length);
    peer_send(&pair, "still works");
    print_next(set);
    print_read(pair.app, 100);
    MUST(write(pair.app, "yes", 3));
    print_now(set);
    peer_gets(&pair, 3);
}

static void print_poll(int fd, short events, int timeout) {
    struct pollfd query = {fd, events, 0};
    char text[128];
    int count = poll(&query, 1, timeout);
    print("poll: %d %s\n", count, mask_text((uint32_t)query.revents, text));
}

static void a_served_socket_can_be_polled(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    print_poll(pair.app, POLLIN | POLLOUT, 0);
    print_poll(pair.app, POLLIN, 5);
    peer_send(&pair, "pending");
    await_delivery(&pair);
    print_next(set);
    print_poll(pair.app, POLLIN | POLLOUT | POLLRDHUP, 0);
    print_read(pair.app, 3);
    struct pollfd queries[3] = {{pair.app, POLLIN, 0}, {-1, POLLIN, 9}, {99999, POLLIN, 0}};
    GOT(ppoll(queries, 3, &(struct timespec){1, 0}, NULL));
    print("revents: %d %d %d\n", queries[0].revents, queries[1].revents, queries[2].revents);
    GOT(__poll_chk(queries, 1, 0, sizeof queries));
    GOT(__ppoll_chk(queries, 1, &(struct timespec){0, 0}, NULL, sizeof queries));
    print_read(pair.app, 100);
    print_poll(pair.app, POLLIN, 0);
    print_now(set);
    MUST(write(pair.app, "queued", 6));
    print_poll(pair.app, POLLIN, 0);
    peer_gets(&pair, 6);
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_poll(pair.app, POLLIN | POLLRDHUP, 1000);
    print_now(set);
}

static void waiting_in_poll_lets_writes_leave(void) {
    int set = new_set(), two[2];
    struct pair pair = joined(set, EPOLLIN);
    MUST(pipe(two));
    MUST(write(pair.app, "question", 8));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        char bytes[8];
        syscall(SYS_read, pair.peer, bytes, sizeof bytes);
        syscall(SYS_write, pair.peer, "result", 6);
        syscall(SYS_exit_group, 0);
    }
    print_poll(pair.app, POLLIN, 20000);
    print_read(pair.app, 100);
    MUST(waitpid(child, NULL, 0));
    print_now(set);
}

static void a_served_socket_can_be_selected(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    fd_set readable, writable;
    peer_send(&pair, "pending");
    await_delivery(&pair);
    print_next(set);
    for (int i = 0; i < 4; i++) {
        FD_ZERO(&readable);
        FD_ZERO(&writable);
        FD_SET(pair.app, &readable);
        FD_SET(pair.app, &writable);
        int count;
        if (i % 2)
            count = pselect(pair.app + 1, &readable, i < 2 ? &writable : NULL, NULL, &(struct timespec){0, 1000}, NULL);
        else
            count = select(pair.app + 1, &readable, i < 2 ? &writable : NULL, NULL, &(struct timeval){0, 1000});
        print("select: %d, readable %d, writable %d\n", count, !!FD_ISSET(pair.app, &readable),
            !!FD_ISSET(pair.app, &writable));
        if (i == 1)
            print_read(pair.app, 100);
    }
    print_now(set);
    peer_send(&pair, "more");
    print_next(set);
}

/* A program may use sets that are larger than fd_set. */
static void a_served_socket_with_a_high_number_can_be_selected(void) {
    enum { HIGH = 1100, BITS = 8 * sizeof(long) };
    struct rlimit most;
    MUST(getrlimit(RLIMIT_NOFILE, &most));
    most.rlim_cur = most.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &most));
    int port, listener = listen_on(0, &port), set = new_set();
    while (MUST(open("/dev/null", O_RDONLY | O_CLOEXEC)) < HIGH)
        continue;
    struct pair pair = pair_on(listener, port, SOCK_NONBLOCK | SOCK_CLOEXEC);
    add(set, pair.app, EPOLLIN, 1);
    poll_once(set);
    peer_send(&pair, "pending");
    await_delivery(&pair);
    print_next(set);
    unsigned long bits[2 * HIGH / BITS] = {0};
    unsigned long *word = &bits[(unsigned)pair.app / BITS], bit = 1ul << (unsigned)pair.app % BITS;
    *word = bit;
    print("select: %d\n", (select)(pair.app + 1, (fd_set *)bits, NULL, NULL, &(struct timeval){0, 1000}));
    print("readable: %d\n", *word == bit);
    print_read(pair.app, 100);
}

/* The library asks the kernel by poll, which takes no descriptor then. */
static void a_limit_of_no_descriptors_hides_no_writability(void) {
    int set = new_set();
    struct pair pair = connected_narrow();
    add(set, pair.app, EPOLLIN | EPOLLOUT, 1);
    poll_once(set);
    print_now(set);
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0}));
    print_now(set);
    GOT(dup2(0, pair.app));
    exchange(set, &pair);
}

static void poll_and_select_of_others_are_untouched(void) {
    int set = new_set(), two[2];
    struct pair pair = joined(set, EPOLLIN);
    MUST(pipe(two));
    print_poll(two[0], POLLIN, 0);
    MUST(write(two[1], "x", 1));
    print_poll(two[0], POLLIN, 0);
    print_poll(two[1], POLLIN | POLLOUT, 0);
    GOT(poll(NULL, 0, 1));
    GOT(poll((struct pollfd *)8, 1, 0));
    GOT(select(0, NULL, NULL, NULL, &(struct timeval){0, 1000}));
    GOT(select(-1, NULL, NULL, NULL, NULL));
    GOT(ppoll(NULL, 0, &(struct timespec){0, -1}, NULL));
    GOT(pselect(0, NULL, NULL, NULL, &(struct timespec){0, 1000}, NULL));
    struct pollfd query = {two[0], POLLIN, 0};
    GOT(__poll_chk(&query, 1, 0, sizeof query));
    GOT(__ppoll_chk(&query, 1, &(struct timespec){0, 0}, NULL, sizeof query));
    peer_send(&pair, "y");
    print_next(set);
    print_read(pair.app, 10);
}

static void send_number(int to, int fd) {
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } space = {0};
    struct iovec part = {"n", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    *control = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(control), &fd, sizeof fd);
    MUST(sendmsg(to, &message, 0));
}

static int receive_number(int from) {
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } space = {0};
    char byte;
    int fd = -1;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    MUST(recvmsg(from, &message, 0));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Passes a socket to a child, which reads from it and writes to it; `more` arrives while it is being passed. */
static void pass_on(struct pair *pair, const char *more) {
    int two[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        syscall(SYS_close, pair->app);
        pair->app = receive_number(two[1]);
        peer_send(pair, more);
        await_delivery(pair);
        print_stream(pair->app, 100);
        MUST(write(pair->app, "from the child", 14));
        _exit(0);
    }
    send_number(two[0], pair->app);
    MUST(waitpid(child, NULL, 0));
}

static void a_socket_passed_on_goes_on_in_both_processes(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "read here");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
    MUST(write(pair.app, "from the parent, ", 17));
    pass_on(&pair, "read there");
    peer_gets(&pair, 31);
    peer_send(&pair, "for the parent");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
    MUST(write(pair.app, "result", 6));
    print_now(set);
    peer_gets(&pair, 6);
}

static void a_socket_passed_on_brings_its_bytes(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "buffered");
    await_delivery(&pair);
    print_next(set);
    MUST(write(pair.app, "from the parent, ", 17));
    pass_on(&pair, "and late");
    peer_gets(&pair, 31);
    peer_send(&pair, "for the parent");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
}

static void a_client_passed_on_before_its_add_goes_on_in_both_processes(void) {
    int set = new_set();
    struct pair pair = client(), served = joined(set, EPOLLIN);
    pass_on(&pair, "read there");
    peer_gets(&pair, 14);
    int copy = passed_to_itself(pair.app);
    add(set, pair.app, EPOLLIN, 1);
    print_now(set);
    peer_send(&pair, "for all");
    await_delivery(&pair);
    print_next(set);
    print_read(copy, 100);
    print_now(set);
    exchange(set, &served);
}

/* As with sticky sessions in Node.js: the program reads a part and passes the connection on with the rest. */
static void connections_are_passed_on_whole_after_the_first_one(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    for (int i = 0; i < 4; i++) {
        struct pair pair = pair_on(listener, port, SOCK_NONBLOCK | SOCK_CLOEXEC);
        add(set, pair.app, EPOLLIN, 1);
        exchange(set, &pair);
        if (i > 0) {
            peer_send(&pair, "early ");
            await_delivery(&pair);
            print_next(set);
        }
        pass_on(&pair, "and late");
        peer_gets(&pair, 14);
        MUST(close(pair.app));
    }
}

/* A child reports the members of a set that it receives, as its parent does. */
static void a_set_that_is_passed_on_reports_its_members(void) {
    int set = new_set(), two[2];
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        MUST(close(set));
        int passed = receive_number(two[1]);
        peer_send(&pair, "request");
        await_delivery(&pair);
        print_next(passed);
        _exit(0);
    }
    send_number(two[0], set);
    MUST(waitpid(child, NULL, 0));
    print_next(set);
    print_read(pair.app, 100);
    exchange(set, &pair);
}

/* The kernel's list of a set's members. */
static void a_set_lists_its_members_in_proc(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    char path[64], text[1024] = "";
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
    int file = (int)MUST(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY));
    MUST(syscall(SYS_read, file, text, sizeof text - 1));
    MUST(syscall(SYS_close, file));
    print("members: %s\n", strstr(text, "tfd:") ? "some" : "none");
    exchange(set, &pair);
}

static void a_socket_that_was_passed_to_us_is_served(void) {
    int set = new_set(), two[2];
    struct pair pair = connected();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
    send_number(two[0], pair.app);
    MUST(close(pair.app));
    pair.app = receive_number(two[1]);
    add(set, pair.app, EPOLLIN, 1);
    for (int i = 0; i < 3; i++) {
        peer_send(&pair, "hello");
        await_delivery(&pair);
        print_next(set);
        print_read(pair.app, 100);
        MUST(write(pair.app, "world", 5));
        print_now(set);
        peer_gets(&pair, 5);
    }
}

static void running_out_of_numbers_is_reported_and_survived(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port), used[64], count = 0;
    struct pair pair = joined(set, EPOLLIN);
    add(set, listener, EPOLLIN, 2);
    /* After the limit falls, no connection could be opened, so they are opened before. */
    int first = peer_connect(port), second = peer_connect(port);
    print_next(set);
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){40, 40}));
    while (count < 64 && (used[count] = dup(0)) >= 0)
        count++;
    print("full: %s\n", strerrorname_np(errno));
    GOT(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    GOT(socket(AF_INET, SOCK_STREAM, 0));
    GOT(epoll_create1(0));
    GOT(dup(pair.app));
    print_next(set);
    peer_send(&pair, "works");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
    MUST(write(pair.app, "still", 5));
    print_now(set);
    peer_gets(&pair, 5);
    MUST(close(used[count - 1]));
    int accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    print("accepted: %s\n", accepted >= 0 ? "yes" : strerrorname_np(errno));
    GOT(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    struct pair late = {.app = accepted, .peer = first};
    add(set, late.app, EPOLLIN, 3);
    peer_send(&late, "too");
    await_delivery(&late);
    print_next(set);
    print_read(late.app, 100);
    MUST(write(late.app, "yes", 3));
    poll_once(set);
    peer_gets(&late, 3);
    MUST(syscall(SYS_close, second));
}

static void a_low_limit_from_the_start_is_enough(void) {
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){12, 12}));
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "hello");
    print_next(set);
    print_read(pair.app, 100);
    MUST(write(pair.app, "bye", 3));
    print_now(set);
    peer_gets(&pair, 3);
    int count = 0;
    while (dup(0) >= 0)
        count++;
    print("numbers left: %d\n", count);
}

/* Serves clients until no number is left. All of them were opened before, by calls that no hook sees. */
static void every_number_below_the_limit_is_the_programs(void) {
    enum { CLIENTS = 8 };
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port), peers[CLIENTS + 1];
    for (int i = 0; i <= CLIENTS; i++)
        peers[i] = peer_connect(port);
    rlim_t limit = (rlim_t)peers[CLIENTS] + 1 + CLIENTS;
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit}));
    add(set, listener, EPOLLIN, 0);
    for (int i = 0; i < CLIENTS; i++) {
        print_next(set);
        struct pair pair = {.app = accept4(listener, NULL, NULL, SOCK_NONBLOCK), .peer = peers[i]};
        print("client %d: %s\n", i, pair.app < 0 ? strerrorname_np(errno) : "accepted");
        mod(set, listener, 0, 0);
        add(set, pair.app, EPOLLIN, 1);
        exchange(set, &pair);
        mod(set, listener, EPOLLIN, 0);
    }
    print_now(set);
    GOT(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    GOT(socket(AF_INET, SOCK_STREAM, 0));
    GOT(dup(0));
    GOT(fcntl(0, F_DUPFD, 0));
    GOT(epoll_create1(0));
    GOT(open("/dev/null", O_RDONLY));
}

/* Opens the last files by a call that no hook sees. */
static void files_get_the_last_numbers_of_a_busy_server(void) {
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1000, 1000}));
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port), count = 0;
    struct pair pair = joined(set, EPOLLIN), other = {.peer = peer_connect(port)};
    exchange(set, &pair);
    while (dup(0) < 980)
        count++;
    exchange(set, &pair);
    other.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    add(set, other.app, EPOLLIN, 2);
    exchange(set, &other);
    while (dup(0) < 994)
        count++;
    while (open("/dev/null", O_RDONLY) >= 0)
        count++;
    print("files: %d\n", count);
    exchange(set, &pair);
    /* For the log. */
    MUST(close(990));
}

static void many_sets_leave_numbers_to_the_program(void) {
    enum { SETS = 250 };
    static int sets[SETS];
    static struct pair pairs[SETS];
    int right = 0;
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, 1024}));
    for (int i = 0; i < SETS; i++) {
        pairs[i] = connected();
        sets[i] = new_set();
        add(sets[i], pairs[i].app, EPOLLIN, 1);
    }
    for (int i = 0; i < SETS; i++) {
        struct epoll_event event;
        char byte;
        MUST(syscall(SYS_write, pairs[i].peer, "q", 1));
        right += epoll_wait(sets[i], &event, 1, 10000) == 1 && read(pairs[i].app, &byte, 1) == 1;
    }
    int count = 0;
    while (count < 100 && open("/dev/null", O_RDONLY) >= 0)
        count++;
    print("right: %d, opened: %d\n", right, count);
}

/* Output that the peer reads late is sent by another thread, which needs descriptors. */
static void numbers_for_deferred_output_are_free_afterwards(void) {
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){100, 100}));
    int set = new_set(), count = 0;
    struct pair pair = connected_narrow();
    add(set, pair.app, EPOLLIN, 1);
    poll_once(set);
    unsigned char bytes[3000];
    uint64_t sent = 0;
    for (long done = 1; done > 0; sent += done > 0 ? (uint64_t)done : 0) {
        fill(bytes, sizeof bytes, sent);
        done = write(pair.app, bytes, sizeof bytes);
    }
    poll_once(set);
    shutdown(pair.app, SHUT_WR);
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    pthread_join(reader.thread, NULL);
    print("whole: %d\n", reader.count == sent && reader.wrong_at < 0);
    while (dup(0) >= 0)
        count++;
    print("numbers left: %d\n", count);
}

static void a_limit_that_is_raised_is_no_obstacle(void) {
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){40, 1000}));
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1000, 1000}));
    while (dup(0) < 100)
        continue;
    exchange(set, &pair);
}

/* The library has a log, too. The program frees a number at its end, for lines of the library. */
static void a_low_limit_at_the_start_is_enough(void) {
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){12, 12}));
    execl("/proc/self/exe", "descriptors", "limited", (char *)NULL);
}

/* A filter from before the start refuses the calls by which many numbers are taken and given back at once. */
static void a_filter_of_calls_for_many_numbers_leaves_all_numbers_to_the_program(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){100, 100}));
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    execl("/proc/self/exe", "descriptors", "limited", (char *)NULL);
}

static void limited_program(void) {
    int set = new_set(), count = 0, last = -1, fd;
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    while ((fd = dup(0)) >= 0)
        last = fd, count++;
    print("numbers left: %d\n", count);
    exchange(set, &pair);
    MUST(close(last));
}

static void a_program_gets_the_same_numbers(void) {
    int first = (int)MUST(dup(0)), set = new_set(), port, listener = listen_on(0, &port);
    struct pair pair = pair_on(listener, port, SOCK_NONBLOCK), other = pair_on(listener, port, SOCK_NONBLOCK);
    add(set, pair.app, EPOLLIN, 1);
    add(set, other.app, EPOLLIN, 2);
    peer_send(&pair, "x");
    print_next(set);
    int last = (int)MUST(dup(0)), second_set = new_set();
    print("numbers from the first: %d %d %d %d %d %d\n", set - first, listener - first, pair.app - first,
        other.app - first, last - first, second_set - first);
}

/* A system call that bypasses the hooks. */
static long raw(long number, long a, long b, long c) {
    return kernel_call(number, a, b, c, 0, 0, 0);
}

static void serve_some(int set, struct pair *pair) {
    peer_send(pair, "get");
    await_delivery(pair);
    print_next(set);
    print_read(pair->app, 100);
    MUST(write(pair->app, "result", 6));
    print_now(set);
    peer_gets(pair, 6);
}

/* Counts the system calls of a child between two stops: those in which the connection is added, and a ring made. */
static void a_ring_is_made_with_few_calls(void) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        int set = new_set();
        struct pair pair = connected();
        MUST(syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0));
        MUST(syscall(SYS_kill, getpid(), SIGSTOP));
        add(set, pair.app, EPOLLIN, 1);
        MUST(syscall(SYS_kill, getpid(), SIGSTOP));
        exchange(set, &pair);
        exit(0);
    }
    int status, stops = 0;
    MUST(waitpid(child, &status, 0));
    do {
        MUST(syscall(SYS_ptrace, PTRACE_SYSCALL, child, 0, 0));
        MUST(waitpid(child, &status, 0));
        stops += WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
    } while (WIFSTOPPED(status) && WSTOPSIG(status) != SIGSTOP);
    /* A call stops the child twice. */
    int calls = stops / 2;
    print("calls: %d\n", calls < 100 ? 0 : calls);
    MUST(syscall(SYS_ptrace, PTRACE_DETACH, child, 0, 0));
    MUST(waitpid(child, &status, 0));
}

static void any_low_number_can_be_chosen(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    serve_some(set, &pair);
    int chosen = 0;
    for (int fd = 3; fd < 500; fd++)
        if (fd != set && fd != pair.app && fd != pair.peer)
            chosen += dup2(0, fd) == fd;
    print("chosen: %d\n", chosen);
    serve_some(set, &pair);
}

/* The numbers that a case uses: not those of its own files, nor the number of a log. */
#define NUMBERS(fd, set, pair) \
    (int fd = 3; fd < 700; fd++) \
        if (fd != (set) && fd != (pair).app && fd != (pair).peer && fd != 512)

/* Raw calls close the files with these numbers. */
static void a_file_that_took_any_number_is_the_programs(void) {
    for (int way = 0; way < 3; way++) {
        int set = new_set(), open = 0;
        struct pair pair = joined(set, EPOLLIN);
        serve_some(set, &pair);
        for NUMBERS(fd, set, pair)
            raw(SYS_close, fd, 0, 0);
        for NUMBERS(fd, set, pair)
            raw(SYS_dup3, 0, fd, O_CLOEXEC);
        if (way == 1) {
            pid_t child = (pid_t)MUST(fork());
            for NUMBERS(fd, set, pair)
                open += raw(SYS_fcntl, fd, F_GETFD, 0) >= 0;
            if (child == 0) {
                print("open in the child: %d\n", open);
                _exit(0);
            }
            waitpid(child, NULL, 0);
        }
        if (way < 2) {
            peer_send(&pair, "more");
            await_delivery(&pair);
            print_next(set);
            print_read(pair.app, 100);
            MUST(write(pair.app, "still", 5));
            print_now(set);
            peer_gets(&pair, 5);
        }
        MUST(close(pair.app));
        MUST(close(set));
        open = 0;
        for NUMBERS(fd, set, pair)
            open += raw(SYS_fcntl, fd, F_GETFD, 0) >= 0;
        print("open: %d\n", open);
        for NUMBERS(fd, set, pair)
            raw(SYS_close, fd, 0, 0);
        peer_close(&pair);
    }
}

/* The connection is handed back, with bytes, before it is duplicated. */
static void a_duplicate_of_a_handed_back_connection_shares_its_end(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "received");
    await_delivery(&pair);
    print_next(set);
    GOT(fcntl(pair.app, F_SETFL, O_RDWR));
    int twin = (int)MUST(dup(pair.app));
    MUST(close(pair.app));
    print_now(set);
    print_read(twin, 100);
    MUST(write(twin, "all", 3));
    MUST(close(twin));
    peer_gets(&pair, 3);
    peer_gets_the_end(&pair);
}

/* The ring has received the error, which the kernel returns only once. */
static void the_error_of_a_reset_is_returned_by_any_number(void) {
    for (int i = 0; i < 4; i++) {
        int set = new_set(), second = new_set();
        struct pair pair = joined(set, EPOLLIN);
        peer_reset(&pair);
        await_state(pair.app, STATE_CLOSED);
        print_next(set);
        int twin = (int)MUST(dup(pair.app));
        add(second, i & 1 ? twin : pair.app, EPOLLIN, 2);
        print_now(second);
        if (i & 2) {
            MUST(close(pair.app));
            pair.app = (int)MUST(dup(twin));
        }
        print_now(set);
        print_now(second);
        if (i == 3)
            print_error_option(twin);
        print_read(twin, 9);
        print_now(set);
        print_now(second);
        print_read(pair.app, 9);
    }
}

/* Writes to a peer that does not read, until no more fits. */
static uint64_t write_all_that_fits(int fd) {
    unsigned char bytes[3000];
    uint64_t sent = 0;
    for (long result = 1; result > 0; sent += result > 0 ? (uint64_t)result : 0) {
        fill(bytes, sizeof bytes, sent);
        result = write(fd, bytes, sizeof bytes);
    }
    return sent;
}

/* One number is closed, shut down, or left open while the other writes. */
static void a_duplicate_overtakes_no_deferred_output(void) {
    for (int way = 0; way < 6; way++) {
        int set = new_set();
        unsigned char bytes[3000];
        struct pair pair = connected_narrow();
        struct reader reader;
        add(set, pair.app, EPOLLIN, 1);
        print_now(set);
        uint64_t sent = write_all_that_fits(pair.app);
        int twin = (int)MUST(dup(pair.app));
        if (way == 1)
            MUST(close(pair.app));
        if (way == 2)
            MUST(close(twin));
        if (way == 3)
            GOT(shutdown(pair.app, SHUT_WR));
        if (way == 4)
            GOT(shutdown(twin, SHUT_WR));
        int fd = way == 2 || way == 5 ? pair.app : twin;
        if (way == 5)
            MUST(fcntl(fd, F_SETFL, 0));
        reader_start(&reader, pair.peer, 50);
        for (int i = 0; i < 100; i++) {
            fill(bytes, sizeof bytes, sent);
            long result = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
            sent += result > 0 ? (uint64_t)result : 0;
            if (result < 0 && errno != EAGAIN) {
                GOT(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL));
                break;
            }
            if (result < 0)
                pause_ms(1);
        }
        MUST(way == 1 ? 0 : close(pair.app));
        MUST(way == 2 ? 0 : close(twin));
        pthread_join(reader.thread, NULL);
        print("wrong at %ld, whole: %d, %s\n", reader.wrong_at, reader.count == sent,
            reader.error ? strerrorname_np(reader.error) : "ended");
    }
}

static const struct app_case cases[] = {
    CASE(a_duplicate_shares_the_stream, "back:duplicated"),
    CASE(a_duplicate_of_a_handed_back_connection_shares_its_end, "back:blocking"),
    CASE(the_error_of_a_reset_is_returned_by_any_number, "back:duplicated"),
    CASE(a_duplicate_overtakes_no_deferred_output, "back:duplicated served:write"),
    CASE(a_duplicate_from_before_the_first_add_shares_the_stream, "passed:duplicated"),
    CASE(a_duplicate_of_an_inherited_connection_shares_the_stream, ""),
    CASE(duplication_errors_are_unchanged, ""),
    CASE(a_duplicate_over_a_member_closes_the_member, ""),
    CASE(blocking_can_be_switched_on_and_off, "back:blocking"),
    CASE(queries_of_queue_lengths_succeed, "served:read"),
    CASE(bytes_that_are_not_acknowledged_are_counted, ""),
    CASE(options_can_be_set_and_read, ""),
    CASE(a_served_socket_can_be_polled, "back:polled_otherwise"),
    CASE(waiting_in_poll_lets_writes_leave, "back:polled_otherwise"),
    CASE(a_served_socket_can_be_selected, "back:polled_otherwise"),
    CASE(a_served_socket_with_a_high_number_can_be_selected, "back:polled_otherwise"),
    CASE(a_limit_of_no_descriptors_hides_no_writability, "served:read"),
    CASE(poll_and_select_of_others_are_untouched, "served:read"),
    CASE(a_socket_passed_on_goes_on_in_both_processes, "back:passed_on"),
    CASE(a_client_passed_on_before_its_add_goes_on_in_both_processes, "passed:passed_on"),
    CASE(a_socket_passed_on_brings_its_bytes, "back:passed_on"),
    CASE(connections_are_passed_on_whole_after_the_first_one, "served:read back:passed_on passed:passed_on"),
    CASE(a_set_that_is_passed_on_reports_its_members, "served:read passed:passed_on"),
    CASE(a_set_lists_its_members_in_proc, "served:read"),
    CASE(a_socket_that_was_passed_to_us_is_served, ""),
    CASE(running_out_of_numbers_is_reported_and_survived, ""),
    CASE(a_low_limit_from_the_start_is_enough, "served:read back:descriptors"),
    CASE(a_low_limit_at_the_start_is_enough, "served:read back:descriptors"),
    CASE(a_filter_of_calls_for_many_numbers_leaves_all_numbers_to_the_program, "served:read back:descriptors"),
    CASE(every_number_below_the_limit_is_the_programs, "served:read back:descriptors"),
    CASE(files_get_the_last_numbers_of_a_busy_server, "served:read back:descriptors"),
    CASE(many_sets_leave_numbers_to_the_program, "served:read passed:descriptors back:descriptors<=0"),
    CASE(numbers_for_deferred_output_are_free_afterwards, "served:write back:descriptors"),
    CASE(a_limit_that_is_raised_is_no_obstacle, "served:read back:descriptors<=0"),
    CASE(a_program_gets_the_same_numbers, "served:epoll_wait"),
    CASE(a_ring_is_made_with_few_calls, "served:read"),
    CASE(any_low_number_can_be_chosen, "served:epoll_wait"),
    CASE(a_file_that_took_any_number_is_the_programs, "served:epoll_wait"),
};

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "limited")) {
        limited_program();
        return 0;
    }
    return RUN(cases);
}
