/* Every call that reads bytes from a stream, with its flags, errors and unusual lengths; and queries of the number of
 * readable bytes. The rule: bytes that the library has buffered and bytes in the kernel are one stream. */
#include "app.h"
#include <sys/eventfd.h>
#include <sys/mman.h>

int fcntl64(int fd, int what, ...);

/* The compiler calls these functions if it knows the size of the buffer. */
ssize_t __read_chk(int fd, void *bytes, size_t count, size_t buffers);
ssize_t __recv_chk(int fd, void *bytes, size_t count, size_t buffers, int flags);
ssize_t __recvfrom_chk(int fd, void *bytes, size_t count, size_t buffers, int flags, struct sockaddr *from,
                       socklen_t *length);

/* Returns a member that has `text` to read and has been reported. */
static struct pair with_bytes(int set, const char *text) {
    struct pair pair = connected();
    add(set, pair.app, EPOLLIN | EPOLLRDHUP, 1);
    print_now(set);
    peer_send(&pair, text);
    await_delivery(&pair);
    print_next(set);
    return pair;
}

static void print_recv(const char *what, int fd, size_t most, int flags) {
    char bytes[4096];
    got_bytes(what, bytes, recv(fd, bytes, most, flags));
}
#define RECV(fd, most, flags) print_recv("recv " #flags, fd, most, flags)

static void every_call_that_receives_takes_the_next_bytes(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "one two three four five six seven ");
    char bytes[64], more[64];
    got_bytes("read", bytes, read(pair.app, bytes, 4));
    got_bytes("recv", bytes, recv(pair.app, bytes, 4, 0));
    got_bytes("recvfrom", bytes, recvfrom(pair.app, bytes, 6, 0, NULL, NULL));
    struct iovec parts[2] = {{bytes, 2}, {more, 3}};
    got_bytes("readv", bytes, readv(pair.app, parts, 2) - 3);
    print("and \"%.3s\"\n", more);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    got_bytes("recvmsg", bytes, recvmsg(pair.app, &message, 0) - 3);
    print("and \"%.3s\"\n", more);
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    GOT(recvmmsg(pair.app, messages, 2, 0, NULL));
    print("%u \"%.2s\" %u \"%.3s\"\n", messages[0].msg_len, bytes, messages[1].msg_len, more);
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    print_now(set);
}

static void calls_with_checks_are_the_same_calls(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "abcdefghi");
    char bytes[16];
    got_bytes("read", bytes, __read_chk(pair.app, bytes, 3, sizeof bytes));
    got_bytes("recv", bytes, __recv_chk(pair.app, bytes, 3, sizeof bytes, 0));
    got_bytes("recvfrom", bytes, __recvfrom_chk(pair.app, bytes, 16, sizeof bytes, 0, NULL, NULL));
    got("read", __read_chk(pair.app, bytes, 16, sizeof bytes));
    got("recv", __recv_chk(pair.app, bytes, 16, sizeof bytes, MSG_DONTWAIT));
    int two[2];
    MUST(pipe(two));
    MUST(write(two[1], "pipe", 4));
    got_bytes("read a pipe", bytes, __read_chk(two[0], bytes, 16, sizeof bytes));
    print_now(set);
}

static void a_buffer_that_is_too_small_for_a_checked_call_ends_the_program(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "abcdefghi");
    char bytes[4];
    got("read", __read_chk(pair.app, bytes, 9, sizeof bytes));
    print("not reached\n");
}

static void peeking_takes_nothing(void) {
    int set = new_set(), waiting = -1;
    struct pair pair = with_bytes(set, "peek");
    RECV(pair.app, 2, MSG_PEEK);
    RECV(pair.app, 100, MSG_PEEK);
    peer_send(&pair, " and more");
    await_delivery(&pair);
    poll_once(set);
    RECV(pair.app, 100, MSG_PEEK);
    GOT(ioctl(pair.app, FIONREAD, &waiting));
    print("waiting: %d\n", waiting);
    print_now(set);
    print_read(pair.app, 6);
    RECV(pair.app, 3, MSG_PEEK | MSG_DONTWAIT);
    print_read(pair.app, 100);
    RECV(pair.app, 3, MSG_PEEK);
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_next(set);
    RECV(pair.app, 3, MSG_PEEK);
    print_read(pair.app, 3);
}

static void peeking_returns_no_more_than_there_is_to_read(void) {
    int set = new_set(), waiting = -1;
    struct pair pair = with_bytes(set, "first ");
    char bytes[64];
    peer_send(&pair, "second");
    await_delivery(&pair);
    long peeked = recv(pair.app, bytes, sizeof bytes, MSG_PEEK);
    print("the start of the stream: %s\n",
          peeked >= 6 && !memcmp(bytes, "first second", (size_t)peeked) ? "yes" : "no");
    GOT(ioctl(pair.app, FIONREAD, &waiting));
    print("waiting: %s\n", waiting >= peeked && waiting <= 12 ? "yes" : "no");
    print_stream(pair.app, 100);
    print_now(set);
}

/* Returns a text of 9,000 characters. */
static const char *nine_thousand(void) {
    static char text[9001];
    return memset(text, 'x', sizeof text - 1);
}

/* Returns a connection that has received so much that the ring only polls it, with unread bytes. */
static struct pair after_a_large_transfer(int set, uint32_t mask) {
    struct pair pair = joined(set, mask);
    peer_send(&pair, "1");
    await_delivery(&pair);
    print_now(set);
    print_read(pair.app, 100);
    peer_send(&pair, nine_thousand());
    await_delivery(&pair);
    print_now(set);
    return pair;
}

