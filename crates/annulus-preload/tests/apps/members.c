/* Members of a set, and the calls on a set: errors of every call, members that are not TCP streams next to one that is,
 * sets within sets, one socket in several sets, duplicates of sockets and sets. The rule: a set with any members is
 * served as far as possible, and reports the others as the kernel does. */
#include "app.h"
#include <malloc.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <dirent.h>

static struct pair added(int set, uint32_t mask) {
    struct pair pair = connected();
    add(set, pair.app, mask, 1);
    return pair;
}

static void control_errors_are_unchanged(void) {
    int set = new_set(), file = (int)MUST(open("/proc/self/status", O_RDONLY)), folder = (int)MUST(open("/", O_RDONLY));
    struct pair pair = added(set, EPOLLIN);
    int closed = (int)MUST(dup(0));
    MUST(close(closed));
    GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_MOD, file, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_DEL, folder, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_ADD, file, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_ADD, folder, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_ADD, closed, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_ADD, -1, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_ADD, 1 << 24, EPOLLIN, 1));
    GOT(control(closed, EPOLL_CTL_ADD, pair.app, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_ADD, set, EPOLLIN, 1));
    GOT(control(pair.app, EPOLL_CTL_ADD, file, EPOLLIN, 1));
    GOT(control(set, 0, pair.app, EPOLLIN, 1));
    GOT(control(set, 9, pair.app, EPOLLIN, 1));
    GOT(epoll_ctl(set, EPOLL_CTL_ADD, pair.app, NULL));
    GOT(epoll_ctl(set, EPOLL_CTL_MOD, pair.app, NULL));
    GOT(epoll_ctl(set, EPOLL_CTL_DEL, pair.app, NULL));
    GOT(epoll_ctl(set, EPOLL_CTL_DEL, pair.app, NULL));
    GOT(control(set, EPOLL_CTL_MOD, pair.app, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN, 1));
    print_now(set);
}

static void wait_errors_are_unchanged(void) {
    int set = new_set(), other = eventfd(1, EFD_CLOEXEC);
    struct epoll_event event;
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    GOT(epoll_wait(set, &event, 0, 0));
    GOT(epoll_wait(set, &event, -1, 0));
    GOT(epoll_wait(set, &event, INT32_MAX, 0));
    GOT(epoll_wait(-1, &event, 1, 0));
    GOT(epoll_wait(other, &event, 1, 0));
    GOT(epoll_wait(pair.app, &event, 1, 0));
    GOT(epoll_wait(set, NULL, 1, 0));
    peer_send(&pair, "x");
    print_next(set);
    GOT(epoll_wait(set, (struct epoll_event *)-4096, 1, 0));
    print_next(set);
    GOT(epoll_create(0));
    GOT(epoll_create(-1));
    GOT(epoll_create1(1));
    int plain = epoll_create(1), kept = epoll_create1(0), cloexec = epoll_create1(EPOLL_CLOEXEC);
    print("close on exec: %d %d %d\n", fcntl(plain, F_GETFD), fcntl(kept, F_GETFD), fcntl(cloexec, F_GETFD));
    GOT(close(plain));
    GOT(epoll_wait(plain, &event, 1, 0));
    GOT(control(plain, EPOLL_CTL_ADD, other, EPOLLIN, 1));
}

static void members_of_all_kinds_are_reported_together(void) {
    int set = new_set(), two[2], unix_pair[2], port, event = eventfd(0, EFD_NONBLOCK);
    struct pair pair = added(set, EPOLLIN);
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    int udp = (int)MUST(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    MUST(bind(udp, (struct sockaddr *)&address, length));
    MUST(getsockname(udp, (struct sockaddr *)&address, &length));
    MUST(pipe2(two, O_NONBLOCK));
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, unix_pair));
    int timer = (int)MUST(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)), listener = listen_on(SOCK_NONBLOCK, &port);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &signals, NULL));
    int signal = (int)MUST(signalfd(-1, &signals, SFD_NONBLOCK));
    int members[] = {udp, two[0], unix_pair[0], event, timer, signal, listener, two[1]};
    for (int i = 0; i < 8; i++)
        add(set, members[i], i == 7 ? EPOLLOUT | EPOLLET : EPOLLIN, (uint64_t)i + 2);
    print_now(set);
    print_now(set);
    MUST(sendto(udp, "u", 1, 0, (struct sockaddr *)&address, length));
    print_next(set);
    MUST(write(two[1], "p", 1));
    MUST(write(unix_pair[1], "s", 1));
    print_now(set);
    MUST(eventfd_write(event, 3));
    MUST(timerfd_settime(timer, 0, &(struct itimerspec){.it_value.tv_nsec = 1}, NULL));
    MUST(kill(getpid(), SIGUSR1));
    pause_ms(1);
    print_now(set);
    pair.peer_ended = false;
    peer_send(&pair, "t");
    await_delivery(&pair);
    int client = peer_connect(port);
    print_now(set);
    char bytes[256];
    for (int i = 0; i < 6; i++)
        print("read %d: %ld\n", i + 2, (long)read(members[i], bytes, sizeof bytes));
    print_read(pair.app, 10);
    GOT(accept(listener, NULL, NULL) > 0);
    print_now(set);
    MUST(close(unix_pair[1]));
    MUST(close(two[1]));
    print_now(set);
    syscall(SYS_close, client);
}

/* The library remembers which numbers are no streams. The accept is a direct system call, so that only the end of the
 * number's first file can tell that the number is another one now. */
static void a_number_that_was_no_stream_is_served_as_one(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port);
    for (int way = 0; way < 4; way++) {
        struct pair pair = {.peer = peer_connect(port)};
        int other = way == 2 ? (int)MUST(syscall(SYS_accept4, listener, NULL, NULL, SOCK_NONBLOCK)) : -1;
        int number = (int)MUST(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        add(set, number, EPOLLIN, 1);
        print_now(set);
        switch (way) {
        case 0: MUST(close(number)); break;
        case 1: MUST(close_range((unsigned)number, (unsigned)number, 0)); break;
        case 2: MUST(dup2(other, number)); MUST(syscall(SYS_close, other)); break;
        case 3: MUST(fclose(fdopen(number, "r"))); break;
        }
        pair.app = way == 2 ? number : (int)MUST(syscall(SYS_accept4, listener, NULL, NULL, SOCK_NONBLOCK));
        print("the same number: %d\n", pair.app == number);
        add(set, pair.app, EPOLLIN, 2);
        exchange(set, &pair);
        MUST(close(pair.app));
        peer_close(&pair);
    }
}

