/* Every call that sends bytes to a stream: their order, the effect of a full peer, the errors of a closed one, and
 * calls that move bytes without showing them. The rule: the peer gets the accepted bytes, in the order in which they
 * were accepted, and as they were at that moment. */
#include "app.h"
#include <sys/mman.h>
#include <sys/sendfile.h>

static volatile sig_atomic_t broken_pipes;

static void count_broken_pipe(int number) {
    (void)number;
    broken_pipes++;
}

/* Creates a file of `count` bytes of the test stream, starting at `position`. */
static int file_of(size_t count, uint64_t position) {
    int file = (int)MUST(memfd_create("bytes", MFD_CLOEXEC));
    MUST(ftruncate(file, (off_t)count));
    unsigned char *bytes = mmap(NULL, count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    fill(bytes, count, position);
    munmap(bytes, count);
    return file;
}

static void every_sending_call_keeps_its_order(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    for (int round = 0; round < 3; round++) {
        GOT(write(pair.app, "write ", 6));
        GOT(send(pair.app, "send ", 5, 0));
        GOT(sendto(pair.app, "sendto ", 7, 0, NULL, 0));
        struct iovec parts[3] = {{"wri", 3}, {NULL, 0}, {"tev ", 4}};
        GOT(writev(pair.app, parts, 3));
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
        GOT(sendmsg(pair.app, &message, 0));
        struct mmsghdr messages[2] = {{.msg_hdr = message}, {.msg_hdr = {.msg_iov = &parts[2], .msg_iovlen = 1}}};
        GOT(sendmmsg(pair.app, messages, 2, 0));
        print("lengths %u %u\n", messages[0].msg_len, messages[1].msg_len);
        GOT(send(pair.app, "last", 4, MSG_NOSIGNAL | MSG_DONTWAIT));
        print_now(set);
        peer_gets(&pair, 47);
    }
}

static void an_address_is_ignored_by_a_stream(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    struct sockaddr_in nowhere = loopback(1);
    GOT(sendto(pair.app, "one ", 4, 0, (struct sockaddr *)&nowhere, sizeof nowhere));
    struct iovec part = {"two", 3};
    struct msghdr message = {.msg_name = &nowhere, .msg_namelen = sizeof nowhere, .msg_iov = &part, .msg_iovlen = 1};
    GOT(sendmsg(pair.app, &message, 0));
    print_now(set);
    peer_gets(&pair, 7);
}

static void a_written_buffer_may_be_reused_immediately(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    static unsigned char bytes[200000];
    uint64_t position = 0;
    static const size_t lengths[] = {1, 100, 4095, 4096, 5000, 16384, 65536, 200000};
    for (int i = 0; i < 32; i++) {
        size_t length = lengths[i % 8];
        for (size_t done = 0; done < length;) {
            fill(bytes, length - done, position);
            long sent = write(pair.app, bytes, length - done);
            memset(bytes, 0xee, sizeof bytes);
            done += sent > 0 ? (size_t)sent : 0;
            position += sent > 0 ? (uint64_t)sent : 0;
            if (sent < 0 || i % 3 == 0)
                poll_once(set);
        }
    }
    MUST(shutdown(pair.app, SHUT_WR));
    reader_print(&reader);
}

static void a_call_that_is_refused_ends_no_connection(void) {
    static char large[5000];
    struct iovec parts[1025], endless = {large, SIZE_MAX};
    for (int i = 0; i < 1025; i++)
        parts[i] = (struct iovec){large, 5};
    struct msghdr many = {.msg_iov = parts, .msg_iovlen = 1025}, long_part = {.msg_iov = &endless, .msg_iovlen = 1};
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLOUT);
    MUST(write(pair.app, "A", 1));
    GOT(sendmsg(pair.app, &many, 0));
    MUST(write(pair.app, "B", 1));
    GOT(sendmsg(pair.app, &long_part, 0));
    MUST(write(pair.app, "C", 1));
    GOT(send(pair.app, NULL, sizeof large, 0));
    MUST(write(pair.app, "D", 1));
    print_now(set);
    peer_gets(&pair, 4);
    exchange(set, &pair);
}

