/* How a connection ends: close, close_range, shutdown and the end of the program, with bytes on their way out, bytes
 * that nobody read, and linger. The rule: what was accepted arrives, then the end that the kernel would have sent. */
#include "app.h"
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/resource.h>
#include <linux/close_range.h>

static void what_was_written_arrives_before_the_end(void) {
    int set = new_set();
    struct pair first = joined(set, EPOLLIN), second = joined(set, EPOLLIN | EPOLLOUT | EPOLLET);
    MUST(write(first.app, "last words", 10));
    GOT(close(first.app));
    say_now(set);
    peer_gets(&first, 100);
    MUST(write(second.app, "one ", 4));
    turn(set);
    MUST(write(second.app, "two", 3));
    GOT(close(second.app));
    say_now(set);
    peer_gets(&second, 100);
}

static void a_socket_closed_full_is_emptied_first(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLOUT);
    static unsigned char bytes[70000];
    uint64_t place = 0;
    for (int quiet = 0; quiet < 3;) {
        fill(bytes, sizeof bytes, place);
        long done = write(pair.app, bytes, sizeof bytes);
        place += done > 0 ? (uint64_t)done : 0;
        quiet = done > 0 ? 0 : quiet + 1;
        if (done < 0)
            epoll_wait(set, &(struct epoll_event){0}, 1, 2);
    }
    GOT(close(pair.app));
    struct reader reader;
    reader_start(&reader, pair.peer, 50);
    join_turning(&reader, set);
    say("the peer got all: %s, wrong at %ld, %s\n", reader.count == place ? "yes" : "no", reader.wrong_at,
        reader.error ? strerrorname_np(reader.error) : "ended");
}

/* Writes to one who does not read, until nothing more is taken by the library or the kernel; how much was. */
static uint64_t write_much(struct pair *pair) {
    static unsigned char bytes[60000];
    uint64_t place = 0;
    if (bytes[1] != byte_at(1))
        fill(bytes, sizeof bytes, 0);
    for (int i = 0; i < 20; i++) {
        long done = write(pair->app, bytes + place, 3000);
        place += done > 0 ? (uint64_t)done : 0;
    }
    return place;
}

/* Says whether the peer gets as much. */
static void say_all(struct reader *reader, uint64_t count) {
    say("the peer got all: %s, wrong at %ld, %s\n", reader->count == count ? "yes" : "no", reader->wrong_at,
        reader->error ? strerrorname_np(reader->error) : "ended");
}

static struct pair joined_narrow(int set) {
    struct pair pair = connected_narrow();
    add(set, pair.app, EPOLLIN, 1);
    turn(set);
    return pair;
}

/* A connection is closed with more to send than there is room for, and its peer writes instead of reading. */
static void say_reset(bool written_before, bool ends, bool without_ring) {
    int set = new_set(), peer_error = 0;
    char bytes[4096];
    long done;
    struct pair pair = joined_narrow(set);
    write_much(&pair);
    turn(set);
    if (written_before)
        peer_send(&pair, "never read");
    MUST(close(pair.app));
    if (without_ring)
        MUST(close(set));
    else
        turn(set);
    if (!written_before)
        peer_send(&pair, "too late");
    // Where it is reset already, there is nothing to end.
    if (ends)
        syscall(SYS_shutdown, pair.peer, SHUT_WR);
    for (int i = 0; i < 2000 && !peer_error; i++) {
        socklen_t length = sizeof peer_error;
        pause_ms(1);
        if (!without_ring)
            turn(set);
        MUST(syscall(SYS_getsockopt, pair.peer, SOL_SOCKET, SO_ERROR, &peer_error, &length));
    }
    say("the peer is told %s, and then ", peer_error ? strerrorname_np(peer_error) : "nothing");
    while ((done = syscall(SYS_recvfrom, pair.peer, bytes, sizeof bytes, MSG_DONTWAIT, NULL, NULL)) > 0)
        ;
    say("%s\n", done == 0 ? "the end" : strerrorname_np(errno));
    peer_close(&pair);
}

static void what_arrives_for_a_closed_connection_resets_it(void) {
    for (int how = 0; how < 8; how++)
        say_reset(how & 1, how & 2, how & 4);
}

