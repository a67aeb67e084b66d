/* Rarely used ways to make a call: libc's `syscall`, other names of the same functions, and functions that make their
 * system calls inside libc. The rule: bytes are sent in the order of the calls, whichever function sends them. */
#include "app.h"
#include <aio.h>
#include <execinfo.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <wordexp.h>

/* In this program, `syscall` is libc's function. */
#undef syscall

/* Newer architectures lack some calls. There, the calls that replace them are made in the same cases. */
#ifdef SYS_poll
#define CALL_EPOLL_WAIT(...) syscall(SYS_epoll_wait, __VA_ARGS__)
#define CALL_POLL(fds, count, ms) syscall(SYS_poll, fds, count, ms)
#define CALL_SELECT(...) syscall(SYS_select, __VA_ARGS__)
#define CALL_DUP2(from, to) syscall(SYS_dup2, from, to)
#define CALL_FORK() syscall(SYS_fork)
#else
#define CALL_EPOLL_WAIT(...) syscall(SYS_epoll_pwait, __VA_ARGS__, NULL, 8)
#define CALL_POLL(fds, count, ms) syscall(SYS_ppoll, fds, count, &(struct timespec){(ms) / 1000, 0}, NULL, 8)
#define CALL_SELECT(count, read, write, other, time)                                                                   \
    syscall(SYS_pselect6, count, read, write, other, &(struct timespec){(time)->tv_sec, 0}, NULL)
#define CALL_DUP2(from, to) syscall(SYS_dup3, from, to, 0)
#define CALL_FORK() syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
#endif

extern ssize_t __read(int, void *, size_t);
extern ssize_t __write(int, const void *, size_t);
#ifdef __x86_64__
extern ssize_t __send(int, const void *, size_t, int);
#else
/* glibc has this name there for old programs only. */
#define __send send
#endif
extern int __close(int);
extern int __dup2(int, int);
extern int __fcntl(int, int, ...);
extern int __poll(struct pollfd *, nfds_t, int);
extern int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
extern int __connect(int, const struct sockaddr *, socklen_t);
extern pid_t __vfork(void);
extern FILE *_IO_fdopen(int, const char *);
extern int _IO_fclose(FILE *);
extern FILE *_IO_popen(const char *, const char *);
extern void __backtrace_symbols_fd(void *const *, int, int);
extern int __dprintf_chk(int, int, const char *, ...);
extern int __vdprintf_chk(int, int, const char *, va_list);

/* Returns a served connection with bytes that a wait has reported. */
static struct pair with_bytes(int set, const char *text) {
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, text);
    await_delivery(&pair);
    print_next(set);
    return pair;
}

/* libuv closes a connection in this way. The next connection gets the number immediately. */
static void a_raw_close_follows_written_bytes(void) {
    int port, listener = listen_on(SOCK_NONBLOCK, &port), set = new_set();
    add(set, listener, EPOLLIN, 0);
    int right = 0;
    for (int round = 0; round < 60; round++) {
        enum { CLIENTS = 10 };
        int clients[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            char question[16];
            clients[i] = peer_connect(port);
            direct(SYS_write, clients[i], question, (size_t)sprintf(question, "%d.%d", round, i));
        }
        for (int open = 0, done = 0; done < CLIENTS;) {
            struct epoll_event events[32];
            int count = epoll_wait(set, events, 32, 10000);
            if (count <= 0)
                break;
            for (int i = 0; i < count; i++) {
                int fd = (int)events[i].data.u64;
                if (fd == 0) {
                    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                        add(set, fd, EPOLLIN, (uint64_t)fd);
                        open++;
                    }
                    continue;
                }
                char question[64], response[96];
                long length = read(fd, question, sizeof question);
                if (length <= 0)
                    continue;
                length = sprintf(response, "result for %.*s", (int)length, question);
                MUST(write(fd, response, (size_t)length));
                MUST(syscall(SYS_close, fd));
                done++;
            }
        }
        for (int i = 0; i < CLIENTS; i++) {
            char response[96], expected[96];
            long length = 0, more;
            while ((more = direct(SYS_read, clients[i], response + length, sizeof response - (size_t)length)) > 0)
                length += more;
            right += length == sprintf(expected, "result for %d.%d", round, i) && more == 0 &&
                     !memcmp(response, expected, (size_t)length);
            direct(SYS_close, clients[i]);
        }
    }
    print("right: %d\n", right);
}