static void empty_writes_return(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    GOT(write(pair.app, "", 0));
    GOT(write(pair.app, NULL, 0));
    GOT(send(pair.app, "", 0, 0));
    GOT(writev(pair.app, NULL, 0));
    GOT(writev(pair.app, &(struct iovec){"", 0}, 1));
    GOT(sendmsg(pair.app, &(struct msghdr){0}, 0));
    GOT(sendmmsg(pair.app, NULL, 0, 0));
    GOT(write(pair.app, "x", 1));
    print_now(set);
    peer_gets(&pair, 1);
    GOT(shutdown(pair.app, SHUT_WR));
    GOT(send(pair.app, "", 0, MSG_NOSIGNAL));
    GOT(writev(pair.app, &(struct iovec){"", 0}, 1));
    GOT(writev(pair.app, NULL, 0));
}

static void parts_in_number_and_too_many(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    struct iovec parts[1025];
    for (int i = 0; i < 1025; i++)
        parts[i] = (struct iovec){"abcdefghij" + i % 10, 1};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1025};
    GOT(writev(pair.app, parts, 1025));
    GOT(writev(pair.app, parts, -1));
    GOT(sendmsg(pair.app, &message, 0));
    struct iovec negative = {"x", (size_t)-1};
    GOT(writev(pair.app, &negative, 1));
    message.msg_iovlen = 1024;
    GOT(writev(pair.app, parts, 1024));
    GOT(sendmsg(pair.app, &message, 0));
    print_now(set);
    peer_gets(&pair, 2048);
}

static void messages_in_number_and_too_many(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    static struct mmsghdr messages[1500];
    struct iovec part = {"x", 1};
    for (int i = 0; i < 1500; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
    GOT(sendmmsg(pair.app, messages, 1500, 0));
    GOT(sendmmsg(pair.app, messages, 2, 0));
    MUST(shutdown(pair.app, SHUT_WR));
    peer_gets_the_end(&pair);
}

static void a_write_after_our_shutdown_breaks_the_pipe(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    signal(SIGPIPE, count_broken_pipe);
    MUST(write(pair.app, "before", 6));
    GOT(shutdown(pair.app, SHUT_WR));
    GOT(write(pair.app, "x", 1));
    print("signals: %d\n", broken_pipes);
    GOT(send(pair.app, "x", 1, MSG_NOSIGNAL));
    print("signals: %d\n", broken_pipes);
    GOT(writev(pair.app, &(struct iovec){"x", 1}, 1));
    print("signals: %d\n", broken_pipes);
    print_now(set);
    peer_gets(&pair, 10);
    peer_send(&pair, "still read");
    print_next(set);
    print_read(pair.app, 100);
}

static void a_write_to_a_peer_that_reset_fails_and_then_breaks(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLRDHUP);
    signal(SIGPIPE, count_broken_pipe);
    peer_reset(&pair);
    await_state(pair.app, STATE_CLOSED);
    print_next(set);
    GOT(write(pair.app, "x", 1));
    print("signals: %d\n", broken_pipes);
    GOT(write(pair.app, "x", 1));
    print("signals: %d\n", broken_pipes);
    print_now(set);
    print_error_option(pair.app);
    print_read(pair.app, 1);
}

static void a_write_to_a_peer_that_closed_is_reset(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLRDHUP);
    signal(SIGPIPE, count_broken_pipe);
    peer_close(&pair);
    print_next(set);
    print_read(pair.app, 10);
    GOT(write(pair.app, "nobody hears this", 17));
    poll_once(set);
    await_state(pair.app, STATE_CLOSED);
    print_next(set);
    GOT(write(pair.app, "x", 1));
    print("signals: %d\n", broken_pipes);
    GOT(send(pair.app, "x", 1, MSG_NOSIGNAL));
    print_read(pair.app, 10);
}

