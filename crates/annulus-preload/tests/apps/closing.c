/* How a connection ends: close, close_range, shutdown and the end of the program, with bytes on their way out, bytes
 * that nobody read, and linger. The rule: what was accepted arrives, then the end that the kernel would have sent. */
#include "app.h"
#include <sys/resource.h>
#include <linux/close_range.h>

static struct pair joined(int set, uint32_t mask) {
    struct pair pair = connected();
    add(set, pair.app, mask, 1);
    turn(set);
    return pair;
}

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

static void an_abort_sends_what_was_written(void) { say_end(end_by_abort); }

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
    CASE(unread_bytes_make_the_end_a_reset, ""),
    CASE(linger_of_zero_is_a_reset, ""),
    CASE(linger_waits_until_all_has_arrived, ""),
    CASE(a_shutdown_comes_after_what_was_written, "served:write"),
    CASE(a_shutdown_for_reading_keeps_what_arrived, ""),
    CASE(errors_of_shutdown_are_the_kernels, ""),
    CASE(a_range_is_closed_with_what_was_written, "served:write served:close"),
    CASE(a_range_to_the_end_leaves_a_program_that_works, ""),
    CASE(all_numbers_closed_one_by_one_leave_a_program_that_works, "served:read"),
    CASE(a_set_works_on_though_all_other_numbers_were_closed, "served:close"),
    CASE(a_closed_number_is_bad_in_every_call, ""),
    CASE(a_closed_number_is_the_next_to_be_given, "served:close"),
    CASE(closing_the_set_lets_writes_arrive, ""),
    CASE(connections_come_and_go, "served:read served:write"),
    CASE(the_end_of_a_program_sends_what_was_written, "served:write"),
    CASE(an_abort_sends_what_was_written, "served:write"),
    CASE(an_abort_of_others_is_an_abort, ""),
    CASE(handlers_at_exit_run_as_ever, ""),
};

int main(int argc, char **argv) { return RUN(cases); }