/* Waits as often as the ring needs to notice an end by a poll, and to receive it. */
static void poll_often(int set) {
    for (int i = 0; i < 3; i++)
        poll_once(set);
}

/* Prints the number of bytes before the end of a stream, and how it ends. */
static void print_rest(int fd) {
    char bytes[4096];
    long result, count = 0;
    while ((result = read(fd, bytes, sizeof bytes)) > 0)
        count += result;
    print("%ld bytes, then %s\n", count, result == 0 ? "the end" : strerrorname_np(errno));
}

static void print_poll(int fd) {
    struct pollfd query = {fd, POLLIN, 0};
    GOT(poll(&query, 1, 0));
}

/* The bytes have arrived: a program that only reads, and sleeps between its reads, finds them. */
static long repeated(struct pair *pair, char *bytes, size_t most, int flags, long enough) {
    long result = -1;
    for (int i = 0; i < 1000 && result < enough; i++) {
        result = recv(pair->app, bytes, most, flags);
        pause_ms(result < enough);
    }
    return result;
}

static void bytes_that_arrive_later_are_found_by_reads_alone(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "one ");
    char bytes[64];
    got_bytes("read", bytes, read(pair.app, bytes, sizeof bytes));
    GOT(read(pair.app, bytes, sizeof bytes));
    peer_send(&pair, "two ");
    await_delivery(&pair);
    got_bytes("peek", bytes, repeated(&pair, bytes, 2, MSG_PEEK, 1));
    peer_send(&pair, "three ");
    await_delivery(&pair);
    got_bytes("peek", bytes, repeated(&pair, bytes, sizeof bytes, MSG_PEEK, 10));
    got_bytes("read", bytes, read(pair.app, bytes, sizeof bytes));
    GOT(read(pair.app, bytes, sizeof bytes));
    peer_send(&pair, nine_thousand());
    await_delivery(&pair);
    print_next(set);
    static char many[10000];
    GOT(read(pair.app, many, sizeof many));
    GOT(read(pair.app, many, sizeof many));
    peer_send(&pair, "four");
    await_delivery(&pair);
    got_bytes("read", bytes, repeated(&pair, bytes, sizeof bytes, 0, 1));
    peer_shutdown(&pair);
    await_delivery(&pair);
    GOT(repeated(&pair, bytes, sizeof bytes, MSG_PEEK, 0));
}

static void peeks_and_parts_go_on_behind_buffered_bytes(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "abc");
    print_poll(pair.app);
    peer_send(&pair, "defghi");
    await_delivery(&pair);
    RECV(pair.app, 100, MSG_PEEK);
    RECV(pair.app, 5, MSG_PEEK);
    RECV(pair.app, 5, MSG_PEEK | MSG_TRUNC);
    print_now(set);
    char bytes[100];
    struct iovec parts[3] = {{bytes, 2}, {bytes + 2, 3}, {bytes + 5, 95}};
    got_bytes("recvmsg", bytes, recvmsg(pair.app, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 3}, MSG_PEEK));
    got_bytes("readv", bytes, readv(pair.app, parts, 3));
    GOT(readv(pair.app, parts, 3));
}

/* More than the library buffers of a connection. */
static void a_peek_returns_all_of_a_large_message(void) {
    int set = new_set(), size = 200000, waiting = -1;
    static char bytes[200000];
    struct pair pair = connected();
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    add(set, pair.app, EPOLLIN, 1);
    for (int i = 0; i < 12; i++) {
        peer_send(&pair, nine_thousand());
        await_delivery(&pair);
        print_next(set);
    }
    GOT(ioctl(pair.app, FIONREAD, &waiting));
    print("waiting: %d\n", waiting);
    GOT(recv(pair.app, bytes, sizeof bytes, MSG_PEEK));
}

static void bytes_that_were_all_read_are_not_reported_again(void) {
    static char bytes[9000];
    int set = new_set();
    struct pair pair = after_a_large_transfer(set, EPOLLIN);
    print_rest(pair.app);
    for (int i = 0; i < 4; i++) {
        peer_send(&pair, i % 2 ? "last" : nine_thousand());
        await_delivery(&pair);
        print_next(set);
        GOT(read(pair.app, bytes, i % 2 ? 4 : 9000));
        print_now(set);
        mod(set, pair.app, i ? EPOLLIN | EPOLLONESHOT : EPOLLIN, 2);
        print_now(set);
        print_now(set);
    }
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_next(set);
}

static void the_count_of_waiting_bytes_is_whole(void) {
    int set = new_set(), waiting = -1;
    struct pair pair = with_bytes(set, "12345");
    GOT(ioctl(pair.app, FIONREAD, &waiting));
    print("waiting: %d\n", waiting);
    print_read(pair.app, 2);
    GOT(ioctl(pair.app, FIONREAD, &waiting));
    print("waiting: %d\n", waiting);
    peer_send(&pair, "678");
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_next(set);
    GOT(ioctl(pair.app, FIONREAD, &waiting));
    print("waiting: %d\n", waiting);
    print_stream(pair.app, 6);
    GOT(ioctl(pair.app, FIONREAD, &waiting));
    print("waiting: %d\n", waiting);
    print_read(pair.app, 100);
}