/* Fills a connection until neither the library nor the kernel accepts more. The count varies: on a busy machine the
 * kernel enlarges its buffers a moment later, or when it first probes a full peer again (200 ms). */
static uint64_t fill_up(int set, int fd) {
    static unsigned char bytes[10000];
    uint64_t position = 0;
    for (int quiet = 0; quiet < 15;) {
        fill(bytes, sizeof bytes, position);
        long done = write(fd, bytes, sizeof bytes);
        if (done < 0 && errno != EAGAIN)
            got("write", done);
        position += done > 0 ? (uint64_t)done : 0;
        quiet = done > 0 ? 0 : quiet + 1;
        if (done < 0)
            epoll_wait(set, &(struct epoll_event){0}, 1, 30);
    }
    return position;
}

static void a_full_peer_is_not_written_until_it_reads(void) {
    for (int edge = 0; edge < 2; edge++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN | EPOLLOUT | (edge ? EPOLLET : 0));
        uint64_t position = fill_up(set, pair.app);
        print("filled: %s\n", position > 100000 ? "yes" : "no");
        GOT(write(pair.app, "x", 1));
        GOT(send(pair.app, "x", 1, 0));
        print_now(set);
        peer_send(&pair, "get");
        await_delivery(&pair);
        print_now(set);
        print_read(pair.app, 10);
        print_now(set);
        struct reader reader;
        reader_start(&reader, pair.peer, 0);
        print_next(set);
        MUST(shutdown(pair.app, SHUT_WR));
        pthread_join(reader.thread, NULL);
        print("the peer got all: %s, wrong at %ld\n", reader.count == position ? "yes" : "no", reader.wrong_at);
    }
}

/* The kernel sends it, and the set must report when there is room again. */
static void a_send_to_an_address_that_did_not_fit_is_waited_for(void) {
    struct sockaddr_in nowhere = loopback(1);
    static char bytes[65536];
    for (int edge = 0; edge < 2; edge++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN | EPOLLOUT | (edge ? EPOLLET : 0));
        long done, count = 0;
        print_now(set);
        while ((done = sendto(pair.app, bytes, sizeof bytes, 0, (struct sockaddr *)&nowhere, sizeof nowhere)) > 0)
            count += done;
        got("sendto", done);
        print_now(set);
        peer_takes(&pair, count);
        print_next(set);
    }
}

static void twenty_mib_reach_a_slow_reader(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLOUT);
    struct reader reader;
    reader_start(&reader, pair.peer, 100);
    static unsigned char bytes[150000];
    uint64_t position = 0, random = 77;
    while (position < 20u << 20) {
        size_t length = next_random(&random) % sizeof bytes + 1;
        fill(bytes, length, position);
        long done = random % 2 ? write(pair.app, bytes, length) : send(pair.app, bytes, length, MSG_NOSIGNAL);
        position += done > 0 ? (uint64_t)done : 0;
        struct epoll_event event;
        if (done < 0 && epoll_wait(set, &event, 1, 20000) != 1)
            print("writability is not reported\n");
    }
    MUST(shutdown(pair.app, SHUT_WR));
    pthread_join(reader.thread, NULL);
    print("the peer got all: %s, wrong at %ld\n", reader.count == position ? "yes" : "no", reader.wrong_at);
}

