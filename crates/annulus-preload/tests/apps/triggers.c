/* The events that are reported, and when: level, edge, oneshot and exclusive; the end of a peer; MOD, DEL and a second
 * ADD of a socket with pending events. The rule: as the kernel's own epoll. */
#include "app.h"

static struct pair added(int set, uint32_t mask) {
    struct pair pair = connected();
    add(set, pair.app, mask, 1);
    return pair;
}

static void level_is_reported_until_all_is_read(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    peer_send(&pair, "hello");
    print_next(set);
    print_next(set);
    print_read(pair.app, 2);
    print_next(set);
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    print_now(set);
    peer_send(&pair, "again");
    print_next(set);
    print_read(pair.app, 100);
    print_now(set);
}

static void level_is_reported_by_a_wait_with_a_zero_timeout(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    for (int i = 0; i < 5; i++) {
        peer_send(&pair, "now");
        await_delivery(&pair);
        print_now(set);
        print_read(pair.app, 100);
        print_now(set);
    }
}

static void writable_level_is_reported_each_time(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLOUT);
    print_now(set);
    print_now(set);
    peer_send(&pair, "x");
    await_delivery(&pair);
    print_now(set);
    mod(set, pair.app, EPOLLIN | EPOLLOUT, 1);
    print_now(set);
    print_now(set);
    mod(set, pair.app, EPOLLIN, 1);
    print_now(set);
    print_read(pair.app, 10);
    print_now(set);
}

static void an_edge_is_reported_once(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLET);
    print_now(set);
    peer_send(&pair, "hello");
    await_delivery(&pair);
    print_next(set);
    print_now(set);
    print_read(pair.app, 2);
    print_now(set);
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    print_now(set);
}

static void bytes_that_join_unread_ones_are_a_new_edge(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLET);
    for (int i = 0; i < 3; i++) {
        peer_send(&pair, "more ");
        await_delivery(&pair);
        print_next(set);
        print_now(set);
    }
    print_read(pair.app, 7);
    print_now(set);
    peer_send(&pair, "last");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
}

/* More than the library buffers of a connection. A program may wait until all of a message has arrived. */
static void bytes_behind_many_unread_ones_are_a_new_edge(void) {
    static char much[25001];
    memset(much, 'x', sizeof much - 1);
    int set = new_set(), size = 200000, waiting = -1;
    struct pair pair = connected();
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    add(set, pair.app, EPOLLIN | EPOLLET, 1);
    for (int i = 0; i < 6; i++) {
        peer_send(&pair, much);
        await_delivery(&pair);
        print_next(set);
        print_now(set);
        print_now(set);
    }
    GOT(ioctl(pair.app, FIONREAD, &waiting));
    print("waiting: %d\n", waiting);
    for (long result; (result = read(pair.app, much, sizeof much)) > 0; waiting -= (int)result)
        continue;
    print("left: %d\n", waiting);
    print_now(set);
    peer_send(&pair, "last");
    await_delivery(&pair);
    print_next(set);
    print_now(set);
    print_read(pair.app, 100);
    print_now(set);
}

static void an_edge_of_both_directions_reports_all_that_holds(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    print_now(set);
    print_now(set);
    peer_send(&pair, "hello");
    await_delivery(&pair);
    print_next(set);
    print_now(set);
    print_read(pair.app, 100);
    print_now(set);
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_next(set);
    print_now(set);
    print_read(pair.app, 100);
    print_now(set);
}

static void a_change_reports_an_edge_again(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLET);
    peer_send(&pair, "hello");
    await_delivery(&pair);
    print_next(set);
    print_now(set);
    mod(set, pair.app, EPOLLIN | EPOLLET, 1);
    print_now(set);
    print_now(set);
    mod(set, pair.app, EPOLLIN | EPOLLOUT | EPOLLET, 2);
    print_now(set);
    print_now(set);
    print_read(pair.app, 100);
    mod(set, pair.app, EPOLLIN | EPOLLET, 3);
    print_now(set);
    mod(set, pair.app, EPOLLOUT | EPOLLET, 4);
    print_now(set);
    print_now(set);
}

