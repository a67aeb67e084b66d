/* Pipes beside served connections: splice, tee, vmsplice and sendfile. The kernel is free to choose how many bytes a
 * splice moves, so the cases print the bytes that arrive and the errors, not the counts. */
#include "app.h"
#include <sys/mman.h>
#include <sys/sendfile.h>

/* Makes a pipe of one page. */
static void small_pipe(int two[2], int flags) {
    MUST(pipe2(two, O_CLOEXEC | flags));
    MUST(fcntl(two[1], F_SETPIPE_SZ, 4096));
}

/* Fills a pipe until it has no room for a single byte. */
static void fill_pipe(int fd) {
    static char page[4096];
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    memset(page, 'p', sizeof page);
    while (direct_poll(&room, 0) == 1)
        MUST(syscall(SYS_write, fd, page, sizeof page));
}

/* Reads the bytes that a pipe has now. */
static void empty_pipe(int fd) {
    static char page[65536];
    int count;
    MUST(ioctl(fd, FIONREAD, &count));
    while (count > 0)
        count -= (int)MUST(syscall(SYS_read, fd, page, count < (int)sizeof page ? (size_t)count : sizeof page));
}

/* Returns a connection in a set, with `text` received and reported, and not read. */
static struct pair with_bytes(int set, const char *text) {
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, text);
    await_delivery(&pair);
    print_next(set);
    return pair;
}

static const char *moved(ssize_t result) { return result > 0 ? "some bytes" : result == 0 ? "0" : strerrorname_np(errno); }

static void a_full_pipe_takes_nothing_and_does_not_wait(void) {
    int set = new_set(), two[2];
    struct pair pair = with_bytes(set, "received");
    small_pipe(two, 0);
    fill_pipe(two[1]);
    GOT(splice(pair.app, NULL, two[1], NULL, 100, SPLICE_F_NONBLOCK));
    print_now(set);
    MUST(fcntl(two[1], F_SETFL, O_NONBLOCK));
    GOT(splice(pair.app, NULL, two[1], NULL, 100, 0));
    GOT(sendfile(two[1], pair.app, NULL, 100));
    empty_pipe(two[0]);
    GOT(splice(pair.app, NULL, two[1], NULL, 3, SPLICE_F_NONBLOCK));
    print_read(two[0], 100);
    GOT(sendfile(two[1], pair.app, NULL, 2));
    print_read(two[0], 100);
    GOT(splice(pair.app, NULL, two[1], NULL, 100, 0));
}

/* Moves `count` bytes through a pipe to the end of the program, as a proxy does, and checks them. */
static void pump(int from, int two[2], size_t count, unsigned flags, bool by_sendfile) {
    static unsigned char bytes[1 << 16];
    uint64_t done = 0;
    long wrong = -1;
    while (done < count) {
        ssize_t in = by_sendfile ? sendfile(two[1], from, NULL, 1 << 20)
                                 : splice(from, NULL, two[1], NULL, 1 << 20, SPLICE_F_MOVE | flags);
        if (in < 0 && errno != EAGAIN) {
            got("splice", in);
            return;
        }
        for (ssize_t left = in; left > 0;) {
            ssize_t out = MUST(read(two[0], bytes, sizeof bytes));
            if (wrong < 0)
                wrong = differs(bytes, (size_t)out, done);
            done += (uint64_t)out;
            left -= out;
        }
    }
    print("moved %llu bytes, wrong at %ld\n", (unsigned long long)done, wrong);
}

static void more_bytes_than_a_pipe_has_room_for_arrive_in_parts(void) {
    static unsigned char bytes[3000];
    for (int way = 0; way < 3; way++) {
        int set = new_set(), two[2];
        struct pair pair = joined(set, EPOLLIN);
        if (way == 0)
            small_pipe(two, 0);
        else
            MUST(pipe2(two, O_CLOEXEC));
        for (int i = 0; i < 40; i++) {
            fill(bytes, sizeof bytes, (uint64_t)i * sizeof bytes);
            MUST(syscall(SYS_write, pair.peer, bytes, sizeof bytes));
            await_delivery(&pair);
            poll_once(set);
        }
        pump(pair.app, two, 40 * sizeof bytes, way == 1 ? SPLICE_F_NONBLOCK : 0, way == 2);
        MUST(close(pair.app));
    }
}

struct mover {
    pthread_t thread;
    int from, to;
    bool by_sendfile;
    volatile int tid;
    _Atomic bool ended;
};

static void *mover_run(void *argument) {
    struct mover *mover = argument;
    mover->tid = (int)syscall(SYS_gettid);
    ssize_t result = mover->by_sendfile ? sendfile(mover->to, mover->from, NULL, 100)
                                        : splice(mover->from, NULL, mover->to, NULL, 100, 0);
    print("the thread moved %s\n", moved(result));
    mover->ended = true;
    return NULL;
}