/* At its start, nginx tests with a pair of Unix sockets whether epoll supports this event. */
static void a_hang_up_of_unix_sockets_is_reported(void) {
    int set = new_set(), two[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
    add(set, two[0], EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
    MUST(close(two[1]));
    print_wait(set, 5000);
}

/* CPython's `epoll.unregister` passes an event that it has not initialised. */
static void the_event_of_a_removal_is_ignored(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    char *unmapped = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct epoll_event urgent = {EPOLLPRI, {.u64 = 1}}, *ignored[] = {&urgent, (void *)unmapped, (void *)-4096L, NULL};
    for (int i = 0; i < 4; i++) {
        struct pair pair = pair_on(listener, port, SOCK_NONBLOCK | SOCK_CLOEXEC);
        add(set, pair.app, EPOLLIN, 1);
        exchange(set, &pair);
        GOT(epoll_ctl(set, EPOLL_CTL_DEL, pair.app, ignored[i]));
        GOT(epoll_ctl(set, EPOLL_CTL_DEL, pair.app, ignored[i]));
        MUST(close(pair.app));
        peer_gets_the_end(&pair);
    }
}

static void sets_can_be_members_of_sets(void) {
    int inner = new_set(), outer = new_set();
    struct pair pair = added(inner, EPOLLIN);
    add(outer, inner, EPOLLIN, 7);
    GOT(control(inner, EPOLL_CTL_ADD, outer, EPOLLIN, 1));
    print_now(outer);
    print_now(inner);
    peer_send(&pair, "x");
    print_next(outer);
    print_next(inner);
    print_read(pair.app, 10);
    print_now(inner);
    print_now(outer);
    peer_send(&pair, "y");
    await_delivery(&pair);
    print_now(outer);
    struct pollfd poll_inner = {inner, POLLIN, 0};
    GOT(poll(&poll_inner, 1, 1000));
    print_now(inner);
    print_read(pair.app, 10);
    GOT(poll(&poll_inner, 1, 0));
    print_now(outer);
}

static void a_set_can_be_polled(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    struct pollfd query = {set, POLLIN, 0};
    print_now(set);
    GOT(poll(&query, 1, 0));
    peer_send(&pair, "x");
    GOT(poll(&query, 1, 5000));
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(set, &readable);
    GOT(select(set + 1, &readable, NULL, NULL, &(struct timeval){5, 0}));
    print_now(set);
    print_read(pair.app, 10);
    print_now(set);
    query.revents = 0;
    GOT(poll(&query, 1, 0));
    peer_send(&pair, "y");
    GOT(poll(&query, 1, 5000));
    print_next(set);
    print_read(pair.app, 10);
}

static void *look_at_it_in_a_set_of_its_own(void *pair) {
    int set = fresh_set();
    add(set, ((struct pair *)pair)->app, EPOLLIN, 2);
    print_now(set);
    MUST(close(set));
    return NULL;
}

/* The library has the bytes, and the set of the call does not serve the connection. */
static void bytes_received_before_are_reported_by_a_later_set(void) {
    int first = new_set(), second = new_set();
    struct pair pair = added(first, EPOLLIN);
    pthread_t thread;
    peer_send(&pair, "received");
    print_next(first);
    GOT(fcntl(pair.app, F_SETFL, O_RDWR));
    look_at_it_in_a_set_of_its_own(&pair);
    MUST(-pthread_create(&thread, NULL, look_at_it_in_a_set_of_its_own, &pair));
    pthread_join(thread, NULL);
    add(second, pair.app, EPOLLIN | EPOLLONESHOT, 3);
    print_now(second);
    peer_send(&pair, " later");
    await_delivery(&pair);
    print_now(second);
    GOT(control(second, EPOLL_CTL_ADD, pair.app, EPOLLIN, 3));
    GOT(control(second, EPOLL_CTL_MOD, pair.app, EPOLLIN, 3));
    print_now(second);
    del(second, pair.app);
    print_now(second);
    print_now(first);
    print_read(pair.app, 100);
}

/* Removed from its set with bytes, and then a member of a set that has not been waited on. */
static void a_member_moves_to_a_new_set_with_its_bytes(void) {
    int first = new_set(), second = fresh_set();
    struct pair other = added(first, EPOLLIN), pair = added(first, EPOLLIN);
    peer_send(&pair, "received");
    print_next(first);
    del(first, pair.app);
    exchange(first, &other);
    GOT(control(second, EPOLL_CTL_ADD, pair.app, EPOLLIN, 2));
    print_now(second);
    print_read(pair.app, 4);
    print_now(second);
    print_stream(pair.app, 100);
}

/* The ring of the first set must not keep it open. */
static void a_member_that_moved_ends_without_a_wait_on_its_first_set(void) {
    int first = new_set(), second = fresh_set();
    struct pair pair = added(first, EPOLLIN);
    poll_once(first);
    del(first, pair.app);
    add(second, pair.app, EPOLLIN, 2);
    MUST(close(pair.app));
    peer_gets_the_end(&pair);
}

/* A ring of the second set would take the bytes that the first set reports. */
static void a_member_of_a_set_that_the_kernel_serves_stays_with_it(void) {
    int first = new_set(), second = fresh_set(), early = fresh_set();
    struct pair other = added(second, EPOLLIN), pair, member = connected();
    add(early, member.app, EPOLLIN, 5);
    struct pollfd query = {first, POLLIN, 0};
    GOT(poll(&query, 1, 0));
    pair = added(first, EPOLLIN);
    settle(second);
    add(second, pair.app, EPOLLIN, 4);
    add(second, member.app, EPOLLIN, 6);
    print_now(second);
    peer_send(&pair, "received");
    peer_send(&member, "early");
    await_delivery(&pair);
    await_delivery(&member);
    print_now(second);
    print_read(pair.app, 4);
    print_now(first);
    settle(early);
    print_now(early);
    exchange(second, &other);
    MUST(close(first));
    MUST(close(early));
    print_stream(pair.app, 100);
    print_stream(member.app, 100);
    /* The sets are gone. */
    del(second, other.app);
    add(second, other.app, EPOLLIN, 7);
    exchange(second, &other);
}

static void one_socket_can_be_in_two_sets(void) {
    int first = new_set(), second = new_set();
    struct pair pair = added(first, EPOLLIN);
    peer_send(&pair, "one");
    print_next(first);
    add(second, pair.app, EPOLLIN | EPOLLET, 2);
    print_now(second);
    print_now(second);
    print_now(first);
    print_read(pair.app, 2);
    print_now(first);
    peer_send(&pair, "two");
    await_delivery(&pair);
    print_now(second);
    print_now(first);
    print_stream(pair.app, 10);
    del(first, pair.app);
    print_now(first);
    peer_send(&pair, "three");
    await_delivery(&pair);
    print_now(second);
    print_stream(pair.app, 10);
}

static void a_oneshot_member_of_two_sets_stays_one_when_its_bytes_are_read(void) {
    static const int calls[] = {EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
    for (int i = 0; i < 6; i++) {
        int first = new_set(), second = new_set(), port, listener = listen_on(0, &port);
        struct pair pair = added(first, EPOLLIN);
        peer_send(&pair, "one");
        print_next(first);
        add(second, pair.app, EPOLLIN | EPOLLONESHOT | (i < 3 ? 0 : EPOLLET), 2);
        print_now(second);
        print_read(pair.app, 100);
        print_now(first);
        print_now(second);
        peer_send(&pair, "two");
        await_delivery(&pair);
        print_now(second);
        GOT(control(second, calls[i % 3], pair.app, EPOLLIN | EPOLLONESHOT, 3));
        print_now(second);
        print_now(first);
        print_read(pair.app, 100);
        GOT(control(second, EPOLL_CTL_MOD, pair.app, EPOLLIN | EPOLLOUT, 4));
        print_now(second);
        struct pair next = {.peer = peer_connect(port)};
        int number = pair.app;
        MUST(close(pair.app));
        next.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
        print("the same number: %d\n", next.app == number);
        add(first, next.app, EPOLLIN, 1);
        GOT(control(second, EPOLL_CTL_ADD, next.app, EPOLLIN | EPOLLONESHOT, 5));
        peer_send(&next, "three");
        await_delivery(&next);
        print_now(second);
        print_read(next.app, 100);
        MUST(close(next.app) | close(first) | close(second) | close(listener));
    }
}

static void a_connection_of_a_closed_set_is_served_in_another(void) {
    int first = fresh_set(), second = new_set();
    struct pair pair = connected();
    add(first, pair.app, EPOLLIN, 1);
    print_now(first);
    MUST(close(first));
    add(second, pair.app, EPOLLIN, 1);
    exchange(second, &pair);
}

static void a_set_for_one_wait_is_not_served(void) {
    struct pair pair = connected();
    for (int i = 0; i < 20; i++) {
        int set = fresh_set();
        add(set, pair.app, EPOLLIN, 1);
        peer_send(&pair, "request");
        print_next(set);
        print_read(pair.app, 100);
        MUST(close(set));
    }
}

static void members_of_the_first_waits_are_reported_as_later_ones(void) {
    int set = fresh_set();
    struct pair level = connected(), edge = connected(), once = connected(), quiet = connected(), late = connected();
    add(set, level.app, EPOLLIN, 1);
    add(set, edge.app, EPOLLIN | EPOLLET, 2);
    add(set, once.app, EPOLLIN | EPOLLONESHOT, 3);
    add(set, quiet.app, EPOLLIN | EPOLLONESHOT, 4);
    struct pair *all[] = {&level, &edge, &once};
    for (int i = 0; i < 3; i++) {
        peer_send(all[i], "request");
        await_delivery(all[i]);
    }
    print_now(set);
    print_read(edge.app, 100);
    add(set, late.app, EPOLLIN, 5);
    for (int i = 0; i < 4; i++)
        print_now(set);
    print_read(level.app, 100);
    print_now(set);
    mod(set, once.app, EPOLLIN | EPOLLONESHOT, 3);
    print_now(set);
    print_now(set);
    peer_send(&quiet, "first");
    await_delivery(&quiet);
    print_next(set);
    print_read(quiet.app, 100);
    print_now(set);
    exchange(set, &level);
    exchange(set, &edge);
    exchange(set, &late);
}

/* A ring takes these members over, at the third wait or by `annulus resume`. */
static void an_edge_that_was_reported_is_not_reported_by_a_ring(void) {
    uint32_t all = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    int set = fresh_set(), event = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    struct pair edge = connected(), once = connected(), unread = connected(), late = connected(), level = connected();
    add(set, edge.app, all, 1);
    add(set, once.app, all | EPOLLONESHOT, 2);
    add(set, unread.app, all, 3);
    add(set, level.app, EPOLLIN, 4);
    peer_send(&unread, "request");
    await_delivery(&unread);
    print_now(set);
    print_now(set);
    add(set, event, EPOLLIN | EPOLLET, 5);
    add(set, late.app, all, 6);
    for (int i = 0; i < 6; i++)
        print_now(set);
    mod(set, once.app, all | EPOLLONESHOT, 2);
    print_now(set);
    print_now(set);
    peer_send(&edge, "request");
    await_delivery(&edge);
    print_next(set);
    print_now(set);
    print_read(edge.app, 100);
    print_read(unread.app, 100);
    peer_send(&unread, "more");
    await_delivery(&unread);
    print_next(set);
    print_read(unread.app, 100);
    exchange(set, &level);
    print_now(set);
}

/* The kernel keeps the first socket of each number as a member. */
static void members_whose_numbers_were_used_before_are_reported_once(void) {
    enum { COUNT = 8 };
    int set = fresh_set(), port, listener = listen_on(0, &port);
    struct pair pairs[COUNT];
    for (int i = 0; i < COUNT; i++) {
        uint32_t fired = EPOLLIN | EPOLLONESHOT;
        struct pair first = pair_on(listener, port, SOCK_NONBLOCK);
        add(set, first.app, i % 2 ? EPOLLIN : fired, 100);
        if (i % 2 == 0) {
            peer_send(&first, "request");
            await_delivery(&first);
            MUST(syscall(SYS_epoll_pwait, set, &(struct epoll_event){0}, 1, 0, NULL, 8));
            syscall(SYS_read, first.app, (char[100]){0}, 100);
        }
        MUST(syscall(SYS_dup, first.app));
        pairs[i] = (struct pair){.peer = peer_connect(port)};
        MUST(close(first.app));
        pairs[i].app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
        print("the same number: %d\n", pairs[i].app == first.app);
        add(set, pairs[i].app, i % 2 ? fired : EPOLLIN, (uint64_t)i);
    }
    for (int i = 0; i < COUNT; i++) {
        peer_send(&pairs[i], "request");
        await_delivery(&pairs[i]);
    }
    for (int i = 0; i < 6; i++)
        print_now(set);
    for (int i = 0; i < COUNT; i++)
        mod(set, pairs[i].app, EPOLLIN, (uint64_t)i);
    print_now(set);
    exchange(set, &pairs[0]);
}

static void a_full_socket_that_a_ring_takes_over_is_reported_when_it_has_room(void) {
    static char bytes[1 << 16];
    uint32_t flags[] = {0, EPOLLET};
    for (int i = 0; i < 2; i++) {
        int set = fresh_set();
        struct pair full = connected();
        add(set, full.app, EPOLLOUT | flags[i], 1);
        print_now(set);
        while (write(full.app, bytes, sizeof bytes) > 0)
            continue;
        for (int k = 0; k < 5; k++)
            print_now(set);
        while (direct_poll(&(struct pollfd){full.app, POLLOUT}, 1) == 0)
            syscall(SYS_recvfrom, full.peer, bytes, sizeof bytes, MSG_DONTWAIT, NULL, NULL);
        print_next(set);
        MUST(close(set));
    }
}

/* The most bytes that the program and its libraries have allocated after each of some waits. */
static size_t allocated(int set) {
    size_t most = 0;
    for (int i = 0; i < 4; i++) {
        poll_once(set);
        size_t now = mallinfo2().uordblks;
        most = now > most ? now : most;
    }
    return most;
}

/* Each wait looks at all sockets of which a set has a record. */
static void no_set_has_a_record_of_closed_sockets_that_were_in_two_sets(void) {
    int set = new_set(), other = new_set(), port, listener = listen_on(0, &port);
    size_t at_first = 0;
    for (int i = 0; i < 600; i++) {
        struct pair pair = pair_on(listener, port, SOCK_NONBLOCK);
        char byte;
        add(set, pair.app, EPOLLIN, 1);
        add(other, pair.app, EPOLLOUT | EPOLLET, 1);
        MUST(syscall(SYS_write, pair.peer, "q", 1));
        MUST(epoll_wait(set, &(struct epoll_event){0}, 1, 10000));
        poll_once(other);
        MUST(read(pair.app, &byte, 1));
        MUST(close(pair.app));
        peer_reset(&pair);
        if (i == 5)
            at_first = allocated(other);
    }
    print("no more memory than at first: %d\n", allocated(other) < at_first + 8192);
}

static void a_socket_can_move_between_sets(void) {
    int sets[2] = {new_set(), new_set()};
    struct pair pair = connected();
    for (int i = 0; i < 6; i++) {
        add(sets[i % 2], pair.app, EPOLLIN | EPOLLOUT, (uint64_t)i);
        print_now(sets[i % 2]);
        peer_send(&pair, "moving ");
        await_delivery(&pair);
        print_now(sets[i % 2]);
        print_stream(pair.app, 3);
        MUST(write(pair.app, "result", 6));
        del(sets[i % 2], pair.app);
        print_now(sets[i % 2]);
    }
    print_stream(pair.app, 100);
    add(sets[0], pair.app, EPOLLIN, 9);
    print_now(sets[0]);
    peer_gets(&pair, 36);
}

static void a_polled_set_reports_bytes_received_in_another_set(void) {
    int sets[2] = {new_set(), new_set()};
    struct pair pair = added(sets[0], EPOLLIN), other = added(sets[1], EPOLLIN);
    print_now(sets[0]);
    print_now(sets[1]);
    struct pollfd poller = {.fd = sets[1], .events = POLLIN};
    GOT(poll(&poller, 1, 0));
    peer_send(&pair, "bytes");
    await_delivery(&pair);
    print_now(sets[0]);
    del(sets[0], pair.app);
    add(sets[1], pair.app, EPOLLIN, 7);
    for (int i = 0; i < 3; i++)
        print_now(sets[1]);
    peer_send(&other, "x");
    await_delivery(&other);
    print_now(sets[1]);
    print_read(other.app, 10);
    print_stream(pair.app, 10);
    print_now(sets[1]);
}

static void many_members_are_handed_back_together(void) {
    int set = new_set();
    struct pair pairs[100];
    for (int i = 0; i < 100; i++) {
        pairs[i] = connected();
        add(set, pairs[i].app, EPOLLIN, (uint64_t)i);
        if (i % 40 == 0)
            print_now(set);
    }
    print_now(set);
    MUST(write(pairs[8].app, "queued", 6));
    GOT(poll(&(struct pollfd){set, POLLIN}, 1, 0));
    peer_gets(&pairs[8], 6);
    for (int i = 0; i < 100; i += 33) {
        peer_send(&pairs[i], "late");
        await_delivery(&pairs[i]);
        print_next(set);
        print_stream(pairs[i].app, 100);
    }
}

static void a_duplicate_of_a_set_is_the_same_set(void) {
    int set = new_set(), twin = (int)MUST(fcntl(set, F_DUPFD_CLOEXEC, 10)), third = (int)MUST(dup(set));
    struct pair pair = added(twin, EPOLLIN), late = connected();
    GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN, 1));
    peer_send(&pair, "x");
    print_next(set);
    print_next(twin);
    print_read(pair.app, 10);
    MUST(close(set));
    add(third, late.app, EPOLLIN, 2);
    peer_send(&pair, "y");
    peer_send(&late, "z");
    await_delivery(&pair);
    await_delivery(&late);
    print_next(twin);
    MUST(close(twin));
    print_next(third);
    print_read(pair.app, 10);
    print_read(late.app, 10);
    print_now(third);
}

static void a_duplicate_of_a_member_is_another_member(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    int twin = (int)MUST(dup(pair.app));
    GOT(control(set, EPOLL_CTL_ADD, twin, EPOLLIN, 2));
    peer_send(&pair, "xy");
    await_delivery(&pair);
    print_next(set);
    print_read(twin, 1);
    print_now(set);
    print_read(pair.app, 1);
    print_now(set);
    del(set, pair.app);
    peer_send(&pair, "z");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 10);
}

