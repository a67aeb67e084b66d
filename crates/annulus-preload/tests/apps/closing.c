/* How a connection ends: close, close_range, shutdown and the end of the program, with output pending, with unread
 * input, and with SO_LINGER. The rule: accepted bytes arrive, then the end that the kernel would have sent. */
#include "app.h"
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/resource.h>
#include <linux/close_range.h>

static void written_bytes_arrive_before_the_end(void) {
    int set = new_set();
    struct pair first = joined(set, EPOLLIN), second = joined(set, EPOLLIN | EPOLLOUT | EPOLLET);
    MUST(write(first.app, "last words", 10));
    GOT(close(first.app));
    print_now(set);
    peer_gets(&first, 100);
    MUST(write(second.app, "one ", 4));
    poll_once(set);
    MUST(write(second.app, "two", 3));
    GOT(close(second.app));
    print_now(set);
    peer_gets(&second, 100);
}

static void a_socket_closed_with_deferred_output_sends_it_first(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLOUT);
    static unsigned char bytes[70000];
    uint64_t position = 0;
    for (int quiet = 0; quiet < 3;) {
        fill(bytes, sizeof bytes, position);
        long done = write(pair.app, bytes, sizeof bytes);
        position += done > 0 ? (uint64_t)done : 0;
        quiet = done > 0 ? 0 : quiet + 1;
        if (done < 0)
            epoll_wait(set, &(struct epoll_event){0}, 1, 2);
    }
    GOT(close(pair.app));
    struct reader reader;
    reader_start(&reader, pair.peer, 50);
    join_polling(&reader, set);
    print("the peer got all: %s, wrong at %ld, %s\n", reader.count == position ? "yes" : "no", reader.wrong_at,
        reader.error ? strerrorname_np(reader.error) : "ended");
}

/* Writes to a peer that does not read, until neither the library nor the kernel accepts more. Returns the count. */
static uint64_t write_much(struct pair *pair) {
    static unsigned char bytes[60000];
    uint64_t position = 0;
    if (bytes[1] != byte_at(1))
        fill(bytes, sizeof bytes, 0);
    for (int i = 0; i < 20; i++) {
        long done = write(pair->app, bytes + position, 3000);
        position += done > 0 ? (uint64_t)done : 0;
    }
    return position;
}

/* Prints whether the peer receives this number of bytes. */
static void print_all(struct reader *reader, uint64_t count) {
    print("the peer got all: %s, wrong at %ld, %s\n", reader->count == count ? "yes" : "no", reader->wrong_at,
        reader->error ? strerrorname_np(reader->error) : "ended");
}

static struct pair joined_narrow(int set) {
    struct pair pair = connected_narrow();
    add(set, pair.app, EPOLLIN, 1);
    poll_once(set);
    return pair;
}

/* Closes a connection with more output than fits into the send buffer, while its peer writes instead of reading. */
static void print_reset(bool written_before, bool ends, bool without_ring) {
    int set = new_set(), peer_error = 0;
    char bytes[4096];
    long done;
    struct pair pair = joined_narrow(set);
    write_much(&pair);
    poll_once(set);
    if (written_before)
        peer_send(&pair, "never read");
    MUST(close(pair.app));
    if (without_ring)
        MUST(close(set));
    else
        poll_once(set);
    if (!written_before)
        peer_send(&pair, "too late");
    // An already reset connection has no end.
    if (ends)
        syscall(SYS_shutdown, pair.peer, SHUT_WR);
    for (int i = 0; i < 2000 && !peer_error; i++) {
        socklen_t length = sizeof peer_error;
        pause_ms(1);
        if (!without_ring)
            poll_once(set);
        MUST(syscall(SYS_getsockopt, pair.peer, SOL_SOCKET, SO_ERROR, &peer_error, &length));
    }
    print("the peer gets %s, and then ", peer_error ? strerrorname_np(peer_error) : "nothing");
    while ((done = syscall(SYS_recvfrom, pair.peer, bytes, sizeof bytes, MSG_DONTWAIT, NULL, NULL)) > 0)
        ;
    print("%s\n", done == 0 ? "the end" : strerrorname_np(errno));
    peer_close(&pair);
}

static void data_for_a_closed_connection_resets_it(void) {
    for (int how = 0; how < 8; how++)
        print_reset(how & 1, how & 2, how & 4);
}

