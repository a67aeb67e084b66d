/* Sequences in which it matters what happened before: a number that had another owner, a poll that was asked for
 * something else, a turn that others had first. The rule: whatever came before, an event that holds is reported, a
 * number is its last owner's, and what was written leaves. */
#include "app.h"
#include <sys/eventfd.h>

static void a_number_given_anew_before_the_first_wait_is_the_last_owners(void) {
    int set = fresh_set();
    struct pair old = connected();
    add(set, old.app, EPOLLIN, 111);
    int number = old.app;
    MUST(close(old.app));
    struct pair pair = connected();
    say("the same number: %d\n", pair.app == number);
    add(set, pair.app, EPOLLIN, 222);
    peer_send(&pair, "for the second");
    settle(&pair);
    say_next(set);
    say_read(pair.app, 100);
}

static void lines_that_are_written_without_a_wait_leave_one_by_one(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    for (int i = 0; i < 4; i++) {
        MUST(write(pair.app, "a line\n", 7));
        /* Waits for it, and for nothing else. */
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
    /* The owner closes in its wait, in which it stays. */
    pause_ms(100);
    int fd = -1;
    for (int i = 0; i < 16 && fd != opener->closed; i++)
        fd = (int)syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDONLY);
    say("the closed number again: %d\n", fd == opener->closed);
    GOT(read(fd, bytes, sizeof bytes));
    GOT(fcntl(fd, F_GETFD));
    GOT(close(fd));
    return NULL;
}

static void another_thread_may_be_given_the_number_that_was_closed(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "a request");
    say_next(set);
    say_read(pair.app, 100);
    /* So that a receive is with the kernel, which the ring has to take back before it closes. */
    turn(set);
    struct opener opener = {.closed = pair.app, .set = set};
    MUST(write(pair.app, "bye", 3));
    MUST(close(pair.app));
    MUST(-pthread_create(&opener.thread, NULL, open_and_read, &opener));
    say_wait(set, 300);
    pthread_join(opener.thread, NULL);
    peer_gets(&pair, 4);
}

static void a_listener_has_its_turn_where_there_is_room_for_one(void) {
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
    say("reported: %s\n", event.data.u64 == 2 ? "both" : "one of them only");
    syscall(SYS_close, peer);
}

static void an_edge_that_came_before_a_duplicate_is_reported(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLET);
    peer_send(&pair, "old");
    say_next(set);
    say_read(pair.app, 100);
    say_read(pair.app, 100);
    turn(set);
    peer_send(&pair, "news");
    settle(&pair);
    int second = (int)MUST(dup(pair.app));
    say_next(set);
    say_read(pair.app, 100);
    close(second);
}

static void room_is_reported_though_more_has_come_before(void) {
    static char bytes[65536];
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    struct epoll_event event;
    /* So much comes that it is read by plain calls. */
    for (int i = 0; i < 4; i++) {
        MUST(syscall(SYS_write, pair.peer, bytes, 20000));
        settle(&pair);
        MUST(epoll_wait(set, &event, 1, 1000));
        while (read(pair.app, bytes, sizeof bytes) > 0)
            continue;
        turn(set);
    }
    while (write(pair.app, bytes, sizeof bytes) > 0)
        continue;
    mod(set, pair.app, EPOLLOUT, 1);
    turn(set);
    MUST(syscall(SYS_write, pair.peer, bytes, 20000));
    settle(&pair);
    turn(set);
    turn(set);
    struct pollfd has = {pair.peer, POLLIN, 0};
    while (syscall(SYS_poll, &has, 1, 100) > 0)
        MUST(syscall(SYS_read, pair.peer, bytes, sizeof bytes));
    say_next(set);
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
    epoll_wait(mover->set, &(struct epoll_event){0}, 1, 0);
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
        settle(&pairs[i]);
        say_read(sockets[i], 100);
    }
}

static void what_is_in_hand_is_reported_by_a_later_set(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "in hand");
    say_next(set);
    int second = (int)MUST(dup(pair.app));
    close(set);
    set = new_set();
    add(set, pair.app, EPOLLIN, 2);
    say_next(set);
    say_read(pair.app, 100);
    close(second);
}