/* The registration belongs to the open socket, not to the number, and lasts as long as a duplicate. */
static void a_closed_number_whose_duplicate_lives_is_still_reported(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    int twin = (int)MUST(dup(pair.app));
    MUST(close(pair.app));
    pair.app = twin;
    peer_send(&pair, "x");
    await_delivery(&pair);
    print_next(set);
    print_read(twin, 10);
    print_now(set);
    MUST(close(twin));
    print_now(set);
}

static void buffered_bytes_of_a_closed_number_are_reported_of_its_duplicate(void) {
    for (int way = 0; way < 4; way++) {
        int set = new_set();
        struct pair pair = added(set, EPOLLIN | (way == 1 ? EPOLLET : way == 2 ? EPOLLONESHOT : 0));
        peer_send(&pair, "abc");
        await_delivery(&pair);
        print_next(set);
        int twin = (int)MUST(dup(pair.app));
        print_read(twin, 2);
        MUST(close(pair.app));
        pair.app = twin;
        print_now(set);
        print_now(set);
        if (way == 3) {
            /* Its last number belongs to another connection, with other bytes. */
            MUST(close(twin));
            struct pair other = connected();
            int third = (int)MUST(dup2(other.app, twin));
            MUST(close(other.app));
            other.app = third;
            add(set, other.app, EPOLLIN, 7);
            peer_send(&other, "xyz");
            await_delivery(&other);
            print_next(set);
            print_read(other.app, 1);
            print_now(set);
            continue;
        }
        print_read(twin, 9);
        print_now(set);
        peer_send(&pair, "def");
        await_delivery(&pair);
        print_now(set);
        print_read(twin, 9);
        MUST(close(twin));
        print_now(set);
    }
}