static void oneshot_is_silent_until_it_is_armed_again(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLONESHOT);
    peer_send(&pair, "one");
    await_delivery(&pair);
    print_next(set);
    print_now(set);
    peer_send(&pair, "two");
    await_delivery(&pair);
    print_now(set);
    mod(set, pair.app, EPOLLIN | EPOLLONESHOT, 2);
    print_now(set);
    print_now(set);
    print_read(pair.app, 100);
    mod(set, pair.app, EPOLLIN | EPOLLONESHOT, 3);
    print_now(set);
    peer_send(&pair, "three");
    print_next(set);
    print_read(pair.app, 100);
    mod(set, pair.app, EPOLLIN | EPOLLOUT | EPOLLONESHOT | EPOLLET, 4);
    print_now(set);
    print_now(set);
}

static void oneshot_that_fired_hides_even_a_reset(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLONESHOT);
    peer_send(&pair, "one");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    mod(set, pair.app, EPOLLIN | EPOLLONESHOT, 2);
    print_now(set);
    print_now(set);
    print_error_option(pair.app);
}

static void print_polled(int fd) {
    struct pollfd query = {fd, POLLIN, 0};
    GOT(poll(&query, 1, 0));
}

static void oneshot_is_reported_once_though_it_was_handed_back(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLET);
    peer_send(&pair, "one");
    await_delivery(&pair);
    print_next(set);
    print_polled(pair.app);
    print_now(set);
    for (int round = 0; round < 3; round++) {
        mod(set, pair.app, EPOLLIN | EPOLLET | EPOLLONESHOT, 2);
        print_next(set);
        peer_send(&pair, "more");
        await_delivery(&pair);
        print_now(set);
    }
    print_read(pair.app, 100);
    mod(set, pair.app, EPOLLIN | EPOLLONESHOT, 3);
    print_now(set);
    peer_send(&pair, "last");
    await_delivery(&pair);
    print_next(set);
    print_now(set);
}

/* Both are pending when the program waits; a report of the first alone would be all that it gets. */
static void oneshot_reports_all_pending_events(void) {
    int set = new_set();
    struct pair reset = added(set, EPOLLIN | EPOLLONESHOT), ended = added(set, EPOLLIN | EPOLLRDHUP);
    print_now(set);
    peer_send(&reset, "bytes");
    await_delivery(&reset);
    peer_reset(&reset);
    await_state(reset.app, STATE_CLOSED);
    print_next(set);
    print_read(reset.app, 100);
    del(set, ended.app);
    peer_send(&ended, "bytes");
    await_delivery(&ended);
    peer_shutdown(&ended);
    await_delivery(&ended);
    add(set, ended.app, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 2);
    print_next(set);
    print_read(ended.app, 100);
    print_read(ended.app, 100);
}

static void a_change_after_a_hand_back_is_reported(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLOUT | EPOLLET);
    print_next(set);
    print_polled(pair.app);
    mod(set, pair.app, EPOLLOUT | EPOLLET, 1);
    print_next(set);
    print_now(set);
    /* Another member with the same data, in the kernel's set. */
    struct pair other = added(set, EPOLLOUT | EPOLLET);
    mod(set, other.app, EPOLLOUT | EPOLLET, 5);
    print_next(set);
    print_polled(other.app);
    MUST(close(other.app));
    int ends[2];
    MUST(pipe(ends));
    add(set, ends[1], EPOLLOUT | EPOLLET, 5);
    print_next(set);
}

static void a_shutdown_after_a_hand_back_is_an_edge(void) {
    int set = new_set();
    struct pair shut = added(set, EPOLLOUT | EPOLLET), over = connected();
    GOT(shutdown(shut.app, SHUT_WR));
    await_state(shut.app, STATE_FIN_WAIT2);
    for (int i = 0; i < 3; i++)
        poll_once(set);
    peer_send(&shut, "unread");
    await_delivery(&shut);
    print_polled(shut.app);
    GOT(shutdown(shut.app, SHUT_WR));
    print_next(set);
    print_now(set);
    add(set, over.app, EPOLLIN | EPOLLET, 2);
    peer_reset(&over);
    await_state(over.app, STATE_CLOSED);
    print_next(set);
    print_error_option(over.app);
    print_polled(over.app);
    GOT(shutdown(over.app, SHUT_RDWR));
    print_next(set);
    print_now(set);
}