static void a_shutdown_of_both_directions_comes_after_what_had_no_room(void) {
    int set = new_set();
    struct pair pair = joined_narrow(set);
    uint64_t count = write_much(&pair);
    turn(set);
    GOT(shutdown(pair.app, SHUT_RDWR));
    GOT(send(pair.app, "x", 1, MSG_NOSIGNAL));
    say_read(pair.app, 1);
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    join_turning(&reader, set);
    say_all(&reader, count);
}

/* Another file is put in the place of one that is full: open, closed just now, closed a round ago. */
static void a_number_closed_full_can_be_taken_by_another(void) {
    for (int waits = 0; waits < 3; waits++) {
        int set = new_set();
        struct pair slow = joined_narrow(set), other = connected();
        uint64_t count = write_much(&slow);
        if (waits < 2)
            MUST(close(slow.app));
        if (waits == 1)
            turn(set);
        say("taken: %s\n", dup2(other.app, slow.app) == slow.app ? "yes" : "no");
        MUST(write(slow.app, "its own", 7));
        struct reader reader;
        reader_start(&reader, slow.peer, 0);
        join_turning(&reader, set);
        say_all(&reader, count);
        say("open: %s\n", fcntl(slow.app, F_GETFD) >= 0 ? "yes" : strerrorname_np(errno));
        MUST(close(other.app));
        MUST(close(slow.app));
        peer_gets(&other, 100);
    }
}

/* A set that is closed, by itself or before or after its connections, leaves what had no room to be sent. */
static void closing_the_set_lets_what_had_no_room_arrive(void) {
    static const char *const orders[] = {"set", "set, connection", "connection, set", "connection, wait, set"};
    for (int order = 0; order < 4; order++) {
        int set = new_set();
        struct pair pair = joined_narrow(set);
        uint64_t count = write_much(&pair);
        turn(set);
        if (order >= 2)
            MUST(close(pair.app));
        if (order == 3)
            turn(set);
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
        say("%s: ", orders[order]);
        say_all(&reader, count);
    }
}

/* A second thread waits on the set: the kernel answers from then on, and what had no room is sent all the same. */
static void *wait_once(void *set) {
    turn(*(int *)set);
    return NULL;
}

static void a_set_that_is_shared_lets_what_had_no_room_arrive(void) {
    int set = new_set();
    struct pair pair = joined_narrow(set);
    mod(set, pair.app, EPOLLOUT | EPOLLET, 1);
    uint64_t count = write_much(&pair);
    turn(set);
    pthread_t thread;
    MUST(-pthread_create(&thread, NULL, wait_once, &set));
    pthread_join(thread, NULL);
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    /* Until all of it has gone nothing may be written. */
    for (long done = -1; done < 0;) {
        done = write(pair.app, &(unsigned char){byte_at(count)}, 1);
        if (done < 0 && epoll_wait(set, &(struct epoll_event){0}, 1, 10000) != 1)
            say("the room is not reported\n");
    }
    MUST(close(pair.app));
    pthread_join(reader.thread, NULL);
    say_all(&reader, count + 1);
}

/* A server that lets all its clients go at once, more than there is room for answers, and some of them are full. */
static void thousands_closed_at_once_leave_nothing_out(void) {
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
    turn(set);
    for (int i = 0; i < IDLE; i++)
        MUST(close(idle[i].app));
    for (int i = 0; i < SLOW; i++) {
        counts[i] = write_much(&slow[i]);
        MUST(close(slow[i].app));
    }
    turn(set);
    struct pair next[SLOW];
    for (int i = 0; i < SLOW; i++) {
        next[i] = joined(set, EPOLLIN);
        MUST(write(next[i].app, "written", 7));
        MUST(close(next[i].app));
    }
    /* A wait that may sleep: the kernel ends only some of what it has cancelled with each look. */
    epoll_wait(set, &(struct epoll_event){0}, 1, 200);
    for (int i = 0; i < SLOW; i++) {
        reader_start(&readers[i], slow[i].peer, 0);
        join_turning(&readers[i], set);
        say_all(&readers[i], counts[i]);
        peer_gets(&next[i], 100);
    }
    for (int i = 0; i < IDLE; i++)
        if (syscall(SYS_read, idle[i].peer, &(char){0}, 1) != 0)
            say("%d has not ended\n", i);
}