static void raw_sending_calls_keep_their_order(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    int file = (int)MUST(memfd_create("bytes", MFD_CLOEXEC));
    MUST(write(file, "file ", 5));
    for (int round = 0; round < 3; round++) {
        off_t from = 0;
        GOT(write(pair.app, "libc ", 5));
        GOT(syscall(SYS_write, pair.app, "write ", 6));
        GOT(syscall(SYS_sendto, pair.app, "sendto ", 7, MSG_NOSIGNAL, NULL, 0));
        struct iovec parts[2] = {{"wri", 3}, {"tev ", 4}};
        GOT(syscall(SYS_writev, pair.app, parts, 2));
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        GOT(syscall(SYS_sendmsg, pair.app, &message, 0));
        struct mmsghdr messages[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
        GOT(syscall(SYS_sendmmsg, pair.app, messages, 2, 0));
        GOT(syscall(SYS_sendfile, pair.app, file, &from, 5));
        GOT(syscall(SYS_pwritev2, pair.app, parts, 2, -1L, -1L, 0));
        GOT(write(pair.app, "last", 4));
        print_now(set);
        peer_gets(&pair, 5 + 6 + 7 + 4 * 7 + 5 + 7 + 4);
    }
    int two[2];
    MUST(pipe(two));
    GOT(syscall(SYS_write, two[1], "pipe ", 5));
    GOT(write(pair.app, "before ", 7));
    GOT(syscall(SYS_splice, two[0], NULL, pair.app, NULL, 5, 0));
    GOT(write(pair.app, "behind", 6));
    print_now(set);
    peer_gets(&pair, 18);
}

static void raw_calls_that_receive_take_the_next_bytes(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "one two three four five six seven eight ");
    char bytes[64], more[64];
    got_bytes("read", bytes, syscall(SYS_read, pair.app, bytes, 4));
    got_bytes("recvfrom", bytes, syscall(SYS_recvfrom, pair.app, bytes, 4, MSG_PEEK, NULL, NULL));
    got_bytes("recvfrom", bytes, syscall(SYS_recvfrom, pair.app, bytes, 4, 0, NULL, NULL));
    struct iovec parts[2] = {{bytes, 2}, {more, 4}};
    got_bytes("readv", bytes, syscall(SYS_readv, pair.app, parts, 2) - 4);
    print("and \"%.4s\"\n", more);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    got_bytes("recvmsg", bytes, syscall(SYS_recvmsg, pair.app, &message, 0) - 4);
    print("and \"%.4s\"\n", more);
    struct mmsghdr messages[1] = {{.msg_hdr = message}};
    GOT(syscall(SYS_recvmmsg, pair.app, messages, 1, 0, NULL));
    print("%u \"%.2s%.4s\"\n", messages[0].msg_len, bytes, more);
    got_bytes("preadv2", bytes, syscall(SYS_preadv2, pair.app, parts, 1, -1L, -1L, 0));
    int waiting = -1;
    GOT(syscall(SYS_ioctl, pair.app, FIONREAD, &waiting));
    print("waiting: %d\n", waiting);
    print_read(pair.app, 100);
    GOT(syscall(SYS_read, pair.app, bytes, 10));
    GOT(syscall(SYS_readv, -1, parts, 2));
}

