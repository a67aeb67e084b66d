/* Socket options that change reads or reports: set on a listener, whose connections inherit them; on a connection,
 * before and after it is added to a set; and by another process, before the program has the socket. Also urgent
 * data. */
#include "app.h"
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <netinet/ip.h>
#include <semaphore.h>

/* Constants that a 64-bit libc does not define. */
enum { TIMESTAMP_NEW = 63, TIMESTAMPNS_NEW = 64, TIMESTAMPING_NEW = 65, RCVTIMEO_NEW = 66, SNDTIMEO_NEW = 67 };

extern char **environ;
static char *const *arguments;

struct option {
    int level, name, value;
};

/* Each of these options adds control data to the result of `recvmsg`. */
static const struct option adding[] = {
    {SOL_SOCKET, SO_TIMESTAMP, 1},     {SOL_SOCKET, SO_TIMESTAMPNS, 1},
    {SOL_SOCKET, TIMESTAMP_NEW, 1},    {SOL_SOCKET, TIMESTAMPNS_NEW, 1},
    {IPPROTO_TCP, TCP_INQ, 1},
    {SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE},
    {SOL_SOCKET, TIMESTAMPING_NEW, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE},
};
#define ADDING (sizeof adding / sizeof *adding)

static void set_option(int fd, struct option option) {
    MUST(setsockopt(fd, option.level, option.name, &option.value, sizeof option.value));
}

/* Sets an option unseen by the library, as another program could. */
static void set_unseen(int fd, struct option option) {
    MUST(syscall(SYS_setsockopt, fd, option.level, option.name, &option.value, sizeof option.value));
}

static struct pair accepted_from(int listener, int port) {
    return pair_on(listener, port, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

/* Returns a member that has been reported, so that the ring receives later bytes. */
static struct pair member_from(int set, int listener, int port, uint64_t label) {
    struct pair pair = accepted_from(listener, port);
    add(set, pair.app, EPOLLIN, label);
    print_now(set);
    return pair;
}

static void print_message(int fd, size_t most) {
    char bytes[64];
    union {
        char bytes[512];
        struct cmsghdr aligned;
    } space;
    struct iovec part = {bytes, most};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    got_bytes("recvmsg", bytes, recvmsg(fd, &message, 0));
    for (struct cmsghdr *control = CMSG_FIRSTHDR(&message); control; control = CMSG_NXTHDR(&message, control)) {
        print("control %d %d", control->cmsg_level, control->cmsg_type);
        if (control->cmsg_level == IPPROTO_TCP)
            print(", left %d", *(int *)CMSG_DATA(control));
        print("\n");
    }
}

/* Waits until the kernel timestamps packets: it starts some time after the first socket has enabled timestamps, and
 * continues while a socket uses them. */
static void wait_for_stamps(void) {
    struct pair pair = connected();
    set_option(pair.app, (struct option){SOL_SOCKET, SO_TIMESTAMP, 1});
    for (int i = 0; i < 5000; i++) {
        char byte, space[512];
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
        peer_send(&pair, "x");
        await_delivery(&pair);
        MUST(syscall(SYS_recvmsg, pair.app, &message, 0));
        if (message.msg_controllen)
            return;
        pause_ms(1);
    }
    print("the kernel never stamped anything\n");
}

/* Reads twice from a connection that has the option from the start. */
static void print_served(int set, struct pair *pair, uint64_t label) {
    for (int i = 0; i < 2; i++) {
        peer_send(pair, "abcdef");
        await_delivery(pair);
        print_next(set);
        print_message(pair->app, 4);
        print_message(pair->app, 64);
        MUST(write(pair->app, "yes", 3));
        print_now(set);
        peer_gets(pair, 3);
    }
}

static void control_data_enabled_on_a_listener_comes_with_its_connections(void) {
    int set = new_set(), port;
    wait_for_stamps();
    for (size_t i = 0; i < ADDING; i++) {
        int listener = listen_on(0, &port);
        set_option(listener, adding[i]);
        print("option %d %d\n", adding[i].level, adding[i].name);
        struct pair pair = accepted_from(listener, port);
        add(set, pair.app, EPOLLIN, i);
        print_served(set, &pair, i);
        MUST(close(pair.app));
        MUST(close(listener));
    }
}

static void an_option_of_a_listener_holds_for_those_it_accepts_from_then_on(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair first = accepted_from(listener, port);
    add(set, first.app, EPOLLIN, 1);
    print_served(set, &first, 1);
    set_option(listener, (struct option){IPPROTO_TCP, TCP_INQ, 1});
    struct pair second = accepted_from(listener, port);
    add(set, second.app, EPOLLIN, 2);
    print_served(set, &second, 2);
    print_served(set, &first, 1);
}

static void an_option_of_a_listener_in_a_set_is_its_connections(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port);
    wait_for_stamps();
    add(set, listener, EPOLLIN, 100);
    set_option(listener, (struct option){SOL_SOCKET, SO_TIMESTAMPNS, 1});
    struct pair pair = {.peer = peer_connect(port)};
    print_next(set);
    pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    add(set, pair.app, EPOLLIN, 1);
    print_served(set, &pair, 1);
}

static void an_option_that_others_gave_a_listener_is_its_connections(void) {
    int set = new_set(), port;
    wait_for_stamps();
    for (size_t i = 0; i < ADDING; i++) {
        int listener = listen_on(0, &port);
        set_unseen(listener, adding[i]);
        print("option %d %d\n", adding[i].level, adding[i].name);
        struct pair pair = accepted_from(listener, port);
        add(set, pair.app, EPOLLIN, i);
        print_served(set, &pair, i);
        MUST(close(pair.app));
        MUST(close(listener));
    }
}

static void an_option_that_another_process_sets_on_a_listener_later_is_missed(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    accepted_from(listener, port);
    set_unseen(listener, (struct option){IPPROTO_TCP, TCP_INQ, 1});
    struct pair second = accepted_from(listener, port);
    add(set, second.app, EPOLLIN, 2);
    print_served(set, &second, 2);
}

/* Executes this program again, with a descriptor. */
static void begin_again(const char *name, int fd) {
    char number[16];
    sprintf(number, "%d", fd);
    MUST(fcntl(fd, F_SETFD, 0));
    MUST(setenv(name, number, 1));
    execve("/proc/self/exe", arguments, environ);
    print("exec: %s\n", strerrorname_np(errno));
}

static void an_inherited_listener_keeps_its_options(void) {
    const char *inherited = getenv("LISTENER");
    int port;
    if (!inherited) {
        int listener = listen_on(0, &port);
        set_option(listener, (struct option){SOL_SOCKET, SO_RCVLOWAT, 6});
        set_option(listener, (struct option){IPPROTO_TCP, TCP_INQ, 1});
        return begin_again("LISTENER", listener);
    }
    int set = new_set(), listener = atoi(inherited);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    MUST(getsockname(listener, (struct sockaddr *)&address, &length));
    struct pair pair = accepted_from(listener, ntohs(address.sin_port));
    add(set, pair.app, EPOLLIN, 1);
    peer_send(&pair, "abc");
    await_delivery(&pair);
    print_now(set);
    peer_send(&pair, "def");
    print_served(set, &pair, 1);
}

static void an_inherited_connection_keeps_its_options(void) {
    const char *inherited = getenv("CONNECTION"), *peer = getenv("PEER");
    if (!inherited) {
        char number[16];
        struct pair pair = connected();
        set_option(pair.app, (struct option){IPPROTO_TCP, TCP_INQ, 1});
        MUST(syscall(SYS_fcntl, pair.peer, F_SETFD, 0));
        sprintf(number, "%d", pair.peer);
        MUST(setenv("PEER", number, 1));
        return begin_again("CONNECTION", pair.app);
    }
    struct pair pair = {.app = atoi(inherited), .peer = atoi(peer)};
    int set = new_set();
    add(set, pair.app, EPOLLIN, 1);
    print_served(set, &pair, 1);
}

static void a_client_that_enabled_control_data_gets_it(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct sockaddr_in address = loopback(port);
    struct pair pair = {.app = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    set_option(pair.app, (struct option){IPPROTO_TCP, TCP_INQ, 1});
    MUST(connect(pair.app, (struct sockaddr *)&address, sizeof address));
    MUST(fcntl(pair.app, F_SETFL, O_NONBLOCK));
    pair.peer = (int)MUST(syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC));
    add(set, pair.app, EPOLLIN, 1);
    print_served(set, &pair, 1);
}

static void a_low_water_mark_of_a_listener_holds_reports_back(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    set_option(listener, (struct option){SOL_SOCKET, SO_RCVLOWAT, 6});
    struct pair pair = member_from(set, listener, port, 1);
    peer_send(&pair, "abcde");
    await_delivery(&pair);
    print_now(set);
    peer_send(&pair, "f");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 3);
    print_now(set);
    print_read(pair.app, 64);
}

