/* Shared code of the programs in this folder. Each program has one topic and a table of cases. A case prints a
 * transcript of its results, errno names, event masks and bytes. The transcript must be the same, byte for byte, with
 * and without the preload library.
 *
 * A program plays both sides of its connections. The side under test, `app`, goes through libc, where the library has
 * its hooks. The other side, `peer`, is opened and used by direct system calls only, which no hook sees, so it shows
 * which bytes were really sent.
 *
 * libc's `syscall` has a hook as well. In these programs, `syscall` is therefore a direct system call that is made
 * here; a program that tests libc's function undoes this (#undef). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <time.h>
#include <unistd.h>

/* Makes a system call that no library can hook. Returns the kernel's result, or minus an errno. */
static inline long kernel_call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
    asm volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return number;
#elif defined(__aarch64__)
    register long x0 asm("x0") = a, x1 asm("x1") = b, x2 asm("x2") = c, x3 asm("x3") = d, x4 asm("x4") = e;
    register long x5 asm("x5") = f, x8 asm("x8") = number;
    asm volatile("svc #0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), "r"(x8) : "memory");
    return x0;
#endif
}

/* Makes such a call. Returns its result, or -1 and errno. */
static long direct(long number, ...) {
    va_list words;
    va_start(words, number);
    long a = va_arg(words, long), b = va_arg(words, long), c = va_arg(words, long);
    long d = va_arg(words, long), e = va_arg(words, long), f = va_arg(words, long);
    va_end(words);
    long result = kernel_call(number, a, b, c, d, e, f);
    if (result >= 0 || result < -4095)
        return result;
    errno = (int)-result;
    return -1;
}
#define syscall(...) direct(__VA_ARGS__)

/* The system calls of libc's functions: newer architectures lack the old calls. */
#ifdef SYS_poll
enum { LIBC_POLL = SYS_poll, LIBC_EPOLL_WAIT = SYS_epoll_wait };
#else
enum { LIBC_POLL = SYS_ppoll, LIBC_EPOLL_WAIT = SYS_epoll_pwait };
#endif

/* Waits for the events of a descriptor, by a direct system call. */
static inline long direct_poll(struct pollfd *request, long timeout_ms) {
    struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000};
    return syscall(SYS_ppoll, request, 1, &timeout, NULL, 8);
}

/* A case, and the counters that the library must increase in it: words such as "served:read", "passed:blocking" and
 * "back:duplicated", or "" if only the transcript matters. The library must also serve a connection, or the
 * case is vacuous, unless it expects that one passes through: "passes" if no process that counts serves one. */
struct app_case {
    const char *name;
    void (*run)(void);
    const char *counted;
};
#define CASE(function, counted) { #function, function, counted }

/* A connection. */
struct pair {
    int app;
    int peer;
    bool peer_ended;
};

/* Prints a part of the transcript immediately, so that the output of a case that crashes is not lost. */
__attribute__((format(printf, 1, 2))) static inline void print(const char *format, ...) {
    char text[4096];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (length > (int)sizeof text - 1)
        length = (int)sizeof text - 1;
    for (int from = 0; from < length;) {
        long done = syscall(SYS_write, 1, text + from, (size_t)(length - from));
        if (done < 0 && errno != EINTR)
            return;
        from += done > 0 ? (int)done : 0;
    }
}

/* Ends the program if a case cannot begin; never used for a call under test. */
#define MUST(call)                                                                                                     \
    ({                                                                                                                 \
        long must_result = (long)(call);                                                                               \
        if (must_result < 0) {                                                                                         \
            print("line %d: %s: %s\n", __LINE__, #call, strerrorname_np(errno));                                         \
            syscall(SYS_exit_group, 3);                                                                                \
        }                                                                                                              \
        must_result;                                                                                                   \
    })

/* Prints the result of a call. */
static inline long got(const char *call, long result) {
    if (result < 0)
        print("%s: %s\n", call, strerrorname_np(errno));
    else
        print("%s: %ld\n", call, result);
    return result;
}
#define GOT(call) got(#call, (long)(call))

/* Prints the result of a call that reads, and the bytes. */
static inline long got_bytes(const char *call, const char *bytes, long result) {
    if (result <= 0)
        return got(call, result);
    print("%s: %ld \"%.*s\"\n", call, result, (int)result, bytes);
    return result;
}

static inline void pause_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (syscall(SYS_nanosleep, &left, &left) < 0 && errno == EINTR)
        continue;
}