/* More input than the ring receives: the rest stays in the kernel, unread. */
static void a_hang_up_behind_unrequested_events_is_reported(void) {
    static char much[20001];
    memset(much, 'x', sizeof much - 1);
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    GOT(shutdown(pair.app, SHUT_WR));
    print_now(set);
    peer_send(&pair, much);
    await_delivery(&pair);
    print_next(set);
    long result, count = 0;
    while ((result = read(pair.app, much, sizeof much)) > 0)
        count += result;
    print("read %ld, then %s\n", count, result == 0 ? "the end" : strerrorname_np(errno));
    mod(set, pair.app, 0, 1);
    print_now(set);
    peer_send(&pair, "more");
    await_delivery(&pair);
    print_now(set);
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_next(set);
}

static void a_reset_before_it_is_added_is_returned_by_writes(void) {
    int set = new_set();
    struct pair pair = connected();
    peer_close(&pair);
    await_state(pair.app, STATE_CLOSE_WAIT);
    GOT(write(pair.app, "x", 1));
    await_state(pair.app, STATE_CLOSED);
    add(set, pair.app, EPOLLIN, 1);
    GOT(send(pair.app, "y", 1, MSG_NOSIGNAL));
    print_next(set);
}

static void exclusive_members_report_and_refuse_changes(void) {
    int set = new_set();
    struct pair pair = connected();
    GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1));
    GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 1));
    GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN | EPOLLEXCLUSIVE, 1));
    GOT(control(set, EPOLL_CTL_MOD, pair.app, EPOLLIN, 1));
    GOT(control(set, EPOLL_CTL_MOD, pair.app, EPOLLIN | EPOLLEXCLUSIVE, 1));
    peer_send(&pair, "x");
    print_next(set);
    print_read(pair.app, 10);
    print_now(set);
    del(set, pair.app);
    add(set, pair.app, EPOLLIN, 2);
    GOT(control(set, EPOLL_CTL_MOD, pair.app, EPOLLIN | EPOLLEXCLUSIVE, 1));
    peer_send(&pair, "y");
    print_next(set);
}

static void a_member_taken_out_can_be_an_exclusive_one(void) {
    for (int way = 0; way < 6; way++) {
        int set = new_set();
        struct pair pair = added(set, EPOLLIN);
        peer_send(&pair, "abc");
        await_delivery(&pair);
        if (way & 1) {
            print_next(set);
            print_read(pair.app, 1);
        }
        del(set, pair.app);
        uint32_t more = way < 2 ? EPOLLEXCLUSIVE : way < 4 ? EPOLLWAKEUP : EPOLLEXCLUSIVE | EPOLLONESHOT;
        GOT(control(set, EPOLL_CTL_ADD, pair.app, EPOLLIN | more, 2));
        print_now(set);
        print_now(set);
        print_stream(pair.app, 10);
        peer_send(&pair, "de");
        await_delivery(&pair);
        print_now(set);
        GOT(control(set, EPOLL_CTL_MOD, pair.app, EPOLLIN, 3));
        print_stream(pair.app, 10);
        GOT(control(set, EPOLL_CTL_DEL, pair.app, 0, 0));
        GOT(control(set, EPOLL_CTL_DEL, pair.app, 0, 0));
    }
}

static void a_oneshot_that_fired_can_be_rearmed(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLONESHOT);
    peer_send(&pair, "abc");
    await_delivery(&pair);
    print_next(set);
    GOT(control(set, EPOLL_CTL_MOD, pair.app, EPOLLIN | EPOLLWAKEUP | EPOLLONESHOT, 2));
    print_now(set);
    print_now(set);
    print_read(pair.app, 9);
    GOT(control(set, EPOLL_CTL_MOD, pair.app, EPOLLIN | EPOLLEXCLUSIVE, 3));
    GOT(control(set, EPOLL_CTL_MOD, pair.app, EPOLLIN, 4));
    peer_send(&pair, "de");
    await_delivery(&pair);
    print_now(set);
}

static void the_peers_fin_is_read_and_hung_up(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLRDHUP);
    peer_send(&pair, "bye");
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
    print_now(set);
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    print_now(set);
    mod(set, pair.app, EPOLLIN, 1);
    print_now(set);
    mod(set, pair.app, EPOLLRDHUP, 1);
    print_now(set);
    mod(set, pair.app, EPOLLOUT, 1);
    print_now(set);
    mod(set, pair.app, 0, 1);
    print_now(set);
}