/* A child that lives on does not keep the peer from its end. */
static void what_was_closed_full_ends_though_a_child_lives(void) {
    for (int waits = 0; waits < 2; waits++) {
        int set = new_set();
        struct pair pair = joined_narrow(set);
        uint64_t count = write_much(&pair);
        turn(set);
        MUST(close(pair.app));
        if (waits)
            turn(set);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            pause_ms(5000);
            syscall(SYS_exit_group, 0);
        }
        struct reader reader;
        reader_start(&reader, pair.peer, 0);
        join_turning(&reader, set);
        say_all(&reader, count);
        say("the child lives: %s\n", waitpid(child, NULL, WNOHANG) == 0 ? "yes" : "no");
        MUST(kill(child, SIGKILL));
        waitpid(child, NULL, 0);
        MUST(close(set));
    }
}

/* The kernel answers a close with bytes unread by RST, whoever holds those bytes. */
static void unread_bytes_make_the_end_a_reset(void) {
    int set = new_set();
    struct pair reported = joined(set, EPOLLIN), unseen = joined(set, EPOLLIN), partly = joined(set, EPOLLIN),
                ended = joined(set, EPOLLIN);
    peer_send(&reported, "unread");
    settle(&reported);
    say_next(set);
    GOT(close(reported.app));
    say_now(set);
    peer_gets_the_end(&reported);
    peer_send(&unseen, "unread");
    settle(&unseen);
    GOT(close(unseen.app));
    say_now(set);
    peer_gets_the_end(&unseen);
    peer_send(&partly, "unread");
    settle(&partly);
    say_next(set);
    say_read(partly.app, 3);
    GOT(close(partly.app));
    say_now(set);
    peer_gets_the_end(&partly);
    peer_send(&ended, "all read");
    peer_shutdown(&ended);
    settle(&ended);
    say_next(set);
    say_read(ended.app, 100);
    GOT(close(ended.app));
    say_now(set);
    peer_gets_the_end(&ended);
}

/* The same, of a program that does something else for long and does not wait on its set. */
static void unread_bytes_make_the_end_a_reset_without_a_wait(void) {
    int set = new_set();
    struct pair reported = joined(set, EPOLLIN), unseen = joined(set, EPOLLIN), answered = joined(set, EPOLLIN);
    peer_send(&reported, "unread");
    settle(&reported);
    say_next(set);
    GOT(close(reported.app));
    peer_gets_the_end(&reported);
    say_now(set);
    peer_send(&unseen, "unread");
    settle(&unseen);
    GOT(close(unseen.app));
    peer_gets_the_end(&unseen);
    say_now(set);
    peer_send(&answered, "all read");
    settle(&answered);
    say_next(set);
    say_read(answered.app, 100);
    GOT(write(answered.app, "answer", 6));
    peer_send(&answered, "unread");
    settle(&answered);
    say_next(set);
    peer_gets(&answered, 6);
    GOT(close(answered.app));
    peer_gets_the_end(&answered);
}

/* One request, one answer, the end: nothing of such a connection is with the kernel when it is closed. */
static struct pair asked_once(int set) {
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "request");
    say_next(set);
    say_read(pair.app, 100);
    return pair;
}

static void an_answer_to_the_only_request_comes_with_the_end(void) {
    int set = new_set();
    struct pair pair = asked_once(set);
    int number = pair.app;
    MUST(write(pair.app, "answer", 6));
    GOT(close(pair.app));
    /* Without a wait of the program. */
    peer_gets_the_end(&pair);
    struct pair next = connected();
    say("the same number: %d\n", next.app == number);
    add(set, next.app, EPOLLIN, 2);
    MUST(write(next.app, "another", 7));
    say_now(set);
    peer_gets(&next, 7);
    GOT(close(next.app));
    say_now(set);
    peer_gets_the_end(&next);
}