/* Closes a number, or gives it to another file. */
static void give_up(int fd, int way) {
    int file = (int)MUST(open("/dev/null", O_RDONLY));
    MUST(way == 0 ? close(fd) : way == 1 ? close_range((unsigned)fd, (unsigned)fd, 0) : dup2(file, fd));
    MUST(close(file));
}

/* Of three numbers of a connection, the one that is a member of the second set is closed, and then another. */
static void buffered_bytes_of_a_closed_number_are_reported_by_each_set(void) {
    static const uint32_t masks[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
    for (int i = 0; i < 36; i++) {
        int first = new_set(), second = new_set(), member = i / 3 % 3;
        int way = i % 3 == 2 ? i / 3 % 2 : i / 3 % 3;
        struct pair pair = added(first, EPOLLIN);
        peer_send(&pair, "abc");
        await_delivery(&pair);
        print_next(first);
        int numbers[3] = {pair.app, (int)MUST(dup(pair.app)), (int)MUST(dup(pair.app))};
        add(second, numbers[member], masks[i % 3], 2);
        if (i >= 18)
            print_now(second);
        give_up(numbers[member], way);
        print_now(second);
        give_up(numbers[(member + 1) % 3], way);
        pair.app = numbers[(member + 2) % 3];
        print_now(second);
        print_now(first);
        print_read(pair.app, 2);
        print_now(second);
        print_read(pair.app, 9);
        print_now(second);
        peer_send(&pair, "def");
        await_delivery(&pair);
        print_now(second);
        print_now(second);
        print_now(first);
        print_read(pair.app, 9);
        MUST(close(pair.app));
        print_now(second);
        MUST(close(first) | close(second));
        syscall(SYS_close, pair.peer);
    }
}

/* The kernel knows a member by its number, which the library cannot use any more. */
static void a_oneshot_member_whose_number_another_file_has_is_reported_once(void) {
    int first = new_set(), second = new_set();
    struct pair pair = added(first, EPOLLIN);
    peer_send(&pair, "abc");
    print_next(first);
    int twin = (int)MUST(dup(pair.app));
    add(second, twin, EPOLLIN | EPOLLONESHOT, 2);
    give_up(twin, 2);
    print_now(second);
    print_read(pair.app, 9);
    peer_send(&pair, "def");
    await_delivery(&pair);
    print_now(second);
}

struct closing {
    pthread_barrier_t step;
    int number;
};

static void *wait_beside_a_close(void *argument) {
    struct closing *closing = argument;
    int set = new_set();
    add(set, closing->number, EPOLLIN, 3);
    pthread_barrier_wait(&closing->step);
    pthread_barrier_wait(&closing->step);
    print_now(set);
    pthread_barrier_wait(&closing->step);
    pthread_barrier_wait(&closing->step);
    print_now(set);
    MUST(close(set));
    return NULL;
}

static void buffered_bytes_of_a_closed_number_are_reported_in_another_thread(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    struct closing closing = {.number = pair.app};
    pthread_t thread;
    peer_send(&pair, "abc");
    print_next(set);
    int twin = (int)MUST(dup(pair.app));
    MUST(-pthread_barrier_init(&closing.step, NULL, 2));
    MUST(-pthread_create(&thread, NULL, wait_beside_a_close, &closing));
    pthread_barrier_wait(&closing.step);
    MUST(close(pair.app));
    pthread_barrier_wait(&closing.step);
    pthread_barrier_wait(&closing.step);
    print_read(twin, 9);
    pthread_barrier_wait(&closing.step);
    pthread_join(thread, NULL);
}

/* The numbers refer to the same connection already. */
static void a_duplicate_onto_its_own_connection_changes_nothing(void) {
    int first = new_set(), second = new_set();
    struct pair pair = added(first, EPOLLIN);
    peer_send(&pair, "abc");
    print_next(first);
    int twin = (int)MUST(dup(pair.app));
    add(second, twin, EPOLLIN, 2);
    MUST(dup2(pair.app, twin));
    MUST(dup3(twin, pair.app, 0));
    print("close on exec: %d %d\n", fcntl(pair.app, F_GETFD), fcntl(twin, F_GETFD));
    print_now(first);
    print_now(second);
    mod(first, pair.app, EPOLLIN | EPOLLOUT, 3);
    mod(second, twin, EPOLLIN | EPOLLOUT, 4);
    print_now(first);
    print_now(second);
    print_read(twin, 9);
    print_now(first);
    print_now(second);
    del(first, pair.app);
    del(second, twin);
    print_now(first);
    print_now(second);
}

static void a_blocking_socket_can_be_a_member(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair pair = pair_on(listener, port, 0);
    add(set, pair.app, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    print_now(set);
    peer_send(&pair, "hello");
    print_next(set);
    print_read(pair.app, 3);
    print_read(pair.app, 100);
    MUST(write(pair.app, "result", 6));
    peer_gets(&pair, 6);
    peer_shutdown(&pair);
    print_next(set);
    print_read(pair.app, 100);
}

static void become_nonblocking(int fd, bool by_ioctl) {
    if (by_ioctl)
        MUST(ioctl(fd, FIONBIO, &(int){1}));
    else
        MUST(fcntl(fd, F_SETFL, O_NONBLOCK));
}

/* Boost.Asio adds each accepted connection with EPOLLPRI, and makes it non-blocking before the next wait. */
static void a_member_that_becomes_non_blocking_is_served(void) {
    uint32_t masks[] = {EPOLLIN | EPOLLPRI | EPOLLERR | EPOLLHUP | EPOLLET, EPOLLIN};
    for (int i = 0; i < 8; i++) {
        int set = i & 1 ? new_set() : fresh_set(), port, listener = listen_on(0, &port);
        struct pair pair = pair_on(listener, port, 0);
        uint32_t mask = masks[i >> 1 & 1];
        add(set, pair.app, mask, 1);
        become_nonblocking(pair.app, i & 4);
        for (int k = 0; k < 3; k++)
            exchange(set, &pair);
        mod(set, pair.app, mask | EPOLLOUT, 2);
        exchange(set, &pair);
        peer_shutdown(&pair);
        print_next(set);
        print_read(pair.app, 100);
        MUST(close(pair.app));
        MUST(close(set));
    }
}

/* A wait has reported these members, a second set has them, or they are closed: their events come once. */
static void a_member_that_becomes_non_blocking_later_is_reported_once(void) {
    for (int i = 0; i < 6; i++) {
        int set = new_set(), second = new_set(), port, listener = listen_on(0, &port);
        struct pair pair = pair_on(listener, port, 0);
        add(set, pair.app, EPOLLIN | EPOLLOUT | EPOLLET, 1);
        if (i == 0 || i == 3)
            print_now(set);
        if (i == 1 || i == 4)
            add(second, pair.app, EPOLLIN, 2);
        if (i == 2) {
            MUST(close(pair.app));
            syscall(SYS_close, pair.peer);
            pair = pair_on(listener, port, 0);
        }
        if (i == 5)
            del(set, pair.app);
        become_nonblocking(pair.app, i > 2);
        print_now(set);
        print_now(second);
        peer_send(&pair, "hello");
        await_delivery(&pair);
        print_now(second);
        print_now(set);
        print_read(pair.app, 100);
        print_now(set);
        MUST(write(pair.app, "result", 6));
        peer_gets(&pair, 6);
    }
}

/* The set has a ring. Every wait may report the blocking member, which the kernel's set then keeps. */
static void a_blocking_member_that_a_wait_may_have_reported_stays_with_the_kernel(void) {
    for (int i = 0; i < 2; i++) {
        int set = new_set(), port, listener = listen_on(0, &port);
        add(set, pair_on(listener, port, SOCK_NONBLOCK).app, EPOLLIN, 1);
        struct pair pair = pair_on(listener, port, 0);
        add(set, pair.app, i ? EPOLLIN : EPOLLIN | EPOLLOUT, 2);
        print_now(set);
        become_nonblocking(pair.app, i);
        peer_send(&pair, "hello");
        await_delivery(&pair);
        print_now(set);
        print_read(pair.app, 100);
    }
}

/* The kernel's set has these members: a wait has reported them, or the library does not know their flags. */
static void a_member_that_could_not_be_served_is_not_added_again(void) {
    uint32_t masks[] = {EPOLLIN | EPOLLOUT | EPOLLET, EPOLLIN | EPOLLEXCLUSIVE, EPOLLPRI};
    for (int i = 0; i < 6; i++) {
        int set = new_set(), port, listener = listen_on(0, &port);
        struct pair pair = pair_on(listener, port, i < 3 ? 0 : SOCK_NONBLOCK);
        add(set, pair.app, masks[i % 3], 1);
        print_now(set);
        become_nonblocking(pair.app, i & 1);
        GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN, 2));
        peer_send(&pair, "hello");
        await_delivery(&pair);
        print_now(set);
        del(set, pair.app);
        add(set, pair.app, EPOLLIN, 3);
        print_now(set);
        print_read(pair.app, 100);
        print_now(set);
    }
}