/* The kernel writes the remaining timeout back; libc's functions do not. */
static void raw_waits_return_what_the_kernel_returns(void) {
    int set = (int)MUST(syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
    struct epoll_event events[8];
    struct timespec now = {0, 0}, long_enough = {50, 0};
    uint64_t mask = 0;
    GOT(CALL_EPOLL_WAIT(set, events, 8, 0));
    struct pair pair = connected();
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
    GOT(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, pair.app, &event));
    poll_once(set);
    GOT(syscall(SYS_write, pair.app, "one ", 4));
    print_events(events, (int)CALL_EPOLL_WAIT(set, events, 8, 0));
    GOT(syscall(SYS_write, pair.app, "two ", 4));
    print_events(events, (int)syscall(SYS_epoll_pwait, set, events, 8, 0, &mask, 8));
    GOT(syscall(SYS_write, pair.app, "three", 5));
    print_events(events, (int)syscall(SYS_epoll_pwait2, set, events, 8, &now, &mask, 8));
    peer_gets(&pair, 13);
    peer_send(&pair, "x");
    await_delivery(&pair);
    print_events(events, (int)syscall(SYS_epoll_pwait, set, events, 8, 10000, NULL, 0));
    got("a set of another size", syscall(SYS_epoll_pwait, set, events, 8, 0, &mask, 4));
    struct pollfd polled = {pair.app, POLLIN | POLLOUT, 0};
    GOT(CALL_POLL(&polled, 1, 10000));
    GOT(syscall(SYS_ppoll, &polled, 1, &long_enough, &mask, 8));
    print("%x\n", polled.revents);
    fd_set read;
    FD_ZERO(&read);
    FD_SET(pair.app, &read);
    struct timeval time = {50, 0};
    GOT(CALL_SELECT(pair.app + 1, &read, NULL, NULL, &time));
    GOT(syscall(SYS_pselect6, pair.app + 1, &read, NULL, NULL, &long_enough, NULL));
    print("%d\n", FD_ISSET(pair.app, &read) != 0);
    print_read(pair.app, 10);
    struct timespec short_time = {0, 2000000};
    polled.events = POLLIN;
    GOT(syscall(SYS_ppoll, &polled, 1, &short_time, NULL, 8));
    print("left: %ld\n", short_time.tv_nsec);
    short_time.tv_nsec = 2000000;
    FD_SET(pair.app, &read);
    GOT(syscall(SYS_pselect6, pair.app + 1, &read, NULL, NULL, &short_time, NULL));
    print("left: %ld\n", short_time.tv_nsec);
}