static void large_and_small_writes_keep_their_order(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLOUT | EPOLLET);
    struct reader reader;
    reader_start(&reader, pair.peer, 20);
    static unsigned char bytes[300000];
    uint64_t position = 0, random = 2024;
    for (int i = 0; i < 600; i++) {
        size_t length = next_random(&random) % 10 ? next_random(&random) % 300 + 1 : next_random(&random) % 300000 + 1;
        for (size_t done = 0; done < length;) {
            size_t remaining = length - done, half = remaining / 2;
            fill(bytes, remaining, position);
            struct iovec parts[2] = {{bytes, half}, {bytes + half, remaining - half}};
            long sent = i % 3 == 0 ? writev(pair.app, parts, 2) : write(pair.app, bytes, remaining);
            if (sent < 0 && epoll_wait(set, &(struct epoll_event){0}, 1, 20000) != 1)
                print("writability is not reported\n");
            done += sent > 0 ? (size_t)sent : 0;
            position += sent > 0 ? (uint64_t)sent : 0;
        }
        if (i % 7 == 0)
            poll_once(set);
    }
    MUST(close(pair.app));
    join_polling(&reader, set);
    print("the peer got all: %s, wrong at %ld\n", reader.count == position ? "yes" : "no", reader.wrong_at);
}

static uint64_t taken(long done) { return done > 0 ? (uint64_t)done : 0; }

/* Writes much in one round to many connections, one of them full: its later bytes stay behind its deferred output. */
static void deferred_output_stays_before_later_writes(void) {
    enum { OTHERS = 8 };
    static unsigned char bytes[23 * 3000];
    fill(bytes, sizeof bytes, 0);
    int set = new_set();
    for (int i = 0; i < 2; i++) {
        struct pair slow = connected_narrow(), others[OTHERS];
        add(set, slow.app, EPOLLIN, 1);
        for (int k = 0; k < OTHERS; k++)
            others[k] = joined(set, EPOLLIN);
        poll_once(set);
        uint64_t position = 0;
        for (int k = 0; k < 20; k++)
            position += taken(write(slow.app, bytes + position, 3000));
        for (int k = 0; k < OTHERS; k++)
            for (int n = 0; n < (k == OTHERS - 1 ? 14 : 20); n++)
                taken(write(others[k].app, bytes, 3000));
        for (int k = 0; k < 3; k++)
            position += taken(write(slow.app, bytes + position, 3000));
        poll_once(set);
        struct reader reader;
        MUST(shutdown(slow.app, SHUT_WR));
        reader_start(&reader, slow.peer, 0);
        join_polling(&reader, set);
        print("the peer got all: %s, wrong at %ld\n", reader.count == position ? "yes" : "no", reader.wrong_at);
        for (int k = 0; k < OTHERS; k++)
            MUST(close(others[k].app));
        MUST(close(slow.app));
        poll_once(set);
    }
}

/* Calls that the library does not queue, between writes that it queues, to a peer that is repeatedly full. */
static void calls_of_all_kinds_keep_their_order_to_a_full_peer(void) {
    static unsigned char bytes[1 << 21];
    fill(bytes, sizeof bytes, 0);
    int set = new_set(), file = file_of(sizeof bytes, 0), send_buffer = 8192;
    struct pair pair = connected();
    struct sockaddr_in nowhere = loopback(1);
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer));
    add(set, pair.app, EPOLLOUT, 1);
    poll_once(set);
    struct reader reader;
    reader_start(&reader, pair.peer, 0);
    uint64_t position = 0;
    for (int i = 0; position < sizeof bytes; i++) {
        size_t length = sizeof bytes - position < 3000 ? sizeof bytes - position : 3000;
        off_t offset = (off_t)position;
        long done = 0;
        if (i % 8 < 5)
            done = write(pair.app, bytes + position, length);
        else if (i % 8 == 5)
            done = sendto(pair.app, bytes + position, length, 0, (struct sockaddr *)&nowhere, sizeof nowhere);
        else
            done = sendfile(pair.app, file, &offset, sizeof bytes - position);
        if (done < 0 && errno != EAGAIN)
            got("a call", done);
        position += taken(done);
        if (done < 0 && i % 3)
            epoll_wait(set, &(struct epoll_event){0}, 1, 20000);
    }
    MUST(shutdown(pair.app, SHUT_RDWR));
    join_polling(&reader, set);
    reader_result(&reader);
}