static void a_shutdown_of_both_directions_follows_deferred_output(void) {
    int set = new_set();
    struct pair pair = joined_narrow(set);
    uint64_t count = write_much(&pair);
    poll_once(set);
    GOT(shutdown(pair.app, SHUT_RDWR));
    GOT(send(pair.app, "x", 1, MSG_NOSIGNAL));
    print_read(pair.app, 1);
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    join_polling(&reader, set);
    print_all(&reader, count);
}

/* Replaces a connection with deferred output by another file: while open, just closed, and closed a round earlier. */
static void a_number_closed_with_deferred_output_can_be_reused(void) {
    for (int waits = 0; waits < 3; waits++) {
        int set = new_set();
        struct pair slow = joined_narrow(set), other = connected();
        uint64_t count = write_much(&slow);
        if (waits < 2)
            MUST(close(slow.app));
        if (waits == 1)
            poll_once(set);
        print("taken: %s\n", dup2(other.app, slow.app) == slow.app ? "yes" : "no");
        MUST(write(slow.app, "its own", 7));
        struct reader reader;
        reader_start(&reader, slow.peer, 0);
        join_polling(&reader, set);
        print_all(&reader, count);
        print("open: %s\n", fcntl(slow.app, F_GETFD) >= 0 ? "yes" : strerrorname_np(errno));
        MUST(close(other.app));
        MUST(close(slow.app));
        peer_gets(&other, 100);
    }
}

/* The deferred output of a closed set is still sent, whether its connections are closed before, after or not at all. */
static void closing_the_set_delivers_deferred_output(void) {
    static const char *const orders[] = {"set", "set, connection", "connection, set", "connection, wait, set"};
    for (int order = 0; order < 4; order++) {
        int set = new_set();
        struct pair pair = joined_narrow(set);
        uint64_t count = write_much(&pair);
        poll_once(set);
        if (order >= 2)
            MUST(close(pair.app));
        if (order == 3)
            poll_once(set);
        MUST(close(set));
        if (order == 1)
            MUST(close(pair.app));
        struct reader reader;
        reader_start(&reader, pair.peer, 0);
        if (order == 0) {
            pause_ms(300);
            MUST(shutdown(pair.app, SHUT_WR));
        }
        pthread_join(reader.thread, NULL);
        print("%s: ", orders[order]);
        print_all(&reader, count);
    }
}

/* A second thread waits on the set, which passes through from then on; deferred output is still sent. */
static void *wait_once(void *set) {
    poll_once(*(int *)set);
    return NULL;
}

static void closing_a_shared_set_delivers_deferred_output(void) {
    int set = new_set();
    struct pair pair = joined_narrow(set);
    mod(set, pair.app, EPOLLOUT | EPOLLET, 1);
    uint64_t count = write_much(&pair);
    poll_once(set);
    pthread_t thread;
    MUST(-pthread_create(&thread, NULL, wait_once, &set));
    pthread_join(thread, NULL);
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    /* No write is accepted until all of it has been sent. */
    for (long done = -1; done < 0;) {
        done = write(pair.app, &(unsigned char){byte_at(count)}, 1);
        if (done < 0 && epoll_wait(set, &(struct epoll_event){0}, 1, 10000) != 1)
            print("writability is not reported\n");
    }
    MUST(close(pair.app));
    pthread_join(reader.thread, NULL);
    print_all(&reader, count + 1);
}