static void an_option_is_an_edge_if_it_wakes(void) {
    static const struct option options[] = {
        {IPPROTO_TCP, TCP_INQ, 1},    {SOL_SOCKET, SO_RCVLOWAT, 2},        {SOL_SOCKET, SO_RCVLOWAT, 1},
        {SOL_SOCKET, SO_SNDBUF, 8192}, {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0}, {SOL_SOCKET, SO_OOBINLINE, 0},
    };
    enum { COUNT = sizeof options / sizeof *options };
    for (int way = 0; way < 3 * COUNT; way++) {
        int set = new_set();
        struct pair pair = connected();
        add(set, pair.app, EPOLLIN | EPOLLOUT | EPOLLET, 1);
        print_now(set);
        print_now(set);
        if (way >= COUNT) {
            peer_send(&pair, "abc");
            await_delivery(&pair);
            print_next(set);
            print_read(pair.app, way < 2 * COUNT ? 1 : 64);
            print_now(set);
        }
        set_option(pair.app, options[way % COUNT]);
        print_now(set);
        print_now(set);
    }
}

static void a_peek_offset_is_inherited_from_the_listener(void) {
    int set = new_set(), port, listener = listen_on(0, &port), zero = 0;
    char bytes[64];
    if (setsockopt(listener, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof zero) < 0)
        return;
    struct pair pair = member_from(set, listener, port, 1);
    peer_send(&pair, "abcdef");
    await_delivery(&pair);
    print_next(set);
    got_bytes("peek", bytes, recv(pair.app, bytes, 2, MSG_PEEK));
    got_bytes("peek", bytes, recv(pair.app, bytes, 2, MSG_PEEK));
    print_read(pair.app, 3);
    got_bytes("peek", bytes, recv(pair.app, bytes, 2, MSG_PEEK));
    print_read(pair.app, 64);
}