static void hang_up_alone_is_reported_before_the_bytes_are_read(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLRDHUP);
    peer_send(&pair, "unread");
    await_delivery(&pair);
    print_now(set);
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_now(set);
    print_now(set);
    print_read(pair.app, 100);
    print_now(set);
}

static void both_ends_shut_is_a_hang_up(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    print_now(set);
    GOT(shutdown(pair.app, SHUT_WR));
    print_now(set);
    peer_gets(&pair, 1);
    peer_shutdown(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    mod(set, pair.app, 0, 1);
    print_now(set);
    print_read(pair.app, 10);
    print_error_option(pair.app);
}

static void a_local_shutdown_is_reported(void) {
    int set = new_set();
    struct pair first = added(set, EPOLLIN | EPOLLRDHUP), second = connected();
    print_now(set);
    GOT(shutdown(first.app, SHUT_RD));
    print_now(set);
    print_read(first.app, 10);
    del(set, first.app);
    add(set, second.app, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 2);
    print_now(set);
    GOT(shutdown(second.app, SHUT_RDWR));
    /* The peer's acknowledgement of the end is one more edge. */
    await_state(second.app, STATE_FIN_WAIT2);
    print_now(set);
    print_now(set);
    print_read(second.app, 10);
    peer_gets(&second, 1);
}

static void a_reset_is_an_error_and_a_hang_up(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    print_now(set);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    print_now(set);
    print_read(pair.app, 10);
    print_now(set);
    print_read(pair.app, 10);
    print_error_option(pair.app);
    GOT(send(pair.app, "x", 1, MSG_NOSIGNAL));
    print_now(set);
}

static void the_error_of_a_reset_can_be_queried_once(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    print_error_option(pair.app);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    print_error_option(pair.app);
    print_now(set);
    print_error_option(pair.app);
    print_read(pair.app, 10);
}

static void bytes_before_a_reset_are_read_first(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLRDHUP);
    peer_send(&pair, "before");
    await_delivery(&pair);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    print_read(pair.app, 3);
    print_now(set);
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    print_now(set);
}

static void bytes_and_a_reset_between_two_waits_are_both_reported(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLRDHUP);
    peer_send(&pair, "first");
    await_delivery(&pair);
    print_now(set);
    print_read(pair.app, 100);
    peer_send(&pair, "before");
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    print_read(pair.app, 100);
    print_now(set);
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    print_now(set);
}

static void no_interest_still_reports_a_reset(void) {
    int set = new_set();
    struct pair pair = added(set, 0);
    peer_send(&pair, "x");
    await_delivery(&pair);
    print_now(set);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    print_now(set);
}

static void an_edge_of_a_reset_is_reported_once(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    print_now(set);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    print_now(set);
    print_read(pair.app, 10);
    print_now(set);
}

static void a_member_taken_out_reports_nothing_and_loses_nothing(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    peer_send(&pair, "one ");
    print_next(set);
    del(set, pair.app);
    print_now(set);
    peer_send(&pair, "two ");
    await_delivery(&pair);
    print_now(set);
    add(set, pair.app, EPOLLIN | EPOLLET, 2);
    print_now(set);
    print_now(set);
    print_stream(pair.app, 100);
    del(set, pair.app);
    peer_send(&pair, "three");
    await_delivery(&pair);
    print_stream(pair.app, 100);
    add(set, pair.app, EPOLLIN, 3);
    print_now(set);
    peer_send(&pair, "four");
    print_next(set);
}

static void a_member_taken_out_can_be_read_with_blocking(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    peer_send(&pair, "pending");
    print_next(set);
    del(set, pair.app);
    MUST(fcntl(pair.app, F_SETFL, fcntl(pair.app, F_GETFL) & ~O_NONBLOCK));
    print_read(pair.app, 4);
    print_read(pair.app, 100);
    peer_send(&pair, "after");
    print_read(pair.app, 100);
    peer_shutdown(&pair);
    print_read(pair.app, 100);
}

static void a_small_event_buffer_reaches_all_members(void) {
    int set = new_set(), reports[5] = {0};
    struct pair pairs[5];
    for (int i = 0; i < 5; i++) {
        pairs[i] = connected();
        add(set, pairs[i].app, EPOLLIN, (uint64_t)i);
    }
    for (int i = 0; i < 5; i++) {
        peer_send(&pairs[i], "x");
        await_delivery(&pairs[i]);
    }
    struct epoll_event events[2];
    /* The program does not read, so each call has five ready members. A set that always starts with the first would
         * starve some. */
    for (int call = 0; call < 5; call++) {
        int count = epoll_wait(set, events, 2, 1000);
        print("places filled: %d\n", count);
        for (int i = 0; i < count; i++)
            reports[events[i].data.u64]++;
    }
    for (int i = 0; i < 5; i++)
        print("member %d reported %d times\n", i, reports[i]);
}