/* A server closes all its clients in one round, with more responses than fit; some of the clients are full. */
static void thousands_closed_at_once_send_all_bytes(void) {
    enum { IDLE = 2300, SLOW = 6 };
    static struct pair idle[IDLE], slow[SLOW];
    static struct reader readers[SLOW];
    uint64_t counts[SLOW];
    struct rlimit most;
    MUST(getrlimit(RLIMIT_NOFILE, &most));
    if (most.rlim_max < 5000)
        return;
    most.rlim_cur = most.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &most));
    int set = new_set(), port, listener = listen_on(0, &port);
    for (int i = 0; i < IDLE; i++) {
        idle[i] = pair_on(listener, port, SOCK_NONBLOCK);
        add(set, idle[i].app, EPOLLIN, (uint64_t)i);
    }
    for (int i = 0; i < SLOW; i++)
        slow[i] = joined_narrow(set);
    poll_once(set);
    for (int i = 0; i < IDLE; i++)
        MUST(close(idle[i].app));
    for (int i = 0; i < SLOW; i++) {
        counts[i] = write_much(&slow[i]);
        MUST(close(slow[i].app));
    }
    poll_once(set);
    struct pair next[SLOW];
    for (int i = 0; i < SLOW; i++) {
        next[i] = joined(set, EPOLLIN);
        MUST(write(next[i].app, "written", 7));
        MUST(close(next[i].app));
    }
    /* A wait that may sleep: the kernel completes only some of its cancellations at each entry. */
    epoll_wait(set, &(struct epoll_event){0}, 1, 200);
    for (int i = 0; i < SLOW; i++) {
        reader_start(&readers[i], slow[i].peer, 0);
        join_polling(&readers[i], set);
        print_all(&readers[i], counts[i]);
        peer_gets(&next[i], 100);
    }
    for (int i = 0; i < IDLE; i++)
        if (syscall(SYS_read, idle[i].peer, &(char){0}, 1) != 0)
            print("%d has not ended\n", i);
}

/* A child that stays alive does not keep the peer from its end. */
static void a_connection_closed_with_deferred_output_ends_while_a_child_lives(void) {
    for (int waits = 0; waits < 2; waits++) {
        int set = new_set();
        struct pair pair = joined_narrow(set);
        uint64_t count = write_much(&pair);
        poll_once(set);
        MUST(close(pair.app));
        if (waits)
            poll_once(set);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            pause_ms(5000);
            syscall(SYS_exit_group, 0);
        }
        struct reader reader;
        reader_start(&reader, pair.peer, 0);
        join_polling(&reader, set);
        print_all(&reader, count);
        print("the child lives: %s\n", waitpid(child, NULL, WNOHANG) == 0 ? "yes" : "no");
        MUST(kill(child, SIGKILL));
        waitpid(child, NULL, 0);
        MUST(close(set));
    }
}

/* The kernel resets a connection that is closed with unread bytes, even if the library has buffered them. */
static void unread_bytes_make_the_end_a_reset(void) {
    int set = new_set();
    struct pair reported = joined(set, EPOLLIN), unseen = joined(set, EPOLLIN), partly = joined(set, EPOLLIN),
                ended = joined(set, EPOLLIN);
    peer_send(&reported, "unread");
    await_delivery(&reported);
    print_next(set);
    GOT(close(reported.app));
    print_now(set);
    peer_gets_the_end(&reported);
    peer_send(&unseen, "unread");
    await_delivery(&unseen);
    GOT(close(unseen.app));
    print_now(set);
    peer_gets_the_end(&unseen);
    peer_send(&partly, "unread");
    await_delivery(&partly);
    print_next(set);
    print_read(partly.app, 3);
    GOT(close(partly.app));
    print_now(set);
    peer_gets_the_end(&partly);
    peer_send(&ended, "all read");
    peer_shutdown(&ended);
    await_delivery(&ended);
    print_next(set);
    print_read(ended.app, 100);
    GOT(close(ended.app));
    print_now(set);
    peer_gets_the_end(&ended);
}

/* The same for a program that is busy for long and does not wait on its set. */
static void unread_bytes_make_the_end_a_reset_without_a_wait(void) {
    int set = new_set();
    struct pair reported = joined(set, EPOLLIN), unseen = joined(set, EPOLLIN), responded = joined(set, EPOLLIN);
    peer_send(&reported, "unread");
    await_delivery(&reported);
    print_next(set);
    GOT(close(reported.app));
    peer_gets_the_end(&reported);
    print_now(set);
    peer_send(&unseen, "unread");
    await_delivery(&unseen);
    GOT(close(unseen.app));
    peer_gets_the_end(&unseen);
    print_now(set);
    peer_send(&responded, "all read");
    await_delivery(&responded);
    print_next(set);
    print_read(responded.app, 100);
    GOT(write(responded.app, "result", 6));
    peer_send(&responded, "unread");
    await_delivery(&responded);
    print_next(set);
    peer_gets(&responded, 6);
    GOT(close(responded.app));
    peer_gets_the_end(&responded);
}

/* One request, one response and the end: the ring has no request for such a connection when it is closed. */
static struct pair requested_once(int set) {
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "request");
    print_next(set);
    print_read(pair.app, 100);
    return pair;
}