static void writability_is_reported_below_the_mark_of_unsent_bytes(void) {
    static const char bytes[8000];
    for (int step = 0; step < 3; step++) {
        int set = new_set(), mark = 4096, size = 1 << 20, narrow = 4096, port, listener = listen_on(0, &port);
        struct sockaddr_in address = loopback(port);
        struct option option = {IPPROTO_TCP, TCP_NOTSENT_LOWAT, mark};
        MUST(setsockopt(listener, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
        if (step == 0)
            set_unseen(listener, option);
        if (step == 1)
            set_option(listener, option);
        struct pair pair = {.peer = (int)MUST(syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
        MUST(syscall(SYS_setsockopt, pair.peer, SOL_SOCKET, SO_RCVBUF, &narrow, sizeof narrow));
        MUST(syscall(SYS_connect, pair.peer, &address, sizeof address));
        pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        add(set, pair.app, EPOLLIN | EPOLLOUT, 1);
        print_now(set);
        if (step == 2)
            set_option(pair.app, option);
        /* More than fits into the peer's receive buffer, and less than fits into the kernel's buffers. */
        print("written: %zd\n", write(pair.app, bytes, sizeof bytes));
        print_now(set);
        MUST(close(pair.app));
    }
}

/* Writes as long as the set reports the connection as writable. */
static size_t write_while_reported(int set, int fd, size_t piece) {
    static const char bytes[8000];
    size_t total = 0;
    struct epoll_event event;
    while (epoll_wait(set, &event, 1, 0) == 1 && event.events & EPOLLOUT) {
        long written = write(fd, bytes, piece);
        if (written < (long)piece)
            print("reported, but the write does not fit\n");
        total += written > 0 ? (size_t)written : 0;
    }
    return total;
}

static void writability_of_a_small_send_buffer_keeps_a_reserve(void) {
    for (int way = 0; way < 3; way++) {
        int set = new_set(), bytes = 4096, port, listener = listen_on(0, &port);
        /* The buffer is that of the listener, of the connection, or set while it is served. */
        if (way == 0)
            MUST(setsockopt(listener, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
        struct pair pair = accepted_from(listener, port);
        /* Segments are as large as the first window allows, and no longer fit into the window. */
        MUST(syscall(SYS_setsockopt, pair.peer, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
        if (way == 1)
            MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
        add(set, pair.app, EPOLLOUT, 1);
        print_now(set);
        if (way == 2)
            MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
        size_t total = write_while_reported(set, pair.app, 500);
        print("written: %s\n", total < 32000 ? "few bytes" : "more than fits");
        char read[4096];
        for (size_t done = 0; done < total;)
            done += (size_t)MUST(syscall(SYS_read, pair.peer, read, sizeof read));
        print_next(set);
    }
}

static void writability_of_a_large_send_buffer_keeps_no_reserve(void) {
    int set = new_set(), size = 256 << 10;
    struct pair pair = connected_narrow();
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    add(set, pair.app, EPOLLOUT, 1);
    print_now(set);
    write_while_reported(set, pair.app, 8000);
}

/* ---- urgent data ---- */

static void peer_urges(struct pair *pair, const char *byte) {
    MUST(syscall(SYS_sendto, pair->peer, byte, 1, MSG_OOB, NULL, 0));
}

static void print_mark(int fd) {
    int at = -1;
    print("sockatmark %d", sockatmark(fd));
    MUST(ioctl(fd, SIOCATMARK, &at));
    print(", SIOCATMARK %d\n", at);
}

static void print_urgent(int fd) {
    char byte = 0;
    got_bytes("urgent", &byte, recv(fd, &byte, 1, MSG_OOB));
}

/* Sends bytes, an urgent byte, and more bytes, and reads up to the mark and beyond. */
static void print_urged(int set, struct pair *pair, bool as_out_of_band) {
    peer_send(pair, "ab");
    await_delivery(pair);
    print_next(set);
    peer_urges(pair, "!");
    peer_send(pair, "cd");
    await_delivery(pair);
    print_mark(pair->app);
    print_read(pair->app, 64);
    print_mark(pair->app);
    if (as_out_of_band)
        print_urgent(pair->app);
    print_read(pair->app, 64);
    print_mark(pair->app);
    print_now(set);
}

static void urgent_bytes_of_a_listener_that_wants_them_inline_are_inline(void) {
    int set = new_set(), port;
    for (int step = 0; step < 2; step++) {
        int listener = listen_on(0, &port);
        struct option option = {SOL_SOCKET, SO_OOBINLINE, 1};
        if (step)
            set_option(listener, option);
        else
            set_unseen(listener, option);
        struct pair pair = member_from(set, listener, port, 1);
        print_urged(set, &pair, false);
        MUST(close(pair.app));
        MUST(close(listener));
    }
}

static volatile sig_atomic_t urged;
static void on_urgent(int number) { urged++; }

/* The receiver of the connection's SIGURG, set in each possible way. */
static void become_owner(int fd, int way) {
    int pid = getpid();
    struct f_owner_ex owner = {F_OWNER_PID, pid};
    switch (way) {
    case 0:
        MUST(fcntl(fd, F_SETOWN, pid));
        break;
    case 1:
        MUST(fcntl(fd, F_SETOWN_EX, &owner));
        break;
    case 2:
        MUST(ioctl(fd, FIOSETOWN, &pid));
        break;
    default:
        MUST(ioctl(fd, SIOCSPGRP, &pid));
    }
}

static void a_program_signalled_for_urgent_bytes_reads_them(void) {
    int set = new_set();
    signal(SIGURG, on_urgent);
    for (int way = 0; way < 8; way++) {
        struct pair pair = connected();
        if (way < 4)
            become_owner(pair.app, way);
        add(set, pair.app, EPOLLIN, 1);
        print_now(set);
        if (way >= 4)
            become_owner(pair.app, way - 4);
        urged = 0;
        print_urged(set, &pair, true);
        print("signals: %d\n", urged);
        MUST(close(pair.app));
    }
}

static void urgent_bytes_are_kept_after_the_first_urgent_read(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair first = member_from(set, listener, port, 1), second = member_from(set, listener, port, 2);
    print_urgent(first.app);
    struct pair third = member_from(set, listener, port, 3);
    print_urged(set, &first, true);
    print_urged(set, &second, true);
    print_urged(set, &third, true);
}

static void a_reset_caused_by_sending_at_a_hand_back_is_reported(void) {
    int set = new_set();
    char byte;
    struct pair pair = connected();
    add(set, pair.app, EPOLLOUT | EPOLLET, 1);
    print_now(set);
    print_now(set);
    peer_close(&pair);
    await_state(pair.app, STATE_CLOSE_WAIT);
    print_now(set);
    print_read(pair.app, 64);
    MUST(write(pair.app, "result", 6));
    GOT(recv(pair.app, &byte, 1, MSG_OOB));
    await_state(pair.app, STATE_CLOSED);
    print_now(set);
    print_now(set);
}

struct other {
    pthread_t thread;
    int listener, port;
    struct pair pair;
    sem_t waits;
    char bytes[64];
    long read, urgent;
};

static void *wait_and_read(void *argument) {
    struct other *other = argument;
    int set = new_set();
    struct epoll_event event;
    other->pair = accepted_from(other->listener, other->port);
    add(set, other->pair.app, EPOLLIN, 1);
    epoll_wait(set, &event, 1, 0);
    sem_post(&other->waits);
    while (epoll_wait(set, &event, 1, -1) < 0)
        continue;
    other->read = read(other->pair.app, other->bytes, sizeof other->bytes - 1);
    other->urgent = recv(other->pair.app, other->bytes + 32, 1, MSG_OOB);
    return NULL;
}

static void an_urgent_read_covers_connections_of_other_threads(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct other other = {.listener = listener, .port = port};
    struct pair pair = member_from(set, listener, port, 1);
    sem_init(&other.waits, 0, 0);
    MUST(-pthread_create(&other.thread, NULL, wait_and_read, &other));
    sem_wait(&other.waits);
    print_urgent(pair.app);
    MUST(syscall(SYS_sendto, other.pair.peer, "ab!", 3, MSG_OOB, NULL, 0));
    MUST(-pthread_join(other.thread, NULL));
    print("read %ld \"%s\", urgent %ld \"%s\"\n", other.read, other.bytes, other.urgent, other.bytes + 32);
    print_urged(set, &pair, true);
}

static void the_urgent_mark_is_found_after_the_first_query(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair first = member_from(set, listener, port, 1), second = member_from(set, listener, port, 2);
    peer_send(&first, "ab");
    await_delivery(&first);
    print_next(set);
    print("sockatmark %d\n", sockatmark(first.app));
    print_read(first.app, 64);
    print("sockatmark %d\n", sockatmark(first.app));
    struct pair third = member_from(set, listener, port, 3);
    print_urged(set, &first, true);
    print_urged(set, &second, true);
    print_urged(set, &third, true);
}

static void reading_urgent_bytes_of_one_connection_covers_the_others(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair first = member_from(set, listener, port, 1), second = member_from(set, listener, port, 2);
    mod(set, first.app, EPOLLPRI, 1);
    struct pair third = member_from(set, listener, port, 3);
    print_urged(set, &second, true);
    print_urged(set, &third, true);
}

static void members_with_priority_are_served_until_urgent_bytes_are_read(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair pairs[3];
    for (int i = 0; i < 3; i++) {
        pairs[i] = accepted_from(listener, port);
        add(set, pairs[i].app, EPOLLIN | EPOLLPRI, (uint64_t)i);
        exchange(set, &pairs[i]);
        exchange(set, &pairs[i]);
    }
    print_urgent(pairs[0].app);
    for (int i = 0; i < 3; i++)
        print_urged(set, &pairs[i], true);
    peer_urges(&pairs[1], "?");
    await_delivery(&pairs[1]);
    print_next(set);
    print_urgent(pairs[1].app);
}

static void a_client_reads_urgent_bytes_after_its_first_request(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct sockaddr_in address = loopback(port);
    struct pair pairs[3] = {0};
    for (int i = 0; i < 3; i++) {
        pairs[i].app = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        MUST(connect(pairs[i].app, (struct sockaddr *)&address, sizeof address));
        MUST(fcntl(pairs[i].app, F_SETFL, O_NONBLOCK));
        pairs[i].peer = (int)MUST(syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC));
        add(set, pairs[i].app, EPOLLIN, (uint64_t)i);
        print_now(set);
        if (i == 1)
            print_urgent(pairs[0].app);
    }
    for (int i = 0; i < 3; i++)
        print_urged(set, &pairs[i], true);
}

static void urgent_bytes_that_the_program_never_announced_are_skipped(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair pair = member_from(set, listener, port, 1);
    peer_send(&pair, "1");
    print_next(set);
    print_read(pair.app, 64);
    print_now(set);
    peer_urges(&pair, "!");
    await_delivery(&pair);
    print_now(set);
    print_urgent(pair.app);
}

static void unread_urgent_bytes_are_not_in_the_stream(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair pair = member_from(set, listener, port, 1);
    for (int i = 0; i < 3; i++) {
        peer_send(&pair, "ab");
        peer_urges(&pair, "!");
        peer_send(&pair, "cd");
        await_delivery(&pair);
        print_next(set);
        print_stream(pair.app, 64);
        print_now(set);
    }
    peer_urges(&pair, "!");
    peer_shutdown(&pair);
    await_delivery(&pair);
    print_next(set);
    print_stream(pair.app, 64);
}

static void print_peer_urged(struct pair *pair, size_t before, size_t after) {
    char bytes[64];
    peer_gets(pair, before);
    got_bytes("urgent", bytes, syscall(SYS_recvfrom, pair->peer, bytes, 1, MSG_OOB, NULL, NULL));
    peer_gets(pair, after);
}

static void urgent_bytes_of_every_call_keep_their_order(void) {
    struct iovec part = {"x!", 2};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    for (int i = 0; i < 6; i++) {
        int set = new_set();
        struct pair pair = connected();
        add(set, pair.app, EPOLLIN, 1);
        print_now(set);
        MUST(write(pair.app, "be", 2));
        MUST(send(pair.app, "fore", 4, i == 5 ? MSG_MORE : 0));
        if (i == 0)
            GOT(send(pair.app, "x!", 2, MSG_OOB));
        if (i == 1)
            GOT(sendto(pair.app, "x!", 2, MSG_OOB | MSG_NOSIGNAL, NULL, 0));
        if (i == 2)
            GOT(sendmsg(pair.app, &message.msg_hdr, MSG_OOB));
        if (i == 3)
            GOT(sendmmsg(pair.app, &message, 1, MSG_OOB));
        if (i == 4)
            GOT(send(pair.app, "x!", 2, MSG_OOB | MSG_DONTWAIT));
        if (i == 5)
            GOT(send(pair.app, "x!", 2, MSG_OOB));
        MUST(write(pair.app, "after", 5));
        print_now(set);
        print_peer_urged(&pair, 7, 5);
        peer_send(&pair, "go on");
        await_delivery(&pair);
        print_next(set);
        print_read(pair.app, 64);
        MUST(close(pair.app));
    }
}

static void an_urgent_byte_waits_for_deferred_output(void) {
    static unsigned char bytes[3000];
    int set = new_set();
    struct pair pair = connected_narrow();
    uint64_t count = 0;
    long done = 0, wrong = -1;
    add(set, pair.app, EPOLLIN, 1);
    print_now(set);
    for (int full = 0; full < 2;) {
        fill(bytes, sizeof bytes, count);
        done = write(pair.app, bytes, sizeof bytes);
        count += done > 0 ? (uint64_t)done : 0;
        full += done < 0;
        poll_once(set);
    }
    GOT(send(pair.app, "!", 1, MSG_OOB));
    mod(set, pair.app, EPOLLOUT, 1);
    uint64_t read = 0;
    bool sent = false;
    while (read < count || !sent) {
        if (read < count) {
            done = MUST(syscall(SYS_read, pair.peer, bytes, count - read < sizeof bytes ? count - read : sizeof bytes));
            wrong = wrong < 0 ? differs(bytes, (size_t)done, read) : wrong;
            read += (uint64_t)done;
        }
        struct epoll_event event = {0};
        if (!sent && epoll_wait(set, &event, 1, read < count ? 0 : 1000) == 1 && event.events & EPOLLOUT) {
            done = send(pair.app, "!", 1, MSG_OOB);
            sent = done == 1;
            if (!sent && errno != EAGAIN)
                GOT(done);
        }
    }
    print("all in order: %s\n", wrong < 0 ? "yes" : "no");
    for (int i = 0; i < 50000 && (done = syscall(SYS_recvfrom, pair.peer, bytes, 1, MSG_OOB, NULL, NULL)) < 0; i++)
        syscall(SYS_nanosleep, &(struct timespec){0, 100000}, NULL);
    got_bytes("urgent", (char *)bytes, done);
}

/* Members that are not served: one was shut down, one was passed on, and one accepts after a request for urgent data. */
static void reasons_are_those_of_the_program(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    add(set, listener, EPOLLIN | EPOLLPRI | EPOLLET, 9);
    struct pair first = accepted_from(listener, port), second = accepted_from(listener, port);
    MUST(shutdown(first.app, SHUT_WR));
    add(set, first.app, EPOLLIN, 1);
    MUST(shutdown(first.app, SHUT_RDWR));
    add(set, second.app, EPOLLPRI, 2);
    struct pair third = accepted_from(listener, port);
    add(set, third.app, EPOLLIN, 3);
    int twin = (int)MUST(dup(third.app));
    MUST(setsockopt(third.app, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int)));
    add(set, twin, EPOLLIN, 4);
    peer_send(&third, "request");
    await_delivery(&third);
    print_wait(set, 1000);
    print_read(third.app, 100);
}

/* ---- signals of arrival ---- */

static volatile sig_atomic_t arrivals;
static void on_arrival(int number) { arrivals++; }

static void a_program_signalled_for_input_reads_it(void) {
    signal(SIGIO, on_arrival);
    for (int way = 0; way < 3; way++) {
        int set = new_set(), one = 1;
        struct pair pair = connected();
        add(set, pair.app, EPOLLIN, 1);
        for (int i = 0; i < 2; i++) {
            peer_send(&pair, "get");
            print_next(set);
            print_read(pair.app, 64);
            print_now(set);
        }
        MUST(fcntl(pair.app, F_SETOWN, getpid()));
        if (way == 0)
            MUST(fcntl(pair.app, F_SETFL, O_NONBLOCK | O_ASYNC));
        else
            MUST(ioctl(pair.app, FIOASYNC, &one));
        if (way == 2)
            MUST(fcntl(pair.app, F_SETSIG, SIGIO));
        for (int i = 0; i < 6; i++) {
            arrivals = 0;
            peer_send(&pair, "abc");
            await_delivery(&pair);
            print("signalled: %s\n", arrivals ? "yes" : "no");
            print_read(pair.app, 64);
            print_read(pair.app, 64);
        }
        MUST(close(pair.app));
    }
}

/* ---- queries ---- */

static void queued_bytes_are_included_in_tcp_info(void) {
    int set = new_set();
    struct pair pair = connected();
    add(set, pair.app, EPOLLIN, 1);
    print_now(set);
    for (int i = 0; i < 3; i++) {
        struct tcp_info info = {0};
        socklen_t length = sizeof info;
        MUST(write(pair.app, "result", 6));
        MUST(getsockopt(pair.app, IPPROTO_TCP, TCP_INFO, &info, &length));
        print("state %d, sent %llu, not sent %u\n", info.tcpi_state, (unsigned long long)info.tcpi_bytes_sent,
            info.tcpi_notsent_bytes);
    }
    print_now(set);
    peer_gets(&pair, 18);
    peer_send(&pair, "on");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 64);
}

static void unsent_bytes_are_counted(void) {
    int set = new_set(), unsent = -1, unacknowledged = -1;
    static char bytes[100000];
    struct pair pair = connected_narrow();
    add(set, pair.app, EPOLLIN, 1);
    print_now(set);
    MUST(write(pair.app, "result", 6));
    MUST(ioctl(pair.app, SIOCOUTQNSD, &unsent));
    print("not sent: %d\n", unsent);
    peer_gets(&pair, 6);
    long count = 0, done;
    while ((done = write(pair.app, bytes, 1000)) > 0 || count == 0) {
        count += done;
        poll_once(set);
    }
    MUST(ioctl(pair.app, SIOCOUTQNSD, &unsent));
    MUST(ioctl(pair.app, SIOCOUTQ, &unacknowledged));
    print("not sent: %s\n", unsent > 0 && unsent <= unacknowledged ? "some" : "wrong");
    for (long left = count; left > 0; left -= done, poll_once(set)) {
        done = syscall(SYS_recvfrom, pair.peer, bytes, left < (long)sizeof bytes ? left : (long)sizeof bytes,
                       MSG_DONTWAIT, NULL, NULL);
        done = done > 0 ? done : 0;
    }
    for (int i = 0; i < 500 && unsent != 0; i++, pause_ms(1)) {
        poll_once(set);
        MUST(ioctl(pair.app, SIOCOUTQNSD, &unsent));
    }
    print("not sent: %d\n", unsent);
}

static void time_limits_are_for_calls_that_wait(void) {
    int set = new_set();
    struct timeval limit = {0, 20000}, response;
    long long limit_new[2] = {0, 20000};
    struct pair pair = connected();
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    add(set, pair.app, EPOLLIN, 1);
    print_now(set);
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    MUST(setsockopt(pair.app, SOL_SOCKET, RCVTIMEO_NEW, limit_new, sizeof limit_new));
    MUST(setsockopt(pair.app, SOL_SOCKET, SNDTIMEO_NEW, limit_new, sizeof limit_new));
    static const int names[] = {SO_RCVTIMEO, SO_SNDTIMEO};
    for (int i = 0; i < 2; i++) {
        socklen_t length = sizeof response;
        MUST(getsockopt(pair.app, SOL_SOCKET, names[i], &response, &length));
        print("limit %ld.%06ld\n", (long)response.tv_sec, (long)response.tv_usec);
    }
    print_read(pair.app, 64);
    peer_send(&pair, "get");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 64);
    MUST(write(pair.app, "result", 6));
    print_now(set);
    peer_gets(&pair, 6);
}

/* Options that servers set and that do not change the data: the connection stays served. */
static void harmless_options_can_be_set_on_served_connections(void) {
    static const struct option options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},       {IPPROTO_TCP, TCP_CORK, 0},         {IPPROTO_TCP, TCP_QUICKACK, 0},
        {IPPROTO_TCP, TCP_KEEPIDLE, 60},     {IPPROTO_TCP, TCP_USER_TIMEOUT, 0}, {IPPROTO_TCP, TCP_THIN_DUPACK, 0},
        {SOL_SOCKET, SO_KEEPALIVE, 1},       {SOL_SOCKET, SO_INCOMING_CPU, 0},   {SOL_SOCKET, SO_RXQ_OVFL, 1},
        {SOL_SOCKET, SO_TXREHASH, 1},        {SOL_SOCKET, SO_BUF_LOCK, 0},       {SOL_SOCKET, SO_LOCK_FILTER, 0},
        {SOL_SOCKET, SO_SELECT_ERR_QUEUE, 1}, {IPPROTO_IP, IP_TOS, 8},           {IPPROTO_IP, IP_RECVTOS, 1},
        {IPPROTO_IP, IP_PKTINFO, 1},         {IPPROTO_IP, IP_MINTTL, 0},         {IPPROTO_IP, IP_FREEBIND, 1},
    };
    int set = new_set();
    struct pair pair = connected();
    add(set, pair.app, EPOLLIN, 1);
    print_now(set);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        struct option option = options[i];
        print("%d %d: ", option.level, option.name);
        GOT(setsockopt(pair.app, option.level, option.name, &option.value, sizeof option.value));
        peer_send(&pair, "get");
        await_delivery(&pair);
        print_next(set);
        print_message(pair.app, 64);
    }
    /* A kernel without it returns an error, and nothing changes. */
    setsockopt(pair.app, IPPROTO_TCP, TCP_ULP, "tls", 4);
    peer_send(&pair, "get");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 64);
    MUST(write(pair.app, "result", 6));
    print_now(set);
    peer_gets(&pair, 6);
}