static void raw_calls_on_descriptors_are_noticed(void) {
    int set = new_set(), error = -1, on = 1;
    socklen_t length = sizeof error;
    struct pair pairs[6];
    for (int i = 0; i < 6; i++) {
        pairs[i] = joined(set, EPOLLIN);
        GOT(write(pairs[i].app, "before ", 7));
    }
    int doubles[4];
    doubles[0] = (int)MUST(syscall(SYS_dup, pairs[0].app));
    doubles[1] = (int)MUST(CALL_DUP2(pairs[1].app, 300));
    doubles[2] = (int)MUST(syscall(SYS_dup3, pairs[2].app, 301, O_CLOEXEC));
    doubles[3] = (int)MUST(syscall(SYS_fcntl, pairs[3].app, F_DUPFD_CLOEXEC, 302));
    for (int i = 0; i < 4; i++) {
        GOT(write(doubles[i], "behind", 6));
        peer_gets(&pairs[i], 13);
    }
    GOT(syscall(SYS_getsockopt, pairs[4].app, SOL_SOCKET, SO_ERROR, &error, &length));
    GOT(syscall(SYS_setsockopt, pairs[4].app, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    GOT(syscall(SYS_shutdown, pairs[4].app, SHUT_WR));
    peer_gets(&pairs[4], 8);
    MUST(CALL_DUP2(pairs[5].app, 310));
    GOT(write(310, "behind", 6));
    MUST(close(pairs[5].app));
    GOT(syscall(SYS_close_range, 310, 310, 0));
    peer_gets(&pairs[5], 14);
    got("closed", syscall(SYS_fcntl, 310, F_GETFL));
    got("closed", syscall(SYS_read, 310, &error, 1));
    int fresh = (int)MUST(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in nowhere = {.sin_family = AF_UNSPEC};
    GOT(syscall(SYS_connect, fresh, &nowhere, sizeof nowhere));
    got("flags", syscall(SYS_fcntl, fresh, F_SETFL, O_NONBLOCK));
    got("accept", syscall(SYS_accept, fresh, NULL, NULL));
    got("accept4", syscall(SYS_accept4, fresh, NULL, NULL, 0));
}

/* Ends while bytes of its set are still queued. */
static void ends_by(int how, struct pair *pair) {
    char *arguments[] = {"true", NULL};
    MUST(write(pair->app, "bye", 3));
    if (how == 0)
        syscall(SYS_exit_group, 0);
    if (how == 1)
        syscall(SYS_exit, 0);
    if (how == 2)
        syscall(SYS_execve, "/bin/true", arguments, arguments + 1);
    if (how == 3)
        syscall(SYS_execveat, AT_FDCWD, "/bin/true", arguments, arguments + 1, 0);
}

static void a_raw_exit_sends_written_bytes(void) {
    for (int how = 0; how < 4; how++) {
        int port, listener = listen_on(0, &port), status = -1;
        int peer = peer_connect(port);
        pid_t child = fork();
        if (child == 0) {
            struct pair pair = {.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC))};
            int set = new_set();
            direct(SYS_close, peer);
            add(set, pair.app, EPOLLIN, 1);
            poll_once(set);
            ends_by(how, &pair);
        }
        MUST(close(listener));
        struct pair pair = {.peer = peer};
        if (how == 1) {
            /* Ends a thread: written bytes are sent, and the process may continue. */
            peer_gets(&pair, 3);
            kill(child, SIGKILL);
            MUST(waitpid(child, &status, 0));
        } else {
            peer_gets(&pair, 4);
            MUST(waitpid(child, &status, 0));
            print("status: %d\n", status);
        }
        direct(SYS_close, peer);
    }
}

/* A child is detected, and sends no bytes that its parent has queued. */
static void a_raw_fork_sends_nothing_twice(void) {
    for (int how = 0; how < 2; how++) {
        int set = new_set(), status = -1;
        struct pair pair = joined(set, EPOLLIN);
        GOT(write(pair.app, "A", 1));
        long child = how == 0 ? CALL_FORK() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            write(pair.app, "B", 1);
            _exit(0);
        }
        MUST(waitpid((pid_t)child, &status, 0));
        GOT(write(pair.app, "C", 1));
        print_now(set);
        MUST(close(pair.app));
        peer_gets(&pair, 4);
    }
}

static int word;

static void ends_as_a_thread(void) {
    word = 7;
    direct(SYS_exit, 0);
}

/* Creates a thread by libc's `syscall`, which returns on the stack of the thread. */
static long clone_on(long *stack, int *gone) {
    long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_CHILD_CLEARTID;
#if defined(__aarch64__)
    /* The return address is in a register, so the thread returns to the same place. */
    register long x0 asm("x0") = SYS_clone, x1 asm("x1") = flags, x2 asm("x2") = (long)stack, x3 asm("x3") = 0;
    register long x4 asm("x4") = 0, x5 asm("x5") = (long)gone, x6 asm("x6") = 0;
    asm volatile("bl syscall\n cbnz x0, 1f\n bl %[ends]\n 1:"
                 : "+r"(x0), "+r"(x1), "+r"(x2), "+r"(x3), "+r"(x4), "+r"(x5), "+r"(x6)
                 : [ends] "S"(ends_as_a_thread)
                 : "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x30", "memory", "cc");
    return x0;
#else
    *stack = (long)ends_as_a_thread;
    return syscall(SYS_clone, flags, stack, NULL, gone, NULL);
#endif
}