static inline double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* ---- the side under test ---- */

static inline struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static inline int listen_on(int type_flags, int *port) {
    int one = 1;
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | type_flags, 0));
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    MUST(bind(fd, (struct sockaddr *)&address, length));
    MUST(listen(fd, 512));
    MUST(getsockname(fd, (struct sockaddr *)&address, &length));
    *port = ntohs(address.sin_port);
    return fd;
}

/* Returns a set that has not been waited on: members that are added before the first wait are not served. */
static inline int fresh_set(void) { return (int)MUST(epoll_create1(EPOLL_CLOEXEC)); }

/* Waits as often as a set does before it is served. */
static inline void settle(int set) {
    for (int i = 0; i < 3; i++)
        MUST(epoll_wait(set, &(struct epoll_event){0}, 1, 0));
}

/* Returns a set whose members may be served from the start. */
static inline int new_set(void) {
    int set = fresh_set();
    settle(set);
    return set;
}

static inline int control(int set, int what, int fd, uint32_t mask, uint64_t label) {
    struct epoll_event event = {.events = mask, .data.u64 = label};
    return epoll_ctl(set, what, fd, &event);
}
static inline void add(int set, int fd, uint32_t mask, uint64_t label) {
    MUST(control(set, EPOLL_CTL_ADD, fd, mask, label));
}
static inline void mod(int set, int fd, uint32_t mask, uint64_t label) {
    MUST(control(set, EPOLL_CTL_MOD, fd, mask, label));
}
static inline void del(int set, int fd) { MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL)); }

static const struct {
    uint32_t bit;
    const char *name;
} mask_names[] = {
    {EPOLLIN, "IN"},         {EPOLLPRI, "PRI"},       {EPOLLOUT, "OUT"},       {EPOLLERR, "ERR"},
    {EPOLLHUP, "HUP"},       {EPOLLRDHUP, "RDHUP"},   {EPOLLRDNORM, "RDNORM"}, {EPOLLRDBAND, "RDBAND"},
    {EPOLLWRNORM, "WRNORM"}, {EPOLLWRBAND, "WRBAND"}, {EPOLLMSG, "MSG"},
};

static inline const char *mask_text(uint32_t mask, char text[128]) {
    text[0] = 0;
    for (size_t i = 0; i < sizeof mask_names / sizeof *mask_names; i++) {
        if (mask & mask_names[i].bit) {
            if (text[0])
                strcat(text, "|");
            strcat(text, mask_names[i].name);
            mask &= ~mask_names[i].bit;
        }
    }
    if (mask)
        sprintf(text + strlen(text), "%s0x%x", text[0] ? "|" : "", mask);
    return text;
}

static inline int by_label(const void *a, const void *b) {
    uint64_t x = ((const struct epoll_event *)a)->data.u64, y = ((const struct epoll_event *)b)->data.u64;
    return (x > y) - (x < y);
}

/* Prints events sorted by their data, as the kernel is free to choose the order. */
static inline int print_events(struct epoll_event *events, int count) {
    char text[128];
    if (count < 0)
        print("events: %s\n", strerrorname_np(errno));
    if (count == 0)
        print("events: none\n");
    if (count <= 0)
        return count;
    qsort(events, (size_t)count, sizeof *events, by_label);
    print("events:");
    for (int i = 0; i < count; i++)
        print(" %llu=%s", (unsigned long long)events[i].data.u64, mask_text(events[i].events, text));
    print("\n");
    return count;
}