/* libuv adds a member again to change it, and expects EEXIST. */
static void a_member_that_was_not_connected_is_not_added_again(void) {
    int port, listener = listen_on(0, &port);
    struct sockaddr_in address = loopback(port);
    for (int i = 0; i < 4; i++) {
        int set = i & 1 ? new_set() : fresh_set(), other = new_set();
        struct pair pair = {.app = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0))};
        add(set, pair.app, EPOLLOUT, 1);
        print_now(set);
        connect(pair.app, (struct sockaddr *)&address, sizeof address);
        pair.peer = (int)MUST(syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC));
        await_state(pair.app, STATE_ESTABLISHED);
        print_next(set);
        if (i & 2)
            add(other, pair.app, EPOLLIN, 9);
        GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN, 2));
        mod(set, pair.app, EPOLLIN, 3);
        print_now(set);
        peer_send(&pair, "hello");
        await_delivery(&pair);
        print_next(set);
        print_now(other);
        print_read(pair.app, 100);
        del(set, pair.app);
        GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN, 4));
        peer_send(&pair, "again");
        await_delivery(&pair);
        print_next(set);
        print_now(other);
        print_read(pair.app, 100);
        MUST(close(set));
        add(other = new_set(), pair.app, EPOLLIN, 5);
        peer_send(&pair, "last");
        await_delivery(&pair);
        print_next(other);
        print_read(pair.app, 100);
        MUST(close(pair.app));
    }
}