/* Six arguments reach the kernel, errors are returned, and a thread starts on its own stack. */
static void raw_calls_of_all_other_kinds_pass(void) {
    print("%d\n", syscall(SYS_getpid) == getpid());
    long bytes = sysconf(_SC_PAGESIZE);
    char *page = (char *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    page[0] = 1;
    int file = (int)MUST(syscall(SYS_memfd_create, "bytes", 0));
    MUST(ftruncate(file, 2 * bytes));
    MUST(pwrite(file, "page two", 8, bytes));
    char *two = (char *)syscall(SYS_mmap, NULL, bytes, PROT_READ, MAP_SHARED, file, bytes);
    print("%.8s\n", two);
    GOT(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0));
    GOT(syscall(SYS_close, -1));
    GOT(syscall(SYS_read, file, page, -1L));
    GOT(syscall(100000));
    GOT(syscall(-1));
    static long stack[4096] __attribute__((aligned(16)));
    int gone = -1;
    print("%d\n", clone_on(&stack[4094], &gone) > 0);
    while (__atomic_load_n(&gone, __ATOMIC_ACQUIRE) != 0)
        sched_yield();
    print("%d\n", word);
}

static int waits_in, waits_for;

/* A thread that is cancelled before its wait still gets the result of the wait. */
static void *waits_raw(void *cancelled) {
    char bytes[8];
    struct epoll_event events[4];
    int before;
    while (!__atomic_load_n((int *)cancelled, __ATOMIC_ACQUIRE))
        sched_yield();
    print_events(events, (int)CALL_EPOLL_WAIT(waits_in, events, 4, 10000));
    got_bytes("read", bytes, syscall(SYS_read, waits_for, bytes, 8));
    got("write", syscall(SYS_write, waits_for, "result", 6));
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    print("%d\n", before == PTHREAD_CANCEL_ENABLE);
    pthread_setcancelstate(before, NULL);
    pthread_testcancel();
    print("not reached\n");
    return NULL;
}

static void a_raw_call_is_no_cancellation_point(void) {
    struct pair pair = connected();
    int cancelled = 0;
    pthread_t thread;
    void *result = NULL;
    waits_in = new_set();
    waits_for = pair.app;
    add(waits_in, pair.app, EPOLLIN, 1);
    peer_send(&pair, "get");
    await_delivery(&pair);
    MUST(-pthread_create(&thread, NULL, waits_raw, &cancelled));
    MUST(-pthread_cancel(thread));
    __atomic_store_n(&cancelled, 1, __ATOMIC_RELEASE);
    MUST(-pthread_join(thread, &result));
    print("%d\n", result == PTHREAD_CANCELED);
    peer_gets(&pair, 6);
}

static int print_values(int fd, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int result = vdprintf(fd, format, values);
    va_end(values);
    return result;
}

static int print_values_checked(int fd, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int result = __vdprintf_chk(fd, 1, format, values);
    va_end(values);
    return result;
}

static void printing_keeps_its_order(void) {
    int set = new_set();
    for (int how = 0; how < 4; how++) {
        struct pair pair = joined(set, EPOLLIN);
        GOT(write(pair.app, "before ", 7));
        const char *format = "%d %s %.2f %.1f %d %d %d %.1f ";
#define VALUES format, 1, "two", 3.25, 4.5, 5, 6, 7, 8.5
        if (how == 0)
            GOT(dprintf(pair.app, VALUES));
        if (how == 1)
            GOT(print_values(pair.app, VALUES));
        if (how == 2)
            GOT(__dprintf_chk(pair.app, 1, VALUES));
        if (how == 3)
            GOT(print_values_checked(pair.app, VALUES));
        GOT(write(pair.app, "behind", 6));
        print_now(set);
        peer_gets(&pair, 7 + 25 + 6);
        peer_send(&pair, "read");
        await_delivery(&pair);
        print_next(set);
        print_read(pair.app, 10);
    }
    int two[2];
    char bytes[64];
    MUST(pipe(two));
    GOT(dprintf(two[1], "%d %.1f ", 1, 2.5));
    GOT(print_values(two[1], "%d ", 3));
    GOT(__dprintf_chk(two[1], 1, "%d ", 4));
    GOT(print_values_checked(two[1], "%d", 5));
    got_bytes("pipe", bytes, read(two[0], bytes, sizeof bytes));
    GOT(dprintf(-1, "nobody"));
}