static void receive_flags_have_their_usual_effect(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "abcdefghijklmnop");
    RECV(pair.app, 2, MSG_DONTWAIT);
    RECV(pair.app, 2, MSG_NOSIGNAL);
    RECV(pair.app, 2, MSG_WAITALL);
    RECV(pair.app, 2, MSG_CMSG_CLOEXEC);
    GOT(recv(pair.app, NULL, 3, MSG_TRUNC));
    RECV(pair.app, 100, MSG_WAITALL);
    RECV(pair.app, 100, MSG_WAITALL);
    RECV(pair.app, 100, MSG_DONTWAIT);
    RECV(pair.app, 100, MSG_OOB);
    RECV(pair.app, 100, MSG_ERRQUEUE);
    RECV(pair.app, 100, MSG_WAITFORONE);
    RECV(pair.app, 100, 0x10000000);
    print_now(set);
}

static void calls_of_length_zero_return(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "x");
    char byte;
    GOT(read(pair.app, &byte, 0));
    GOT(recv(pair.app, &byte, 0, 0));
    GOT(readv(pair.app, NULL, 0));
    GOT(readv(pair.app, &(struct iovec){&byte, 0}, 1));
    print_now(set);
    print_read(pair.app, 10);
    GOT(read(pair.app, &byte, 0));
    GOT(read(pair.app, NULL, 0));
    GOT(recv(pair.app, &byte, 0, 0));
    GOT(readv(pair.app, NULL, 0));
    GOT(readv(pair.app, &(struct iovec){&byte, 0}, 1));
    struct msghdr empty = {0};
    GOT(recvmsg(pair.app, &empty, 0));
    GOT(recvmmsg(pair.app, NULL, 0, 0, NULL));
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_next(set);
    GOT(read(pair.app, &byte, 0));
    GOT(recv(pair.app, &byte, 0, 0));
    print_read(pair.app, 1);
}

static void many_parts_and_too_many(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "0123456789abcdefghij");
    char bytes[1025];
    struct iovec parts[1025];
    for (int i = 0; i < 1025; i++)
        parts[i] = (struct iovec){bytes + i, 1};
    GOT(readv(pair.app, parts, 1025));
    GOT(readv(pair.app, parts, -1));
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1025};
    GOT(recvmsg(pair.app, &message, 0));
    struct iovec negative = {bytes, (size_t)-1};
    GOT(readv(pair.app, &negative, 1));
    got_bytes("readv of 7", bytes, readv(pair.app, parts, 7));
    message.msg_iovlen = 1024;
    got_bytes("recvmsg of 1024", bytes, recvmsg(pair.app, &message, 0));
    for (int i = 0; i < 1025; i += 2)
        parts[i].iov_len = 0;
    peer_send(&pair, "0123456789");
    print_next(set);
    memset(bytes, '.', sizeof bytes);
    long done = readv(pair.app, parts, 10);
    print("readv with empty parts: %ld \"%.12s\"\n", done, bytes);
    done = readv(pair.app, parts, 1024);
    print("readv with empty parts: %ld \"%.12s\"\n", done, bytes);
}

static void addresses_and_control_bytes_are_left_as_a_stream_leaves_them(void) {
    int set = new_set();
    struct pair pair = with_bytes(set, "abcdefghijklmnopqr");
    struct sockaddr_in from = {.sin_port = 7};
    socklen_t length = sizeof from;
    char bytes[16], space[64];
    got_bytes("recvfrom", bytes, recvfrom(pair.app, bytes, 3, 0, (struct sockaddr *)&from, &length));
    print("address of %u bytes, port %u\n", length, from.sin_port);
    struct iovec part = {bytes, 3};
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1,
                             .msg_control = space, .msg_controllen = sizeof space, .msg_flags = -1};
    got_bytes("recvmsg", bytes, recvmsg(pair.app, &message, 0));
    print("name %u, control %zu, flags %x\n", message.msg_namelen, message.msg_controllen, message.msg_flags);
    message.msg_namelen = sizeof from;
    message.msg_controllen = sizeof space;
    got_bytes("recvmsg", bytes, recvmsg(pair.app, &message, MSG_CMSG_CLOEXEC));
    print("name %u, control %zu, flags %x\n", message.msg_namelen, message.msg_controllen, message.msg_flags);
    length = -1;
    got("no length", recvfrom(pair.app, bytes, 3, 0, (struct sockaddr *)&from, &length));
    got("no pointer for a length", recvfrom(pair.app, bytes, 3, 0, (struct sockaddr *)&from, NULL));
    message.msg_namelen = -1;
    got("no length", recvmsg(pair.app, &message, 0));
    message.msg_namelen = sizeof from;
    got_bytes("recvmsg", bytes, recvmsg(pair.app, &message, 0));
    message.msg_namelen = sizeof from;
    message.msg_flags = 77;
    GOT(recvmsg(pair.app, &message, 0));
    print("name %u, flags %x\n", message.msg_namelen, message.msg_flags);
    length = sizeof from;
    GOT(recvfrom(pair.app, bytes, 3, 0, (struct sockaddr *)&from, &length));
    print("length %u\n", length);
    GOT(recvfrom(pair.app, bytes, 3, 0, (struct sockaddr *)&from, (socklen_t *)1));
}