static void edges_beyond_the_buffer_are_reported_by_the_next_call(void) {
    int set = new_set(), reports[5] = {0}, total = 0;
    struct pair pairs[5];
    for (int i = 0; i < 5; i++) {
        pairs[i] = connected();
        add(set, pairs[i].app, EPOLLIN | EPOLLET, (uint64_t)i);
        peer_send(&pairs[i], "x");
        await_delivery(&pairs[i]);
    }
    struct epoll_event events[2];
    for (int count = 1; count > 0; total++) {
        count = epoll_wait(set, events, 2, 0);
        print("places filled: %d\n", count);
        for (int i = 0; i < count; i++)
            reports[events[i].data.u64]++;
    }
    for (int i = 0; i < 5; i++)
        print("member %d reported %d times\n", i, reports[i]);
}

static void a_number_that_is_used_again_is_a_new_member(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    for (int i = 0; i < 4; i++) {
        struct pair pair = pair_on(listener, port, SOCK_NONBLOCK);
        add(set, pair.app, EPOLLIN | EPOLLET, (uint64_t)i);
        print_now(set);
        peer_send(&pair, "data");
        print_next(set);
        if (i % 2)
            print_read(pair.app, 2);
        MUST(close(pair.app));
        print_now(set);
        peer_close(&pair);
    }
}

static void event_data_is_returned_unchanged(void) {
    int set = new_set();
    struct pair pair = connected();
    add(set, pair.app, EPOLLOUT, UINT64_MAX);
    print_now(set);
    mod(set, pair.app, EPOLLOUT, 0);
    print_now(set);
    mod(set, pair.app, EPOLLOUT, 0x8000000000000001u);
    print_now(set);
}

static void urgent_bytes_are_reported_separately(void) {
    int set = new_set(), at_mark = -1;
    char byte = 0;
    struct pair pair = added(set, EPOLLIN | EPOLLPRI);
    peer_send(&pair, "ab");
    MUST(syscall(SYS_sendto, pair.peer, "c", 1, MSG_OOB, NULL, 0));
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
    GOT(ioctl(pair.app, SIOCATMARK, &at_mark));
    print("at the mark: %d\n", at_mark);
    got_bytes("recv urgent", &byte, recv(pair.app, &byte, 1, MSG_OOB));
    GOT(recv(pair.app, &byte, 1, MSG_OOB));
    peer_send(&pair, "d");
    await_delivery(&pair);
    print_read(pair.app, 100);
    print_now(set);
}

static void urgent_bytes_inline_are_read_in_order(void) {
    int set = new_set(), one = 1;
    struct pair pair = added(set, EPOLLIN);
    peer_send(&pair, "1");
    print_next(set);
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one));
    peer_send(&pair, "ab");
    MUST(syscall(SYS_sendto, pair.peer, "c", 1, MSG_OOB, NULL, 0));
    peer_send(&pair, "d");
    await_delivery(&pair);
    print_stream(pair.app, 100);
}

static void masks_of_poll_are_reported_as_requested(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLRDNORM | EPOLLWRNORM | EPOLLWRBAND | EPOLLRDBAND | EPOLLMSG);
    print_now(set);
    peer_send(&pair, "x");
    await_delivery(&pair);
    print_now(set);
    mod(set, pair.app, EPOLLIN | EPOLLRDNORM, 1);
    print_now(set);
    mod(set, pair.app, EPOLLRDNORM | EPOLLET, 1);
    print_now(set);
    print_now(set);
    mod(set, pair.app, EPOLLIN | EPOLLWAKEUP, 1);
    print_now(set);
}