/* Printed bytes do not overtake deferred output. */
static void printing_to_a_full_peer_overtakes_nothing(void) {
    int set = new_set();
    struct pair pair = connected_narrow();
    add(set, pair.app, EPOLLIN, 1);
    poll_once(set);
    static unsigned char bytes[1000];
    uint64_t position = 0;
    long sent;
    do {
        fill(bytes, sizeof bytes, position);
        sent = write(pair.app, bytes, sizeof bytes);
        position += sent > 0 ? (uint64_t)sent : 0;
    } while (sent > 0);
    print("%s\n", strerrorname_np(errno));
    fill(bytes, 1, position);
    print("printed: %d\n", dprintf(pair.app, "%c", bytes[0]) > 0);
    MUST(shutdown(pair.app, SHUT_WR));
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    join_polling(&reader, set);
    print("all: %d, wrong at %ld\n", reader.count == position, reader.wrong_at);
}

static void a_backtrace_keeps_its_order(void) {
    int set = new_set(), two[2];
    struct pair pair = joined(set, EPOLLIN);
    void *frames[1] = {(void *)0x1000};
    GOT(write(pair.app, "before ", 7));
    backtrace_symbols_fd(frames, 1, pair.app);
    GOT(write(pair.app, " behind ", 8));
    __backtrace_symbols_fd(frames, 1, pair.app);
    print_now(set);
    peer_gets(&pair, 7 + 9 + 8 + 9);
    MUST(pipe(two));
    backtrace_symbols_fd(frames, 1, two[1]);
    __backtrace_symbols_fd(frames, 1, two[1]);
    print_read(two[0], 100);
}

static void vectors_with_flags_keep_their_order(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "one two three four ");
    char bytes[64];
    struct iovec to = {bytes, 4}, from = {"vector ", 7};
    got_bytes("preadv2", bytes, preadv2(pair.app, &to, 1, -1, 0));
    got_bytes("preadv64v2", bytes, preadv64v2(pair.app, &to, 1, -1, 0));
    got_bytes("preadv2 at an offset", bytes, preadv2(pair.app, &to, 1, 0, 0));
    GOT(write(pair.app, "before ", 7));
    GOT(pwritev2(pair.app, &from, 1, -1, 0));
    GOT(pwritev64v2(pair.app, &from, 1, -1, 0));
    got("pwritev2 at an offset", pwritev2(pair.app, &from, 1, 0, 0));
    GOT(write(pair.app, "between ", 8));
    GOT(pwritev2(pair.app, &from, 1, -1, RWF_DSYNC));
    got_bytes("preadv2 with a flag", bytes, preadv2(pair.app, &to, 1, -1, RWF_HIPRI));
    GOT(write(pair.app, "behind", 6));
    print_read(pair.app, 100);
    print_now(set);
    peer_gets(&pair, 7 + 14 + 8 + 7 + 6);
    int two[2];
    MUST(pipe(two));
    GOT(pwritev2(two[1], &from, 1, -1, 0));
    GOT(pwritev64v2(two[1], &from, 1, -1, 0));
    got_bytes("pipe", bytes, preadv2(two[0], &to, 1, -1, 0));
    got_bytes("pipe", bytes, preadv64v2(two[0], &to, 1, -1, 0));
}