/* Returns once the thread sleeps in its call, or has ended. */
static void await_mover(struct mover *mover) {
    char path[64], text[64];
    long number = -1;
    /* The call in which the thread sleeps: the library waits in vmsplice, or polls. */
    while (number != SYS_splice && number != SYS_sendfile && number != SYS_vmsplice && number != LIBC_POLL &&
           !mover->ended) {
        pause_ms(1);
        sprintf(path, "/proc/self/task/%d/syscall", mover->tid);
        int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
        if (file >= 0) {
            text[MUST(syscall(SYS_read, file, text, sizeof text - 1))] = 0;
            syscall(SYS_close, file);
            number = text[0] == 'r' ? -1 : atol(text);
        }
    }
}

/* Starts a thread that splices into a full pipe, and returns once it sleeps. */
static void mover_start(struct mover *mover) {
    MUST(-pthread_create(&mover->thread, NULL, mover_run, mover));
    await_mover(mover);
}

static void a_full_pipe_is_waited_for_and_others_are_served(void) {
    int set = new_set(), two[2];
    struct pair other = joined(set, EPOLLIN), pair = with_bytes(set, "received");
    small_pipe(two, 0);
    fill_pipe(two[1]);
    mod(set, pair.app, 0, 2);
    struct mover mover = {.from = pair.app, .to = two[1]};
    mover_start(&mover);
    exchange(set, &other);
    exchange(set, &other);
    empty_pipe(two[0]);
    pthread_join(mover.thread, NULL);
    print_read(two[0], 100);
}

static void ignore_number(int number) { (void)number; }

static void a_wait_for_a_pipe_is_ended_by_a_signal_or_a_cancel(void) {
    int set = new_set(), two[2];
    struct pair pair = with_bytes(set, "received");
    small_pipe(two, 0);
    fill_pipe(two[1]);
    MUST(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = ignore_number}, NULL));
    struct mover mover = {.from = pair.app, .to = two[1]};
    mover_start(&mover);
    MUST(-pthread_kill(mover.thread, SIGUSR1));
    pthread_join(mover.thread, NULL);
    mover.tid = 0;
    mover_start(&mover);
    MUST(-pthread_cancel(mover.thread));
    void *result;
    pthread_join(mover.thread, &result);
    print("cancelled: %d\n", result == PTHREAD_CANCELED);
    print_stream(pair.app, 100);
}

static volatile sig_atomic_t handled;
static void count_handled(int number) { handled++; }

static void a_wait_for_a_pipe_goes_on_after_a_handler_that_restarts_calls(void) {
    for (int way = 0; way < 8; way++) {
        int set = new_set(), two[2];
        struct pair pair = with_bytes(set, "received");
        struct sigaction action = {.sa_handler = count_handled, .sa_flags = way & 1 ? SA_RESTART : 0};
        MUST(sigaction(SIGUSR1, &action, NULL));
        small_pipe(two, 0);
        fill_pipe(two[1]);
        /* The limit is that of a receive, not that of the wait for the pipe. */
        if (way & 2)
            MUST(setsockopt(pair.app, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){20, 0}, sizeof(struct timeval)));
        struct mover mover = {.from = pair.app, .to = two[1], .by_sendfile = way & 4};
        mover_start(&mover);
        handled = 0;
        MUST(-pthread_kill(mover.thread, SIGUSR1));
        while (!handled)
            pause_ms(1);
        await_mover(&mover);
        empty_pipe(two[0]);
        pthread_join(mover.thread, NULL);
        print("handled: %d\n", handled);
        MUST(fcntl(two[0], F_SETFL, O_NONBLOCK));
        print_read(two[0], 100);
        MUST(close(pair.app) | close(two[0]) | close(two[1]) | close(set));
    }
}

static volatile sig_atomic_t broken_pipes;
static void count_broken(int number) { broken_pipes++; }

static void a_pipe_without_a_reader_is_broken(void) {
    int set = new_set(), two[2];
    struct pair pair = with_bytes(set, "received");
    MUST(sigaction(SIGPIPE, &(struct sigaction){.sa_handler = count_broken}, NULL));
    small_pipe(two, 0);
    MUST(close(two[0]));
    GOT(splice(pair.app, NULL, two[1], NULL, 100, SPLICE_F_NONBLOCK));
    print("signals: %d\n", broken_pipes);
    print_stream(pair.app, 100);
}