static void a_set_that_is_closed_leaves_its_members_whole(void) {
    struct pair pair = connected();
    for (int i = 0; i < 3; i++) {
        int set = new_set();
        add(set, pair.app, EPOLLIN, 1);
        print_now(set);
        peer_send(&pair, "in the set ");
        print_next(set);
        MUST(write(pair.app, "result ", 7));
        MUST(close(set));
        peer_send(&pair, "after it");
        await_delivery(&pair);
        print_stream(pair.app, (size_t)i * 7);
        print_stream(pair.app, 5);
        MUST(write(pair.app, "direct ", 7));
        peer_gets(&pair, 14);
        print_stream(pair.app, 100);
    }
}

static int open_numbers(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void closed_sets_and_members_leave_no_descriptor(void) {
    int before = 0, port, listener = listen_on(0, &port);
    for (int i = 0; i < 120; i++) {
        if (i == 20)
            before = open_numbers();
        int set = new_set();
        struct pair pair = pair_on(listener, port, SOCK_NONBLOCK);
        add(set, pair.app, EPOLLIN, 1);
        if (i % 2)
            peer_send(&pair, "x");
        poll_once(set);
        MUST(close(i % 3 ? pair.app : set));
        MUST(close(i % 3 ? set : pair.app));
        peer_close(&pair);
    }
    /* Memory that is kept for the next set is not growth; one descriptor for each of a hundred sets would be. */
    print("grown: %s\n", open_numbers() - before > 8 ? "yes" : "no");
}

/* Makes as many calls as needed: the number of ready members that one call reports is not specified. */
static void a_hundred_members_are_reported_once_each(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair pairs[100];
    struct epoll_event events[128];
    for (int i = 0; i < 100; i++) {
        pairs[i] = pair_on(listener, port, SOCK_NONBLOCK);
        add(set, pairs[i].app, EPOLLIN | EPOLLRDHUP | EPOLLET, (uint64_t)i);
    }
    print_now(set);
    for (int round = 0; round < 4; round++) {
        int requested = 0, reported = 0, sum = 0, bytes = 0;
        for (int i = round; i < 100; i += round + 1, requested++)
            peer_send(&pairs[i], "x");
        for (int i = round; i < 100; i += round + 1)
            await_delivery(&pairs[i]);
        while (reported < requested) {
            int count = (int)MUST(epoll_wait(set, events, 128, 10000));
            for (int i = 0; i < count; i++) {
                char byte[4];
                sum += (int)events[i].data.u64;
                bytes += (int)read(pairs[events[i].data.u64].app, byte, sizeof byte);
            }
            reported += count;
        }
        print("%d events, sum of labels %d, %d bytes\n", reported, sum, bytes);
        print_now(set);
    }
}

static void the_order_of_single_arrivals_is_kept(void) {
    int set = new_set();
    struct pair pairs[8];
    struct epoll_event events[8];
    for (int i = 0; i < 8; i++) {
        pairs[i] = connected();
        add(set, pairs[i].app, EPOLLIN | EPOLLET, (uint64_t)i);
    }
    print_now(set);
    /* A set reports in order of arrival; a server that responds in that order is as fair as its clients expect. */
    static const int order[8] = {3, 7, 0, 5, 1, 6, 2, 4};
    for (int i = 0; i < 8; i++) {
        peer_send(&pairs[order[i]], "x");
        await_delivery(&pairs[order[i]]);
    }
    int count = epoll_wait(set, events, 8, 10000);
    for (int i = 0; i < count; i++)
        print("%llu ", (unsigned long long)events[i].data.u64);
    print("\n");
}

static void reading_into_unmapped_memory_fails_and_loses_no_bytes(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), bytes[16];
    peer_send(&pair, "precious");
    print_next(set);
    GOT(read(pair.app, page, 8));
    GOT(recv(pair.app, page, 8, 0));
    GOT(recv(pair.app, page, 8, MSG_PEEK));
    struct iovec parts[2] = {{page, 4}, {bytes, sizeof bytes}};
    GOT(readv(pair.app, parts, 2));
    GOT(readv(pair.app, (struct iovec *)page, 2));
    GOT(recvmsg(pair.app, (struct msghdr *)page, 0));
    GOT(epoll_wait(set, (struct epoll_event *)page, 1, 1000));
    print_next(set);
    print_read(pair.app, 100);
    GOT(epoll_wait(set, (struct epoll_event *)page, 1, 0));
}

