/* Waits without events: peers that have ended their side, were reset, or do not read, in every state of a connection.
 * The rule: a wait without a change enters the kernel once, by the library's count. Later changes are reported. */
#include "app.h"
#include <dirent.h>

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

/* Collects reports until there are no more; a level that would always be reported is changed to no events. */
static void calm(int set, int fd) {
    struct epoll_event event;
    for (int i = 0; i < 8; i++) {
        pause_ms(1);
        if (epoll_wait(set, &event, 1, 0) == 0)
            return;
    }
    mod(set, fd, 0, 1);
}

/* Waits without an event. A hang-up is reported at any level, so there is no such wait. */
static int wait_quietly(int set, int fd) {
    calm(set, fd);
    if (epoll_wait(set, &(struct epoll_event){0}, 1, 0) != 0)
        return 0;
    return epoll_wait(set, &(struct epoll_event){0}, 1, QUIET_MS);
}

/* Returns a connection with a large receive buffer. */
static struct pair connected_wide(void) {
    int port, listener = listen_on(0, &port), bytes = 400000;
    MUST(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
    struct pair pair = pair_on(listener, port, SOCK_NONBLOCK | SOCK_CLOEXEC);
    MUST(close(listener));
    return pair;
}

/* Returns a connection after one request and one response. */
static struct pair after_exchange(int set, uint32_t mask, bool narrow) {
    struct pair pair = narrow ? connected_narrow() : connected_wide();
    char bytes[16];
    add(set, pair.app, EPOLLIN, 1);
    peer_send(&pair, "get");
    MUST(epoll_wait(set, &(struct epoll_event){0}, 1, 10000));
    MUST(read(pair.app, bytes, sizeof bytes));
    MUST(write(pair.app, "result", 6));
    poll_once(set);
    MUST(syscall(SYS_read, pair.peer, bytes, 6));
    mod(set, pair.app, mask, 1);
    return pair;
}

/* Reads all available bytes. */
static void drain(int fd) {
    static char bytes[65536];
    while (read(fd, bytes, sizeof bytes) > 0)
        continue;
}

/* Writes until no more bytes are accepted. */
static void fill_up(int set, int fd) {
    static char bytes[3000];
    for (int refused = 0; refused < 3;) {
        refused = write(fd, bytes, sizeof bytes) < 0 ? refused + 1 : 0;
        if (refused)
            poll_once(set);
    }
}

static void end_half(struct pair *pair) { peer_shutdown(pair); }
static void end_both(struct pair *pair) {
    peer_shutdown(pair);
    MUST(shutdown(pair->app, SHUT_WR));
}
static void end_own_side(struct pair *pair) { MUST(shutdown(pair->app, SHUT_WR)); }
static void end_none(struct pair *pair) { (void)pair; }

static void print_ends(void (*end)(struct pair *), bool reads, bool full, size_t unread) {
    static char bytes[400000];
    for (int i = 0; i < TRIGGERS; i++) {
        int set = new_set();
        struct pair pair = after_exchange(set, triggers[i].mask, full);
        if (full)
            fill_up(set, pair.app);
        for (size_t sent = 0; sent < unread; pause_ms(1), poll_once(set)) {
            long done = syscall(SYS_sendto, pair.peer, bytes, unread - sent, MSG_DONTWAIT, NULL, 0);
            if (done <= 0)
                break;
            sent += (size_t)done;
        }
        end(&pair);
        pause_ms(2);
        poll_once(set);
        if (reads)
            drain(pair.app);
        int visits = wait_quietly(set, pair.app);
        /* The kernel sometimes sends more to a full peer; the acknowledgement of this side's end is another edge. */
        if (!full && end != end_own_side)
            print("%s: %d\n", triggers[i].name, visits);
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
    print_ends(end_half, true, false, 0);
    print_ends(peer_close, true, false, 0);
}

static void an_end_that_was_not_read_is_waited_through(void) {
    print_ends(end_half, false, false, 0);
    print_ends(end_half, false, false, 100);
}

static void an_end_behind_much_that_is_unread_is_waited_through(void) {
    print_ends(end_half, false, false, 20000);
    print_ends(end_half, false, false, 150000);
    print_ends(end_none, false, false, 150000);
}

static void an_end_while_the_peer_does_not_read_is_waited_through(void) {
    print_ends(end_half, true, true, 0);
    print_ends(end_half, false, true, 150000);
    print_ends(end_none, true, true, 0);
}

static void ends_of_both_sides_are_waited_through(void) {
    print_ends(end_both, true, false, 0);
    print_ends(end_own_side, true, false, 0);
    print_ends(end_own_side, true, true, 0);
    print_ends(peer_reset, true, false, 0);
    print_ends(peer_reset, true, true, 0);
}

/* The program has closed a connection with deferred output; its peer has ended and does not read. */
static void the_end_after_deferred_output_is_waited_through(void) {
    for (int ends = 0; ends < 3; ends++) {
        int set = new_set();
        struct pair pair = after_exchange(set, EPOLLIN, true);
        fill_up(set, pair.app);
        if (ends == 1)
            peer_shutdown(&pair);
        MUST(close(pair.app));
        if (ends == 2)
            peer_shutdown(&pair);
        poll_once(set);
        print("a wait: %d\n", epoll_wait(set, &(struct epoll_event){0}, 1, QUIET_MS));
        MUST(close(set));
        MUST(syscall(SYS_close, pair.peer));
    }
}

/* The events that are still possible after the peer's end. */
static void events_after_an_end_are_reported(void) {
    static const uint32_t masks[] = {EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, EPOLLONESHOT};
    for (int i = 0; i < 3; i++) {
        int set = new_set();
        struct pair pair = after_exchange(set, masks[i], false);
        peer_shutdown(&pair);
        await_delivery(&pair);
        poll_once(set);
        drain(pair.app);
        print("after the end: %d\n", wait_quietly(set, pair.app));
        if (i == 2)
            mod(set, pair.app, EPOLLONESHOT, 1);
        peer_reset(&pair);
        await_state(pair.app, STATE_CLOSED);
        print_next(set);
        print("after the reset: %d\n", wait_quietly(set, pair.app));
        MUST(close(pair.app));
        MUST(close(set));
    }
    /* Writability of a connection whose peer has ended. */
    for (int i = 0; i < 2; i++) {
        int set = new_set();
        struct pair pair = after_exchange(set, EPOLLIN | EPOLLOUT | EPOLLET, true);
        if (i)
            peer_shutdown(&pair);
        fill_up(set, pair.app);
        if (!i)
            peer_shutdown(&pair);
        pause_ms(2);
        poll_once(set);
        drain(pair.app);
        wait_quietly(set, pair.app);
        struct reader reader;
        reader_start(&reader, pair.peer, 0);
        struct epoll_event event = {0};
        MUST(epoll_wait(set, &event, 1, 10000));
        print("writable: %s\n", event.events & EPOLLOUT ? "yes" : "no");
        MUST(shutdown(pair.app, SHUT_WR));
        join_polling(&reader, set);
        print("%s\n", reader.error ? strerrorname_np(reader.error) : "ended");
        print("after both ends: %d\n", wait_quietly(set, pair.app));
        MUST(close(pair.app));
        MUST(close(set));
    }
}

/* Returns the number of times that other threads of the process have gone to sleep. */
static long sleeps_of_others(void) {
    char path[64], line[128];
    long sum = 0, count;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        if (atoi(task->d_name) == 0 || atoi(task->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
                sum += count;
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return sum;
}

static void calm_after_a_response(int set) {
    struct pair pair = after_exchange(set, EPOLLIN, false);
    MUST(write(pair.app, "one more", 8));
}
static void calm_after_an_end(int set) {
    struct pair pair = after_exchange(set, EPOLLIN | EPOLLET, false);
    peer_shutdown(&pair);
    await_delivery(&pair);
    poll_once(set);
    drain(pair.app);
}
static void calm_while_full(int set) {
    struct pair pair = after_exchange(set, EPOLLIN, true);
    fill_up(set, pair.app);
}
static void calm_while_closed_full(int set) {
    struct pair pair = after_exchange(set, EPOLLIN, true);
    fill_up(set, pair.app);
    MUST(close(pair.app));
}
static void calm_while_closed_full_and_ended(int set) {
    struct pair pair = after_exchange(set, EPOLLIN, true);
    fill_up(set, pair.app);
    peer_shutdown(&pair);
    MUST(close(pair.app));
}

static void calm_while_closed_full_without_a_set(int set) {
    int other = new_set();
    struct pair pair = after_exchange(other, EPOLLIN, true);
    fill_up(other, pair.app);
    MUST(close(pair.app));
    MUST(close(other));
}

/* No thread wakes up, except for the few checks of the flush thread. */
static void no_thread_wakes_up_where_nothing_happens(void) {
    static void (*const states[])(int) = {calm_after_a_response, calm_after_an_end, calm_while_full,
                                          calm_while_closed_full, calm_while_closed_full_and_ended,
                                          calm_while_closed_full_without_a_set};
    for (int i = 0; i < 6; i++) {
        int set = new_set();
        states[i](set);
        long before = sleeps_of_others();
        /* Waits on the set, then in another call. */
        epoll_wait(set, &(struct epoll_event){0}, 1, 400);
        pause_ms(400);
        long times = sleeps_of_others() - before;
        print("state %d: %s\n", i, times <= 30 ? "quiet" : "not quiet");
    }
}

static const struct app_case cases[] = {
    CASE(an_end_that_was_read_is_waited_through, "served:read enters<=1000"),
    CASE(an_end_that_was_not_read_is_waited_through, "served:read enters<=1000"),
    CASE(an_end_behind_much_that_is_unread_is_waited_through, "served:read enters<=1000"),
    CASE(an_end_while_the_peer_does_not_read_is_waited_through, "served:read enters<=1000"),
    CASE(ends_of_both_sides_are_waited_through, "served:read enters<=1000"),
    CASE(the_end_after_deferred_output_is_waited_through, "served:write enters<=1000"),
    CASE(no_thread_wakes_up_where_nothing_happens, "served:write"),
    CASE(events_after_an_end_are_reported, "served:read enters<=1000"),
};

int main(int argc, char **argv) { return RUN(cases); }