static void an_answer_to_the_only_request_comes_before_a_reset(void) {
    int set = new_set();
    struct pair pair = asked_once(set);
    peer_send(&pair, "and more");
    settle(&pair);
    MUST(write(pair.app, "answer", 6));
    GOT(close(pair.app));
    say_now(set);
    peer_gets_the_end(&pair);
    struct linger at_once = {1, 0};
    pair = asked_once(set);
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    MUST(write(pair.app, "answer", 6));
    GOT(close(pair.app));
    say_now(set);
    char bytes[16];
    /* Whether it overtakes the reset is for the kernel's pacing to say. */
    while (syscall(SYS_read, pair.peer, bytes, sizeof bytes) > 0)
        continue;
    say("the peer gets %s\n", strerrorname_np(errno));
}

static void linger_of_zero_is_a_reset(void) {
    int set = new_set();
    struct linger at_once = {1, 0};
    struct pair idle = joined(set, EPOLLIN), wrote = joined(set, EPOLLIN);
    GOT(setsockopt(idle.app, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    GOT(close(idle.app));
    say_now(set);
    peer_gets_the_end(&idle);
    MUST(write(wrote.app, "before", 6));
    turn(set);
    peer_gets(&wrote, 6);
    GOT(setsockopt(wrote.app, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    /* Whether these overtake the reset is for the kernel's pacing to say. */
    MUST(write(wrote.app, " after", 6));
    GOT(close(wrote.app));
    say_now(set);
    char bytes[16];
    while (syscall(SYS_read, wrote.peer, bytes, sizeof bytes) > 0)
        continue;
    say("the peer gets %s\n", strerrorname_np(errno));
}

static void linger_waits_until_all_has_arrived(void) {
    int set = new_set();
    struct linger patient = {1, 20};
    struct pair pair = joined(set, EPOLLIN);
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_LINGER, &patient, sizeof patient));
    MUST(write(pair.app, "arrives", 7));
    GOT(close(pair.app));
    say_now(set);
    peer_gets(&pair, 100);
}

static void a_shutdown_comes_after_what_was_written(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLRDHUP);
    MUST(write(pair.app, "request", 7));
    GOT(shutdown(pair.app, SHUT_WR));
    peer_gets(&pair, 100);
    say_now(set);
    peer_send(&pair, "answer");
    settle(&pair);
    say_next(set);
    say_read(pair.app, 100);
    GOT(shutdown(pair.app, SHUT_WR));
    peer_shutdown(&pair);
    settle_state(pair.app, STATE_CLOSED);
    say_next(set);
    say_read(pair.app, 100);
    GOT(shutdown(pair.app, SHUT_RDWR));
}

static void a_shutdown_for_reading_keeps_what_arrived(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLRDHUP);
    peer_send(&pair, "arrived");
    settle(&pair);
    say_next(set);
    GOT(shutdown(pair.app, SHUT_RD));
    say_now(set);
    say_read(pair.app, 4);
    say_read(pair.app, 100);
    say_read(pair.app, 100);
    MUST(write(pair.app, "answer", 6));
    say_now(set);
    peer_gets(&pair, 6);
}

static void errors_of_shutdown_are_the_kernels(void) {
    int set = new_set(), fresh = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct pair pair = joined(set, EPOLLIN);
    GOT(shutdown(fresh, SHUT_WR));
    GOT(shutdown(pair.app, 3));
    GOT(shutdown(pair.app, -1));
    GOT(shutdown(0, SHUT_WR));
    GOT(shutdown(-1, SHUT_WR));
    GOT(shutdown(set, SHUT_WR));
    say_now(set);
}

static void a_range_is_closed_with_what_was_written(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN), kept = joined(set, EPOLLIN);
    MUST(write(pair.app, "in the range", 12));
    MUST(write(kept.app, "kept", 4));
    GOT(close_range((unsigned)pair.app, (unsigned)pair.app, 0));
    say_now(set);
    peer_gets(&pair, 100);
    GOT(close_range((unsigned)kept.app, (unsigned)kept.app, CLOSE_RANGE_CLOEXEC));
    peer_send(&kept, "open");
    say_next(set);
    say_read(kept.app, 100);
    peer_gets(&kept, 4);
    GOT(close_range(5, 4, 0));
    GOT(close_range(5, 6, 0x100));
    GOT(close_range(1u << 24, 1u << 25, 0));
    say_now(set);
}

