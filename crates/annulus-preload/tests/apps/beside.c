/* Random sequences of the calls that a program makes beside reading and writing: duplicates, pipes, threads that are
 * cancelled, jumps out of waits, children, private descriptors, passed descriptors, and sets that live briefly or share
 * members. The same seed gives the same sequence. The rule is that of model.c: the results are those of the kernel.
 *
 * Results are printed at quiet points only: the bytes of a peer have arrived, and the program's have been sent. The
 * number of calls that a transfer takes is not printed, as the kernel is free to choose it. `~` marks edge-triggered
 * members: they may report more under the library, which hands them back, but no less. */
#include "app.h"
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

enum { SLOTS = 4, SETS = 2, BYTES_MAX = 12000, STEP_S = 20 };

/* A connection, with up to one duplicate of its descriptor. */
struct slot {
    struct pair pair;
    int twin;
    /* The duplicate came by SCM_RIGHTS: the library does not know that it is one, and would serve it. */
    bool passed;
    bool open, blocking, edge, urgent;
    uint64_t app_sent, app_got, peer_sent, peer_got;
};

/* Shared with forked children, which continue the streams. */
static struct slot *slots;
static int sets[SETS];
static bool is_child;
static uint64_t seed;
static uint64_t random_state;
static unsigned char bytes[1 << 16];

static uint64_t below(uint64_t bound) { return next_random(&random_state) % bound; }
static bool one_in(uint64_t count) { return below(count) == 0; }
static int number(const struct slot *slot) { return (int)(slot - slots); }
static size_t unread(const struct slot *slot) { return slot->peer_sent - slot->app_got; }
static int any_number(const struct slot *slot) { return slot->twin >= 0 && one_in(2) ? slot->twin : slot->pair.app; }
static const char *outcome(long result) { return result < 0 ? strerrorname_np(errno) : "ok"; }

static bool any_unread(void) {
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].open && unread(&slots[i]) > 0)
            return true;
    return false;
}

static struct slot *any_open(void) {
    for (int i = 0, first = (int)below(SLOTS); i < SLOTS; i++)
        if (slots[(first + i) % SLOTS].open)
            return &slots[(first + i) % SLOTS];
    return NULL;
}

/* ---- reports ---- */

static void look(int set, int most, uint32_t reported[SLOTS]) {
    struct epoll_event events[2 * SLOTS + 2];
    int count;
    /* A child shares the kernel's set. Under the library it has its own, where one-shot members fire once more. */
    if (is_child)
        return;
    while ((count = epoll_wait(set, events, most, 0)) < 0 && errno == EINTR)
        continue;
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 < SLOTS)
            reported[events[i].data.u64] |= events[i].events;
        else
            print("an event of no member: %llu\n", (unsigned long long)events[i].data.u64);
}

/* Prints the reports of a set; the slots of the second set are numbered from 10 on. */
static void report_of(int set, int offset) {
    uint32_t reported[SLOTS] = {0};
    char text[128];
    if (one_in(3))
        look(set, 1, reported);
    for (int i = 0; i < 2; i++)
        look(set, 2 * SLOTS + 2, reported);
    print("looks:");
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].edge)
            print(" %d~%s", i + offset, mask_text(reported[i], text));
        else if (reported[i])
            print(" %d=%s", i + offset, mask_text(reported[i], text));
    print("\n");
}

static void report(void) {
    for (int i = 0; i < SETS; i++)
        report_of(sets[i], 10 * i);
}

/* Reports in the main thread only: a wait in another thread would hand the set back. */
static void report_first(void) {
    if (!is_child && syscall(SYS_gettid) == getpid())
        report();
}

