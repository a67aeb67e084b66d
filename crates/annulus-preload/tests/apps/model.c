/* Random sequences of calls on a set and its sockets; the same seed gives the same sequence. The rule: the set reports,
 * and the calls return, what the kernel's own epoll would report and return.
 *
 * A sequence consists of rounds: calls of the program on its sockets, looks (waits) at the set, calls of the peers,
 * looks again. The looks of a round form one report. For a level-triggered member it has the events of its last look;
 * for others, those of all its looks together, because the kernel may merge two edges.
 *
 * `~` in place of `=` marks members that have just been used in a way that makes the library hand them back. The
 * kernel's set, to which they are then added, may repeat an edge. For these, every event that is reported without the
 * library must be reported with it, and more events may be. */
#include "app.h"

enum { SLOTS = 6, WRITTEN_MAX = 8192 };

struct slot {
    struct pair pair;
    bool open, member, fills, full, again;
    /* Full at some time since the last report: the kernel decides whether and when a little more fits, which is an
     * edge. */
    bool was_full;
    /* The last call of this round on it: the result of a later write to a closed peer depends on timing. */
    bool done;
    bool app_ended, peer_gone;
    uint32_t mask, reported;
    uint64_t app_sent, app_got, peer_sent, peer_got;
};

static struct slot slots[SLOTS];
static int set;
static uint64_t random_state;

static uint64_t below(uint64_t bound) { return next_random(&random_state) % bound; }
static bool one_in(uint64_t count) { return below(count) == 0; }

static struct slot *any(bool (*suits)(const struct slot *)) {
    struct slot *candidates[SLOTS];
    size_t count = 0;
    for (int i = 0; i < SLOTS; i++)
        if (suits(&slots[i]))
            candidates[count++] = &slots[i];
    return count ? candidates[below(count)] : NULL;
}

static bool is_closed(const struct slot *slot) { return !slot->open; }
static bool is_usable(const struct slot *slot) { return slot->open && !slot->done; }
static bool has_peer(const struct slot *slot) { return slot->open && !slot->peer_gone; }

static int number(const struct slot *slot) { return (int)(slot - slots); }

static uint32_t any_mask(void) {
    static const uint32_t interests[] = {EPOLLIN, EPOLLIN, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT, EPOLLOUT,
                                         EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLLRDHUP, 0};
    static const uint32_t ways[] = {0, 0, 0, EPOLLET, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
    return interests[below(8)] | ways[below(7)];
}

/* The states after FIN was sent and before it is acknowledged. */
static bool is_ending(int state) { return state == 4 || state == 9 || state == 11; }

/* ---- the report of a round ---- */

static void look(int most) {
    struct epoll_event events[SLOTS + 2];
    int count;
    while ((count = epoll_wait(set, events, most, 0)) < 0 && errno == EINTR)
        continue;
    for (int i = 0; i < SLOTS && most > SLOTS; i++)
        if (!(slots[i].mask & (EPOLLET | EPOLLONESHOT)))
            slots[i].reported = 0;
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 < SLOTS)
            slots[events[i].data.u64].reported |= events[i].events;
        else
            print("an event of no member: %llu\n", (unsigned long long)events[i].data.u64);
}

static void report(void) {
    char text[128];
    if (one_in(4))
        look((int)below(3) + 1);
    for (int i = 0; i < 3; i++)
        look(SLOTS + 2);
    print("looks:");
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &slots[i];
        if (slot->full || slot->was_full)
            slot->reported &= slot->mask & EPOLLET ? 0 : slot->full ? ~(uint32_t)EPOLLOUT : ~0u;
        slot->was_full = slot->full;
        if (slot->again && slot->member)
            print(" %d~%s", i, mask_text(slot->reported, text));
        else if (slot->reported)
            print(" %d=%s", i, mask_text(slot->reported, text));
        slot->reported = 0;
        slot->again = false;
    }
    print("\n");
}

/* ---- what the program does ---- */

static void join_set(struct slot *slot) {
    slot->mask = any_mask();
    int result = control(set, EPOLL_CTL_ADD, slot->pair.app, slot->mask, (uint64_t)number(slot));
    print("%d add 0x%x: %s\n", number(slot), slot->mask, result < 0 ? strerrorname_np(errno) : "ok");
    slot->member = true;
}