static void a_range_to_the_end_leaves_a_program_that_works(void) {
    for (int round = 0; round < 3; round++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN);
        MUST(write(pair.app, "bye", 3));
        /* The peer is out of the range, where the kernel's own side stays to be asked. */
        pair.peer = (int)MUST(syscall(SYS_dup2, pair.peer, 0));
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
        say_next(set);
        say_read(pair.app, 100);
        MUST(write(pair.app, "bye", 3));
        turn(set);
        peer_gets(&pair, 3);
    }
}

/* Daemons close what they inherited, and some do it after their event loop is made: the set's number is spared, what
 * the library opened is not. */
static void a_set_works_on_though_all_other_numbers_were_closed(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "before");
    say_next(set);
    for (int fd = 3; fd < 70000; fd++)
        if (fd != set && fd != pair.app && fd != pair.peer)
            close(fd);
    say_read(pair.app, 100);
    MUST(write(pair.app, "answer", 6));
    say_now(set);
    peer_gets(&pair, 6);
    struct pair late = joined(set, EPOLLIN);
    peer_send(&late, "after");
    settle(&late);
    say_next(set);
    say_read(late.app, 100);
    closefrom(late.peer + 1);
    peer_send(&pair, "at last");
    say_next(set);
    say_read(pair.app, 100);
    MUST(write(pair.app, "end", 3));
    say_now(set);
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
    say_now(set);
}

static void a_closed_number_is_the_next_to_be_given(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    for (int i = 0; i < 4; i++) {
        struct pair pair = pair_on(listener, port, SOCK_NONBLOCK);
        add(set, pair.app, EPOLLIN, 1);
        turn(set);
        if (i % 2)
            MUST(write(pair.app, "x", 1));
        if (i / 2)
            turn(set);
        MUST(close(pair.app));
        int next = (int)MUST(dup(0));
        say("the same number: %s\n", next == pair.app ? "yes" : "no");
        MUST(close(next));
        peer_close(&pair);
    }
}

/* The number of a connection that is asked for the second time or more, which the ring has a lasting receive of. */
static struct pair asked_twice(int set) {
    struct pair pair = joined(set, EPOLLIN);
    for (int i = 0; i < 2; i++) {
        peer_send(&pair, "ask");
        settle(&pair);
        say_next(set);
        say_read(pair.app, 100);
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
        struct pair pair = asked_twice(set);
        int spare = (int)MUST(dup(0));
        if (way >= 10)
            MUST(write(pair.app, "last", 4));
        MUST(close(pair.app));
        int taken = (int)MUST(take_number(way % 10));
        say("way %d: %s\n", way, taken == pair.app ? "the same number" : "another");
        peer_gets_the_end(&pair);
        peer_close(&pair);
        close(taken);
        close(spare);
    }
}

static void a_closed_number_is_free_where_none_are_left(void) {
    int set = new_set();
    struct pair first = asked_twice(set), second = asked_twice(set);
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){60, 60}));
    while (dup(0) >= 0)
        continue;
    say("%s\n", strerrorname_np(errno));
    MUST(close(first.app));
    MUST(close(second.app));
    int ends[2] = {-1, -1};
    GOT(pipe(ends));
    say("the same numbers: %s\n", ends[0] == first.app && ends[1] == second.app ? "yes" : "no");
    GOT(eventfd(0, 0));
}