static uint32_t any_mask(struct slot *slot) {
    static const uint32_t masks[] = {EPOLLIN, EPOLLIN, EPOLLIN | EPOLLPRI, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT,
                                     EPOLLIN | EPOLLET, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
    uint32_t mask = masks[below(8)];
    slot->edge |= (mask & EPOLLET) != 0;
    return mask;
}

static void change_member(struct slot *slot) {
    static const int calls[] = {EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
    int what = calls[below(4)], set = one_in(3) ? 1 : 0;
    uint32_t mask = any_mask(slot);
    int result = control(sets[set], what, slot->passed ? slot->pair.app : any_number(slot), mask, (uint64_t)number(slot));
    print("%d control %d of set %d, 0x%x: %s\n", number(slot), what, set, mask, outcome(result));
}

/* ---- bytes ---- */

static void peer_writes(struct slot *slot) {
    size_t length = below(one_in(4) ? 6000 : 300) + 1;
    if (unread(slot) + length > BYTES_MAX)
        return;
    fill(bytes, length, slot->peer_sent);
    MUST(syscall(SYS_write, slot->pair.peer, bytes, length));
    slot->peer_sent += length;
    await_delivery(&slot->pair);
    print("%d its peer wrote %zu\n", number(slot), length);
}

/* Reads all that the program wrote. A sleep sends it. */
static void peer_reads(struct slot *slot) {
    long wrong = -1, result = 1;
    usleep(1);
    while (slot->peer_got < slot->app_sent && result > 0) {
        result = syscall(SYS_read, slot->pair.peer, bytes, slot->app_sent - slot->peer_got);
        wrong = wrong < 0 && result > 0 ? differs(bytes, (size_t)result, slot->peer_got) : wrong;
        slot->peer_got += result > 0 ? (uint64_t)result : 0;
    }
    print("%d its peer read %s, wrong at %ld\n", number(slot), result > 0 ? "all" : "not all", wrong);
}

static long receive(int fd, unsigned char *to, size_t length) {
    struct iovec parts[2] = {{to, length / 2}, {to + length / 2, length - length / 2}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    long result;
    switch (below(7)) {
    case 0:
        return readv(fd, parts, 2);
    case 1:
        return recv(fd, to, length, MSG_DONTWAIT);
    case 2:
        return recvmsg(fd, &message, MSG_WAITALL);
    case 3:
        return recv(fd, to, length, MSG_WAITALL);
    case 4:
        if ((result = recv(fd, to, length, one_in(2) ? MSG_PEEK | MSG_WAITALL : MSG_PEEK)) <= 0)
            return result;
        return recv(fd, to, (size_t)result, 0);
    case 5:
        if (length < 2)
            return read(fd, to, length);
        result = recvmmsg(fd, messages, 2, MSG_WAITFORONE, NULL);
        if (result < 2)
            return result > 0 ? messages[0].msg_len : result;
        memmove(to + messages[0].msg_len, to + length / 2, messages[1].msg_len);
        return messages[0].msg_len + messages[1].msg_len;
    default:
        return read(fd, to, length);
    }
}

/* Reads bytes that have arrived, in as many calls as needed. The set is looked at before: the library returns bytes that
 * arrived after others, in the same round, one call later. */
static void read_some(struct slot *slot) {
    int fd = any_number(slot), tries = 0;
    size_t most = unread(slot), done = 0;
    uint64_t saved;
    if (most == 0 && !slot->blocking)
        print("%d read nothing: %s\n", number(slot), outcome(read(fd, bytes, 100)));
    if (most == 0)
        return;
    report_first();
    most = one_in(2) ? most : below(most) + 1;
    saved = random_state;
    while (done < most && tries < 100) {
        long result = receive(fd, bytes + done, most - done);
        if (result > 0)
            done += (size_t)result;
        else if (result < 0 && errno == EAGAIN && ++tries)
            pause_ms(1);
        else
            break;
    }
    /* The number of calls may differ. */
    random_state = saved;
    print("%d read %zu of %zu, wrong at %ld\n", number(slot), done, most, differs(bytes, done, slot->app_got));
    slot->app_got += done;
}

static void read_all(struct slot *slot) {
    size_t before = 0;
    while (unread(slot) != before) {
        before = unread(slot);
        read_some(slot);
    }
}

static void write_some(struct slot *slot) {
    int fd = any_number(slot);
    size_t length = below(one_in(4) ? 5000 : 200) + 1, half = length / 2;
    if (slot->app_sent - slot->peer_got + length > BYTES_MAX)
        return;
    fill(bytes, length, slot->app_sent);
    struct iovec parts[2] = {{bytes, half}, {bytes + half, length - half}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    long result;
    switch (below(5)) {
    case 0:
        result = writev(fd, parts, 2);
        break;
    case 1:
        result = send(fd, bytes, half, MSG_MORE | MSG_NOSIGNAL) + send(fd, bytes + half, length - half, MSG_NOSIGNAL);
        break;
    case 2:
        result = sendmmsg(fd, messages, 2, MSG_NOSIGNAL);
        result = result == 2 ? (long)length : -1;
        break;
    default:
        result = write(fd, bytes, length);
    }
    print("%d wrote %ld of %zu\n", number(slot), result, length);
    slot->app_sent += length;
}

/* ---- waiting for a thread to sleep ---- */

/* Waits until a thread sleeps, or for at most a number of looks: it may be in a loop. */
static void await_sleep(long thread, int tries) {
    char path[64], text[256];
    for (int sleeps = 0; sleeps < 2 && tries > 0; tries--) {
        syscall(SYS_nanosleep, &(struct timespec){0, 100000}, NULL);
        snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
        int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
        long length = file < 0 ? 0 : syscall(SYS_read, file, text, sizeof text - 1);
        syscall(SYS_close, file);
        text[length > 0 ? length : 0] = 0;
        char *end = strrchr(text, ')');
        sleeps = end && end[2] == 'S' ? sleeps + 1 : 0;
    }
}

static void *send_the_rest(void *argument) {
    struct slot *slot = argument;
    unsigned char rest[200];
    await_sleep(getpid(), 20000);
    fill(rest, sizeof rest, slot->peer_sent - sizeof rest);
    syscall(SYS_write, slot->pair.peer, rest, sizeof rest);
    return NULL;
}

/* Receives bytes of which the last arrive while the call sleeps. */
static void wait_for_all(struct slot *slot) {
    pthread_t thread;
    if (!slot->blocking)
        return;
    slot->peer_sent += 200;
    MUST(-pthread_create(&thread, NULL, send_the_rest, slot));
    size_t length = unread(slot);
    int fd = any_number(slot), peek = one_in(3) ? MSG_PEEK : 0;
    long result = recv(fd, bytes, length, MSG_WAITALL | peek);
    pthread_join(thread, NULL);
    /* The end of a ring ends one call some milliseconds later, as a signal would. */
    if (result > 0 && result < (long)length) {
        long more = recv(fd, bytes + (peek ? 0 : result), length - (peek ? 0 : (size_t)result), MSG_WAITALL | peek);
        result = peek ? more : result + more;
    }
    print("%d waited for all%s: %ld of %zu, wrong at %ld\n", number(slot), peek ? ", peeking" : "", result, length,
        differs(bytes, result > 0 ? (size_t)result : 0, slot->app_got));
    slot->app_got += peek || result < 0 ? 0 : (uint64_t)result;
    await_delivery(&slot->pair);
}

/* A call in which a thread sleeps until it is cancelled or jumps out. */
struct sleeper {
    pthread_t thread;
    struct slot *slot;
    int how, set, pipe[2];
    /* In call 2, a set of the thread itself, with this connection. */
    struct pair own;
    volatile long tid;
};

static void *sleep_in(void *argument) {
    struct sleeper *sleeper = argument;
    int fd = sleeper->slot->pair.app;
    char byte;
    struct epoll_event events[2];
    if (sleeper->how == 2) {
        sleeper->own = connected();
        sleeper->set = new_set();
        add(sleeper->set, sleeper->own.app, EPOLLIN, 1);
    }
    sleeper->tid = syscall(SYS_gettid);
    for (;;)
        switch (sleeper->how) {
        case 0 ... 2:
            epoll_wait(sleeper->set, events, 2, -1);
            break;
        case 3:
            poll(&(struct pollfd){fd, POLLPRI, 0}, 1, -1);
            break;
        case 4:
            splice(fd, NULL, sleeper->pipe[1], NULL, 100, 0);
            break;
        case 5:
            recv(fd, &byte, 1, MSG_WAITALL);
            break;
        case 6:
            recvmmsg(fd, &(struct mmsghdr){.msg_hdr.msg_iov = &(struct iovec){&byte, 1}, .msg_hdr.msg_iovlen = 1}, 1, 0,
                NULL);
            break;
        default:
            pause();
        }
    return NULL;
}

/* Chooses a call that sleeps: one that reads does only if nothing can be read, except into a full pipe. */
static struct sleeper any_sleeper(struct slot *slot) {
    struct sleeper sleeper = {.slot = slot, .how = (int)below(8), .set = sets[below(SETS)]};
    MUST(pipe2(sleeper.pipe, O_CLOEXEC));
    if (sleeper.how >= 4 && sleeper.how < 7 && (!slot->blocking || unread(slot) > 0))
        sleeper.how = slot->blocking ? 4 : 7;
    if (sleeper.how == 4 && unread(slot) > 0) {
        MUST(fcntl(sleeper.pipe[1], F_SETPIPE_SZ, 4096));
        MUST(syscall(SYS_write, sleeper.pipe[1], bytes, 4096));
    }
    return sleeper;
}

static void end_sleeper(struct sleeper *sleeper) {
    MUST(close(sleeper->pipe[0]) | close(sleeper->pipe[1]));
    if (sleeper->how != 2 || !sleeper->tid)
        return;
    MUST(close(sleeper->own.app) | close(sleeper->set));
    peer_close(&sleeper->own);
}

static void cancel_a_thread(struct slot *slot) {
    struct sleeper sleeper = any_sleeper(slot);
    void *result = NULL;
    report();
    MUST(-pthread_create(&sleeper.thread, NULL, sleep_in, &sleeper));
    while (!sleeper.tid)
        sched_yield();
    if (one_in(2))
        await_sleep(sleeper.tid, 50);
    MUST(-pthread_cancel(sleeper.thread));
    pthread_join(sleeper.thread, &result);
    print("%d cancelled in call %d: %d\n", number(slot), sleeper.how, result == PTHREAD_CANCELED);
    end_sleeper(&sleeper);
}

static sigjmp_buf out;
static void jump_out(int signal_number) { siglongjmp(out, signal_number); }

/* The kernel serves all calls from the first one on. A jump must not leave a read of bytes that were received before. */
static void jump_out_of_a_call(struct slot *slot) {
    static bool has_jumped;
    if (!has_jumped && any_unread())
        return;
    has_jumped = true;
    struct sleeper sleeper = any_sleeper(slot);
    struct itimerspec soon = {.it_value.tv_nsec = (long)below(1500000) + 1000};
    timer_t timer;
    report();
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
    if (sigsetjmp(out, 1) == 0) {
        MUST(timer_settime(timer, 0, &soon, NULL));
        sleep_in(&sleeper);
    }
    MUST(timer_delete(timer));
    print("%d jumped out of call %d\n", number(slot), sleeper.how);
    end_sleeper(&sleeper);
}

/* ---- pipes ---- */

/* Moves unread bytes through pipes into memory, and checks them. */
static void splice_in(struct slot *slot) {
    static unsigned char moved[BYTES_MAX];
    int one[2], two[2], fd = any_number(slot), by_sendfile = one_in(4), by_tee = one_in(3), full = one_in(2);
    size_t most = unread(slot), done = 0;
    report_first();
    MUST(pipe2(one, O_CLOEXEC | (one_in(2) ? O_NONBLOCK : 0)));
    MUST(pipe2(two, O_CLOEXEC));
    if (one_in(2))
        MUST(fcntl(one[1], F_SETPIPE_SZ, 4096));
    if (full && most > 0) {
        while (direct_poll(&(struct pollfd){one[1], POLLOUT, 0}, 0) == 1)
            MUST(syscall(SYS_write, one[1], moved, 4096));
        print("%d splice into a full pipe: %s\n", number(slot),
            outcome(splice(fd, NULL, one[1], NULL, most, SPLICE_F_NONBLOCK)));
        int left;
        for (MUST(ioctl(one[0], FIONREAD, &left)); left > 0; left -= 4096)
            MUST(syscall(SYS_read, one[0], moved, 4096));
    }
    uint64_t saved = random_state;
    for (int tries = 0; done < most && tries < 100; tries++) {
        /* A pipe that has all its room takes at least a byte, so a call may wait. */
        unsigned flags = one_in(2) ? SPLICE_F_NONBLOCK : 0;
        long in = by_sendfile ? sendfile(one[1], fd, NULL, most - done)
                              : splice(fd, NULL, one[1], NULL, most - done, flags | SPLICE_F_MOVE);
        if (in < 0 && errno == EAGAIN)
            pause_ms(1);
        else if (in <= 0)
            break;
        for (long left = in, out; left > 0; left -= out) {
            int from = one[0];
            if (by_tee) {
                out = MUST(tee(one[0], two[1], (size_t)left, SPLICE_F_NONBLOCK));
                MUST(read(one[0], moved + done, (size_t)out));
                from = two[0];
            } else
                out = left;
            out = MUST(read(from, moved + done, (size_t)out));
            done += (size_t)out;
        }
    }
    random_state = saved;
    print("%d spliced %zu of %zu, wrong at %ld\n", number(slot), done, most, differs(moved, done, slot->app_got));
    slot->app_got += done;
    MUST(close(one[0]) | close(one[1]) | close(two[0]) | close(two[1]));
}

/* Writes through a pipe or from a file. */
static void splice_out(struct slot *slot) {
    int two[2], fd = any_number(slot), file = (int)MUST(memfd_create("file", MFD_CLOEXEC)), tries = 0;
    size_t length = below(2000) + 1, done = 0;
    bool by_sendfile = one_in(3);
    if (slot->app_sent - slot->peer_got + length <= BYTES_MAX) {
        MUST(pipe2(two, O_CLOEXEC));
        fill(bytes, length, slot->app_sent);
        MUST(write(file, bytes, length));
        MUST(lseek(file, 0, SEEK_SET));
        if (!by_sendfile && one_in(2))
            MUST(vmsplice(two[1], &(struct iovec){bytes, length}, 1, 0));
        else if (!by_sendfile)
            MUST(write(two[1], bytes, length));
        while (done < length && tries++ < 1000) {
            long result = by_sendfile ? sendfile(fd, file, NULL, length - done)
                                      : splice(two[0], NULL, fd, NULL, length - done, SPLICE_F_NONBLOCK);
            done += result > 0 ? (size_t)result : 0;
        }
        print("%d %s %zu of %zu\n", number(slot), by_sendfile ? "sent a file," : "spliced out", done, length);
        slot->app_sent += length;
        peer_reads(slot);
        MUST(close(two[0]) | close(two[1]));
    }
    MUST(close(file));
}

/* ---- descriptors ---- */

static bool any_edge(void) {
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].open && slots[i].edge)
            return true;
    return false;
}

static bool is_taken(int fd) {
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].open && (slots[i].pair.app == fd || slots[i].twin == fd))
            return true;
    return false;
}