static void a_response_to_the_only_request_comes_with_the_end(void) {
    int set = new_set();
    struct pair pair = requested_once(set);
    int number = pair.app;
    MUST(write(pair.app, "result", 6));
    GOT(close(pair.app));
    /* The program does not wait. */
    peer_gets_the_end(&pair);
    struct pair next = connected();
    print("the same number: %d\n", next.app == number);
    add(set, next.app, EPOLLIN, 2);
    MUST(write(next.app, "another", 7));
    print_now(set);
    peer_gets(&next, 7);
    GOT(close(next.app));
    print_now(set);
    peer_gets_the_end(&next);
}

static void a_response_to_the_only_request_comes_before_a_reset(void) {
    int set = new_set();
    struct pair pair = requested_once(set);
    peer_send(&pair, "and more");
    await_delivery(&pair);
    MUST(write(pair.app, "result", 6));
    GOT(close(pair.app));
    print_now(set);
    peer_gets_the_end(&pair);
    struct linger at_once = {1, 0};
    pair = requested_once(set);
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    MUST(write(pair.app, "result", 6));
    GOT(close(pair.app));
    print_now(set);
    char bytes[16];
    /* The kernel's pacing decides whether it overtakes the reset. */
    while (syscall(SYS_read, pair.peer, bytes, sizeof bytes) > 0)
        continue;
    print("the peer gets %s\n", strerrorname_np(errno));
}

static void linger_of_zero_is_a_reset(void) {
    int set = new_set();
    struct linger at_once = {1, 0};
    struct pair idle = joined(set, EPOLLIN), wrote = joined(set, EPOLLIN);
    GOT(setsockopt(idle.app, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    GOT(close(idle.app));
    print_now(set);
    peer_gets_the_end(&idle);
    MUST(write(wrote.app, "before", 6));
    poll_once(set);
    peer_gets(&wrote, 6);
    GOT(setsockopt(wrote.app, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    /* The kernel's pacing decides whether these overtake the reset. */
    MUST(write(wrote.app, " after", 6));
    GOT(close(wrote.app));
    print_now(set);
    char bytes[16];
    while (syscall(SYS_read, wrote.peer, bytes, sizeof bytes) > 0)
        continue;
    print("the peer gets %s\n", strerrorname_np(errno));
}

static void linger_waits_until_all_has_arrived(void) {
    int set = new_set();
    struct linger patient = {1, 20};
    struct pair pair = joined(set, EPOLLIN);
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_LINGER, &patient, sizeof patient));
    MUST(write(pair.app, "arrives", 7));
    GOT(close(pair.app));
    print_now(set);
    peer_gets(&pair, 100);
}

static void a_shutdown_follows_written_bytes(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLRDHUP);
    MUST(write(pair.app, "request", 7));
    GOT(shutdown(pair.app, SHUT_WR));
    peer_gets(&pair, 100);
    print_now(set);
    peer_send(&pair, "result");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
    GOT(shutdown(pair.app, SHUT_WR));
    peer_shutdown(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_next(set);
    print_read(pair.app, 100);
    GOT(shutdown(pair.app, SHUT_RDWR));
}

static void a_shutdown_for_reading_keeps_received_bytes(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLRDHUP);
    peer_send(&pair, "arrived");
    await_delivery(&pair);
    print_next(set);
    GOT(shutdown(pair.app, SHUT_RD));
    print_now(set);
    print_read(pair.app, 4);
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    MUST(write(pair.app, "result", 6));
    print_now(set);
    peer_gets(&pair, 6);
}

static void shutdown_errors_are_unchanged(void) {
    int set = new_set(), fresh = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct pair pair = joined(set, EPOLLIN);
    GOT(shutdown(fresh, SHUT_WR));
    GOT(shutdown(pair.app, 3));
    GOT(shutdown(pair.app, -1));
    GOT(shutdown(0, SHUT_WR));
    GOT(shutdown(-1, SHUT_WR));
    GOT(shutdown(set, SHUT_WR));
    print_now(set);
}

static void closing_a_range_sends_written_bytes(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN), kept = joined(set, EPOLLIN);
    MUST(write(pair.app, "in the range", 12));
    MUST(write(kept.app, "kept", 4));
    GOT(close_range((unsigned)pair.app, (unsigned)pair.app, 0));
    print_now(set);
    peer_gets(&pair, 100);
    GOT(close_range((unsigned)kept.app, (unsigned)kept.app, CLOSE_RANGE_CLOEXEC));
    peer_send(&kept, "open");
    print_next(set);
    print_read(kept.app, 100);
    peer_gets(&kept, 4);
    GOT(close_range(5, 4, 0));
    GOT(close_range(5, 6, 0x100));
    GOT(close_range(1u << 24, 1u << 25, 0));
    print_now(set);
}

