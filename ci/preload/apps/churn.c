/* Opens and closes connections in the ways that the preload library keeps a list of: members of two sets, duplicates,
 * moved members, sets that live briefly, threads that end, and closes with unsent or unread bytes. After each
 * 10,000 connections it prints a line: the number of connections, KiB of resident memory, and ms of CPU time. It ends
 * after `argv[1]` lines, or at the end of its standard input if that is later. */
#include "../../../crates/annulus-preload/tests/apps/app.h"

enum { BATCH = 10000 };
static int listener, port, first_set, second_set;

static struct pair open_pair(void) { return pair_on(listener, port, SOCK_NONBLOCK | SOCK_CLOEXEC); }

/* Ends a connection by a reset, which leaves no port in TIME_WAIT. */
static void end(struct pair *pair) {
    if (pair->app >= 0)
        MUST(close(pair->app));
    peer_reset(pair);
}

/* As long as a batch of them takes all buffers of the set: the memory of buffers grows until each has been used. */
static const char question[1000] = "question";

static void ask(struct pair *pair) { MUST(syscall(SYS_write, pair->peer, question, sizeof question)); }

static void must_report(int set) {
    struct epoll_event events[8];
    if (epoll_wait(set, events, 8, 10000) < 1) {
        print("no report of a question\n");
        syscall(SYS_exit_group, 3);
    }
}

/* Reads the question and writes the response, which a wait on `set` sends. */
static void answer(int set, int fd, struct pair *pair) {
    char bytes[2 * sizeof question];
    long count = read(fd, bytes, sizeof bytes);
    if (count != sizeof question || memcmp(bytes, question, sizeof question)) {
        print("read: %ld %s\n", count, count < 0 ? strerrorname_np(errno) : "");
        syscall(SYS_exit_group, 3);
    }
    MUST(write(fd, "result", 6));
    poll_once(set);
    for (size_t done = 0; done < 6;)
        done += (size_t)MUST(syscall(SYS_read, pair->peer, bytes, sizeof bytes));
}

static void in_two_sets(void) {
    struct pair pair = open_pair();
    add(first_set, pair.app, EPOLLIN, 1);
    add(second_set, pair.app, EPOLLIN | EPOLLOUT | EPOLLET, 2);
    ask(&pair);
    must_report(first_set);
    poll_once(second_set);
    answer(first_set, pair.app, &pair);
    end(&pair);
    poll_once(second_set);
}

/* The number that was served is closed first, with its bytes unread. */
static void duplicated(void) {
    struct pair pair = open_pair();
    add(first_set, pair.app, EPOLLIN | EPOLLET, 1);
    ask(&pair);
    must_report(first_set);
    int second = (int)MUST(dup(pair.app));
    MUST(close(pair.app));
    pair.app = second;
    poll_once(first_set);
    answer(first_set, pair.app, &pair);
    end(&pair);
}

static void moved(void) {
    struct pair pair = open_pair();
    add(first_set, pair.app, EPOLLIN | EPOLLONESHOT, 1);
    ask(&pair);
    must_report(first_set);
    mod(first_set, pair.app, EPOLLIN | EPOLLET, 1);
    del(first_set, pair.app);
    add(second_set, pair.app, EPOLLIN | EPOLLET, 2);
    must_report(second_set);
    answer(second_set, pair.app, &pair);
    end(&pair);
}

/* The set ends before its member, after one wait up to six: with and without a ring. */
static void in_brief_set(int waits) {
    struct pair pair = open_pair();
    int set = fresh_set();
    add(set, pair.app, EPOLLIN, 1);
    for (int i = 0; i < waits; i++)
        poll_once(set);
    ask(&pair);
    must_report(set);
    answer(set, pair.app, &pair);
    MUST(close(set));
    end(&pair);
}

static void *in_own_set(void *unused) {
    in_brief_set(3);
    return unused;
}

static void in_thread(void) {
    pthread_t thread;
    MUST(-pthread_create(&thread, NULL, in_own_set, NULL));
    MUST(-pthread_join(thread, NULL));
}

/* Closes a connection whose peer has not read: the library sends the rest. */
static void closed_unsent(void) {
    static char bytes[65536];
    struct pair pair = open_pair();
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &(int){4096}, sizeof(int)));
    add(first_set, pair.app, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    poll_once(first_set);
    size_t sent = 0, got = 0;
    for (long done; (done = write(pair.app, bytes, 3000)) > 0;)
        sent += (size_t)done;
    MUST(close(pair.app));
    pair.app = -1;
    for (long done; (done = MUST(syscall(SYS_read, pair.peer, bytes, sizeof bytes))) > 0;)
        got += (size_t)done;
    if (got != sent) {
        print("the peer got %zu bytes of %zu\n", got, sent);
        syscall(SYS_exit_group, 3);
    }
    end(&pair);
}

static void closed_unread(void) {
    struct pair pair = open_pair();
    add(first_set, pair.app, EPOLLIN | EPOLLRDHUP, 1);
    ask(&pair);
    must_report(first_set);
    end(&pair);
}

static void one(int nth) {
    switch (nth % 16) {
    case 0 ... 4: return in_two_sets();
    case 5 ... 8: return duplicated();
    case 9 ... 11: return moved();
    case 12: return closed_unsent();
    case 13: return closed_unread();
    case 14: return in_brief_set(nth / 16 % 6);
    default: return in_thread();
    }
}

static long resident_kib(void) {
    char text[128] = "";
    int fd = (int)MUST(syscall(SYS_openat, AT_FDCWD, "/proc/self/statm", O_RDONLY | O_CLOEXEC));
    MUST(syscall(SYS_read, fd, text, sizeof text - 1));
    MUST(syscall(SYS_close, fd));
    return atol(strchr(text, ' ')) * 4;
}

static long cpu_ms(void) {
    struct timespec used;
    MUST(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used));
    return used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

static bool must_end(void) {
    struct pollfd input = {0, POLLIN, 0};
    return MUST(syscall(SYS_poll, &input, 1, 0)) > 0;
}

int main(int argc, char **argv) {
    int lines = argc > 1 ? atoi(argv[1]) : 12;
    listener = listen_on(0, &port);
    first_set = new_set();
    second_set = new_set();
    for (int nth = 1, line = 0; line < lines || !must_end(); nth++) {
        one(nth);
        if (nth % BATCH == 0) {
            print("%d %ld %ld\n", nth, resident_kib(), cpu_ms());
            line++;
        }
    }
    return 0;
}