static void many_exchanges(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN | EPOLLRDHUP | EPOLLET);
    int right = 0;
    struct epoll_event event;
    // No more: a ring that the kernel polls takes up to 100 ms for each of them if other programs want the processors.
    for (int i = 0; i < 100; i++) {
        char text[32], bytes[32] = "";
        int length = snprintf(text, sizeof text, "question %d", i);
        peer_send(&pair, text);
        if (epoll_wait(set, &event, 1, 10000) != 1 || event.events != EPOLLIN)
            print("round %d: event 0x%x\n", i, event.events);
        long count = read(pair.app, bytes, sizeof bytes);
        if (count != length || memcmp(bytes, text, (size_t)length))
            print("round %d: %ld \"%.*s\"\n", i, count, (int)count, bytes);
        if (read(pair.app, bytes, sizeof bytes) != -1 || errno != EAGAIN)
            print("round %d: more to read\n", i);
        MUST(write(pair.app, text, (size_t)length));
        if (epoll_wait(set, &event, 1, 0) != 0)
            print("round %d: event 0x%x\n", i, event.events);
        long back = syscall(SYS_read, pair.peer, bytes, sizeof bytes);
        right += back == length && !memcmp(bytes, text, (size_t)length);
    }
    print("right: %d\n", right);
}

static const struct app_case cases[] = {
    CASE(level_is_reported_until_all_is_read, "served:read served:epoll_wait"),
    CASE(level_is_reported_by_a_wait_with_a_zero_timeout, "served:read"),
    CASE(writable_level_is_reported_each_time, "served:read"),
    CASE(an_edge_is_reported_once, "served:read"),
    CASE(bytes_that_join_unread_ones_are_a_new_edge, "served:read"),
    CASE(bytes_behind_many_unread_ones_are_a_new_edge, "served:read"),
    CASE(an_edge_of_both_directions_reports_all_that_holds, "served:read"),
    CASE(a_change_reports_an_edge_again, "served:read"),
    CASE(oneshot_is_silent_until_it_is_armed_again, "served:read served:epoll_ctl"),
    CASE(oneshot_that_fired_hides_even_a_reset, ""),
    CASE(oneshot_is_reported_once_though_it_was_handed_back, "back:polled_otherwise"),
    CASE(oneshot_reports_all_pending_events, "served:read"),
    CASE(a_change_after_a_hand_back_is_reported, "back:polled_otherwise"),
    CASE(a_shutdown_after_a_hand_back_is_an_edge, "back:polled_otherwise"),
    CASE(a_hang_up_behind_unrequested_events_is_reported, "served:read"),
    CASE(a_reset_before_it_is_added_is_returned_by_writes, "passed:not_connected"),
    CASE(exclusive_members_report_and_refuse_changes, "passed:unknown_flags"),
    CASE(a_member_taken_out_can_be_an_exclusive_one, "back:unknown_flags"),
    CASE(a_oneshot_that_fired_can_be_rearmed, "back:unknown_flags"),
    CASE(the_peers_fin_is_read_and_hung_up, "served:read"),
    CASE(hang_up_alone_is_reported_before_the_bytes_are_read, ""),
    CASE(both_ends_shut_is_a_hang_up, "served:shutdown"),
    CASE(a_local_shutdown_is_reported, ""),
    CASE(a_reset_is_an_error_and_a_hang_up, "failed:read"),
    CASE(the_error_of_a_reset_can_be_queried_once, "served:getsockopt"),
    CASE(bytes_before_a_reset_are_read_first, "served:read"),
    CASE(bytes_and_a_reset_between_two_waits_are_both_reported, "served:read"),
    CASE(no_interest_still_reports_a_reset, ""),
    CASE(an_edge_of_a_reset_is_reported_once, ""),
    CASE(a_member_taken_out_reports_nothing_and_loses_nothing, ""),
    CASE(a_member_taken_out_can_be_read_with_blocking, "back:blocking served:epoll_ctl"),
    CASE(a_small_event_buffer_reaches_all_members, "served:epoll_wait"),
    CASE(edges_beyond_the_buffer_are_reported_by_the_next_call, "served:epoll_wait"),
    CASE(a_number_that_is_used_again_is_a_new_member, ""),
    CASE(event_data_is_returned_unchanged, ""),
    CASE(urgent_bytes_are_reported_separately, ""),
    CASE(urgent_bytes_inline_are_read_in_order, "back:unknown_option"),
    CASE(masks_of_poll_are_reported_as_requested, "back:unknown_flags"),
    CASE(many_exchanges, "served:read served:write served:epoll_wait"),
};

int main(int argc, char **argv) { return RUN(cases); }