/* Closes all rings of this process by number, as a program may that closes all descriptors it does not know. */
static void lose_rings(void) {
    for (int fd = 3; fd < 1000; fd++) {
        char path[64], name[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, name, sizeof name - 1) > 0 && strstr(name, "io_uring"))
            MUST(syscall(SYS_close, fd));
    }
}

static void a_ring_that_is_lost_takes_no_bytes_with_it(void) {
    int set = new_set();
    struct pair stays = joined(set, EPOLLIN), leaves = joined(set, EPOLLIN);
    peer_send(&stays, "get");
    peer_send(&leaves, "get");
    await_delivery(&stays);
    await_delivery(&leaves);
    print_next(set);
    print_read(stays.app, 10);
    print_read(leaves.app, 10);
    poll_once(set);
    lose_rings();
    MUST(write(stays.app, "result", 6));
    MUST(write(leaves.app, "the last result", 15));
    MUST(close(leaves.app));
    for (int i = 0; i < 3; i++)
        poll_once(set);
    peer_gets(&stays, 6);
    peer_gets(&leaves, 100);
    peer_send(&stays, "still there?");
    print_next(set);
    print_read(stays.app, 100);
}

static void a_program_that_lost_its_ring_can_go_on_writing_and_forking(void) {
    static unsigned char bytes[3000];
    int set = new_set(), status = -1;
    struct pair pairs[12];
    struct reader readers[12];
    for (int i = 0; i < 12; i++) {
        pairs[i] = joined(set, EPOLLIN);
        reader_start(&readers[i], pairs[i].peer, 0);
    }
    poll_once(set);
    lose_rings();
    fill(bytes, 1, 0);
    MUST(write(pairs[0].app, bytes, 1));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0)
        syscall(SYS_exit_group, 5);
    MUST(waitpid(child, &status, 0));
    print("the child: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    for (int i = 0; i < 12; i++)
        for (uint64_t position = i == 0; position < 60000; position += 1000) {
            fill(bytes, 1000, position);
            MUST(write(pairs[i].app, bytes, 1000));
        }
    for (int i = 0; i < 12; i++) {
        MUST(shutdown(pairs[i].app, SHUT_WR));
        reader_print(&readers[i]);
    }
}

static void many_writes_leave_without_a_wait(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    for (int i = 0; i < 64; i++)
        MUST(write(pair.app, "0123456789", 10));
    /* The program does not wait, but the peer does: a server that computes for long must not delay its responses. */
    peer_gets(&pair, 320);
    print_now(set);
    peer_gets(&pair, 320);
}

static void files_are_sent_in_order(void) {
    int set = new_set(), file = file_of(5000, 10);
    struct pair pair = joined(set, EPOLLIN);
    struct reader reader;
    unsigned char head[20];
    off_t offset = 0;
    fill(head, sizeof head, 0);
    MUST(write(pair.app, head, 10));
    GOT(sendfile(pair.app, file, &offset, 1000));
    print("offset %ld, position %ld\n", (long)offset, (long)lseek(file, 0, SEEK_CUR));
    MUST(lseek(file, 1000, SEEK_SET));
    GOT(sendfile(pair.app, file, NULL, 2000));
    print("offset %ld, position %ld\n", (long)offset, (long)lseek(file, 0, SEEK_CUR));
    offset = 3000;
    GOT(sendfile64(pair.app, file, &offset, 10000));
    print("offset %ld\n", (long)offset);
    GOT(sendfile(pair.app, file, &offset, 10000));
    GOT(sendfile(pair.app, file, NULL, 0));
    GOT(sendfile(pair.app, pair.app, NULL, 10));
    GOT(sendfile(pair.app, -1, NULL, 10));
    GOT(sendfile(-1, file, NULL, 10));
    GOT(sendfile(pair.app, file, (off_t *)1, 10));
    offset = -5;
    GOT(sendfile(pair.app, file, &offset, 10));
    fill(head, sizeof head, 5010);
    MUST(write(pair.app, head, 20));
    print_now(set);
    MUST(shutdown(pair.app, SHUT_WR));
    reader_start(&reader, pair.peer, 0);
    reader_print(&reader);
}