static void a_range_to_the_end_leaves_a_program_that_works(void) {
    for (int round = 0; round < 3; round++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN);
        MUST(write(pair.app, "bye", 3));
        /* The peer is out of the range, so the state of this side can still be queried. */
        pair.peer = (int)MUST(syscall(SYS_dup3, pair.peer, 0, 0));
        GOT(close_range(3, ~0u, 0));
        peer_gets(&pair, 100);
        MUST(syscall(SYS_close, 0));
        MUST(syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY));
        struct epoll_event event;
        GOT(epoll_wait(set, &event, 1, 0));
    }
}

static void all_numbers_closed_one_by_one_leave_a_program_that_works(void) {
    for (int round = 0; round < 3; round++) {
        for (int fd = 3; fd < 2000; fd++)
            close(fd);
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN);
        peer_send(&pair, "hello");
        print_next(set);
        print_read(pair.app, 100);
        MUST(write(pair.app, "bye", 3));
        poll_once(set);
        peer_gets(&pair, 3);
    }
}

/* Daemons close inherited descriptors, some of them after their event loop was created: they spare the number of the
 * set, but not descriptors of the library. */
static void a_set_works_on_though_all_other_numbers_were_closed(void) {
    closefrom(3); /* A later socket would get the number of an inherited descriptor. */
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "before");
    print_next(set);
    for (int fd = 3; fd < 70000; fd++)
        if (fd != set && fd != pair.app && fd != pair.peer)
            close(fd);
    print_read(pair.app, 100);
    MUST(write(pair.app, "result", 6));
    print_now(set);
    peer_gets(&pair, 6);
    struct pair late = joined(set, EPOLLIN);
    peer_send(&late, "after");
    await_delivery(&late);
    print_next(set);
    print_read(late.app, 100);
    closefrom(late.peer + 1);
    peer_send(&pair, "at last");
    print_next(set);
    print_read(pair.app, 100);
    MUST(write(pair.app, "end", 3));
    print_now(set);
    peer_gets(&pair, 3);
}

static void a_closed_number_is_bad_in_every_call(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    char byte;
    struct iovec part = {&byte, 1};
    socklen_t length = 4;
    GOT(close(pair.app));
    GOT(close(pair.app));
    GOT(close(-1));
    GOT(read(pair.app, &byte, 1));
    GOT(write(pair.app, &byte, 1));
    GOT(readv(pair.app, &part, 1));
    GOT(writev(pair.app, &part, 1));
    GOT(recv(pair.app, &byte, 1, 0));
    GOT(send(pair.app, &byte, 1, 0));
    GOT(shutdown(pair.app, SHUT_WR));
    GOT(getsockopt(pair.app, SOL_SOCKET, SO_ERROR, &byte, &length));
    GOT(ioctl(pair.app, FIONREAD, &length));
    GOT(fcntl(pair.app, F_GETFL));
    GOT(dup(pair.app));
    GOT(control(set, EPOLL_CTL_MOD, pair.app, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_DEL, pair.app, EPOLLIN, 1));
    GOT(accept(pair.app, NULL, NULL));
    print_now(set);
}

static void a_closed_number_is_the_next_to_be_used(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    for (int i = 0; i < 4; i++) {
        struct pair pair = pair_on(listener, port, SOCK_NONBLOCK);
        add(set, pair.app, EPOLLIN, 1);
        poll_once(set);
        if (i % 2)
            MUST(write(pair.app, "x", 1));
        if (i / 2)
            poll_once(set);
        MUST(close(pair.app));
        int next = (int)MUST(dup(0));
        print("the same number: %s\n", next == pair.app ? "yes" : "no");
        MUST(close(next));
        peer_close(&pair);
    }
}

/* Returns the number of a connection after its first request, which has a multishot receive in the ring. */
static struct pair requested_twice(int set) {
    struct pair pair = joined(set, EPOLLIN);
    for (int i = 0; i < 2; i++) {
        peer_send(&pair, "get");
        await_delivery(&pair);
        print_next(set);
        print_read(pair.app, 100);
    }
    return pair;
}