static void writing_from_unmapped_memory_fails(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    print_now(set);
    MUST(write(pair.app, "a", 1));
    GOT(write(pair.app, page, 8));
    GOT(send(pair.app, page, 8, 0));
    struct iovec parts[2] = {{page, 4}, {"abcd", 4}};
    GOT(writev(pair.app, parts, 2));
    GOT(writev(pair.app, (struct iovec *)page, 2));
    GOT(sendmsg(pair.app, (struct msghdr *)page, 0));
    MUST(write(pair.app, "b", 1));
    print_now(set);
    peer_gets(&pair, 2);
}

/* Returns the resident memory of the process, KiB. The kernel counts it exactly here only. */
static long resident_kib(void) {
    char text[4096] = "";
    int fd = (int)MUST(open("/proc/self/smaps_rollup", O_RDONLY));
    MUST(read(fd, text, sizeof text - 1));
    MUST(close(fd));
    char *line = strstr(text, "Rss:");
    return line ? strtol(line + 4, NULL, 10) : 0;
}

static void a_served_set_takes_little_memory(void) {
    enum { WARM = 10, SETS = 50 };
    long before = 0;
    for (int i = 0; i < SETS; i++) {
        if (i == WARM)
            before = resident_kib();
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN);
        peer_send(&pair, "question");
        print_next(set);
        print_read(pair.app, 100);
        MUST(write(pair.app, "result", 6));
        print_now(set);
    }
    long pages = (resident_kib() - before) * 1024 / sysconf(_SC_PAGESIZE) / (SETS - WARM);
    print("pages for each: %ld\n", pages < 17 ? 0 : pages);
}

