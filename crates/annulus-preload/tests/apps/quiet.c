/* Waits in which nothing happens: peers that have ended their side, were reset, or do not read, in every state that a
 * connection can be in. The rule: a wait in which nothing changes costs the kernel one visit; how many there were is
 * what the library has counted. And what changes afterwards is reported. */
#include "app.h"

enum { QUIET_MS = 60 };

static const struct {
    const char *name;
    uint32_t mask;
} triggers[] = {
    {"level, nothing", 0},
    {"level, ends", EPOLLRDHUP},
    {"edge in", EPOLLIN | EPOLLET},
    {"edge in, ends", EPOLLIN | EPOLLRDHUP | EPOLLET},
    {"edge in, out, ends", EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET},
    {"edge out", EPOLLOUT | EPOLLET},
    {"once", EPOLLIN | EPOLLONESHOT},
    {"once, out, ends", EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLONESHOT},
};
enum { TRIGGERS = sizeof triggers / sizeof *triggers };

/* All that is reported until nothing is any more; a level that has to be reported is changed to nothing. */
static void calm(int set, int fd) {
    struct epoll_event event;
    for (int i = 0; i < 8; i++) {
        pause_ms(1);
        if (epoll_wait(set, &event, 1, 0) == 0)
            return;
    }
    mod(set, fd, 0, 1);
}

/* Waits in vain. A hang-up is reported by any level: there is no such wait. */
static int wait_quietly(int set, int fd) {
    calm(set, fd);
    if (epoll_wait(set, &(struct epoll_event){0}, 1, 0) != 0)
        return 0;
    return epoll_wait(set, &(struct epoll_event){0}, 1, QUIET_MS);
}