/* What had no room is still sent, under a number that is not the program's. */
static void a_number_closed_full_is_free(void) {
    for (int waits = 0; waits < 2; waits++) {
        int set = new_set();
        struct pair pair = joined_narrow(set);
        uint64_t count = write_much(&pair);
        int lower = (int)MUST(dup(0));
        if (waits)
            turn(set);
        MUST(close(pair.app));
        int taken = (int)MUST(eventfd(0, 0));
        say("the same number: %s\n", taken == pair.app ? "yes" : "no");
        struct reader reader;
        reader_start(&reader, pair.peer, 0);
        join_turning(&reader, set);
        say_all(&reader, count);
        say("still open: %s\n", fcntl(taken, F_GETFD) >= 0 ? "yes" : "no");
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
    settle(&pair);
    say_read(pair.app, 100);
}

/* As a program does that makes an event loop for each of its tasks. */
static void sets_come_and_go_and_leave_no_memory(void) {
    long pages[2] = {0, 0};
    int right = 0;
    for (int i = 0; i < 60; i++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN), idle = joined(set, EPOLLIN);
        peer_send(&pair, "ask");
        settle(&pair);
        epoll_wait(set, &(struct epoll_event){0}, 1, 10000);
        MUST(write(pair.app, "answer", 6));
        peer_send(&idle, "late");
        settle(&idle);
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
        MUST(fscanf(file, "%ld", &pages[i >= 20]));
        fclose(file);
    }
    say("right: %d, memory stays: %s\n", right, pages[1] - pages[0] < 5000 ? "yes" : "no");
}

static void connections_come_and_go(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port), right = 0;
    add(set, listener, EPOLLIN, 1000);
    for (int i = 0; i < 200; i++) {
        struct pair pair = {.peer = peer_connect(port)};
        struct epoll_event event;
        char bytes[16];
        MUST(epoll_wait(set, &event, 1, 10000));
        pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
        add(set, pair.app, EPOLLIN | EPOLLRDHUP | EPOLLET, (uint64_t)i);
        peer_send(&pair, "ask");
        do
            MUST(epoll_wait(set, &event, 1, 10000));
        while (event.data.u64 != (uint64_t)i);
        right += read(pair.app, bytes, sizeof bytes) == 3;
        right += write(pair.app, "answer", 6) == 6;
        MUST(close(pair.app));
        turn(set);
        right += syscall(SYS_read, pair.peer, bytes, sizeof bytes) == 6;
        right += syscall(SYS_read, pair.peer, bytes, sizeof bytes) == 0;
        peer_close(&pair);
    }
    say("right: %d\n", right);
    say_now(set);
}

/* ---- the end of the program ---- */

static void end_by_exit(void) { exit(3); }
static void end_at_once(void) { _exit(4); }
static void end_at_once_too(void) { _Exit(5); }
static void end_by_abort(void) { abort(); }
static void end_by_exec(void) { execl("/bin/sh", "sh", "-c", "exit 6", (char *)NULL); }
static void end_of_the_first_thread(void) { pthread_exit(NULL); }

/* A program of its own, which serves one connection and ends with its answer still to go. */
static void answer_and_end(int listener, struct pair *pair, void (*end)(void)) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    int set = new_set();
    pair->app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    add(set, pair->app, EPOLLIN, 1);
    say_next(set);
    say_read(pair->app, 10);
    MUST(write(pair->app, "the last answer", 15));
    end();
}

static void say_end(void (*end)(void)) {
    int port, listener = listen_on(0, &port), status = 0;
    struct pair pair = {.peer = peer_connect(port)};
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        syscall(SYS_close, pair.peer);
        answer_and_end(listener, &pair, end);
    }
    MUST(close(listener));
    peer_send(&pair, "ask");
    peer_gets(&pair, 100);
    MUST(waitpid(child, &status, 0));
    say("exit %d, signal %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    peer_close(&pair);
}

static void the_end_of_a_program_sends_what_was_written(void) {
    say_end(end_by_exit);
    say_end(end_at_once);
    say_end(end_at_once_too);
    say_end(end_by_exec);
    say_end(end_of_the_first_thread);
}