static int take_number(int way) {
    int ends[2] = {-1, -1};
    switch (way) {
    case 0: return open("/dev/null", O_RDONLY);
    case 1: MUST(pipe(ends)); break;
    case 2: MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends)); break;
    case 3: return eventfd(0, 0);
    case 4: return epoll_create1(0);
    case 5: return (int)syscall(SYS_memfd_create, "number", 0);
    case 6: return fileno(fopen("/dev/null", "r"));
    case 7: return timerfd_create(CLOCK_MONOTONIC, 0);
    case 8: return socket(AF_UNIX, SOCK_STREAM, 0);
    default: return dup(0);
    }
    close(ends[1]);
    return ends[0];
}

static void a_closed_number_is_free_for_any_call(void) {
    int set = new_set();
    for (int way = 0; way < 20; way++) {
        struct pair pair = requested_twice(set);
        int spare = (int)MUST(dup(0));
        if (way >= 10)
            MUST(write(pair.app, "last", 4));
        MUST(close(pair.app));
        int taken = (int)MUST(take_number(way % 10));
        print("way %d: %s\n", way, taken == pair.app ? "the same number" : "another");
        peer_gets_the_end(&pair);
        peer_close(&pair);
        close(taken);
        close(spare);
    }
}

static void a_closed_number_is_free_where_none_are_left(void) {
    int set = new_set();
    struct pair first = requested_twice(set), second = requested_twice(set);
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){60, 60}));
    while (dup(0) >= 0)
        continue;
    print("%s\n", strerrorname_np(errno));
    MUST(close(first.app));
    MUST(close(second.app));
    int ends[2] = {-1, -1};
    GOT(pipe(ends));
    print("the same numbers: %s\n", ends[0] == first.app && ends[1] == second.app ? "yes" : "no");
    GOT(eventfd(0, 0));
}

/* Deferred output is still sent, under a number of the library. */
static void a_number_closed_with_deferred_output_is_free(void) {
    for (int waits = 0; waits < 2; waits++) {
        int set = new_set();
        struct pair pair = joined_narrow(set);
        uint64_t count = write_much(&pair);
        int lower = (int)MUST(dup(0));
        if (waits)
            poll_once(set);
        MUST(close(pair.app));
        int taken = (int)MUST(eventfd(0, 0));
        print("the same number: %s\n", taken == pair.app ? "yes" : "no");
        struct reader reader;
        reader_start(&reader, pair.peer, 0);
        join_polling(&reader, set);
        print_all(&reader, count);
        print("still open: %s\n", fcntl(taken, F_GETFD) >= 0 ? "yes" : "no");
        MUST(close(taken));
        MUST(close(lower));
    }
}

static void closing_the_set_lets_writes_arrive(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    MUST(write(pair.app, "written", 7));
    GOT(close(set));
    peer_gets(&pair, 7);
    peer_send(&pair, "still open");
    await_delivery(&pair);
    print_read(pair.app, 100);
}

/* As in a program that creates an event loop for each of its tasks. */
static void closed_sets_leave_no_memory(void) {
    long pages[3];
    int right = 0;
    for (int i = 0; i < 60; i++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN), idle = joined(set, EPOLLIN);
        peer_send(&pair, "get");
        await_delivery(&pair);
        epoll_wait(set, &(struct epoll_event){0}, 1, 10000);
        MUST(write(pair.app, "result", 6));
        peer_send(&idle, "late");
        await_delivery(&idle);
        if (i % 2)
            MUST(close(pair.app));
        MUST(close(set));
        char bytes[16];
        right += syscall(SYS_read, pair.peer, bytes, sizeof bytes) == 6;
        right += read(idle.app, bytes, sizeof bytes) == 4;
        if (i % 2 == 0)
            MUST(close(pair.app));
        MUST(close(idle.app));
        peer_close(&pair);
        peer_close(&idle);
        FILE *file = fopen("/proc/self/statm", "r");
        MUST(fscanf(file, "%ld", &pages[i / 20]));
        fclose(file);
    }
    /* The library's thread may start at any time, and reserves memory for its allocations. A leak adds to both parts. */
    bool stays = pages[1] - pages[0] < 2500 || pages[2] - pages[1] < 2500;
    print("right: %d, memory stays: %s\n", right, stays ? "yes" : "no");
}