/* True in cases about signals. In others, a wait that a debugger or a stopped job interrupts is repeated. */
static bool interrupts_matter;

static inline int print_wait(int set, int timeout_ms) {
    struct epoll_event events[64];
    int count;
    do
        count = epoll_wait(set, events, 64, timeout_ms);
    while (count < 0 && errno == EINTR && !interrupts_matter);
    return print_events(events, count);
}
/* For events that arrive at some time, on any machine. */
static inline int print_next(int set) { return print_wait(set, 10000); }
/* For events that are pending now; queued writes are sent at this point. */
static inline int print_now(int set) { return print_wait(set, 0); }
/* Waits without printing: sends queued bytes where an event may or may not arrive. */
static inline void poll_once(int set) {
    struct epoll_event events[64];
    epoll_wait(set, events, 64, 0);
}

static inline void print_read(int fd, size_t most) {
    char bytes[4096];
    got_bytes("read", bytes, read(fd, bytes, most < sizeof bytes ? most : sizeof bytes));
}

/* Prints the next bytes of a stream, up to `most`, and how it ends. The number of reads is not printed: a stream has
 * no message boundaries, and bytes that no wait has reported yet may arrive in a separate read. */
static inline void print_stream(int fd, size_t most) {
    char bytes[4096];
    size_t done = 0;
    long result = 1;
    while (done < most && (result = read(fd, bytes + done, most - done)) > 0)
        done += (size_t)result;
    print("stream: \"%.*s\" then %s\n", (int)done, bytes,
        result > 0    ? "more"
        : result == 0 ? "the end"
                      : strerrorname_np(errno));
}

static inline void print_error_option(int fd) {
    int error = -1;
    socklen_t length = sizeof error;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    print("SO_ERROR: %s, length %u\n", error ? strerrorname_np(error) : "0", length);
}