/* A program that serves a connection and has it open when it ends, and its listener. */
static void say_told(void (*end)(void)) {
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
        turn(set);
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

/* Whoever has waited for a program's end finds its connections ended, and its port free. */
static void the_end_of_a_program_is_the_end_of_its_connections(void) {
    for (int round = 0; round < 5; round++) {
        say_told(end_by_exit);
        say_told(end_at_once);
        say_told(end_by_exec);
    }
}

static void an_abort_sends_what_was_written(void) { say_end(end_by_abort); }

/* The program ends while what it has closed waits for room. */
static void say_rest(bool waits, void (*end)(void)) {
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
        turn(set);
        count = write_much(&pair);
        turn(set);
        MUST(close(pair.app));
        if (waits)
            turn(set);
        MUST(syscall(SYS_write, report[1], &count, sizeof count));
        end();
    }
    MUST(close(listener));
    MUST(syscall(SYS_read, report[0], &count, sizeof count));
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    MUST(waitpid(child, &status, 0));
    pthread_join(reader.thread, NULL);
    say_all(&reader, count);
    say("exit %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static void the_end_of_a_program_waits_for_what_was_closed_full(void) {
    for (int waits = 0; waits < 2; waits++) {
        say_rest(waits, end_by_exit);
        say_rest(waits, end_at_once);
        say_rest(waits, end_by_exec);
        say_rest(waits, end_of_the_first_thread);
    }
}

static void an_abort_of_others_is_an_abort(void) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    say("before\n");
    abort();
}

static void exit_in_a_handler(void) { say("at exit\n"); }

static void handlers_at_exit_run_as_ever(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    MUST(-atexit(exit_in_a_handler));
    MUST(write(pair.app, "x", 1));
    exit(7);
}

static const struct app_case cases[] = {
    CASE(what_was_written_arrives_before_the_end, "served:write served:close"),
    CASE(a_socket_closed_full_is_emptied_first, "served:write"),
    CASE(a_number_closed_full_can_be_taken_by_another, "served:write"),
    CASE(closing_the_set_lets_what_had_no_room_arrive, "served:write"),
    CASE(a_set_that_is_shared_lets_what_had_no_room_arrive, "served:write"),
    CASE(thousands_closed_at_once_leave_nothing_out, ""),
    CASE(what_was_closed_full_ends_though_a_child_lives, "served:write"),
    CASE(what_arrives_for_a_closed_connection_resets_it, "served:write"),
    CASE(unread_bytes_make_the_end_a_reset, ""),
    CASE(unread_bytes_make_the_end_a_reset_without_a_wait, ""),
    CASE(an_answer_to_the_only_request_comes_with_the_end, "served:write served:close"),
    CASE(an_answer_to_the_only_request_comes_before_a_reset, "served:write served:close"),
    CASE(linger_of_zero_is_a_reset, ""),
    CASE(linger_waits_until_all_has_arrived, ""),
    CASE(a_shutdown_comes_after_what_was_written, "served:write"),
    CASE(a_shutdown_of_both_directions_comes_after_what_had_no_room, "served:write"),
    CASE(a_shutdown_for_reading_keeps_what_arrived, ""),
    CASE(errors_of_shutdown_are_the_kernels, ""),
    CASE(a_range_is_closed_with_what_was_written, "served:write served:close"),
    CASE(a_range_to_the_end_leaves_a_program_that_works, ""),
    CASE(all_numbers_closed_one_by_one_leave_a_program_that_works, "served:read"),
    CASE(a_set_works_on_though_all_other_numbers_were_closed, "served:close"),
    CASE(a_closed_number_is_bad_in_every_call, ""),
    CASE(a_closed_number_is_the_next_to_be_given, "served:close"),
    CASE(a_closed_number_is_free_for_any_call, "served:close"),
    CASE(a_closed_number_is_free_where_none_are_left, "served:close"),
    CASE(a_number_closed_full_is_free, "served:write"),
    CASE(closing_the_set_lets_writes_arrive, ""),
    CASE(sets_come_and_go_and_leave_no_memory, "served:write"),
    CASE(connections_come_and_go, "served:read served:write"),
    CASE(the_end_of_a_program_sends_what_was_written, "served:write"),
    CASE(the_end_of_a_program_is_the_end_of_its_connections, ""),
    CASE(an_abort_sends_what_was_written, "served:write"),
    CASE(the_end_of_a_program_waits_for_what_was_closed_full, "served:write"),
    CASE(an_abort_of_others_is_an_abort, ""),
    CASE(handlers_at_exit_run_as_ever, ""),
};

int main(int argc, char **argv) { return RUN(cases); }