/* The library's receive takes the error of a reset from the kernel. */
static void a_reset_is_returned_by_calls_that_splice(void) {
    struct sockaddr_in address = loopback(1);
    MUST(sigaction(SIGPIPE, &(struct sigaction){.sa_handler = count_broken}, NULL));
    for (int way = 0; way < 4; way++) {
        int set = new_set(), two[2], file = (int)MUST(memfd_create("file", MFD_CLOEXEC));
        struct pair pair = joined(set, EPOLLIN);
        MUST(pipe2(two, O_CLOEXEC));
        MUST(write(two[1], "abc", 3));
        MUST(write(file, "abc", 3));
        print_now(set);
        peer_reset(&pair);
        await_state(pair.app, STATE_CLOSED);
        print_now(set);
        if (way == 0)
            GOT(splice(two[0], NULL, pair.app, NULL, 3, 0));
        if (way == 1)
            GOT(sendfile(pair.app, file, &(off_t){0}, 3));
        if (way == 2)
            GOT(sendto(pair.app, "abc", 3, 0, (struct sockaddr *)&address, sizeof address));
        if (way == 3)
            GOT(dprintf(pair.app, "abc"));
        print_error_option(pair.app);
        GOT(write(pair.app, "abc", 3));
        print("signals: %d\n", broken_pipes);
        MUST(close(pair.app) | close(two[0]) | close(two[1]) | close(file) | close(set));
    }
}

static void calls_that_splice_nothing_lose_nothing(void) {
    int set = new_set(), two[2], file = (int)MUST(memfd_create("file", MFD_CLOEXEC));
    struct pair pair = with_bytes(set, "received");
    loff_t at = 0;
    MUST(pipe2(two, O_CLOEXEC));
    GOT(splice(pair.app, NULL, two[1], NULL, 0, 0));
    GOT(splice(pair.app, NULL, two[1], NULL, 100, 0x100));
    GOT(splice(pair.app, &at, two[1], NULL, 100, 0));
    GOT(splice(pair.app, NULL, two[1], &at, 100, 0));
    GOT(splice(pair.app, NULL, two[0], NULL, 100, 0));
    GOT(splice(pair.app, NULL, file, NULL, 100, 0));
    GOT(splice(pair.app, NULL, pair.app, NULL, 100, 0));
    GOT(sendfile(file, pair.app, NULL, 100));
    GOT(sendfile(two[1], pair.app, &at, 100));
    GOT(sendfile(two[0], pair.app, NULL, 100));
    GOT(sendfile(two[1], pair.app, NULL, 0));
    GOT(tee(pair.app, two[1], 100, SPLICE_F_NONBLOCK));
    GOT(vmsplice(pair.app, &(struct iovec){"v", 1}, 1, SPLICE_F_NONBLOCK));
    print_now(set);
    print_stream(pair.app, 100);
}

static void pipes_between_two_connections_keep_the_order(void) {
    int set = new_set(), one[2], two[2];
    struct pair from = with_bytes(set, "first second "), to = joined(set, EPOLLIN);
    small_pipe(one, O_NONBLOCK);
    small_pipe(two, O_NONBLOCK);
    MUST(write(to.app, "head ", 5));
    GOT(splice(from.app, NULL, one[1], NULL, 6, SPLICE_F_NONBLOCK));
    GOT(tee(one[0], two[1], 100, SPLICE_F_NONBLOCK));
    GOT(splice(one[0], NULL, to.app, NULL, 100, SPLICE_F_NONBLOCK));
    GOT(splice(two[0], NULL, to.app, NULL, 100, SPLICE_F_NONBLOCK));
    GOT(vmsplice(two[1], &(struct iovec){"vector ", 7}, 1, SPLICE_F_NONBLOCK));
    GOT(splice(two[0], NULL, to.app, NULL, 100, SPLICE_F_NONBLOCK));
    fill_pipe(one[1]);
    GOT(splice(from.app, NULL, one[1], NULL, 100, SPLICE_F_NONBLOCK));
    GOT(vmsplice(one[1], &(struct iovec){"v", 1}, 1, SPLICE_F_NONBLOCK));
    empty_pipe(one[0]);
    GOT(splice(from.app, NULL, one[1], NULL, 100, SPLICE_F_NONBLOCK));
    GOT(splice(one[0], NULL, to.app, NULL, 100, SPLICE_F_NONBLOCK));
    print_now(set);
    peer_gets(&to, 31);
    exchange(set, &to);
}

static const struct app_case cases[] = {
    CASE(a_full_pipe_takes_nothing_and_does_not_wait, "back:unknown_flags"),
    CASE(more_bytes_than_a_pipe_has_room_for_arrive_in_parts, "back:unknown_flags"),
    CASE(a_full_pipe_is_waited_for_and_others_are_served, "served:read back:other_thread"),
    CASE(a_wait_for_a_pipe_is_ended_by_a_signal_or_a_cancel, "back:other_thread"),
    CASE(a_wait_for_a_pipe_goes_on_after_a_handler_that_restarts_calls, "back:other_thread"),
    CASE(a_pipe_without_a_reader_is_broken, "back:unknown_flags"),
    CASE(a_reset_is_returned_by_calls_that_splice, "back:unknown_flags"),
    CASE(calls_that_splice_nothing_lose_nothing, "back:unknown_flags"),
    CASE(pipes_between_two_connections_keep_the_order, "back:unknown_flags"),
};

int main(int argc, char **argv) { return RUN(cases); }
