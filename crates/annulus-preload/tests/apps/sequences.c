/* Sequences in which earlier events matter: a number that had another owner, a poll for other events, events that other
 * members took first. The rule: in each case, a current event is reported, a number belongs to its last owner, and
 * written bytes are sent. */
#include "app.h"
#include <sys/eventfd.h>

static void a_number_reused_before_the_first_wait_is_the_last_owners(void) {
    int set = fresh_set();
    struct pair old = connected();
    add(set, old.app, EPOLLIN, 111);
    int number = old.app;
    MUST(close(old.app));
    struct pair pair = connected();
    print("the same number: %d\n", pair.app == number);
    add(set, pair.app, EPOLLIN, 222);
    peer_send(&pair, "for the second");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 100);
    exchange(set, &pair);
    exchange(set, &pair);
}

static void lines_that_are_written_without_a_wait_leave_one_by_one(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    for (int i = 0; i < 4; i++) {
        MUST(write(pair.app, "a line\n", 7));
        /* Waits for this event only. */
        peer_gets(&pair, 7);
    }
}

struct opener {
    pthread_t thread;
    int closed, set;
};

static void *open_and_read(void *argument) {
    struct opener *opener = argument;
    char bytes[8];
    /* The owner closes it during a wait, which continues. */
    pause_ms(100);
    int fd = -1;
    for (int i = 0; i < 16 && fd != opener->closed; i++)
        fd = (int)syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDONLY);
    print("the closed number again: %d\n", fd == opener->closed);
    GOT(read(fd, bytes, sizeof bytes));
    GOT(fcntl(fd, F_GETFD));
    GOT(close(fd));
    return NULL;
}

static void another_thread_may_reuse_the_number_that_was_closed(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "a request");
    print_next(set);
    print_read(pair.app, 100);
    /* This leaves a receive in the kernel, which the ring must cancel before it closes. */
    poll_once(set);
    struct opener opener = {.closed = pair.app, .set = set};
    MUST(write(pair.app, "bye", 3));
    MUST(close(pair.app));
    MUST(-pthread_create(&opener.thread, NULL, open_and_read, &opener));
    print_wait(set, 300);
    pthread_join(opener.thread, NULL);
    peer_gets(&pair, 4);
}

static void a_listener_gets_its_share_of_a_buffer_for_one_event(void) {
    int port, set = new_set();
    struct pair pair = connected();
    add(set, pair.app, EPOLLIN | EPOLLOUT, 1);
    int listener = listen_on(SOCK_NONBLOCK, &port);
    add(set, listener, EPOLLIN, 2);
    int peer = peer_connect(port);
    struct epoll_event event = {0};
    int looks = 0;
    while (looks++ < 100 && event.data.u64 != 2)
        MUST(epoll_wait(set, &event, 1, 1000));
    print("reported: %s\n", event.data.u64 == 2 ? "both" : "one of them only");
    syscall(SYS_close, peer);
}

static void an_edge_that_came_before_a_duplicate_is_reported(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLET);
    peer_send(&pair, "old");
    print_next(set);
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    poll_once(set);
    peer_send(&pair, "news");
    await_delivery(&pair);
    int second = (int)MUST(dup(pair.app));
    print_next(set);
    print_read(pair.app, 100);
    close(second);
}

/* The kernel's set reports the first edge after a hand-back, whatever it reported before. */
static void an_edge_that_comes_after_a_duplicate_is_reported(void) {
    static char bytes[65536];
    for (int waits = 0; waits < 2; waits++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN | EPOLLOUT | EPOLLET);
        long done, count = 0;
        print_now(set);
        int second = (int)MUST(dup(pair.app));
        while ((done = write(pair.app, bytes, sizeof bytes)) > 0)
            count += done;
        got("write", done);
        if (waits)
            print_now(set);
        peer_takes(&pair, count);
        print_next(set);
        MUST(close(second));
    }
}

static void writability_is_reported_though_data_came_before(void) {
    static char bytes[65536];
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    struct epoll_event event;
    /* Enough input to switch the connection to plain reads. */
    for (int i = 0; i < 4; i++) {
        MUST(syscall(SYS_write, pair.peer, bytes, 20000));
        await_delivery(&pair);
        MUST(epoll_wait(set, &event, 1, 1000));
        while (read(pair.app, bytes, sizeof bytes) > 0)
            continue;
        poll_once(set);
    }
    while (write(pair.app, bytes, sizeof bytes) > 0)
        continue;
    mod(set, pair.app, EPOLLOUT, 1);
    poll_once(set);
    MUST(syscall(SYS_write, pair.peer, bytes, 20000));
    await_delivery(&pair);
    poll_once(set);
    poll_once(set);
    struct pollfd has = {pair.peer, POLLIN, 0};
    while (direct_poll(&has, 100) > 0)
        MUST(syscall(SYS_read, pair.peer, bytes, sizeof bytes));
    print_next(set);
}

struct mover {
    pthread_t thread;
    int set;
    int *sockets;
    int first;
    pthread_barrier_t *together;
};

static void *move_sockets(void *argument) {
    struct mover *mover = argument;
    settle(mover->set);
    for (int i = 0; i < 2000; i++) {
        pthread_barrier_wait(mover->together);
        int fd = mover->sockets[(mover->first + i) & 1];
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
        epoll_ctl(mover->set, EPOLL_CTL_ADD, fd, &event);
        epoll_ctl(mover->set, EPOLL_CTL_DEL, fd, NULL);
    }
    return NULL;
}