static void options_that_add_control_bytes_are_honoured(void) {
    int set = new_set(), one = 1;
    struct pair pair = with_bytes(set, "before ");
    GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_INQ, &one, sizeof one));
    print_stream(pair.app, 7);
    peer_send(&pair, "after");
    await_delivery(&pair);
    print_next(set);
    char bytes[64];
    union {
        char bytes[128];
        struct cmsghdr aligned;
    } space;
    struct iovec part = {bytes, 2};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space,
                             .msg_controllen = sizeof space};
    got_bytes("recvmsg", bytes, recvmsg(pair.app, &message, 0));
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    if (control)
        print("control %d %d, left %d\n", control->cmsg_level, control->cmsg_type, *(int *)CMSG_DATA(control));
    print_now(set);
    print_read(pair.app, 100);
}

static void a_low_water_mark_holds_reports_back(void) {
    int set = new_set(), mark = 10;
    struct pair pair = with_bytes(set, "1234");
    print_read(pair.app, 100);
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    print_now(set);
    peer_send(&pair, "123456789");
    await_delivery(&pair);
    print_now(set);
    peer_send(&pair, "0abc");
    await_delivery(&pair);
    print_now(set);
    print_read(pair.app, 5);
    print_now(set);
    print_read(pair.app, 100);
}

/* The library holds the bytes, so the kernel has nothing to report again by itself. */
static void a_low_water_mark_reports_all_events_of_an_ended_connection_again(void) {
    int set = new_set(), mark = 1;
    struct pair pair = connected();
    add(set, pair.app, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1);
    print_now(set);
    peer_send(&pair, "1234");
    await_delivery(&pair);
    print_now(set);
    GOT(shutdown(pair.app, SHUT_RDWR));
    print_now(set);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    print_now(set);
    print_now(set);
    print_read(pair.app, 100);
}

static void a_reset_after_a_large_transfer_is_reported(void) {
    int set = new_set();
    struct pair pair = after_a_large_transfer(set, EPOLLIN | EPOLLRDHUP);
    print_rest(pair.app);
    print_now(set);
    peer_send(&pair, nine_thousand());
    peer_close(&pair);
    await_state(pair.app, STATE_CLOSE_WAIT);
    poll_often(set);
    print_now(set);
    print_rest(pair.app);
    poll_often(set);
    print_now(set);
    GOT(write(pair.app, "late", 4));
    poll_once(set);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
}

static void the_end_comes_before_a_later_reset(void) {
    int set = new_set();
    struct pair pair = after_a_large_transfer(set, EPOLLIN);
    peer_send(&pair, "last");
    peer_shutdown(&pair);
    await_delivery(&pair);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    print_rest(pair.app);
    print_now(set);
    GOT(send(pair.app, "late", 4, MSG_NOSIGNAL));
    print_now(set);
}

/* Returns a connection whose unread bytes are in the kernel, and were reported. */
static struct pair with_bytes_in_the_kernel(int set, uint32_t mask) {
    struct pair pair = after_a_large_transfer(set, mask);
    print_rest(pair.app);
    mod(set, pair.app, mask, 2);
    print_now(set);
    peer_send(&pair, "unread");
    await_delivery(&pair);
    print_next(set);
    return pair;
}

static void a_reset_behind_unread_bytes_fails_writes_after_a_oneshot_report(void) {
    int set = new_set();
    struct pair pair = with_bytes_in_the_kernel(set, EPOLLIN | EPOLLONESHOT);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    GOT(write(pair.app, "late", 4));
}

static void a_reset_behind_unread_bytes_is_reported_to_a_program_that_pauses(void) {
    int set = new_set();
    struct pair pair = with_bytes_in_the_kernel(set, EPOLLIN);
    mod(set, pair.app, 0, 3);
    print_now(set);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
}