/* XNIO (Undertow, WildFly) sets SO_OOBINLINE to 0 on each connection. */
static void options_set_to_their_default_change_nothing(void) {
    static const struct option options[] = {
        {SOL_SOCKET, SO_OOBINLINE, 0},      {SOL_SOCKET, SO_RCVLOWAT, 1},      {SOL_SOCKET, SO_PEEK_OFF, -1},
        {SOL_SOCKET, SO_TIMESTAMP, 0},      {SOL_SOCKET, SO_TIMESTAMPNS, 0},   {SOL_SOCKET, SO_TIMESTAMPING, 0},
        {SOL_SOCKET, TIMESTAMP_NEW, 0},     {SOL_SOCKET, TIMESTAMPNS_NEW, 0},  {SOL_SOCKET, TIMESTAMPING_NEW, 0},
        {SOL_SOCKET, SO_ZEROCOPY, 0},       {SOL_SOCKET, SO_BUSY_POLL, 0},     {SOL_SOCKET, SO_PREFER_BUSY_POLL, 0},
        {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0}, {IPPROTO_TCP, TCP_INQ, 0},        {IPPROTO_IP, IP_RECVERR, 0},
    };
    int set = new_set(), port, listener = listen_on(0, &port), zero = 0;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        print("%d %d\n", options[i].level, options[i].name);
        set_option(listener, options[i]);
        struct pair pair = accepted_from(listener, port);
        set_option(pair.app, options[i]);
        add(set, pair.app, EPOLLIN, 1);
        exchange(set, &pair);
        set_option(pair.app, options[i]);
        exchange(set, &pair);
        MUST(close(pair.app));
    }
    struct pair pair = member_from(set, listener, port, 1);
    GOT(fcntl(pair.app, F_SETOWN, 0));
    GOT(fcntl(pair.app, F_SETSIG, 0));
    GOT(ioctl(pair.app, FIOSETOWN, &zero));
    GOT(ioctl(pair.app, FIOASYNC, &zero));
    exchange(set, &pair);
}