static void a_large_file_is_sent_as_the_peer_reads(void) {
    int set = new_set(), file = file_of(4 << 20, 100);
    struct pair pair = joined(set, EPOLLOUT);
    struct reader reader;
    unsigned char head[100];
    off_t offset = 0;
    fill(head, sizeof head, 0);
    MUST(write(pair.app, head, sizeof head));
    reader_start(&reader, pair.peer, 50);
    while (offset < 4 << 20) {
        long done = sendfile(pair.app, file, &offset, (4 << 20) - (size_t)offset);
        if (done < 0 && errno != EAGAIN)
            got("sendfile", done);
        if (done < 0)
            epoll_wait(set, &(struct epoll_event){0}, 1, 20000);
    }
    fill(head, sizeof head, 100 + (4 << 20));
    while (write(pair.app, head, sizeof head) < 0)
        epoll_wait(set, &(struct epoll_event){0}, 1, 20000);
    MUST(close(pair.app));
    join_polling(&reader, set);
    reader_result(&reader);
}

static void splices_keep_their_order_in_both_directions(void) {
    int set = new_set(), two[2];
    struct pair pair = joined(set, EPOLLIN);
    MUST(pipe2(two, O_NONBLOCK));
    MUST(write(pair.app, "head ", 5));
    MUST(write(two[1], "from the pipe ", 14));
    GOT(splice(two[0], NULL, pair.app, NULL, 100, SPLICE_F_NONBLOCK));
    MUST(write(pair.app, "tail", 4));
    print_now(set);
    peer_gets(&pair, 23);
    peer_send(&pair, "to the program, ");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 7);
    GOT(splice(pair.app, NULL, two[1], NULL, 5, SPLICE_F_NONBLOCK));
    peer_send(&pair, "to the pipe");
    await_delivery(&pair);
    for (int i = 0; i < 5; i++)
        if (splice(pair.app, NULL, two[1], NULL, 100, SPLICE_F_NONBLOCK) < 0)
            break;
    got("splice", splice(pair.app, NULL, two[1], NULL, 100, SPLICE_F_NONBLOCK));
    print_read(two[0], 100);
    GOT(splice(pair.app, NULL, -1, NULL, 5, 0));
    GOT(splice(pair.app, NULL, set, NULL, 5, 0));
    peer_send(&pair, "read again");
    print_next(set);
    print_read(pair.app, 100);
    MUST(write(pair.app, "written again", 13));
    print_now(set);
    peer_gets(&pair, 13);
}

static void send_flags_have_their_usual_effect(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    GOT(send(pair.app, "1", 1, MSG_DONTWAIT));
    GOT(send(pair.app, "2", 1, MSG_MORE));
    GOT(send(pair.app, "3", 1, MSG_EOR));
    GOT(send(pair.app, "4", 1, MSG_DONTROUTE));
    GOT(send(pair.app, "5", 1, MSG_ZEROCOPY));
    GOT(send(pair.app, "6", 1, MSG_CONFIRM));
    GOT(send(pair.app, "7", 1, MSG_WAITALL));
    GOT(send(pair.app, "8", 1, 0x10000000));
    print_now(set);
    peer_gets(&pair, 8);
}