static void two_threads_may_exchange_sockets_between_their_sets(void) {
    struct pair pairs[2] = {connected(), connected()};
    int sockets[2] = {pairs[0].app, pairs[1].app};
    pthread_barrier_t together;
    pthread_barrier_init(&together, NULL, 2);
    struct mover movers[2];
    for (int i = 0; i < 2; i++) {
        movers[i] = (struct mover){.set = fresh_set(), .sockets = sockets, .first = i, .together = &together};
        MUST(-pthread_create(&movers[i].thread, NULL, move_sockets, &movers[i]));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(movers[i].thread, NULL);
    for (int i = 0; i < 2; i++) {
        peer_send(&pairs[i], "still there");
        await_delivery(&pairs[i]);
        print_read(sockets[i], 100);
    }
}

static void buffered_bytes_are_reported_by_a_later_set(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "pending");
    print_next(set);
    int second = (int)MUST(dup(pair.app));
    close(set);
    set = new_set();
    add(set, pair.app, EPOLLIN, 2);
    print_next(set);
    print_read(pair.app, 100);
    close(second);
}

static void a_number_that_a_stream_has_closed_is_the_next_owners(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "not for an eventfd");
    await_delivery(&pair);
    poll_once(set);
    FILE *stream = fdopen(pair.app, "r+");
    fputs("last words", stream);
    GOT(fclose(stream));
    int event = -1;
    for (int i = 0; i < 16 && event != pair.app; i++)
        event = (int)MUST(eventfd(7, EFD_NONBLOCK));
    print("the same number: %d\n", event == pair.app);
    add(set, event, EPOLLIN, 2);
    print_next(set);
    uint64_t value = 0;
    GOT(read(event, &value, sizeof value));
    print("value %d\n", (int)value);
    peer_gets(&pair, 11);
}

static void a_stream_reads_bytes_received_before_fdopen(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    char line[100];
    peer_send(&pair, "the first line\nand the second\n");
    print_next(set);
    print_read(pair.app, 4);
    FILE *stream = fdopen(pair.app, "r");
    print("%s", fgets(line, sizeof line, stream));
    print("%s", fgets(line, sizeof line, stream));
    peer_send(&pair, "a third\n");
    print_next(set);
    print("%s", fgets(line, sizeof line, stream));
    GOT(fclose(stream));
    peer_gets(&pair, 1);
}

static void a_write_only_stream_leaves_received_bytes(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "a request");
    print_next(set);
    FILE *stream = fdopen(dup(pair.app), "w");
    fprintf(stream, "the reply");
    GOT(fclose(stream));
    peer_gets(&pair, 9);
    print_next(set);
    print_read(pair.app, 100);
    stream = fdopen(pair.app, "w");
    peer_send(&pair, "another");
    print_next(set);
    print_read(pair.app, 100);
    print("reopened: %d\n", freopen("/dev/null", "r", stream) != NULL);
    print_read(pair.app, 100);
    peer_gets(&pair, 1);
    GOT(fclose(stream));

    pair = joined(set, EPOLLIN);
    stream = fdopen(pair.app, "w");
    fprintf(stream, "the reply");
    print("reopened: %d\n", freopen64("/dev/zero", "r", stream) != NULL);
    print("%d\n", fgetc(stream));
    peer_gets(&pair, 10);
}

static void streams_of_other_files_are_untouched(void) {
    int ends[2];
    char line[100];
    struct pair pair = joined(new_set(), EPOLLIN);
    MUST(pipe(ends));
    FILE *to = fdopen(ends[1], "w"), *from = fdopen(ends[0], "r");
    fprintf(to, "through a pipe\n");
    GOT(fclose(to));
    print("%s", fgets(line, sizeof line, from));
    print("reopened: %d\n", freopen("/dev/null", "r", from) != NULL);
    print("%d\n", fgetc(from));
    print("reopened: %d\n", freopen64("/dev/zero", "r", from) != NULL);
    print("%d\n", fgetc(from));
    GOT(fclose(from));
    print("%s\n", fdopen(ends[0], "r") ? "?" : strerrorname_np(errno));
    peer_send(&pair, "untouched");
    await_delivery(&pair);
    print_read(pair.app, 100);
}

static const struct app_case cases[] = {
    CASE(a_number_reused_before_the_first_wait_is_the_last_owners, "served:read"),
    CASE(lines_that_are_written_without_a_wait_leave_one_by_one, "served:write"),
    CASE(another_thread_may_reuse_the_number_that_was_closed, "served:close"),
    CASE(a_listener_gets_its_share_of_a_buffer_for_one_event, "served:epoll_ctl"),
    CASE(an_edge_that_came_before_a_duplicate_is_reported, "back:duplicated"),
    CASE(an_edge_that_comes_after_a_duplicate_is_reported, "back:duplicated"),
    CASE(writability_is_reported_though_data_came_before, "served:epoll_wait"),
    CASE(two_threads_may_exchange_sockets_between_their_sets, ""),
    CASE(buffered_bytes_are_reported_by_a_later_set, "back:duplicated"),
    CASE(a_number_that_a_stream_has_closed_is_the_next_owners, "back:stdio"),
    CASE(a_stream_reads_bytes_received_before_fdopen, "back:stdio"),
    CASE(a_write_only_stream_leaves_received_bytes, "back:duplicated"),
    CASE(streams_of_other_files_are_untouched, ""),
};

int main(int argc, char **argv) { return RUN(cases); }