static void duplicate(struct slot *slot) {
    int fd = slot->pair.app, how = (int)below(5);
    /* Bytes that the library has received do not come with a descriptor that is passed on. */
    if (slot->twin >= 0 || (how == 4 && unread(slot) > 0))
        return;
    /* A connection may still have the number that these calls choose. */
    if ((how == 1 || how == 2) && is_taken(300 + number(slot)))
        return;
    slot->passed = how == 4;
    slot->twin = (int)MUST(how == 0   ? dup(fd)
                           : how == 1 ? dup2(fd, 300 + number(slot))
                           : how == 2 ? dup3(fd, 300 + number(slot), O_CLOEXEC)
                           : how == 3 ? fcntl(fd, F_DUPFD_CLOEXEC, 200)
                                      : passed_to_itself(fd));
    print("%d duplicated in way %d\n", number(slot), how);
}

/* Closes one of the two numbers of a connection. A member whose number is closed is still reported. */
static void close_one(struct slot *slot) {
    if (slot->twin < 0)
        return;
    int fd = slot->passed ? slot->twin : any_number(slot);
    int other = fd == slot->twin ? slot->pair.app : slot->twin;
    if (one_in(3))
        MUST(close_range((unsigned)fd, (unsigned)fd, 0));
    else
        MUST(close(fd));
    print("%d closed its %s number\n", number(slot), fd == slot->twin ? "second" : "first");
    slot->pair.app = other;
    slot->twin = -1;
    slot->passed = false;
}