static void bytes_that_wait_for_more_arrive_in_order(void) {
    int set = new_set(), one = 1, zero = 0;
    struct pair pair = joined(set, EPOLLIN);
    for (int i = 0; i < 3; i++) {
        GOT(send(pair.app, "header ", 7, MSG_MORE));
        GOT(send(pair.app, "body", 4, 0));
        print_now(set);
        peer_gets(&pair, 11);
        GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_CORK, &one, sizeof one));
        MUST(write(pair.app, "corked ", 7));
        MUST(write(pair.app, "cork", 4));
        print_now(set);
        GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_CORK, &zero, sizeof zero));
        print_now(set);
        peer_gets(&pair, 11);
    }
}

/* The kernel sends bytes with MSG_MORE in one segment with those that follow within 200 ms. Stops at the first time that
 * they did: the machine may be busy for longer. */
static void bytes_that_wait_for_more_leave_with_them(void) {
    bool together = false;
    for (int i = 0; i < 50 && !together; i++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN);
        char bytes[64];
        uint32_t before = tcp_state(pair.app).tcpi_segs_out;
        MUST(send(pair.app, "header ", 7, MSG_MORE));
        poll_once(set);
        MUST(send(pair.app, "body", 4, 0));
        poll_once(set);
        for (long done = 0; done < 11;)
            done += MUST(syscall(SYS_read, pair.peer, bytes, sizeof bytes));
        together = tcp_state(pair.app).tcpi_segs_out - before == 1;
        MUST(close(pair.app));
        MUST(close(set));
    }
    print("together: %d\n", together);
}

/* Corked bytes leave within 200 ms; these are not corked. */
static void bytes_written_before_a_cork_do_not_wait(void) {
    int set = new_set(), one = 1;
    struct pair pair = joined(set, EPOLLIN);
    MUST(write(pair.app, "first", 5));
    GOT(setsockopt(pair.app, IPPROTO_TCP, TCP_CORK, &one, sizeof one));
    poll_once(set);
    print("sent: %llu\n", (unsigned long long)tcp_state(pair.app).tcpi_bytes_sent);
}

static void an_urgent_byte_keeps_its_order(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    char bytes[64];
    MUST(write(pair.app, "before ", 7));
    GOT(send(pair.app, "!", 1, MSG_OOB));
    MUST(write(pair.app, "after", 5));
    print_now(set);
    long done = syscall(SYS_read, pair.peer, bytes, sizeof bytes);
    got_bytes("to the mark", bytes, done);
    got_bytes("urgent", bytes, syscall(SYS_recvfrom, pair.peer, bytes, 1, MSG_OOB, NULL, NULL));
    peer_gets(&pair, 5);
}

static void control_bytes_of_a_message_are_checked(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } space = {0};
    struct iovec part = {"abc", 3};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    *control = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    GOT(sendmsg(pair.app, &message, 0));
    *control = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, 9999};
    GOT(sendmsg(pair.app, &message, 0));
    *control = (struct cmsghdr){CMSG_LEN(0), IPPROTO_IP, 9999};
    GOT(sendmsg(pair.app, &message, 0));
    message.msg_controllen = 0;
    GOT(sendmsg(pair.app, &message, 0));
    print_now(set);
    poll_once(set);
    syscall(SYS_shutdown, pair.app, SHUT_WR);
    peer_gets_the_end(&pair);
}

static void writes_to_other_descriptors_are_unchanged(void) {
    int two[2], null = (int)MUST(open("/dev/null", O_WRONLY));
    MUST(pipe2(two, O_NONBLOCK));
    signal(SIGPIPE, count_broken_pipe);
    GOT(write(null, "abc", 3));
    GOT(send(null, "abc", 3, 0));
    GOT(write(-1, "abc", 3));
    GOT(send(-1, "abc", 3, 0));
    GOT(writev(two[1], &(struct iovec){"abc", 3}, 1));
    print_read(two[0], 10);
    GOT(sendfile(two[1], file_of(100, 0), NULL, 10));
    GOT(sendfile64(two[1], file_of(100, 0), NULL, 10));
    int other[2];
    MUST(pipe2(other, O_NONBLOCK));
    GOT(splice(two[0], NULL, other[1], NULL, 15, SPLICE_F_NONBLOCK));
    MUST(close(two[0]));
    GOT(write(two[1], "x", 1));
    int fresh = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    GOT(write(fresh, "x", 1));
    GOT(send(fresh, "x", 1, MSG_NOSIGNAL));
    print("signals: %d\n", broken_pipes);
}