static void an_option_that_is_set_late_applies_from_then_on(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair pair = member_from(set, listener, port, 1);
    peer_send(&pair, "abcdef");
    await_delivery(&pair);
    print_next(set);
    set_option(pair.app, (struct option){IPPROTO_TCP, TCP_INQ, 1});
    print_message(pair.app, 64);
}

static void an_option_that_was_set_late_applies_to_the_next_connection(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    for (int i = 0; i < 3; i++) {
        struct pair pair = member_from(set, listener, port, 1);
        peer_send(&pair, "abcdef");
        await_delivery(&pair);
        print_next(set);
        if (i == 0)
            print_read(pair.app, 6);
        set_option(pair.app, (struct option){IPPROTO_TCP, TCP_INQ, 1});
        if (i == 0)
            peer_send(&pair, "ghijkl");
        await_delivery(&pair);
        print_message(pair.app, 4);
        print_message(pair.app, 64);
        MUST(close(pair.app));
    }
}

static void a_stream_is_not_decrypted_behind_buffered_bytes(void) {
    int set = new_set(), port, listener = listen_on(0, &port);
    struct pair pair = member_from(set, listener, port, 1);
    char nothing[40] = {0};
    peer_send(&pair, "abcdef");
    await_delivery(&pair);
    print_next(set);
    GOT(setsockopt(pair.app, 282, 2, nothing, sizeof nothing));
    print_read(pair.app, 64);
    peer_send(&pair, "ghijkl");
    await_delivery(&pair);
    print_next(set);
    print_read(pair.app, 64);
}