static void functions_of_two_names_are_the_same(void) {
    int set = new_set();
    char bytes[64];
    struct pair pair = with_bytes(set, "one two ");
    got_bytes("__read", bytes, __read(pair.app, bytes, 4));
    GOT(write(pair.app, "A", 1));
    GOT(__write(pair.app, "B", 1));
    GOT(__send(pair.app, "C", 1, 0));
    GOT(write(pair.app, "D", 1));
    print_now(set);
    peer_gets(&pair, 4);
    struct pollfd polled = {pair.app, POLLIN, 0};
    GOT(__poll(&polled, 1, 10000));
    fd_set read_set;
    FD_ZERO(&read_set);
    FD_SET(pair.app, &read_set);
    struct timeval time = {50, 0};
    GOT(__select(pair.app + 1, &read_set, NULL, NULL, &time));
    got("flags", __fcntl(pair.app, F_GETFL) & O_NONBLOCK);
    GOT(write(pair.app, "E", 1));
    int other = (int)MUST(__fcntl(pair.app, F_DUPFD, 200));
    GOT(__write(other, "F", 1));
    GOT(__dup2(pair.app, 300));
    GOT(__write(300, "G", 1));
    GOT(__close(300));
    GOT(__close(other));
    GOT(__write(pair.app, "H", 1));
    GOT(__close(pair.app));
    peer_gets(&pair, 5);
    int two[2];
    MUST(pipe(two));
    GOT(__write(two[1], "x", 1));
    GOT(__poll(&(struct pollfd){two[0], POLLIN, 0}, 1, 0));
    FD_ZERO(&read_set);
    FD_SET(two[0], &read_set);
    GOT(__select(two[0] + 1, &read_set, NULL, NULL, &time));
    got_bytes("__read", bytes, __read(two[0], bytes, 4));
    GOT(__send(two[1], "x", 1, 0));
    GOT(__dup2(two[0], 301));
    GOT(__close(301));
    GOT(__close(301));
}

static void streams_and_children_of_other_names_are_the_same(void) {
    int set = new_set(), status = -1, two[2];
    struct pair pair = joined(set, EPOLLIN);
    GOT(write(pair.app, "A", 1));
    pid_t child = __vfork();
    if (child == 0)
        _exit(0);
    MUST(waitpid(child, &status, 0));
    FILE *output = _IO_popen("echo popen", "r");
    char line[32] = "";
    fgets(line, sizeof line, output);
    pclose(output);
    print("%s", line);
    GOT(write(pair.app, "B", 1));
    wordexp_t words;
    GOT(wordexp("one $(echo two)", &words, 0));
    print("%s\n", words.we_wordv[1]);
    FILE *stream = _IO_fdopen(pair.app, "w");
    fputs("C", stream);
    GOT(_IO_fclose(stream));
    peer_gets(&pair, 4);
    MUST(pipe(two));
    stream = _IO_fdopen(two[1], "w");
    fputs("pipe", stream);
    GOT(_IO_fclose(stream));
    print_read(two[0], 10);
}

static void a_dissolved_connection_passes_through(void) {
    int set = new_set();
    for (int how = 0; how < 2; how++) {
        struct pair pair = with_bytes(set, "one two ");
        struct sockaddr_in nowhere = {.sin_family = AF_UNSPEC};
        struct sockaddr_in elsewhere = loopback(1);
        print_read(pair.app, 4);
        GOT(write(pair.app, "A", 1));
        got("connected", how == 0 ? connect(pair.app, (struct sockaddr *)&elsewhere, sizeof elsewhere)
                                  : __connect(pair.app, (struct sockaddr *)&elsewhere, sizeof elsewhere));
        peer_gets(&pair, 1);
        print_read(pair.app, 2);
        got("undone", how == 0 ? connect(pair.app, (struct sockaddr *)&nowhere, sizeof nowhere)
                               : __connect(pair.app, (struct sockaddr *)&nowhere, sizeof nowhere));
        print_read(pair.app, 2);
        peer_gets(&pair, 1);
        MUST(close(pair.app));
    }
    struct sockaddr_in nowhere = {.sin_family = AF_UNSPEC};
    int fresh = (int)MUST(socket(AF_INET, SOCK_DGRAM, 0));
    GOT(connect(fresh, (struct sockaddr *)&nowhere, sizeof nowhere));
    GOT(__connect(fresh, (struct sockaddr *)&nowhere, sizeof nowhere));
}