static void open_slot(void) {
    struct slot *slot = any(is_closed);
    if (!slot)
        return;
    *slot = (struct slot){.open = true, .fills = one_in(3)};
    /* A separate listener: certain calls on a connection stop the serving of all connections of its listener. */
    int port, listener = listen_on(0, &port);
    slot->pair.peer = peer_connect(port);
    int size = 8192;
    if (slot->fills)
        MUST(syscall(SYS_setsockopt, slot->pair.peer, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    slot->pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    MUST(close(listener));
    if (slot->fills)
        MUST(setsockopt(slot->pair.app, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    print("%d opened\n", number(slot));
    if (!one_in(8))
        join_set(slot);
}

static void change_membership(struct slot *slot) {
    if (slot->full)
        return;
    int result, what = slot->member ? (one_in(4) ? EPOLL_CTL_DEL : EPOLL_CTL_MOD) : EPOLL_CTL_ADD;
    if (one_in(12))
        what = (int)below(3) + 1;
    uint32_t mask = any_mask();
    result = control(set, what, slot->pair.app, mask, (uint64_t)number(slot));
    print("%d control %d 0x%x: %s\n", number(slot), what, mask, result < 0 ? strerrorname_np(errno) : "ok");
    if (result == 0) {
        slot->member = what != EPOLL_CTL_DEL;
        slot->mask = mask;
        slot->reported = 0;
    }
}

/* Reads up to a number of bytes, in as many calls as needed: a stream has no message boundaries. */
static void read_some(struct slot *slot) {
    static unsigned char bytes[70000];
    size_t most = one_in(3) ? sizeof bytes : below(2000) + 1, done = 0;
    long result = 1;
    while (done < most && (result = read(slot->pair.app, bytes + done, most - done)) > 0)
        done += (size_t)result;
    const char *end = result > 0 ? "more" : result == 0 ? "end" : strerrorname_np(errno);
    print("%d read %zu of %zu, %s, wrong at %ld\n", number(slot), done, most, end, differs(bytes, done, slot->app_got));
    slot->app_got += done;
}

static void peek(struct slot *slot) {
    unsigned char byte;
    int waiting = -1;
    long result = recv(slot->pair.app, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    const char *outcome = result < 0 ? strerrorname_np(errno) : result == 0 ? "end" : "a byte";
    MUST(ioctl(slot->pair.app, FIONREAD, &waiting));
    print("%d peek %s, waiting %s, wrong at %ld\n", number(slot), outcome, waiting ? "some" : "none",
        differs(&byte, result > 0 ? 1 : 0, slot->app_got));
}

static void write_some(struct slot *slot) {
    static unsigned char bytes[WRITTEN_MAX];
    size_t length = below(one_in(3) ? 4000 : 200) + 1;
    if (slot->full || slot->app_sent - slot->peer_got + length > WRITTEN_MAX)
        return;
    fill(bytes, length, slot->app_sent);
    struct iovec parts[2] = {{bytes, length / 3}, {bytes + length / 3, length - length / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    long result;
    switch (below(4)) {
    case 0:
        result = writev(slot->pair.app, parts, 2);
        break;
    case 1:
        result = send(slot->pair.app, bytes, length, MSG_NOSIGNAL);
        break;
    case 2:
        result = sendmsg(slot->pair.app, &message, MSG_NOSIGNAL);
        break;
    default:
        result = write(slot->pair.app, bytes, length);
    }
    print("%d write %zu: %ld %s\n", number(slot), length, result, result < 0 ? strerrorname_np(errno) : "");
    slot->app_sent += result > 0 ? (uint64_t)result : 0;
    slot->done = slot->peer_gone;
    /* The reset may wait for an acknowledgement of earlier bytes. */
    if (slot->peer_gone && result > 0)
        await_state(slot->pair.app, STATE_CLOSED);
}

/* Writes until no more bytes are accepted. */
static void fill_slot(struct slot *slot) {
    static unsigned char bytes[5000];
    if (!slot->fills || slot->full || slot->peer_gone || slot->app_ended || slot->mask & EPOLLONESHOT)
        return;
    for (int quiet = 0; quiet < 4;) {
        fill(bytes, sizeof bytes, slot->app_sent);
        long result = send(slot->pair.app, bytes, sizeof bytes, MSG_NOSIGNAL);
        slot->app_sent += result > 0 ? (uint64_t)result : 0;
        quiet = result > 0 ? 0 : quiet + 1;
        if (result < 0 && errno != EAGAIN) {
            print("%d fill: %s\n", number(slot), strerrorname_np(errno));
            return;
        }
        look(SLOTS + 2);
        if (quiet)
            pause_ms(1);
    }
    slot->full = true;
    print("%d full\n", number(slot));
}

static void shut(struct slot *slot) {
    static const char *const names[] = {"reading", "writing", "both"};
    int how = one_in(2) ? SHUT_WR : (int)below(3);
    /* Deferred bytes of a full connection are sent when its peer reads, so the time of the end is not determined. */
    if (slot->full)
        return;
    int result = shutdown(slot->pair.app, how);
    print("%d shut %s: %s\n", number(slot), names[how], result < 0 ? strerrorname_np(errno) : "ok");
    slot->app_ended |= result == 0 && how != SHUT_RD;
    slot->done = true;
    /* The acknowledgement of the end is another edge. */
    look(SLOTS + 2);
    for (int i = 0; i < 2000 && is_ending(tcp_state(slot->pair.app).tcpi_state); i++)
        pause_ms(1);
}

static void query_error(struct slot *slot) {
    int error = 0;
    socklen_t length = sizeof error;
    MUST(getsockopt(slot->pair.app, SOL_SOCKET, SO_ERROR, &error, &length));
    print("%d error: %s\n", number(slot), error ? strerrorname_np(error) : "none");
}

static void close_slot(struct slot *slot) {
    MUST(close(slot->pair.app));
    print("%d closed\n", number(slot));
    look(SLOTS + 2);
    static unsigned char bytes[65536];
    long result = 0, wrong = -1;
    while (!slot->peer_gone && (result = syscall(SYS_read, slot->pair.peer, bytes, sizeof bytes)) > 0) {
        if (wrong < 0)
            wrong = differs(bytes, (size_t)result, slot->peer_got);
        slot->peer_got += (uint64_t)result;
        look(SLOTS + 2);
    }
    if (!slot->peer_gone) {
        /* Bytes that a reset overtakes are lost without the library as well. */
        const char *all = result < 0 ? "-" : slot->peer_got == slot->app_sent ? "all" : "not all";
        print("%d its peer got %s, then %s, wrong at %ld\n", number(slot), all,
            result == 0 ? "the end" : strerrorname_np(errno), wrong);
        peer_close(&slot->pair);
    }
    *slot = (struct slot){0};
}

static void *read_elsewhere(void *slot) {
    read_some(slot);
    return NULL;
}

/* Calls that servers rarely make on their connections. */
static void use_oddly(struct slot *slot) {
    int fd = slot->pair.app, twin, one = 1, zero = 0;
    pthread_t thread;
    char text[128], bytes[8];
    struct pollfd query = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    switch (below(6)) {
    case 0:
        twin = (int)MUST(dup(fd));
        MUST(close(twin));
        print("%d duplicated\n", number(slot));
        break;
    case 1:
        MUST(poll(&query, 1, 0));
        /* A late acknowledgement drains a full send buffer without a read of its peer. */
        query.revents &= slot->full ? ~POLLOUT : ~0;
        print("%d polled: %s\n", number(slot), mask_text((uint32_t)query.revents, text));
        break;
    case 2:
        MUST(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one));
        print("%d low water\n", number(slot));
        break;
    case 3:
        MUST(ioctl(fd, FIONBIO, &zero));
        MUST(ioctl(fd, FIONBIO, &one));
        print("%d blocking and not\n", number(slot));
        break;
    case 4:
        got("recv out of band", recv(fd, bytes, sizeof bytes, MSG_OOB));
        break;
    default:
        MUST(-pthread_create(&thread, NULL, read_elsewhere, slot));
        pthread_join(thread, NULL);
    }
    slot->again = true;
}

static void program_acts(void) {
    for (uint64_t calls = below(5) + 1; calls > 0; calls--) {
        if (one_in(7))
            open_slot();
        struct slot *slot = any(is_usable);
        if (!slot)
            continue;
        switch (below(16)) {
        case 0 ... 4:
            read_some(slot);
            break;
        case 5 ... 8:
            write_some(slot);
            break;
        case 9 ... 10:
            change_membership(slot);
            break;
        case 11:
            peek(slot);
            break;
        case 12:
            fill_slot(slot);
            break;
        case 13:
            query_error(slot);
            break;
        case 14:
            if (one_in(2))
                shut(slot);
            else if (one_in(2))
                use_oddly(slot);
            break;
        default:
            if (one_in(3))
                close_slot(slot);
        }
    }
    for (int i = 0; i < SLOTS; i++)
        slots[i].done = false;
}

/* ---- what the peers do ---- */

/* Waits until the program's socket has all that its peer sent, including the end, or is closed. */
static void arrive(struct slot *slot) {
    for (int i = 0; i < 20000; i++) {
        struct tcp_info app = tcp_state(slot->pair.app), peer = tcp_state(slot->pair.peer);
        bool ending = is_ending(peer.tcpi_state);
        bool arrived = peer.tcpi_notsent_bytes == 0 && app.tcpi_bytes_received >= slot->peer_sent && !ending;
        if (arrived || app.tcpi_state == STATE_CLOSED)
            return;
        syscall(SYS_nanosleep, &(struct timespec){0, 50000}, NULL);
    }
    print("%d never got its peer's bytes\n", number(slot));
}

static void peer_writes(struct slot *slot) {
    static unsigned char bytes[15000];
    size_t length = below(one_in(6) ? sizeof bytes : 1500) + 1;
    /* Less than the window: otherwise bytes would not arrive while the program does not read. */
    if (slot->pair.peer_ended || slot->peer_sent - slot->app_got + length > 20000)
        return;
    fill(bytes, length, slot->peer_sent);
    for (size_t done = 0; done < length;) {
        long result = syscall(SYS_sendto, slot->pair.peer, bytes + done, length - done, MSG_NOSIGNAL, NULL, 0);
        if (result < 0) {
            print("%d its peer's write: %s\n", number(slot), strerrorname_np(errno));
            slot->pair.peer_ended = true;
            return;
        }
        done += (size_t)result;
    }
    slot->peer_sent += length;
    print("%d its peer wrote %zu\n", number(slot), length);
    arrive(slot);
}

/* Reads all that the program wrote, however long that takes. */
static void peer_reads(struct slot *slot) {
    static unsigned char bytes[65536];
    long wrong = -1, result = 1;
    /* How often the loop looks depends on when the bytes arrive. This look, which does not, reports one-shot members:
     * the kernel reports only the events that such a member has at its first look. */
    if (slot->peer_got < slot->app_sent)
        look(SLOTS + 2);
    while (slot->peer_got < slot->app_sent && result > 0) {
        result = syscall(SYS_recvfrom, slot->pair.peer, bytes, sizeof bytes, MSG_DONTWAIT, NULL, NULL);
        if (result > 0 && wrong < 0)
            wrong = differs(bytes, (size_t)result, slot->peer_got);
        slot->peer_got += result > 0 ? (uint64_t)result : 0;
        if (result < 0 && errno == EAGAIN) {
            look(SLOTS + 2);
            syscall(SYS_nanosleep, &(struct timespec){0, 50000}, NULL);
            result = 1;
        }
    }
    bool was_full = slot->full;
    slot->full = false;
    slot->was_full |= was_full;
    print("%d its peer read %s, wrong at %ld\n", number(slot), result > 0 ? "all" : "not all", wrong);
    /* The last acknowledgement drains the send buffer. It is requested, as the kernel may delay it by 40 ms. */
    for (int i = 0, quick = 1; slot->fills && i < 2000; i++) {
        int unsent = 0;
        syscall(SYS_setsockopt, slot->pair.peer, IPPROTO_TCP, TCP_QUICKACK, &quick, sizeof quick);
        syscall(SYS_ioctl, slot->pair.app, SIOCOUTQ, &unsent);
        if (unsent == 0)
            return;
        pause_ms(1);
    }
}

static void peer_leaves(struct slot *slot) {
    /* Unread bytes would make the end a reset, and their arrival depends on timing. */
    peer_reads(slot);
    int before = tcp_state(slot->pair.app).tcpi_state;
    bool reset = one_in(2);
    if (reset)
        peer_reset(&slot->pair);
    else
        peer_close(&slot->pair);
    slot->peer_gone = true;
    print("%d its peer %s\n", number(slot), reset ? "reset" : "closed");
    if (reset || before == STATE_FIN_WAIT2)
        await_state(slot->pair.app, STATE_CLOSED);
    else if (before == STATE_ESTABLISHED)
        await_state(slot->pair.app, STATE_CLOSE_WAIT);
}

static void peers_act(void) {
    for (uint64_t acts = below(4); acts > 0; acts--) {
        struct slot *slot = any(has_peer);
        if (!slot)
            return;
        switch (below(12)) {
        case 0 ... 5:
            peer_writes(slot);
            break;
        case 6 ... 8:
            peer_reads(slot);
            break;
        case 9:
            if (one_in(3) && !slot->pair.peer_ended) {
                int result = (int)syscall(SYS_shutdown, slot->pair.peer, SHUT_WR);
                slot->pair.peer_ended = true;
                print("%d its peer ended: %s\n", number(slot), result < 0 ? strerrorname_np(errno) : "ok");
                arrive(slot);
            }
            break;
        default:
            if (one_in(4))
                peer_leaves(slot);
        }
    }
}

static void sequence(uint64_t seed, int rounds) {
    random_state = seed * 0x9e3779b97f4a7c15u + 0x1234567;
    for (int i = 0; i < 8; i++)
        next_random(&random_state);
    print("seed %llu\n", (unsigned long long)seed);
    set = new_set();
    for (int i = 0; i < 2; i++)
        open_slot();
    for (int round = 0; round < rounds; round++) {
        program_acts();
        report();
        peers_act();
        report();
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].open)
            close_slot(&slots[i]);
    MUST(close(set));
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s FIRST_SEED SEEDS ROUNDS\n", argv[0]);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
    for (uint64_t seed = first; seed < first + count; seed++)
        sequence(seed, atoi(argv[3]));
    print("done\n");
    return 0;
}