/* Each connection gets bytes before and after a ring takes it over from the kernel's set, and each read leaves some. */
static void connections_come_one_by_one(void) {
    enum { COUNT = 9 };
    int set = new_set();
    struct pair pairs[COUNT];
    for (int i = 0; i < COUNT; i++) {
        pairs[i] = connected();
        add(set, pairs[i].app, EPOLLIN | (i % 2 ? EPOLLOUT : 0), (uint64_t)i + 1);
        for (int round = 0; round < 3; round++) {
            for (int j = 0; j <= i; j++) {
                peer_send(&pairs[j], "abcdefg");
                await_delivery(&pairs[j]);
            }
            print_now(set);
            for (int j = 0; j <= i; j++)
                print_read(pairs[j].app, 5);
        }
        MUST(write(pairs[i].app, "response", 8));
    }
    print_now(set);
    for (int i = 0; i < COUNT; i++) {
        print_read(pairs[i].app, 4096);
        peer_gets(&pairs[i], 8);
    }
    print_now(set);
}

static void connections_that_were_closed_do_not_count(void) {
    int set = new_set();
    for (int i = 0; i < 12; i++) {
        struct pair pair = connected();
        add(set, pair.app, EPOLLIN, (uint64_t)i + 1);
        exchange(set, &pair);
        MUST(close(pair.app));
    }
}

static const struct app_case cases[] = {
    CASE(control_errors_are_unchanged, "passed:not_a_stream"),
    CASE(wait_errors_are_unchanged, ""),
    CASE(members_of_all_kinds_are_reported_together, "served:read served:epoll_wait passed:not_a_stream"),
    CASE(a_number_that_was_no_stream_is_served_as_one, "served:read passed:not_a_stream<=4"),
    CASE(a_hang_up_of_unix_sockets_is_reported, "passed:not_a_stream"),
    CASE(the_event_of_a_removal_is_ignored, "served:read passed:unknown_option<=0 back:unknown_flags<=0"),
    CASE(sets_can_be_members_of_sets, "back:polled_otherwise"),
    CASE(a_set_can_be_polled, "back:polled_otherwise"),
    CASE(bytes_received_before_are_reported_by_a_later_set, "back:blocking"),
    CASE(a_member_moves_to_a_new_set_with_its_bytes, "served:read passed:several_sets"),
    CASE(a_member_that_moved_ends_without_a_wait_on_its_first_set, "served:epoll_ctl back:several_sets"),
    CASE(a_member_of_a_set_that_the_kernel_serves_stays_with_it, "served:read passed:several_sets"),
    CASE(one_socket_can_be_in_two_sets, "back:several_sets"),
    CASE(a_oneshot_member_of_two_sets_stays_one_when_its_bytes_are_read, "back:several_sets"),
    CASE(a_set_for_one_wait_is_not_served, "passes enters<=0"),
    CASE(a_connection_of_a_closed_set_is_served_in_another, "served:read passed:several_sets<=0"),
    CASE(a_served_set_takes_little_memory, "served:read passed:descriptors<=0"),
    CASE(members_of_the_first_waits_are_reported_as_later_ones, "served:read served:epoll_wait"),
    CASE(no_set_has_a_record_of_closed_sockets_that_were_in_two_sets, "back:several_sets"),
    CASE(an_edge_that_was_reported_is_not_reported_by_a_ring, "served:epoll_wait"),
    CASE(members_whose_numbers_were_used_before_are_reported_once, "served:epoll_wait"),
    CASE(a_full_socket_that_a_ring_takes_over_is_reported_when_it_has_room, "served:epoll_wait"),
    CASE(a_socket_can_move_between_sets, ""),
    CASE(a_polled_set_reports_bytes_received_in_another_set, "passed:polled_otherwise"),
    CASE(many_members_are_handed_back_together, "back:polled_otherwise enters<=40"),
    CASE(a_duplicate_of_a_set_is_the_same_set, ""),
    CASE(a_duplicate_of_a_member_is_another_member, "back:duplicated"),
    CASE(a_closed_number_whose_duplicate_lives_is_still_reported, "back:duplicated"),
    CASE(buffered_bytes_of_a_closed_number_are_reported_of_its_duplicate, "back:duplicated"),
    CASE(buffered_bytes_of_a_closed_number_are_reported_by_each_set, "back:duplicated"),
    CASE(a_oneshot_member_whose_number_another_file_has_is_reported_once, "back:duplicated"),
    CASE(buffered_bytes_of_a_closed_number_are_reported_in_another_thread, "back:duplicated"),
    CASE(a_duplicate_onto_its_own_connection_changes_nothing, "back:duplicated"),
    CASE(a_blocking_socket_can_be_a_member, "passed:blocking"),
    CASE(a_member_that_becomes_non_blocking_is_served,
        "served:read served:write passed:blocking<=0 passed:unknown_flags<=0 back:unknown_flags<=0"),
    CASE(a_member_that_becomes_non_blocking_later_is_reported_once, "passed:blocking"),
    CASE(a_blocking_member_that_a_wait_may_have_reported_stays_with_the_kernel, "passed:blocking served:read<=0"),
    CASE(a_member_that_could_not_be_served_is_not_added_again, "passed:blocking passed:unknown_flags"),
    CASE(a_member_that_was_not_connected_is_not_added_again, "passed:not_connected served:read"),
    CASE(a_set_that_is_closed_leaves_its_members_whole, ""),
    CASE(closed_sets_and_members_leave_no_descriptor, ""),
    CASE(a_hundred_members_are_reported_once_each, "served:epoll_wait served:read"),
    CASE(the_order_of_single_arrivals_is_kept, ""),
    CASE(connections_come_one_by_one, "served:read served:write"),
    CASE(connections_that_were_closed_do_not_count, "served:read served:write"),
    CASE(reading_into_unmapped_memory_fails_and_loses_no_bytes, ""),
    CASE(writing_from_unmapped_memory_fails, ""),
};

int main(int argc, char **argv) { return RUN(cases); }