static void a_time_limit_on_a_blocking_read_holds(void) {
    int set = new_set();
    struct timeval limit = {0, 20000};
    struct pair pair = with_bytes(set, "left");
    GOT(setsockopt(pair.app, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    MUST(fcntl(pair.app, F_SETFL, 0));
    double start = now_ms();
    print_read(pair.app, 100);
    print_read(pair.app, 100);
    /* The kernel counts it in ticks of up to 10 ms, the first of which may be nearly over. */
    print("early: %d\n", now_ms() - start < 9);
    peer_send(&pair, "again");
    print_read(pair.app, 100);
}

static void a_large_stream_arrives_whole(void) {
    int set = new_set();
    struct pair pair = connected();
    static unsigned char bytes[300000];
    add(set, pair.app, EPOLLIN | EPOLLRDHUP, 1);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        uint64_t position = 0, random = 99;
        while (position < 3000000) {
            size_t length = next_random(&random) % 90000 + 1;
            fill(bytes, length, position);
            for (size_t done = 0; done < length;)
                done += (size_t)MUST(syscall(SYS_write, pair.peer, bytes + done, length - done));
            position += length;
        }
        syscall(SYS_exit_group, 0);
    }
    peer_close(&pair);
    uint64_t position = 0, random = 5;
    long wrong = -1;
    for (;;) {
        struct epoll_event event;
        MUST(epoll_wait(set, &event, 1, 20000));
        size_t most = next_random(&random) % (position % 3 ? 5000 : sizeof bytes) + 1;
        long done = read(pair.app, bytes, most);
        if (done == 0)
            break;
        if (done > 0 && wrong < 0)
            wrong = differs(bytes, (size_t)done, position);
        position += done > 0 ? (uint64_t)done : 0;
    }
    print("%llu bytes, wrong at %ld\n", (unsigned long long)position, wrong);
    MUST(waitpid(child, NULL, 0));
}

/* A reader that stops must stop the sender, as in TCP: the library reads only a limited amount ahead. */
static void a_reader_that_stops_stops_its_sender(void) {
    int set = new_set(), small = 65536;
    struct pair pair = connected();
    static unsigned char bytes[65536];
    add(set, pair.app, EPOLLIN, 1);
    print_now(set);
    MUST(syscall(SYS_setsockopt, pair.peer, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
    uint64_t sent = 0;
    for (int quiet = 0; quiet < 4 && sent < 512u << 20;) {
        fill(bytes, sizeof bytes, sent);
        long done = syscall(SYS_sendto, pair.peer, bytes, sizeof bytes, MSG_DONTWAIT, NULL, 0);
        sent += done > 0 ? (uint64_t)done : 0;
        quiet = done > 0 ? 0 : quiet + 1;
        struct epoll_event event;
        if (epoll_wait(set, &event, 1, done > 0 ? 0 : 5) != 1)
            print("the bytes are not reported\n");
    }
    print("stopped: %s\n", sent < 64u << 20 ? "yes" : "no");
    uint64_t position = 0;
    long wrong = -1, done;
    MUST(syscall(SYS_shutdown, pair.peer, SHUT_WR));
    while ((done = read(pair.app, bytes, sizeof bytes)) != 0) {
        if (done < 0)
            epoll_wait(set, &(struct epoll_event){0}, 1, 10000);
        else if (wrong < 0)
            wrong = differs(bytes, (size_t)done, position);
        position += done > 0 ? (uint64_t)done : 0;
    }
    print("all read: %s, wrong at %ld\n", position == sent ? "yes" : "no", wrong);
}

static void reads_of_other_descriptors_are_unchanged(void) {
    int two[2], unix_pair[2], event = eventfd(5, EFD_NONBLOCK), file = (int)MUST(open("/proc/self/comm", O_RDONLY));
    char bytes[64];
    struct iovec part = {bytes, sizeof bytes};
    MUST(pipe2(two, O_NONBLOCK));
    MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, unix_pair));
    GOT(read(two[0], bytes, 10));
    MUST(write(two[1], "pipe", 4));
    got_bytes("readv", bytes, readv(two[0], &part, 1));
    GOT(read(event, bytes, 4));
    GOT(read(event, bytes, 8));
    got_bytes("read", bytes, read(file, bytes, sizeof bytes));
    GOT(recv(file, bytes, 10, 0));
    GOT(read(-1, bytes, 10));
    GOT(recv(-1, bytes, 10, 0));
    GOT(readv(1 << 20, &part, 1));
    GOT(recvmsg(-1, &(struct msghdr){0}, 0));
    MUST(send(unix_pair[1], "first datagram", 14, 0));
    MUST(send(unix_pair[1], "second", 6, 0));
    got_bytes("recv", bytes, recv(unix_pair[0], bytes, 5, MSG_TRUNC) > 5 ? 5 : 0);
    got_bytes("recv", bytes, recv(unix_pair[0], bytes, 64, 0));
    int fresh = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    GOT(read(fresh, bytes, 10));
    GOT(write(two[0], "x", 1));
}

static void messages_of_datagrams_pass(void) {
    int two[2], flag = 1;
    char bytes[3][16];
    struct iovec sent[2] = {{"first", 5}, {"second", 6}}, buffers[3];
    struct mmsghdr out[2] = {0}, in[3] = {0};
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, two));
    for (int i = 0; i < 2; i++)
        out[i].msg_hdr = (struct msghdr){.msg_iov = &sent[i], .msg_iovlen = 1};
    for (int i = 0; i < 3; i++) {
        buffers[i] = (struct iovec){bytes[i], sizeof bytes[i]};
        in[i].msg_hdr = (struct msghdr){.msg_iov = &buffers[i], .msg_iovlen = 1};
    }
    GOT(setsockopt(two[0], SOL_SOCKET, SO_PASSCRED, &flag, sizeof flag));
    GOT(ioctl(two[0], FIONBIO, &flag));
    GOT(fcntl64(two[0], F_GETFL) & O_NONBLOCK ? 1 : 0);
    GOT(sendmmsg(two[1], out, 2, 0));
    GOT(recvmmsg(two[0], in, 3, 0, NULL));
    print("%u \"%.5s\" %u \"%.6s\"\n", in[0].msg_len, bytes[0], in[1].msg_len, bytes[1]);
    MUST(sendmsg(two[1], &out[0].msg_hdr, 0));
    got_bytes("recvfrom", bytes[0], recvfrom(two[0], bytes[0], 16, 0, NULL, NULL));
    MUST(sendmsg(two[1], &out[0].msg_hdr, 0));
    got_bytes("recv", bytes[0], __recv_chk(two[0], bytes[0], 16, 16, 0));
    MUST(sendmsg(two[1], &out[1].msg_hdr, 0));
    got_bytes("recvfrom", bytes[0], __recvfrom_chk(two[0], bytes[0], 16, 16, 0, NULL, NULL));
    int twin = (int)MUST(dup(two[0])), position = (int)MUST(dup2(two[1], twin));
    GOT(dup3(two[1], position, O_CLOEXEC) == position);
    MUST(close(position));
    GOT(shutdown(two[0], SHUT_RDWR));
}

/* ---- every flag of every call ---- */