/* Sends a file up to its end: less than requested, while the socket is writable. A program that always requests more
 * waits for writability, as asyncio does. */
static void the_end_of_a_file_is_not_a_full_send_buffer(void) {
    enum { BYTES = 200000 };
    int set = new_set(), file = file_of(BYTES, 0);
    struct pair pair = connected_narrow();
    add(set, pair.app, EPOLLIN | EPOLLOUT, 1);
    poll_once(set);
    static unsigned char bytes[65536];
    long total = 0, got = 0;
    for (;;) {
        long sent = sendfile(pair.app, file, NULL, 1 << 20);
        if (sent == 0)
            break;
        total += sent > 0 ? sent : 0;
        while (got < total)
            got += MUST(syscall(SYS_read, pair.peer, bytes, sizeof bytes));
        struct epoll_event event;
        if (epoll_wait(set, &event, 1, 20000) != 1) {
            print("writability is never reported\n");
            break;
        }
    }
    print("sent: %ld\n", total);
}

static const struct app_case cases[] = {
    CASE(every_sending_call_keeps_its_order,
         "served:write served:send served:writev served:sendmsg"),
    CASE(an_address_is_ignored_by_a_stream, ""),
    CASE(a_written_buffer_may_be_reused_immediately, "served:write"),
    CASE(a_call_that_is_refused_ends_no_connection, "served:write"),
    CASE(empty_writes_return, ""),
    CASE(parts_in_number_and_too_many, ""),
    CASE(messages_in_number_and_too_many, ""),
    CASE(a_write_after_our_shutdown_breaks_the_pipe, "served:write served:shutdown failed:write"),
    CASE(a_write_to_a_peer_that_reset_fails_and_then_breaks, ""),
    CASE(a_write_to_a_peer_that_closed_is_reset, ""),
    CASE(a_full_peer_is_not_written_until_it_reads, "served:write"),
    CASE(a_send_to_an_address_that_did_not_fit_is_waited_for, "back:unknown_flags"),
    CASE(twenty_mib_reach_a_slow_reader, "served:write served:send"),
    CASE(large_and_small_writes_keep_their_order, "served:write served:writev"),
    CASE(deferred_output_stays_before_later_writes, "served:write"),
    CASE(calls_of_all_kinds_keep_their_order_to_a_full_peer, "served:write"),
    CASE(a_ring_that_is_lost_takes_no_bytes_with_it, "served:write"),
    CASE(a_program_that_lost_its_ring_can_go_on_writing_and_forking, "served:write"),
    CASE(many_writes_leave_without_a_wait, "served:write"),
    CASE(the_end_of_a_file_is_not_a_full_send_buffer, "served:epoll_wait"),
    CASE(files_are_sent_in_order, "served:write served:sendfile"),
    CASE(a_large_file_is_sent_as_the_peer_reads, "served:write"),
    CASE(splices_keep_their_order_in_both_directions, "back:unknown_flags"),
    CASE(send_flags_have_their_usual_effect, ""),
    CASE(bytes_that_wait_for_more_arrive_in_order, ""),
    CASE(bytes_that_wait_for_more_leave_with_them, "served:send"),
    CASE(bytes_written_before_a_cork_do_not_wait, "served:write"),
    CASE(an_urgent_byte_keeps_its_order, "back:unknown_flags"),
    CASE(control_bytes_of_a_message_are_checked, ""),
    CASE(writes_to_other_descriptors_are_unchanged, "passes"),
};

int main(int argc, char **argv) { return RUN(cases); }