static void a_number_that_a_stream_has_closed_is_the_next_owners(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "not for an eventfd");
    settle(&pair);
    turn(set);
    FILE *stream = fdopen(pair.app, "r+");
    fputs("last words", stream);
    GOT(fclose(stream));
    int event = -1;
    for (int i = 0; i < 16 && event != pair.app; i++)
        event = (int)MUST(eventfd(7, EFD_NONBLOCK));
    say("the same number: %d\n", event == pair.app);
    add(set, event, EPOLLIN, 2);
    say_next(set);
    uint64_t value = 0;
    GOT(read(event, &value, sizeof value));
    say("value %d\n", (int)value);
    peer_gets(&pair, 11);
}

static void a_stream_reads_what_was_received_before_it_was_made(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    char line[100];
    peer_send(&pair, "the first line\nand the second\n");
    say_next(set);
    say_read(pair.app, 4);
    FILE *stream = fdopen(pair.app, "r");
    say("%s", fgets(line, sizeof line, stream));
    say("%s", fgets(line, sizeof line, stream));
    peer_send(&pair, "a third\n");
    say_next(set);
    say("%s", fgets(line, sizeof line, stream));
    GOT(fclose(stream));
    peer_gets(&pair, 1);
}

static void a_stream_that_is_only_written_leaves_what_was_received(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "a request");
    say_next(set);
    FILE *stream = fdopen(dup(pair.app), "w");
    fprintf(stream, "an answer");
    GOT(fclose(stream));
    peer_gets(&pair, 9);
    say_next(set);
    say_read(pair.app, 100);
    stream = fdopen(pair.app, "w");
    peer_send(&pair, "another");
    say_next(set);
    say_read(pair.app, 100);
    say("reopened: %d\n", freopen("/dev/null", "r", stream) != NULL);
    say_read(pair.app, 100);
    peer_gets(&pair, 1);
    GOT(fclose(stream));

    pair = joined(set, EPOLLIN);
    stream = fdopen(pair.app, "w");
    fprintf(stream, "an answer");
    say("reopened: %d\n", freopen64("/dev/zero", "r", stream) != NULL);
    say("%d\n", fgetc(stream));
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
    say("%s", fgets(line, sizeof line, from));
    say("reopened: %d\n", freopen("/dev/null", "r", from) != NULL);
    say("%d\n", fgetc(from));
    say("reopened: %d\n", freopen64("/dev/zero", "r", from) != NULL);
    say("%d\n", fgetc(from));
    GOT(fclose(from));
    say("%s\n", fdopen(ends[0], "r") ? "?" : strerrorname_np(errno));
    peer_send(&pair, "untouched");
    settle(&pair);
    say_read(pair.app, 100);
}

static const struct app_case cases[] = {
    CASE(a_number_given_anew_before_the_first_wait_is_the_last_owners, "served:read"),
    CASE(lines_that_are_written_without_a_wait_leave_one_by_one, "served:write"),
    CASE(another_thread_may_be_given_the_number_that_was_closed, "served:close"),
    CASE(a_listener_has_its_turn_where_there_is_room_for_one, "served:epoll_ctl"),
    CASE(an_edge_that_came_before_a_duplicate_is_reported, "back:duplicated"),
    CASE(room_is_reported_though_more_has_come_before, "served:epoll_wait"),
    CASE(two_threads_may_exchange_sockets_between_their_sets, ""),
    CASE(what_is_in_hand_is_reported_by_a_later_set, "back:duplicated"),
    CASE(a_number_that_a_stream_has_closed_is_the_next_owners, "back:stdio"),
    CASE(a_stream_reads_what_was_received_before_it_was_made, "back:stdio"),
    CASE(a_stream_that_is_only_written_leaves_what_was_received, "back:duplicated"),
    CASE(streams_of_other_files_are_untouched, ""),
};

int main(int argc, char **argv) { return RUN(cases); }