/* A state of a connection of which five bytes were reported: how the program left it. */
enum state { SERVED, NON_BLOCKING, BLOCKING, REMOVED, REMOVED_BLOCKING, STATES };
static const char *state_names[STATES] = {"served", "handed back", "blocking", "removed", "removed and blocking"};

static void enter_state(int set, int fd, enum state state) {
    if (state == REMOVED || state == REMOVED_BLOCKING)
        del(set, fd);
    if (state == REMOVED)
        poll_once(set);
    if (state == NON_BLOCKING)
        MUST(close(dup(fd)));
    if (state == BLOCKING || state == REMOVED_BLOCKING)
        MUST(fcntl(fd, F_SETFL, 0));
}

enum call { READ, READV, RECV, RECVFROM, RECVMSG, RECVMMSG, CALLS };
static const char *call_names[CALLS] = {"read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg"};

static const struct {
    int flags;
    const char *name;
} flag_rows[] = {
    {0, "0"},
    {MSG_PEEK, "PEEK"},
    {MSG_WAITALL, "WAITALL"},
    {MSG_PEEK | MSG_WAITALL, "PEEK|WAITALL"},
    {MSG_DONTWAIT, "DONTWAIT"},
    {MSG_DONTWAIT | MSG_WAITALL, "DONTWAIT|WAITALL"},
    {MSG_TRUNC, "TRUNC"},
    {MSG_TRUNC | MSG_PEEK, "TRUNC|PEEK"},
    {MSG_TRUNC | MSG_WAITALL, "TRUNC|WAITALL"},
    {MSG_NOSIGNAL, "NOSIGNAL"},
    {MSG_CMSG_CLOEXEC, "CMSG_CLOEXEC"},
    {MSG_ERRQUEUE, "ERRQUEUE"},
    {MSG_DONTROUTE, "DONTROUTE"},
    {0x10000000, "0x10000000"},
    {MSG_WAITFORONE, "WAITFORONE"},
    {MSG_WAITFORONE | MSG_WAITALL, "WAITFORONE|WAITALL"},
    {MSG_WAITFORONE | MSG_PEEK, "WAITFORONE|PEEK"},
};

/* Makes one call with room for ten bytes, in two parts where it takes vectors, or three messages. */
static void receive_by(int fd, enum call call, int flags) {
    char bytes[3][16];
    struct iovec parts[3][2];
    struct mmsghdr messages[3] = {0};
    socklen_t length = 0;
    long result = 0;
    memset(bytes, '.', sizeof bytes);
    for (int i = 0; i < 3; i++) {
        parts[i][0] = (struct iovec){bytes[i], 3};
        parts[i][1] = (struct iovec){bytes[i] + 3, 7};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = parts[i], .msg_iovlen = 2};
    }
    switch (call) {
    case READ: result = read(fd, bytes[0], 10); break;
    case READV: result = readv(fd, parts[0], 2); break;
    case RECV: result = recv(fd, bytes[0], 10, flags); break;
    case RECVFROM: result = recvfrom(fd, bytes[0], 10, flags, NULL, &length); break;
    case RECVMSG: result = recvmsg(fd, &messages[0].msg_hdr, flags); break;
    case RECVMMSG: result = recvmmsg(fd, messages, 3, flags, NULL); break;
    default: break;
    }
    int error = errno, shown = call == RECVMMSG ? (int)result : 1;
    print(" %ld %s", result, result < 0 ? strerrorname_np(error) : "");
    for (int i = 0; i < shown && result >= 0; i++) {
        print(" \"%.10s\"", bytes[i]);
        if (call == RECVMMSG)
            print(" %u", messages[i].msg_len);
        if (call == RECVMMSG || call == RECVMSG)
            print(" flags 0x%x", messages[i].msg_hdr.msg_flags);
    }
}

static _Atomic bool returned;

/* Sends when the call has returned, or waits for more: the main thread has slept for 20 looks, one after another. */
static void *send_the_rest(void *argument) {
    struct pair *pair = argument;
    for (int looks = 0; looks < 20 && !returned; looks = main_thread_sleeps() ? looks + 1 : 0)
        pause_ms(1);
    peer_send(pair, "67890");
    MUST(syscall(SYS_shutdown, pair->peer, SHUT_WR));
    return NULL;
}

static void flags_in_state(enum state state) {
    int set = new_set(), port, listener = listen_on(0, &port);
    for (size_t row = 0; row < sizeof flag_rows / sizeof *flag_rows; row++) {
        for (enum call call = 0; call < CALLS; call++) {
            bool takes_flags = call != READ && call != READV;
            if (!takes_flags && flag_rows[row].flags || call != RECVMMSG && flag_rows[row].flags & MSG_WAITFORONE)
                continue;
            bool blocks = state == BLOCKING || state == REMOVED_BLOCKING;
            /* Whether the end has come when the second message is tried depends on the time. */
            if (blocks && flag_rows[row].flags == (MSG_WAITFORONE | MSG_WAITALL))
                continue;
            struct pair pair = pair_on(listener, port, SOCK_NONBLOCK);
            pthread_t thread;
            struct epoll_event event;
            add(set, pair.app, EPOLLIN, 1);
            poll_once(set);
            peer_send(&pair, "12345");
            await_delivery(&pair);
            MUST(epoll_wait(set, &event, 1, 10000));
            enter_state(set, pair.app, state);
            print("%s %s:", call_names[call], flag_rows[row].name);
            returned = false;
            if (blocks)
                MUST(-pthread_create(&thread, NULL, send_the_rest, &pair));
            receive_by(pair.app, call, flag_rows[row].flags);
            returned = true;
            if (blocks)
                pthread_join(thread, NULL);
            else
                send_the_rest(&pair);
            await_state(pair.app, STATE_CLOSE_WAIT);
            poll_once(set);
            MUST(fcntl(pair.app, F_SETFL, O_NONBLOCK));
            print(", ");
            print_stream(pair.app, 100);
            MUST(close(pair.app));
            peer_close(&pair);
        }
    }
}