static void connections_open_and_close(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port), right = 0;
    add(set, listener, EPOLLIN, 1000);
    for (int i = 0; i < 200; i++) {
        struct pair pair = {.peer = peer_connect(port)};
        struct epoll_event event;
        char bytes[16];
        MUST(epoll_wait(set, &event, 1, 10000));
        pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
        add(set, pair.app, EPOLLIN | EPOLLRDHUP | EPOLLET, (uint64_t)i);
        peer_send(&pair, "get");
        do
            MUST(epoll_wait(set, &event, 1, 10000));
        while (event.data.u64 != (uint64_t)i);
        right += read(pair.app, bytes, sizeof bytes) == 3;
        right += write(pair.app, "result", 6) == 6;
        MUST(close(pair.app));
        poll_once(set);
        right += syscall(SYS_read, pair.peer, bytes, sizeof bytes) == 6;
        right += syscall(SYS_read, pair.peer, bytes, sizeof bytes) == 0;
        peer_close(&pair);
    }
    print("right: %d\n", right);
    print_now(set);
}

/* ---- the end of the program ---- */

static void end_by_exit(void) { exit(3); }
static void end_at_once(void) { _exit(4); }
static void end_at_once_too(void) { _Exit(5); }
static void end_by_abort(void) { abort(); }
static void end_by_exec(void) { execl("/bin/sh", "sh", "-c", "exit 6", (char *)NULL); }
static void end_of_the_first_thread(void) { pthread_exit(NULL); }

/* A separate program that serves one connection and ends before its response was sent. */
static void respond_and_end(int listener, struct pair *pair, void (*end)(void)) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    int set = new_set();
    pair->app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    add(set, pair->app, EPOLLIN, 1);
    print_next(set);
    print_read(pair->app, 10);
    MUST(write(pair->app, "the last result", 15));
    end();
}

static void print_end(void (*end)(void)) {
    int port, listener = listen_on(0, &port), status = 0;
    struct pair pair = {.peer = peer_connect(port)};
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        syscall(SYS_close, pair.peer);
        respond_and_end(listener, &pair, end);
    }
    MUST(close(listener));
    peer_send(&pair, "get");
    peer_gets(&pair, 100);
    MUST(waitpid(child, &status, 0));
    print("exit %d, signal %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    peer_close(&pair);
}

static void exit_sends_written_bytes(void) {
    print_end(end_by_exit);
    print_end(end_at_once);
    print_end(end_at_once_too);
    print_end(end_by_exec);
    print_end(end_of_the_first_thread);
}