/* Passes a descriptor to the process itself. Returns its new number. */
static inline int passed_to_itself(int fd) {
    union {
        char control[CMSG_SPACE(sizeof fd)];
        struct cmsghdr aligned;
    } data = {.aligned = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    int two[2], received;
    struct msghdr message = {.msg_iov = &(struct iovec){"x", 1}, .msg_iovlen = 1, .msg_control = &data,
                             .msg_controllen = sizeof data};
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
    memcpy(CMSG_DATA(&data.aligned), &fd, sizeof fd);
    MUST(sendmsg(two[0], &message, 0));
    char byte;
    message.msg_iov = &(struct iovec){&byte, 1};
    MUST(recvmsg(two[1], &message, MSG_CMSG_CLOEXEC));
    memcpy(&received, CMSG_DATA(&data.aligned), sizeof fd);
    MUST(close(two[0]) | close(two[1]));
    return received;
}

/* ---- the peer: direct system calls ---- */

static inline int peer_connect(int port) {
    struct sockaddr_in address = loopback(port);
    int fd = (int)MUST(syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(syscall(SYS_connect, fd, &address, sizeof address));
    return fd;
}

static inline struct pair pair_on(int listener, int port, int flags) {
    struct pair pair = {.peer = peer_connect(port)};
    pair.app = (int)MUST(accept4(listener, NULL, NULL, flags));
    return pair;
}

/* Opens a connection whose accepted end can be added to a set. */
static inline struct pair connected(void) {
    int port, listener = listen_on(0, &port);
    struct pair pair = pair_on(listener, port, SOCK_NONBLOCK | SOCK_CLOEXEC);
    MUST(close(listener));
    return pair;
}

/* Opens a connection with the smallest buffers that the kernel allows: a peer that does not read is full after some
 * KiB. */
static inline struct pair connected_narrow(void) {
    int port, listener = listen_on(0, &port), bytes = 4096;
    struct sockaddr_in address = loopback(port);
    struct pair pair = {.peer = (int)MUST(syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    MUST(syscall(SYS_setsockopt, pair.peer, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
    MUST(syscall(SYS_connect, pair.peer, &address, sizeof address));
    pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
    MUST(close(listener));
    return pair;
}

static inline void peer_send(struct pair *pair, const char *text) {
    size_t length = strlen(text);
    long done = syscall(SYS_write, pair->peer, text, length);
    if (done != (long)length)
        print("the peer's write: %ld %s\n", done, done < 0 ? strerrorname_np(errno) : "");
}

static inline void peer_shutdown(struct pair *pair) {
    MUST(syscall(SYS_shutdown, pair->peer, SHUT_WR));
    pair->peer_ended = true;
}

/* Closes the peer so that the other side gets RST. */
static inline void peer_reset(struct pair *pair) {
    struct linger at_once = {1, 0};
    MUST(syscall(SYS_setsockopt, pair->peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    MUST(syscall(SYS_close, pair->peer));
    pair->peer = -1;
}

static inline void peer_close(struct pair *pair) {
    MUST(syscall(SYS_close, pair->peer));
    pair->peer = -1;
}

/* Prints the next bytes that the peer receives: exactly `count`, or those before the end. */
static inline void peer_gets(struct pair *pair, size_t count) {
    static __thread char bytes[65536];
    size_t done = 0;
    long result = 0;
    while (done < count) {
        result = syscall(SYS_read, pair->peer, bytes + done, count - done);
        if (result <= 0)
            break;
        done += (size_t)result;
    }
    print("the peer gets \"%.*s\"", (int)done, bytes);
    if (done < count)
        print(" then %s", result == 0 ? "the end" : strerrorname_np(errno));
    print("\n");
}

/* Takes as many bytes of the peer's stream. */
static inline void peer_takes(struct pair *pair, long count) {
    static __thread char bytes[65536];
    while (count > 0)
        count -= MUST(syscall(SYS_read, pair->peer, bytes, count < (long)sizeof bytes ? count : (long)sizeof bytes));
}

/* Prints how the peer's stream ends, and the number of bytes before the end. */
static inline void peer_gets_the_end(struct pair *pair) {
    static __thread char bytes[65536];
    long result, count = 0;
    while ((result = syscall(SYS_read, pair->peer, bytes, sizeof bytes)) > 0)
        count += result;
    print("the peer gets %ld more, then %s\n", count, result == 0 ? "the end" : strerrorname_np(errno));
}

static inline struct tcp_info tcp_state(int fd) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    return info;
}

enum { STATE_ESTABLISHED = 1, STATE_FIN_WAIT2 = 5, STATE_CLOSED = 7, STATE_CLOSE_WAIT = 8 };

/* Waits until everything that the peer has sent, including FIN, has reached the socket of the other side. Queries the
 * kernel's socket, not the program: bytes that the library has taken out of it count as delivered. */
static inline void await_delivery(struct pair *pair) {
    for (int i = 0; i < 50000; i++) {
        struct tcp_info app = tcp_state(pair->app), peer = tcp_state(pair->peer);
        uint64_t sent = peer.tcpi_bytes_sent - peer.tcpi_bytes_retrans;
        bool ended = app.tcpi_state != STATE_ESTABLISHED;
        /* A paced sender holds bytes back for a moment; these do not count as sent. */
        if (peer.tcpi_notsent_bytes == 0 && app.tcpi_bytes_received >= sent && (ended || !pair->peer_ended))
            return;
        syscall(SYS_nanosleep, &(struct timespec){0, 100000}, NULL);
    }
    print("the peer's bytes never arrived\n");
}

/* Waits until the socket has reached a state; for ends of a closed peer, which cannot be queried. */
static inline void await_state(int fd, int state) {
    for (int i = 0; i < 50000; i++) {
        if (tcp_state(fd).tcpi_state == state)
            return;
        syscall(SYS_nanosleep, &(struct timespec){0, 100000}, NULL);
    }
    print("the socket never came to state %d\n", state);
}

/* Returns a connection in a set that its thread has waited on. */
static inline struct pair joined(int set, uint32_t mask) {
    struct pair pair = connected();
    add(set, pair.app, mask, 1);
    poll_once(set);
    return pair;
}

/* Exchanges one request of the peer and one response of the program. */
static inline void exchange(int set, struct pair *pair) {
    peer_send(pair, "question");
    await_delivery(pair);
    print_next(set);
    print_read(pair->app, 100);
    MUST(write(pair->app, "result", 6));
    print_now(set);
    peer_gets(pair, 6);
}

/* Returns whether the main thread sleeps. */
static inline bool main_thread_sleeps(void) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    int fd = (int)MUST(open(path, O_RDONLY));
    MUST(read(fd, text, sizeof text - 1));
    MUST(close(fd));
    char *end = strrchr(text, ')');
    return end && end[1] && end[2] == 'S';
}

/* ---- bytes that can be checked ---- */

static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Returns the byte at a position of a stream. A stream with a byte that is lost, repeated or moved has another sum. */
static inline unsigned char byte_at(uint64_t position) { return (unsigned char)((position * 2654435761u) >> 13); }

static inline void fill(unsigned char *bytes, size_t count, uint64_t position) {
    for (size_t i = 0; i < count; i++)
        bytes[i] = byte_at(position + i);
}

/* Returns the first position at which a stream differs from `byte_at`, or -1. */
static inline long differs(const unsigned char *bytes, size_t count, uint64_t position) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != byte_at(position + i))
            return (long)(position + i);
    return -1;
}

/* A thread that reads a peer to its end by direct calls, slowly if `pause_us` is set, and checks each byte. */
struct reader {
    pthread_t thread;
    int peer;
    long pause_us;
    uint64_t count;
    long wrong_at;
    int error;
};

static inline void *reader_run(void *argument) {
    struct reader *reader = argument;
    static __thread unsigned char bytes[65536];
    reader->wrong_at = -1;
    for (;;) {
        long done = syscall(SYS_read, reader->peer, bytes, sizeof bytes);
        if (done < 0)
            reader->error = errno;
        if (done <= 0)
            return NULL;
        if (reader->wrong_at < 0)
            reader->wrong_at = differs(bytes, (size_t)done, reader->count);
        reader->count += (uint64_t)done;
        if (reader->pause_us)
            syscall(SYS_nanosleep, &(struct timespec){0, reader->pause_us * 1000}, NULL);
    }
}

static inline void reader_start(struct reader *reader, int peer, long pause_us) {
    *reader = (struct reader){.peer = peer, .pause_us = pause_us};
    MUST(-pthread_create(&reader->thread, NULL, reader_run, reader));
}

/* Waits for the end of the reader while polling a set: the set's cycles send the deferred output of a connection that
 * was closed. */
static inline void join_polling(struct reader *reader, int set) {
    while (pthread_tryjoin_np(reader->thread, NULL) == EBUSY)
        epoll_wait(set, &(struct epoll_event){0}, 1, 1);
}

static inline void reader_result(const struct reader *reader) {
    print("the peer got %llu bytes, wrong at %ld, %s\n", (unsigned long long)reader->count, reader->wrong_at,
        reader->error ? strerrorname_np(reader->error) : "ended");
}

static inline void reader_print(struct reader *reader) {
    pthread_join(reader->thread, NULL);
    reader_result(reader);
}

/* ---- choosing a case ---- */

static inline int run_cases(const struct app_case *cases, size_t count, int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--cases")) {
        for (size_t i = 0; i < count; i++)
            print("%s\t%s\n", cases[i].name, cases[i].counted);
        return 0;
    }
    for (size_t i = 0; argc >= 2 && i < count; i++) {
        if (!strcmp(argv[1], cases[i].name)) {
            cases[i].run();
            print("done\n");
            return 0;
        }
    }
    fprintf(stderr, "usage: %s --cases | CASE\n", argv[0]);
    return 2;
}
#define RUN(cases) run_cases(cases, sizeof(cases) / sizeof *(cases), argc, argv)