static void every_flag_on_a_served_connection(void) { flags_in_state(SERVED); }
static void every_flag_on_a_connection_that_was_handed_back(void) { flags_in_state(NON_BLOCKING); }
static void every_flag_on_a_blocking_connection(void) { flags_in_state(BLOCKING); }
static void every_flag_on_a_removed_connection(void) { flags_in_state(REMOVED); }
static void every_flag_on_a_removed_and_blocking_connection(void) { flags_in_state(REMOVED_BLOCKING); }

static void a_time_limit_ends_a_wait_for_all(void) {
    for (enum call call = RECV; call < CALLS; call++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN);
        peer_send(&pair, "12345");
        await_delivery(&pair);
        MUST(epoll_wait(set, &(struct epoll_event){0}, 1, 10000));
        MUST(fcntl(pair.app, F_SETFL, 0));
        MUST(setsockopt(pair.app, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 100000}, sizeof(struct timeval)));
        double before = now_ms();
        print("%s:", call_names[call]);
        receive_by(pair.app, call, MSG_WAITALL);
        print(", waited: %d\n", now_ms() - before >= 99);
        MUST(close(pair.app));
        MUST(close(set));
    }
}

/* When the main thread sleeps in its call, removes the time limit for later calls and sends a byte. Sends the other
 * bytes only if the call does not return. */
static void *remove_the_limit(void *argument) {
    struct pair *pair = argument;
    for (int looks = 0; looks < 20 && !returned; looks = main_thread_sleeps() ? looks + 1 : 0)
        pause_ms(1);
    MUST(syscall(SYS_setsockopt, pair->app, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0}, sizeof(struct timeval)));
    peer_send(pair, "6");
    for (int looks = 0; looks < 10000 && !returned; looks++)
        pause_ms(1);
    peer_send(pair, "7890");
    return NULL;
}

static void has_one_time_limit(int flags) {
    for (enum call call = RECV; call < CALLS; call++) {
        int set = new_set();
        pthread_t thread;
        char bytes[10];
        struct iovec part = {bytes, sizeof bytes};
        struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
        struct pair pair = joined(set, EPOLLIN);
        peer_send(&pair, "12345");
        await_delivery(&pair);
        MUST(epoll_wait(set, &(struct epoll_event){0}, 1, 10000));
        MUST(fcntl(pair.app, F_SETFL, 0));
        MUST(setsockopt(pair.app, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 300000}, sizeof(struct timeval)));
        returned = false;
        MUST(-pthread_create(&thread, NULL, remove_the_limit, &pair));
        long result = call == RECV        ? recv(pair.app, bytes, sizeof bytes, flags)
                      : call == RECVFROM  ? recvfrom(pair.app, bytes, sizeof bytes, flags, NULL, NULL)
                      : call == RECVMSG   ? recvmsg(pair.app, &message.msg_hdr, flags)
                      : recvmmsg(pair.app, &message, 1, flags, NULL) == 1 ? message.msg_len : -1;
        returned = true;
        print("%s: some: %d, all: %d\n", call_names[call], result >= 5, result == 10);
        pthread_join(thread, NULL);
        MUST(close(pair.app));
        MUST(close(set));
    }
}

static void a_wait_for_all_has_one_time_limit(void) { has_one_time_limit(MSG_WAITALL); }
static void a_peek_that_waits_for_all_has_one_time_limit(void) { has_one_time_limit(MSG_WAITALL | MSG_PEEK); }

/* A thread that sends 60 bytes, one at a time, takes those that it can, and then ends the stream. */
struct thief {
    pthread_t thread;
    struct pair pair;
    long taken;
    volatile bool done;
};

static void *send_and_take(void *argument) {
    struct thief *thief = argument;
    char byte;
    for (int looks = 0; looks < 20; looks = main_thread_sleeps() ? looks + 1 : 0)
        pause_ms(1);
    for (int i = 0; i < 60; i++) {
        peer_send(&thief->pair, "6");
        for (int tries = 0; tries < 300; tries++)
            if (syscall(SYS_recvfrom, thief->pair.app, &byte, 1, MSG_DONTWAIT, NULL, NULL) == 1)
                thief->taken++;
        pause_ms(1);
    }
    thief->done = true;
    peer_shutdown(&thief->pair);
    return NULL;
}