/* A program that serves a connection, and ends while the connection and its listener are open. */
static void print_peer_end(void (*end)(void)) {
    int port, listener = listen_on(SOCK_NONBLOCK, &port), status, report[2], one = 1;
    char byte;
    struct pair pair = {.peer = peer_connect(port)};
    MUST(pipe(report));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        syscall(SYS_close, pair.peer);
        int set = new_set();
        pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        add(set, listener, EPOLLIN, 1);
        add(set, pair.app, EPOLLIN, 2);
        poll_once(set);
        MUST(syscall(SYS_write, report[1], "", 1));
        end();
    }
    MUST(close(listener));
    MUST(syscall(SYS_read, report[0], &byte, 1));
    MUST(waitpid(child, &status, 0));
    got("the peer has", syscall(SYS_recvfrom, pair.peer, &byte, 1, MSG_DONTWAIT, NULL, NULL));
    struct sockaddr_in address = loopback(port);
    int next = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(setsockopt(next, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    got("bind", bind(next, (struct sockaddr *)&address, sizeof address));
    got("listen", listen(next, 1));
    MUST(close(next));
    peer_close(&pair);
}

/* After a program has ended, its connections have ended and its port is free. */
static void exit_ends_all_connections(void) {
    for (int round = 0; round < 5; round++) {
        print_peer_end(end_by_exit);
        print_peer_end(end_at_once);
        print_peer_end(end_by_exec);
    }
}

static void abort_sends_written_bytes(void) { print_end(end_by_abort); }

/* The program ends while closed connections still have deferred output. */
static void print_remaining(bool waits, void (*end)(void)) {
    int port, listener = listen_on(0, &port), status = 0, report[2], bytes = 4096;
    uint64_t count = 0;
    struct sockaddr_in address = loopback(port);
    struct pair pair = {.peer = (int)MUST(syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    MUST(syscall(SYS_setsockopt, pair.peer, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
    MUST(syscall(SYS_connect, pair.peer, &address, sizeof address));
    MUST(pipe(report));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        syscall(SYS_close, pair.peer);
        int set = new_set();
        pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
        MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
        add(set, pair.app, EPOLLIN, 1);
        poll_once(set);
        count = write_much(&pair);
        poll_once(set);
        MUST(close(pair.app));
        if (waits)
            poll_once(set);
        MUST(syscall(SYS_write, report[1], &count, sizeof count));
        end();
    }
    MUST(close(listener));
    MUST(syscall(SYS_read, report[0], &count, sizeof count));
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    MUST(waitpid(child, &status, 0));
    pthread_join(reader.thread, NULL);
    print_all(&reader, count);
    print("exit %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static void exit_waits_for_deferred_output_of_closed_connections(void) {
    for (int waits = 0; waits < 2; waits++) {
        print_remaining(waits, end_by_exit);
        print_remaining(waits, end_at_once);
        print_remaining(waits, end_by_exec);
        print_remaining(waits, end_of_the_first_thread);
    }
}

static void an_abort_of_others_is_an_abort(void) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    print("before\n");
    abort();
}

static void exit_in_a_handler(void) { print("at exit\n"); }

static void exit_handlers_run(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    MUST(-atexit(exit_in_a_handler));
    MUST(write(pair.app, "x", 1));
    exit(7);
}

static const struct app_case cases[] = {
    CASE(written_bytes_arrive_before_the_end, "served:write served:close"),
    CASE(a_socket_closed_with_deferred_output_sends_it_first, "served:write"),
    CASE(a_number_closed_with_deferred_output_can_be_reused, "served:write"),
    CASE(closing_the_set_delivers_deferred_output, "served:write"),
    CASE(closing_a_shared_set_delivers_deferred_output, "served:write"),
    CASE(thousands_closed_at_once_send_all_bytes, ""),
    CASE(a_connection_closed_with_deferred_output_ends_while_a_child_lives, "served:write"),
    CASE(data_for_a_closed_connection_resets_it, "served:write"),
    CASE(unread_bytes_make_the_end_a_reset, ""),
    CASE(unread_bytes_make_the_end_a_reset_without_a_wait, ""),
    CASE(a_response_to_the_only_request_comes_with_the_end, "served:write served:close"),
    CASE(a_response_to_the_only_request_comes_before_a_reset, "served:write served:close"),
    CASE(linger_of_zero_is_a_reset, ""),
    CASE(linger_waits_until_all_has_arrived, ""),
    CASE(a_shutdown_follows_written_bytes, "served:write"),
    CASE(a_shutdown_of_both_directions_follows_deferred_output, "served:write"),
    CASE(a_shutdown_for_reading_keeps_received_bytes, ""),
    CASE(shutdown_errors_are_unchanged, ""),
    CASE(closing_a_range_sends_written_bytes, "served:write served:close"),
    CASE(a_range_to_the_end_leaves_a_program_that_works, ""),
    CASE(all_numbers_closed_one_by_one_leave_a_program_that_works, "served:read"),
    CASE(a_set_works_on_though_all_other_numbers_were_closed, "served:close"),
    CASE(a_closed_number_is_bad_in_every_call, ""),
    CASE(a_closed_number_is_the_next_to_be_used, "served:close"),
    CASE(a_closed_number_is_free_for_any_call, "served:close"),
    CASE(a_closed_number_is_free_where_none_are_left, "served:close"),
    CASE(a_number_closed_with_deferred_output_is_free, "served:write"),
    CASE(closing_the_set_lets_writes_arrive, ""),
    CASE(closed_sets_leave_no_memory, "served:write"),
    CASE(connections_open_and_close, "served:read served:write"),
    CASE(exit_sends_written_bytes, "served:write"),
    CASE(exit_ends_all_connections, ""),
    CASE(abort_sends_written_bytes, "served:write"),
    CASE(exit_waits_for_deferred_output_of_closed_connections, "served:write"),
    CASE(an_abort_of_others_is_an_abort, "passes"),
    CASE(exit_handlers_run, ""),
};

int main(int argc, char **argv) { return RUN(cases); }