/* A connection that has much room for what its peer sends. */
static struct pair connected_wide(void) {
    int port, listener = listen_on(0, &port), bytes = 400000;
    MUST(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
    struct pair pair = pair_on(listener, port, SOCK_NONBLOCK | SOCK_CLOEXEC);
    MUST(close(listener));
    return pair;
}

/* A connection whose peer has asked once, and was answered. */
static struct pair asked(int set, uint32_t mask, bool narrow) {
    struct pair pair = narrow ? connected_narrow() : connected_wide();
    char bytes[16];
    add(set, pair.app, EPOLLIN, 1);
    peer_send(&pair, "ask");
    MUST(epoll_wait(set, &(struct epoll_event){0}, 1, 10000));
    MUST(read(pair.app, bytes, sizeof bytes));
    MUST(write(pair.app, "answer", 6));
    turn(set);
    MUST(syscall(SYS_read, pair.peer, bytes, 6));
    mod(set, pair.app, mask, 1);
    return pair;
}

/* Takes all that there is to read. */
static void drain(int fd) {
    static char bytes[65536];
    while (read(fd, bytes, sizeof bytes) > 0)
        continue;
}

/* Writes until nothing more is taken. */
static void fill_up(int set, int fd) {
    static char bytes[3000];
    for (int refused = 0; refused < 3;) {
        refused = write(fd, bytes, sizeof bytes) < 0 ? refused + 1 : 0;
        if (refused)
            turn(set);
    }
}

static void end_half(struct pair *pair) { peer_shutdown(pair); }
static void end_both(struct pair *pair) {
    peer_shutdown(pair);
    MUST(shutdown(pair->app, SHUT_WR));
}
static void end_ours(struct pair *pair) { MUST(shutdown(pair->app, SHUT_WR)); }
static void end_none(struct pair *pair) { (void)pair; }

static void say_ends(void (*end)(struct pair *), bool reads, bool full, size_t unread) {
    static char bytes[400000];
    for (int i = 0; i < TRIGGERS; i++) {
        int set = new_set();
        struct pair pair = asked(set, triggers[i].mask, full);
        if (full)
            fill_up(set, pair.app);
        for (size_t sent = 0; sent < unread; pause_ms(1), turn(set)) {
            long done = syscall(SYS_sendto, pair.peer, bytes, unread - sent, MSG_DONTWAIT, NULL, 0);
            if (done <= 0)
                break;
            sent += (size_t)done;
        }
        end(&pair);
        pause_ms(2);
        turn(set);
        if (reads)
            drain(pair.app);
        int found = wait_quietly(set, pair.app);
        /* To one that is full the kernel goes on sending, now and then; our end is an edge anew when it is confirmed. */
        if (!full && end != end_ours)
            say("%s: %d\n", triggers[i].name, found);
        if (i % 2 == 0)
            MUST(close(pair.app));
        MUST(close(set));
        if (i % 2)
            MUST(close(pair.app));
        if (pair.peer >= 0)
            MUST(syscall(SYS_close, pair.peer));
    }
}

static void an_end_that_was_read_is_waited_through(void) {
    say_ends(end_half, true, false, 0);
    say_ends(peer_close, true, false, 0);
}

static void an_end_that_was_not_read_is_waited_through(void) {
    say_ends(end_half, false, false, 0);
    say_ends(end_half, false, false, 100);
}

static void an_end_behind_much_that_is_unread_is_waited_through(void) {
    say_ends(end_half, false, false, 20000);
    say_ends(end_half, false, false, 150000);
    say_ends(end_none, false, false, 150000);
}

static void an_end_while_the_peer_does_not_read_is_waited_through(void) {
    say_ends(end_half, true, true, 0);
    say_ends(end_half, false, true, 150000);
    say_ends(end_none, true, true, 0);
}

static void ends_of_both_sides_are_waited_through(void) {
    say_ends(end_both, true, false, 0);
    say_ends(end_ours, true, false, 0);
    say_ends(end_ours, true, true, 0);
    say_ends(peer_reset, true, false, 0);
    say_ends(peer_reset, true, true, 0);
}

/* After the peer's end: what can still happen. */
static void what_follows_an_end_is_reported(void) {
    static const uint32_t masks[] = {EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, EPOLLONESHOT};
    for (int i = 0; i < 3; i++) {
        int set = new_set();
        struct pair pair = asked(set, masks[i], false);
        peer_shutdown(&pair);
        settle(&pair);
        turn(set);
        drain(pair.app);
        say("after the end: %d\n", wait_quietly(set, pair.app));
        if (i == 2)
            mod(set, pair.app, EPOLLONESHOT, 1);
        peer_reset(&pair);
        settle_state(pair.app, STATE_CLOSED);
        say_next(set);
        say("after the reset: %d\n", wait_quietly(set, pair.app));
        MUST(close(pair.app));
        MUST(close(set));
    }
    /* Room for more, of one whose peer has ended. */
    for (int i = 0; i < 2; i++) {
        int set = new_set();
        struct pair pair = asked(set, EPOLLIN | EPOLLOUT | EPOLLET, true);
        if (i)
            peer_shutdown(&pair);
        fill_up(set, pair.app);
        if (!i)
            peer_shutdown(&pair);
        pause_ms(2);
        turn(set);
        drain(pair.app);
        wait_quietly(set, pair.app);
        struct reader reader;
        reader_start(&reader, pair.peer, 0);
        struct epoll_event event = {0};
        MUST(epoll_wait(set, &event, 1, 10000));
        say("room: %s\n", event.events & EPOLLOUT ? "yes" : "no");
        MUST(shutdown(pair.app, SHUT_WR));
        join_turning(&reader, set);
        say("%s\n", reader.error ? strerrorname_np(reader.error) : "ended");
        say("after both ends: %d\n", wait_quietly(set, pair.app));
        MUST(close(pair.app));
        MUST(close(set));
    }
}

static const struct app_case cases[] = {
    CASE(an_end_that_was_read_is_waited_through, "served:read enters<=1000"),
    CASE(an_end_that_was_not_read_is_waited_through, "served:read enters<=1000"),
    CASE(an_end_behind_much_that_is_unread_is_waited_through, "served:read enters<=1000"),
    CASE(an_end_while_the_peer_does_not_read_is_waited_through, "served:read enters<=1000"),
    CASE(ends_of_both_sides_are_waited_through, "served:read enters<=1000"),
    CASE(what_follows_an_end_is_reported, "served:read enters<=1000"),
};

int main(int argc, char **argv) { return RUN(cases); }