static long finish(struct aiocb *request) {
    const struct aiocb *list[] = {request};
    while (aio_error(request) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    errno = aio_error(request);
    return aio_return(request);
}

static void asynchronous_writes_keep_their_order(void) {
    int set = new_set(), two[2];
    char bytes[32];
    for (int how = 0; how < 4; how++) {
        struct pair pair = joined(set, EPOLLIN);
        struct aiocb request = {.aio_fildes = pair.app, .aio_buf = "B", .aio_nbytes = 1, .aio_lio_opcode = LIO_WRITE};
        struct aiocb *list[] = {&request, NULL};
        GOT(write(pair.app, "A", 1));
        if (how == 0)
            GOT(aio_write(&request));
        if (how == 1)
            GOT(aio_write64((struct aiocb64 *)&request));
        if (how == 2)
            GOT(lio_listio(LIO_WAIT, list, 2, NULL));
        if (how == 3)
            GOT(lio_listio64(LIO_WAIT, (struct aiocb64 **)list, 2, NULL));
        got("written", finish(&request));
        GOT(write(pair.app, "C", 1));
        print_now(set);
        peer_gets(&pair, 3);
        struct aiocb reads = {.aio_fildes = pair.app, .aio_buf = bytes, .aio_nbytes = 4, .aio_lio_opcode = LIO_READ};
        peer_send(&pair, "read");
        await_delivery(&pair);
        if (how % 2 == 0)
            GOT(aio_read(&reads));
        else
            GOT(aio_read64((struct aiocb64 *)&reads));
        got_bytes("read", bytes, finish(&reads));
    }
    MUST(pipe(two));
    struct aiocb request = {.aio_fildes = two[1], .aio_buf = "pipe", .aio_nbytes = 4, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *list[] = {&request};
    GOT(aio_write(&request));
    got("written", finish(&request));
    GOT(aio_write64((struct aiocb64 *)&request));
    got("written", finish(&request));
    GOT(lio_listio(LIO_WAIT, list, 1, NULL));
    GOT(lio_listio64(LIO_WAIT, (struct aiocb64 **)list, 1, NULL));
    struct aiocb reads = {.aio_fildes = two[0], .aio_buf = bytes, .aio_nbytes = 4};
    GOT(aio_read(&reads));
    got_bytes("read", bytes, finish(&reads));
    GOT(aio_read64((struct aiocb64 *)&reads));
    got_bytes("read", bytes, finish(&reads));
}

static const struct app_case cases[] = {
    CASE(a_raw_close_follows_written_bytes, "served:close served:write"),
    CASE(raw_sending_calls_keep_their_order,
         "served:write served:send served:writev served:sendmsg served:sendfile back:unknown_flags"),
    CASE(raw_calls_that_receive_take_the_next_bytes, "served:read served:recv served:readv served:recvmsg"),
    CASE(raw_waits_return_what_the_kernel_returns, "served:epoll_wait served:epoll_ctl back:polled_otherwise"),
    CASE(raw_calls_on_descriptors_are_noticed, "back:duplicated back:unknown_option"),
    CASE(a_raw_exit_sends_written_bytes, "served:write"),
    CASE(a_raw_fork_sends_nothing_twice, "served:write"),
    CASE(raw_calls_of_all_other_kinds_pass, "passes"),
    CASE(a_raw_call_is_no_cancellation_point, ""),
    CASE(printing_keeps_its_order, "served:write back:stdio"),
    CASE(printing_to_a_full_peer_overtakes_nothing, "served:write"),
    CASE(a_backtrace_keeps_its_order, "served:write back:stdio"),
    CASE(vectors_with_flags_keep_their_order, "served:readv served:writev back:unknown_flags"),
    CASE(functions_of_two_names_are_the_same, "served:read served:write served:send back:polled_otherwise"),
    CASE(streams_and_children_of_other_names_are_the_same, "served:write back:stdio"),
    CASE(a_dissolved_connection_passes_through, "served:write back:unknown_flags"),
    CASE(asynchronous_writes_keep_their_order, "served:write back:unknown_flags"),
};

int main(int argc, char **argv) { return RUN(cases); }