static void bytes_that_another_thread_takes_end_no_wait_for_all(void) {
    for (enum call call = RECV; call < CALLS; call++) {
        int set = new_set();
        char bytes[100];
        struct iovec part = {bytes, sizeof bytes};
        struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
        struct thief thief = {.pair = joined(set, EPOLLIN)};
        int fd = thief.pair.app;
        peer_send(&thief.pair, "12345");
        await_delivery(&thief.pair);
        MUST(epoll_wait(set, &(struct epoll_event){0}, 1, 10000));
        MUST(fcntl(fd, F_SETFL, 0));
        MUST(-pthread_create(&thief.thread, NULL, send_and_take, &thief));
        long result = call == RECV        ? recv(fd, bytes, sizeof bytes, MSG_WAITALL)
                      : call == RECVFROM  ? recvfrom(fd, bytes, sizeof bytes, MSG_WAITALL, NULL, NULL)
                      : call == RECVMSG   ? recvmsg(fd, &message.msg_hdr, MSG_WAITALL)
                      : recvmmsg(fd, &message, 1, MSG_WAITALL, NULL) == 1 ? message.msg_len : -1;
        print("%s: waited: %d", call_names[call], thief.done);
        pthread_join(thief.thread, NULL);
        MUST(fcntl(fd, F_SETFL, O_NONBLOCK));
        for (long more; (more = read(fd, bytes, sizeof bytes)) > 0;)
            result += more;
        print(", bytes: %ld\n", result + thief.taken);
        MUST(close(fd) | close(set));
    }
}

/* Urgent data and the end of the stream end a wait. */
static void a_wait_for_all_ends_at_urgent_bytes_and_at_the_end(void) {
    for (int way = 0; way < 8; way++) {
        int set = new_set(), flags = MSG_WAITALL | (way & 1 ? MSG_PEEK : 0);
        struct timeval limit = {way & 2 ? 20 : 0, 0};
        struct pair pair = joined(set, EPOLLIN);
        char bytes[10];
        peer_send(&pair, "12345");
        await_delivery(&pair);
        MUST(epoll_wait(set, &(struct epoll_event){0}, 1, 10000));
        MUST(fcntl(pair.app, F_SETFL, 0));
        MUST(setsockopt(pair.app, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
        peer_send(&pair, "6");
        if (way & 4) {
            MUST(syscall(SYS_sendto, pair.peer, "!", 1, MSG_OOB, NULL, 0));
            peer_send(&pair, "7");
        } else
            peer_shutdown(&pair);
        await_delivery(&pair);
        got_bytes("recv", bytes, recv(pair.app, bytes, sizeof bytes, flags));
        MUST(fcntl(pair.app, F_SETFL, O_NONBLOCK));
        print_stream(pair.app, 10);
        MUST(close(pair.app) | close(set));
    }
}

static const struct app_case cases[] = {
    CASE(every_call_that_receives_takes_the_next_bytes,
         "served:read served:recv served:readv served:recvmsg"),
    CASE(calls_with_checks_are_the_same_calls, "served:read served:recv"),
    CASE(a_buffer_that_is_too_small_for_a_checked_call_ends_the_program, ""),
    CASE(peeking_takes_nothing, "served:recv"),
    CASE(peeking_returns_no_more_than_there_is_to_read, ""),
    CASE(bytes_that_arrive_later_are_found_by_reads_alone, "served:read served:recv"),
    CASE(peeks_and_parts_go_on_behind_buffered_bytes, "back:polled_otherwise"),
    CASE(a_peek_returns_all_of_a_large_message, "served:recv"),
    CASE(bytes_that_were_all_read_are_not_reported_again, "served:read"),
    CASE(the_count_of_waiting_bytes_is_whole, ""),
    CASE(receive_flags_have_their_usual_effect, ""),
    CASE(calls_of_length_zero_return, "served:readv"),
    CASE(many_parts_and_too_many, "served:readv served:recvmsg"),
    CASE(addresses_and_control_bytes_are_left_as_a_stream_leaves_them, ""),
    CASE(options_that_add_control_bytes_are_honoured, "back:unknown_option"),
    CASE(a_low_water_mark_holds_reports_back, "back:unknown_option"),
    CASE(a_low_water_mark_reports_all_events_of_an_ended_connection_again, ""),
    CASE(a_reset_after_a_large_transfer_is_reported, "served:read served:write"),
    CASE(the_end_comes_before_a_later_reset, "served:read"),
    CASE(a_reset_behind_unread_bytes_fails_writes_after_a_oneshot_report, "served:read"),
    CASE(a_reset_behind_unread_bytes_is_reported_to_a_program_that_pauses, "served:read"),
    CASE(a_time_limit_on_a_blocking_read_holds, "back:blocking"),
    CASE(a_large_stream_arrives_whole, "served:read"),
    CASE(a_reader_that_stops_stops_its_sender, "served:read"),
    CASE(messages_of_datagrams_pass, "passes"),
    CASE(reads_of_other_descriptors_are_unchanged, "passes"),
    CASE(every_flag_on_a_served_connection, "served:read served:readv served:recv served:recvmsg"),
    CASE(every_flag_on_a_connection_that_was_handed_back, "served:recv served:recvmsg back:duplicated"),
    CASE(every_flag_on_a_blocking_connection, "served:recv served:recvmsg back:blocking"),
    CASE(every_flag_on_a_removed_connection, "served:recv served:recvmsg"),
    CASE(every_flag_on_a_removed_and_blocking_connection, "served:recv served:recvmsg back:blocking"),
    CASE(a_time_limit_ends_a_wait_for_all, "served:recv back:blocking"),
    CASE(a_wait_for_all_has_one_time_limit, "served:recv back:blocking"),
    CASE(a_peek_that_waits_for_all_has_one_time_limit, "served:recv back:blocking"),
    CASE(bytes_that_another_thread_takes_end_no_wait_for_all, "served:recv back:blocking"),
    CASE(a_wait_for_all_ends_at_urgent_bytes_and_at_the_end, "served:recv back:blocking"),
};

int main(int argc, char **argv) { return RUN(cases); }