static void bytes_that_are_mapped_are_the_streams(void) {
    int set = new_set();
    char bytes[64];
    struct pair pair = connected();
    add(set, pair.app, EPOLLIN, 1);
    print_now(set);
    peer_send(&pair, "abcdef");
    await_delivery(&pair);
    print_next(set);
    for (int i = 0; i < 2; i++) {
        struct tcp_zerocopy_receive zero = {.copybuf_address = (uintptr_t)bytes, .copybuf_len = sizeof bytes};
        socklen_t length = sizeof zero;
        long result = getsockopt(pair.app, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &zero, &length);
        /* All bytes, whether copied here or still to be read. A kernel may not have the option. */
        size_t done = result >= 0 && zero.copybuf_len > 0 ? (size_t)zero.copybuf_len : 0;
        if (result < 0)
            done = (size_t)MUST(recv(pair.app, bytes, sizeof bytes, 0));
        else if (zero.recv_skip_hint)
            done += (size_t)MUST(recv(pair.app, bytes + done, zero.recv_skip_hint, 0));
        print("mapped %u, error %d, got \"%.*s\"\n", zero.length, zero.err, (int)done, bytes);
        peer_send(&pair, "ghijkl");
        await_delivery(&pair);
        print_next(set);
    }
}

static const struct app_case cases[] = {
    CASE(control_data_enabled_on_a_listener_comes_with_its_connections, "passed:unknown_option"),
    CASE(an_option_of_a_listener_holds_for_those_it_accepts_from_then_on, "served:recvmsg passed:unknown_option"),
    CASE(an_option_of_a_listener_in_a_set_is_its_connections, "passed:unknown_option"),
    CASE(an_option_that_others_gave_a_listener_is_its_connections, "passed:unknown_option"),
    CASE(an_option_that_another_process_sets_on_a_listener_later_is_missed, "served:recvmsg"),
    CASE(an_inherited_listener_keeps_its_options, "passed:unknown_option"),
    CASE(an_inherited_connection_keeps_its_options, "passed:unknown_option"),
    CASE(a_client_that_enabled_control_data_gets_it, "passed:unknown_option"),
    CASE(a_low_water_mark_of_a_listener_holds_reports_back, "passed:unknown_option"),
    CASE(an_option_is_an_edge_if_it_wakes, "back:unknown_option"),
    CASE(a_peek_offset_is_inherited_from_the_listener, "passes"),
    CASE(writability_is_reported_below_the_mark_of_unsent_bytes, "passed:unknown_option back:unknown_option"),
    CASE(writability_of_a_small_send_buffer_keeps_a_reserve, "served:write"),
    CASE(writability_of_a_large_send_buffer_keeps_no_reserve, "served:write"),
    CASE(urgent_bytes_of_a_listener_that_wants_them_inline_are_inline, "passed:unknown_option"),
    CASE(a_program_signalled_for_urgent_bytes_reads_them, "back:unknown_flags passed:unknown_flags"),
    CASE(urgent_bytes_are_kept_after_the_first_urgent_read, "back:unknown_flags passed:unknown_flags"),
    CASE(an_urgent_read_covers_connections_of_other_threads, "back:unknown_flags"),
    CASE(a_reset_caused_by_sending_at_a_hand_back_is_reported, "back:unknown_flags"),
    CASE(the_urgent_mark_is_found_after_the_first_query, "back:unknown_flags passed:unknown_flags"),
    CASE(reading_urgent_bytes_of_one_connection_covers_the_others, "back:unknown_flags passed:unknown_flags"),
    CASE(members_with_priority_are_served_until_urgent_bytes_are_read, "served:read back:unknown_flags"),
    CASE(a_client_reads_urgent_bytes_after_its_first_request, "back:unknown_flags passed:unknown_flags"),
    CASE(urgent_bytes_that_the_program_never_announced_are_skipped, ""),
    CASE(unread_urgent_bytes_are_not_in_the_stream, "served:read"),
    CASE(urgent_bytes_of_every_call_keep_their_order, "back:unknown_flags"),
    CASE(an_urgent_byte_waits_for_deferred_output, "back:unknown_flags"),
    CASE(reasons_are_those_of_the_program,
        "passed:not_connected passed:unknown_flags passed:unknown_option<=0 passed:duplicated<=0"),
    CASE(a_program_signalled_for_input_reads_it, "back:unknown_flags"),
    CASE(queued_bytes_are_included_in_tcp_info, "served:write served:read"),
    CASE(unsent_bytes_are_counted, "served:write"),
    CASE(time_limits_are_for_calls_that_wait, "served:read served:write"),
    CASE(harmless_options_can_be_set_on_served_connections, "served:recvmsg served:read served:write"),
    CASE(options_set_to_their_default_change_nothing,
        "served:read served:write passed:unknown_option<=0 back:unknown_option<=0 back:unknown_flags<=0"),
    CASE(an_option_that_is_set_late_applies_from_then_on, "back:unknown_option"),
    CASE(an_option_that_was_set_late_applies_to_the_next_connection, "back:unknown_option passed:unknown_option"),
    CASE(a_stream_is_not_decrypted_behind_buffered_bytes, "back:unknown_option"),
    CASE(bytes_that_are_mapped_are_the_streams, "back:unknown_flags"),
};

int main(int argc, char **argv) {
    arguments = argv;
    return RUN(cases);
}