static void peer_sees_the_end(struct slot *slot) {
    peer_reads(slot);
    long result = syscall(SYS_read, slot->pair.peer, bytes, 1);
    print("%d its peer saw %s\n", number(slot), result == 0 ? "the end" : result > 0 ? "a byte" : strerrorname_np(errno));
    peer_close(&slot->pair);
    slot->open = false;
}

/* Closes a connection, or puts another one at its number. Unread bytes are read before, as they make a reset. */
static void close_slot(struct slot *slot, struct slot *other) {
    read_all(slot);
    if (slot->twin >= 0)
        MUST(close(slot->twin));
    if (other != slot && other->twin < 0) {
        print("%d is replaced by %d\n", number(slot), number(other));
        other->twin = (int)MUST(dup2(other->pair.app, slot->pair.app));
    } else {
        MUST(close(slot->pair.app));
        print("%d closed\n", number(slot));
    }
    peer_sees_the_end(slot);
}

static void open_slot(void) {
    int i = 0, port;
    while (i < SLOTS && slots[i].open)
        i++;
    if (i == SLOTS)
        return;
    int listener = listen_on(0, &port);
    slots[i] = (struct slot){.open = true, .twin = -1, .pair = pair_on(listener, port, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    MUST(close(listener));
    print("%d opened\n", i);
    uint32_t mask = any_mask(&slots[i]);
    add(sets[0], slots[i].pair.app, mask, (uint64_t)i);
    print("%d member, 0x%x\n", i, mask);
}

static void toggle_blocking(struct slot *slot) {
    slot->blocking = !slot->blocking;
    int value = slot->blocking, fd = any_number(slot);
    if (one_in(2))
        MUST(fcntl(fd, F_SETFL, O_RDWR | (slot->blocking ? 0 : O_NONBLOCK)));
    else
        MUST(ioctl(fd, FIONBIO, &(int){!value}));
    print("%d %s\n", number(slot), slot->blocking ? "blocking" : "not blocking");
}

/* Urgent bytes are sent only once the program has asked for some: until then, they are a documented difference. */
static void use_urgent_bytes(struct slot *slot) {
    char byte;
    if (!slot->urgent)
        print("%d urgent: %s\n", number(slot), outcome(recv(any_number(slot), &byte, 1, MSG_OOB)));
    slot->urgent = true;
}

/* ---- sets ---- */

static void use_a_brief_set(struct slot *slot) {
    int set = fresh_set(), waits = (int)below(6);
    print("%d brief set\n", number(slot));
    add(set, slot->pair.app, EPOLLIN | (one_in(2) ? EPOLLOUT : 0), 1);
    /* Bytes that the library has received are not reported by a set around the set that would report them. */
    bool is_outer = one_in(3) && !any_unread();
    if (is_outer)
        add(set, sets[1], EPOLLIN, 2);
    for (int i = 0; i < waits; i++)
        print_now(set);
    if (one_in(2) && !is_outer) {
        peer_writes(slot);
        print_now(set);
        read_some(slot);
    }
    if (one_in(2))
        print("%d leaves: %s\n", number(slot), outcome(epoll_ctl(set, EPOLL_CTL_DEL, slot->pair.app, NULL)));
    MUST(close(set));
}

/* Looks at a set by another number, or replaces the second set. */
static void use_a_set_oddly(void) {
    int which = (int)below(SETS), other;
    struct pollfd query = {sets[which], POLLIN, 0};
    bool is_passed;
    switch (below(4)) {
    case 0:
        report();
        /* The library does not know the new number: it does not report received bytes there, nor learn of members. */
        is_passed = !any_unread() && one_in(2);
        other = is_passed ? passed_to_itself(sets[which]) : (int)MUST(dup(sets[which]));
        print("set %d by another number\n", which);
        report_of(other, 10 * which);
        if (is_passed || one_in(2))
            MUST(close(other));
        else {
            MUST(close(sets[which]));
            sets[which] = other;
        }
        break;
    case 1:
        MUST(close(sets[1]));
        sets[1] = fresh_set();
        print("another second set\n");
        break;
    case 2:
        if (one_in(2))
            poll(&query, 1, 0);
        else
            ppoll(&query, 1, &(struct timespec){0}, NULL);
        if (!any_edge())
            print("set %d polled: %d\n", which, query.revents != 0);
        break;
    default:
        for (int i = 0; i < SLOTS; i++) {
            struct pollfd member = {slots[i].pair.app, POLLIN, 0};
            if (slots[i].open && one_in(2)) {
                poll(&member, 1, 0);
                print("%d polled: %d\n", i, member.revents);
            }
        }
    }
}

/* ---- threads and children ---- */

static void transfer(struct slot *slot) {
    switch (below(5)) {
    case 0:
        write_some(slot);
        peer_reads(slot);
        break;
    case 1:
        peer_writes(slot);
        read_some(slot);
        break;
    case 2:
        splice_out(slot);
        break;
    case 3:
        peer_writes(slot);
        splice_in(slot);
        break;
    default:
        use_a_brief_set(slot);
    }
}

static void *transfer_in_a_thread(void *slot) {
    transfer(slot);
    return NULL;
}

/* Puts other files at the numbers of the program, in a table of its own. */
static void *use_own_descriptors(void *argument) {
    struct slot *slot = argument;
    int two[2];
    char text[8] = "";
    if (one_in(2))
        MUST(unshare(CLONE_FILES));
    else
        MUST(close_range(3000, 4000, 2 /* CLOSE_RANGE_UNSHARE */));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
    MUST(dup2(two[0], slot->pair.app));
    MUST(write(slot->pair.app, "own", 3));
    MUST(read(two[1], text, sizeof text));
    if (one_in(2))
        MUST(close(slot->pair.app));
    if (one_in(2))
        MUST(close(sets[0]));
    if (one_in(2))
        close_range(3, ~0U, 0);
    print("%d its number in another thread: %s\n", number(slot), text);
    return NULL;
}

static void use_a_thread(struct slot *slot, void *(*run)(void *)) {
    pthread_t thread;
    MUST(-pthread_create(&thread, NULL, run, slot));
    pthread_join(thread, NULL);
    print("%d used by a thread\n", number(slot));
}

static void start_a_child(struct slot *slot) {
    char *words[] = {"true", NULL};
    int status = -1;
    pid_t child;
    switch (below(4)) {
    case 0:
        print("system: %d\n", system("true"));
        return;
    case 1:
        MUST(-posix_spawnp(&child, words[0], NULL, NULL, words, environ));
        break;
    default:
        /* Bytes that the library has received stay in their process: the child reads only later ones, and all of them. */
        if (unread(slot) > 0)
            return;
        uint64_t end = below(4), transfers = below(3);
        child = (pid_t)MUST(fork());
        if (child == 0) {
            is_child = true;
            while (transfers-- > 0) {
                transfer(slot);
                read_all(slot);
            }
            if (end == 0)
                exit(3);
            if (end == 1)
                execvp(words[0], words);
            if (end == 2)
                raise(SIGKILL);
            _exit(4);
        }
        /* The child's random numbers are not the parent's. */
        below(2);
    }
    MUST(waitpid(child, &status, 0));
    print("%d a child ended with %d\n", number(slot), status);
}

static void act(void) {
    struct slot *slot = any_open();
    if (!slot || one_in(8)) {
        open_slot();
        return;
    }
    switch (below(32)) {
    case 0 ... 4:
        peer_writes(slot);
        break;
    case 5 ... 7:
        read_some(slot);
        break;
    case 8 ... 10:
        write_some(slot);
        break;
    case 11 ... 12:
        peer_reads(slot);
        break;
    case 13:
        change_member(slot);
        break;
    case 14 ... 15:
        toggle_blocking(slot);
        break;
    case 16:
        wait_for_all(slot);
        break;
    case 17:
        cancel_a_thread(slot);
        break;
    case 18:
        /* The kernel serves all that follows, so few sequences have it. */
        if (seed / 2 % 4 == 0)
            jump_out_of_a_call(slot);
        break;
    case 19 ... 20:
        splice_in(slot);
        break;
    case 21:
        splice_out(slot);
        break;
    case 22:
        duplicate(slot);
        break;
    case 23:
        close_one(slot);
        break;
    case 24:
        close_slot(slot, one_in(2) ? any_open() : slot);
        break;
    case 25:
        use_urgent_bytes(slot);
        break;
    case 26 ... 27:
        use_a_brief_set(slot);
        break;
    case 28:
        use_a_set_oddly();
        break;
    case 29:
        use_a_thread(slot, transfer_in_a_thread);
        break;
    case 30:
        if (seed / 2 % 4 == 1)
            use_a_thread(slot, use_own_descriptors);
        break;
    default:
        start_a_child(slot);
    }
}

static void hang(int signal_number) {
    print("HANGS\n");
    syscall(SYS_exit_group, 99);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s FIRST_SEED SEEDS ROUNDS\n", argv[0]);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    MUST(sigaction(SIGALRM, &(struct sigaction){.sa_handler = hang}, NULL));
    MUST(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = jump_out}, NULL));
    slots = mmap(NULL, SLOTS * sizeof *slots, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
    for (seed = first; seed < first + count; seed++) {
        random_state = seed * 0x9e3779b97f4a7c15u + 0x1234567;
        for (int i = 0; i < 8; i++)
            next_random(&random_state);
        print("seed %llu\n", (unsigned long long)seed);
        memset(slots, 0, SLOTS * sizeof *slots);
        sets[0] = new_set();
        sets[1] = one_in(2) ? new_set() : fresh_set();
        open_slot();
        for (int round = 0; round < atoi(argv[3]); round++) {
            alarm(STEP_S);
            act();
            if (one_in(2))
                report();
        }
        report();
        for (int i = 0; i < SLOTS; i++)
            if (slots[i].open)
                close_slot(&slots[i], &slots[i]);
        MUST(close(sets[0]) | close(sets[1]));
    }
    print("done\n");
    return 0;
}
