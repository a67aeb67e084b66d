/* Writes that were accepted while the peer's receive buffer was full, in a program that then does not wait on its set.
 * The rule: the output arrives, as it would from the kernel's own send buffer. */
#include "app.h"
#include <sys/mman.h>
#include <sys/sendfile.h>

static struct pair joined_narrow(int set, uint32_t mask) {
    struct pair pair = connected_narrow();
    add(set, pair.app, mask, 1);
    poll_once(set);
    return pair;
}

/* Waits until the peer has acknowledged all bytes that it got: an acknowledgement on its way would make room later. */
static void await_acknowledged(int fd) {
    struct tcp_info info = {.tcpi_unacked = 1};
    for (int looks = 0; looks < 10000 && info.tcpi_unacked > 0 && info.tcpi_retransmits == 0; looks++) {
        socklen_t bytes = sizeof info;
        MUST(syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &bytes));
        pause_ms(1);
    }
}

/* Writes small pieces until one is refused and nothing makes room for it but the peer, in rounds of the set. Returns the
 * number of accepted bytes. */
static uint64_t write_all_it_takes(int set, struct pair *pair) {
    unsigned char bytes[3000];
    uint64_t position = 0;
    for (int refused = 0; refused < 2;) {
        fill(bytes, sizeof bytes, position);
        long done = write(pair->app, bytes, sizeof bytes);
        if (done > 0) {
            position += (uint64_t)done;
            refused = 0;
            continue;
        }
        refused++;
        poll_once(set);
        await_acknowledged(pair->app);
    }
    return position;
}

/* The peer: reads the given number of bytes, then responds with one byte, or prints how many are missing. If the
 * program has closed the connection, it only reads: a response would be reset, and the reset may arrive before the
 * end. */
struct judge {
    pthread_t thread;
    int peer;
    bool only_reads;
    uint64_t count, got;
};

static void *judge_run(void *argument) {
    struct judge *judge = argument;
    static __thread unsigned char bytes[65536];
    struct timeval limit = {20, 0};
    syscall(SYS_setsockopt, judge->peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while (judge->got < judge->count) {
        size_t remaining = judge->count - judge->got;
        long done = syscall(SYS_read, judge->peer, bytes, remaining < sizeof bytes ? remaining : sizeof bytes);
        if (done <= 0 || differs(bytes, (size_t)done, judge->got) >= 0)
            return NULL;
        judge->got += (uint64_t)done;
    }
    if (!judge->only_reads)
        syscall(SYS_write, judge->peer, "k", 1);
    return NULL;
}

static void judge_spawn(struct judge *judge, struct judge what) {
    *judge = what;
    MUST(-pthread_create(&judge->thread, NULL, judge_run, judge));
}

static void judge_start(struct judge *judge, struct pair *pair, uint64_t count) {
    judge_spawn(judge, (struct judge){.peer = pair->peer, .count = count});
}

static void judge_start_reading(struct judge *judge, struct pair *pair, uint64_t count) {
    judge_spawn(judge, (struct judge){.peer = pair->peer, .count = count, .only_reads = true});
}

static void judge_print(struct judge *judge) {
    pthread_join(judge->thread, NULL);
    print("the peer got %s\n", judge->got == judge->count ? "all" : "less");
}

static void wait_by_poll(struct pair *pair, int set) {
    struct pollfd requested = {pair->app, POLLIN, 0};
    GOT(poll(&requested, 1, 20000));
}
static void wait_by_poll_of_another(struct pair *pair, int set) {
    int two[2];
    MUST(pipe(two));
    struct pollfd requested = {two[0], POLLIN, 0};
    for (int i = 0; i < 200 && tcp_state(pair->app).tcpi_bytes_received < 4; i++)
        poll(&requested, 1, 100);
}
static void wait_by_select(struct pair *pair, int set) {
    fd_set requested;
    struct timeval limit = {20, 0};
    FD_ZERO(&requested);
    FD_SET(pair->app, &requested);
    GOT(select(pair->app + 1, &requested, NULL, NULL, &limit));
}
static void wait_by_reading(struct pair *pair, int set) {
    char byte;
    struct timeval limit = {20, 0};
    MUST(fcntl(pair->app, F_SETFL, 0));
    MUST(setsockopt(pair->app, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    GOT(read(pair->app, &byte, 1));
}
static void wait_by_asking(struct pair *pair, int set) {
    char byte;
    for (int i = 0; i < 20000 && recv(pair->app, &byte, 1, 0) != 1; i++)
        pause_ms(1);
}
static void wait_on_another_set(struct pair *pair, int set) {
    int other = new_set(), second = (int)MUST(dup(pair->app));
    add(other, second, EPOLLIN, 3);
    print_next(other);
}
static void wait_on_another_connection(struct pair *pair, int set) {
    int other = new_set();
    struct pair idle = connected();
    add(other, idle.app, EPOLLIN, 3);
    for (int i = 0; i < 200 && tcp_state(pair->app).tcpi_bytes_received < 4; i++)
        epoll_wait(other, &(struct epoll_event){0}, 1, 100);
}
static void wait_by_join(struct pair *pair, int set) {}
static void wait_after_shutdown(struct pair *pair, int set) {
    GOT(shutdown(pair->app, SHUT_WR));
}
static void wait_after_close(struct pair *pair, int set) {
    GOT(close(pair->app));
}
static void wait_after_close_and_a_round(struct pair *pair, int set) {
    GOT(close(pair->app));
    poll_once(set);
}
static void wait_after_the_set_is_closed(struct pair *pair, int set) {
    GOT(close(set));
}
static void wait_out_of_the_set(struct pair *pair, int set) {
    del(set, pair->app);
    poll_once(set);
}
static void write_and_block(struct pair *pair, int set) {
    MUST(fcntl(pair->app, F_SETFL, 0));
    GOT(write(pair->app, "", 1));
}
static void send_a_file_and_block(struct pair *pair, int set) {
    int file = (int)MUST(memfd_create("file", MFD_CLOEXEC));
    MUST(write(file, "", 1));
    MUST(fcntl(pair->app, F_SETFL, 0));
    GOT(sendfile(pair->app, file, &(off_t){0}, 1));
    MUST(close(file));
}
static void splice_and_block(struct pair *pair, int set) {
    int two[2];
    MUST(pipe2(two, O_CLOEXEC));
    MUST(write(two[1], "", 1));
    MUST(fcntl(pair->app, F_SETFL, 0));
    GOT(splice(two[0], NULL, pair->app, NULL, 1, 0));
    MUST(close(two[0]) | close(two[1]));
}
static void send_to_an_address_and_block(struct pair *pair, int set) {
    struct sockaddr_in address = loopback(1);
    MUST(fcntl(pair->app, F_SETFL, 0));
    GOT(sendto(pair->app, "", 1, 0, (struct sockaddr *)&address, sizeof address));
}
static void print_and_block(struct pair *pair, int set) {
    MUST(fcntl(pair->app, F_SETFL, 0));
    GOT(dprintf(pair->app, "%c", 0));
}

static void print_arrives(void (*wait)(struct pair *, int set)) {
    static const uint32_t masks[] = {EPOLLIN, EPOLLIN | EPOLLOUT | EPOLLET, EPOLLONESHOT};
    bool closes = wait == wait_after_close || wait == wait_after_close_and_a_round;
    for (int i = 0; i < 3; i++) {
        int set = new_set();
        struct pair pair = joined_narrow(set, masks[i]);
        uint64_t count = write_all_it_takes(set, &pair);
        struct judge judge;
        peer_send(&pair, "get");
        if (i != 2 && !closes) {
            char bytes[3];
            for (long got = 0; got < 3;) {
                long done = read(pair.app, bytes, sizeof bytes);
                got += done > 0 ? done : 0;
            }
        } else {
            /* The program does not read, and no data may arrive: both would end in a reset. */
            char bytes[3];
            await_delivery(&pair);
            MUST(recv(pair.app, bytes, sizeof bytes, MSG_WAITALL));
        }
        (closes ? judge_start_reading : judge_start)(&judge, &pair, count);
        wait(&pair, set);
        judge_print(&judge);
        /* The end arrives as soon as the deferred output has been sent. */
        if (!closes)
            GOT(close(pair.app));
        if (wait != wait_on_another_set)
            peer_gets_the_end(&pair);
        MUST(syscall(SYS_close, pair.peer));
    }
}

static void deferred_output_is_sent_during_a_poll(void) { print_arrives(wait_by_poll); }
static void deferred_output_is_sent_during_a_poll_of_another_file(void) { print_arrives(wait_by_poll_of_another); }
static void deferred_output_is_sent_during_a_select(void) { print_arrives(wait_by_select); }
static void deferred_output_is_sent_during_a_blocking_read(void) { print_arrives(wait_by_reading); }
static void deferred_output_is_sent_while_the_program_polls_without_waiting(void) { print_arrives(wait_by_asking); }
static void deferred_output_is_sent_during_a_wait_on_another_set(void) {
    print_arrives(wait_on_another_set);
    print_arrives(wait_on_another_connection);
}
static void deferred_output_is_sent_during_a_join(void) { print_arrives(wait_by_join); }
static void deferred_output_is_sent_after_a_shutdown(void) { print_arrives(wait_after_shutdown); }
static void deferred_output_is_sent_after_a_close(void) {
    print_arrives(wait_after_close);
    print_arrives(wait_after_close_and_a_round);
}
static void deferred_output_is_sent_after_removal_from_its_set(void) {
    print_arrives(wait_after_the_set_is_closed);
    print_arrives(wait_out_of_the_set);
}
static void a_blocking_write_comes_after_deferred_output(void) { print_arrives(write_and_block); }
static void every_blocking_call_waits_for_deferred_output(void) {
    print_arrives(send_a_file_and_block);
    print_arrives(splice_and_block);
    print_arrives(send_to_an_address_and_block);
    print_arrives(print_and_block);
}

/* The library holds received bytes of the member, so it reports them after the removal, and with them what the kernel
 * has by then. */
static void a_removed_member_whose_socket_was_full_is_reported_as_writable(void) {
    static const uint32_t ways[] = {EPOLLONESHOT, EPOLLONESHOT | EPOLLET, EPOLLET, 0};
    static unsigned char bytes[1 << 20];
    for (int i = 0; i < 4; i++) {
        int set = new_set();
        struct pair pair = joined_narrow(set, EPOLLIN);
        peer_send(&pair, "get");
        await_delivery(&pair);
        print_next(set);
        fill(bytes, sizeof bytes, 0);
        uint64_t count = (uint64_t)MUST(write(pair.app, bytes, sizeof bytes));
        GOT(control(set, EPOLL_CTL_DEL, pair.app, 0, 0));
        poll_once(set);
        struct judge judge;
        judge_start_reading(&judge, &pair, count);
        judge_print(&judge);
        await_acknowledged(pair.app);
        add(set, pair.app, EPOLLIN | EPOLLOUT | ways[i], 1);
        print_now(set);
        print_read(pair.app, 9);
        MUST(close(pair.app) | close(set));
        MUST(syscall(SYS_close, pair.peer));
    }
}

/* ---- a blocking write that waits behind deferred output ---- */

static _Atomic bool returned;
static volatile sig_atomic_t handled;
static void count_handled(int number) { handled++; }

static void await_main_thread(void) {
    for (int looks = 0; looks < 20 && !returned; looks = main_thread_sleeps() ? looks + 1 : 0)
        pause_ms(1);
}

/* What another thread does while the main thread waits in a write, before it reads all. */
struct meanwhile {
    struct pair pair;
    /* Removes the time limit for later calls. */
    bool removes_limit;
    /* The number of bytes that it reads at first. */
    uint64_t reads;
    /* Sends a signal, and waits for the handler. */
    bool signals;
    /* Resets the connection. */
    bool resets;
    uint64_t read;
    long wrong_at;
};

static void read_up_to(struct meanwhile *what, uint64_t count) {
    static unsigned char bytes[65536];
    for (long done = 1; what->read < count && done > 0; what->read += done > 0 ? (uint64_t)done : 0) {
        uint64_t left = count - what->read;
        done = syscall(SYS_read, what->pair.peer, bytes, left < sizeof bytes ? left : sizeof bytes);
        if (done > 0 && what->wrong_at < 0)
            what->wrong_at = differs(bytes, (size_t)done, what->read);
    }
}

static void *act_meanwhile(void *argument) {
    struct meanwhile *what = argument;
    await_main_thread();
    /* On a busy machine the write may have ended, and its connection. */
    if (what->removes_limit)
        syscall(SYS_setsockopt, what->pair.app, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){0}, sizeof(struct timeval));
    read_up_to(what, what->reads);
    if (what->signals) {
        syscall(SYS_tgkill, getpid(), getpid(), SIGUSR1);
        while (!handled)
            pause_ms(1);
        await_main_thread();
    }
    if (what->resets) {
        peer_reset(&what->pair);
        return NULL;
    }
    for (int looks = 0; what->removes_limit && looks < 10000 && !returned; looks++)
        pause_ms(1);
    read_up_to(what, UINT64_MAX);
    return NULL;
}

/* Fills the connection, makes it blocking, and writes more. */
static void print_blocking_write(struct meanwhile what, long limit_us, bool reads_all_deferred) {
    static unsigned char bytes[1 << 20];
    int set = new_set();
    struct pair pair = joined_narrow(set, EPOLLIN);
    uint64_t count = write_all_it_takes(set, &pair);
    pthread_t thread;
    what.pair = pair;
    what.wrong_at = -1;
    what.reads = reads_all_deferred ? count : 0;
    returned = false;
    handled = 0;
    fill(bytes, sizeof bytes, count);
    MUST(fcntl(pair.app, F_SETFL, 0));
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){limit_us / 1000000, limit_us % 1000000}, sizeof(struct timeval)));
    MUST(-pthread_create(&thread, NULL, act_meanwhile, &what));
    long result = write(pair.app, bytes, sizeof bytes);
    int error = errno;
    returned = true;
    print("wrote %s\n", result == sizeof bytes ? "all" : result > 0 ? "some" : strerrorname_np(error));
    if (what.resets)
        GOT(write(pair.app, "more", 4));
    MUST(close(pair.app));
    pthread_join(thread, NULL);
    if (what.resets)
        return;
    uint64_t written = count + (result > 0 ? (uint64_t)result : 0);
    print("the peer got %s, wrong at %ld\n", what.read == written ? "all" : "less", what.wrong_at);
    MUST(close(set));
}

static void a_time_limit_ends_a_write_behind_deferred_output(void) {
    print_blocking_write((struct meanwhile){.removes_limit = true}, 300000, false);
    print_blocking_write((struct meanwhile){0}, 20000000, true);
}

static void a_reset_ends_a_blocking_write_behind_deferred_output(void) {
    MUST(sigaction(SIGPIPE, &(struct sigaction){.sa_handler = count_handled}, NULL));
    for (int limited = 0; limited < 2; limited++) {
        print_blocking_write((struct meanwhile){.resets = true}, limited * 20000000, false);
        print("broken pipes: %d\n", handled);
    }
}

static void a_signal_ends_a_blocking_write_behind_deferred_output_or_does_not(void) {
    for (int restarts = 0; restarts < 2; restarts++) {
        struct sigaction action = {.sa_handler = count_handled, .sa_flags = restarts ? SA_RESTART : 0};
        MUST(sigaction(SIGUSR1, &action, NULL));
        print_blocking_write((struct meanwhile){.signals = true}, 0, false);
        print_blocking_write((struct meanwhile){.signals = true}, 20000000, false);
    }
}

/* The thread that waited on the set has ended, and no other waits on it. */
struct owned {
    struct pair pair;
    uint64_t count;
    int set;
};

static void *own_and_end(void *argument) {
    struct owned *owned = argument;
    owned->set = new_set();
    owned->pair = joined_narrow(owned->set, EPOLLIN);
    owned->count = write_all_it_takes(owned->set, &owned->pair);
    return NULL;
}

static void deferred_output_is_sent_when_the_thread_of_its_set_has_ended(void) {
    struct owned owned;
    pthread_t thread;
    struct judge judge;
    MUST(-pthread_create(&thread, NULL, own_and_end, &owned));
    pthread_join(thread, NULL);
    pause_ms(1500);
    judge_start(&judge, &owned.pair, owned.count);
    judge_print(&judge);
}

static void end_by_exit(void) { exit(3); }
static void end_at_once(void) { _exit(4); }
static void end_by_exec(void) { execl("/bin/sh", "sh", "-c", "exit 6", (char *)NULL); }
static void end_of_the_first_thread(void) { pthread_exit(NULL); }

/* The program ends while its connection is open, after printing how much it has written. */
static void deferred_output_is_sent_before_the_program_ends(void) {
    static void (*const ends[])(void) = {end_by_exit, end_at_once, end_by_exec, end_of_the_first_thread};
    for (int i = 0; i < 8; i++) {
        int port, listener = listen_on(0, &port), bytes = 4096, report[2], status;
        struct sockaddr_in address = loopback(port);
        struct pair pair = {.peer = (int)MUST(syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
        MUST(syscall(SYS_setsockopt, pair.peer, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
        MUST(syscall(SYS_connect, pair.peer, &address, sizeof address));
        uint64_t count = 0;
        MUST(pipe(report));
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            syscall(SYS_close, pair.peer);
            int set = new_set();
            pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
            MUST(setsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
            add(set, pair.app, EPOLLIN, 1);
            poll_once(set);
            count = write_all_it_takes(set, &pair);
            if (i / 4)
                MUST(shutdown(pair.app, SHUT_WR));
            MUST(syscall(SYS_write, report[1], &count, sizeof count));
            ends[i % 4]();
        }
        MUST(close(listener));
        MUST(syscall(SYS_read, report[0], &count, sizeof count));
        struct reader reader;
        reader_start(&reader, pair.peer, 0);
        MUST(waitpid(child, &status, 0));
        pthread_join(reader.thread, NULL);
        print("the peer got %s, %s\n", reader.count == count ? "all" : "less",
            reader.error ? strerrorname_np(reader.error) : "then the end");
    }
}

/* The peer reads repeatedly in small pieces while the program waits in different calls. */
static void deferred_output_of_many_is_sent_whichever_thread_waits(void) {
    enum { MANY = 24 };
    static struct reader readers[MANY];
    struct pair pairs[MANY];
    uint64_t places[MANY] = {0}, random = 5;
    unsigned char bytes[3000];
    int set = new_set(), right = 0;
    for (int i = 0; i < MANY; i++) {
        pairs[i] = joined_narrow(set, EPOLLIN | (i % 2 ? EPOLLOUT | EPOLLET : 0));
        reader_start(&readers[i], pairs[i].peer, 200);
    }
    for (int round = 0; round < 150; round++) {
        for (int i = 0; i < MANY; i++) {
            size_t length = next_random(&random) % sizeof bytes + 1;
            fill(bytes, length, places[i]);
            long done = write(pairs[i].app, bytes, length);
            places[i] += done > 0 ? (uint64_t)done : 0;
        }
        if (round % 3 == 0)
            pause_ms((long)(next_random(&random) % 6));
        else if (round % 3 == 1)
            epoll_wait(set, &(struct epoll_event){0}, 1, 1);
    }
    for (int i = 0; i < MANY; i++)
        MUST(i % 3 ? close(pairs[i].app) : shutdown(pairs[i].app, SHUT_WR));
    for (int i = 0; i < MANY; i++) {
        pthread_join(readers[i].thread, NULL);
        right += readers[i].count == places[i] && readers[i].wrong_at < 0 && !readers[i].error;
    }
    print("right: %d\n", right);
}

/* All in one round: responses and ends in quick succession. */
static void many_closed_with_deferred_output_in_one_round_get_all_bytes(void) {
    enum { MANY = 100 };
    static struct reader readers[MANY];
    struct pair pairs[MANY];
    uint64_t counts[MANY];
    unsigned char bytes[3000];
    int right = 0;
    for (int round = 0; round < 3; round++) {
        int set = new_set();
        for (int i = 0; i < MANY; i++)
            pairs[i] = joined_narrow(set, EPOLLIN);
        for (int i = 0; i < MANY; i++) {
            counts[i] = 0;
            for (int k = 0; k < 10; k++) {
                fill(bytes, sizeof bytes, counts[i]);
                long done = write(pairs[i].app, bytes, sizeof bytes);
                counts[i] += done > 0 ? (uint64_t)done : 0;
            }
            MUST(close(pairs[i].app));
        }
        poll_once(set);
        for (int i = 0; i < MANY; i++)
            reader_start(&readers[i], pairs[i].peer, 0);
        for (int i = 0; i < MANY; i++) {
            join_polling(&readers[i], set);
            right += readers[i].count == counts[i] && readers[i].wrong_at < 0 && !readers[i].error;
            peer_close(&pairs[i]);
        }
        MUST(close(set));
    }
    print("right: %d\n", right);
}

/* A lingering close, with more output than fits. */
static void a_close_that_resets_does_so_at_once(void) {
    for (int waits = 0; waits < 2; waits++) {
        int set = new_set(), error = 0;
        struct linger at_once = {1, 0};
        struct pair pair = joined_narrow(set, EPOLLIN);
        write_all_it_takes(set, &pair);
        MUST(setsockopt(pair.app, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
        GOT(close(pair.app));
        if (waits)
            poll_once(set);
        for (int i = 0; i < 3000 && !error; i++) {
            socklen_t length = sizeof error;
            pause_ms(1);
            MUST(syscall(SYS_getsockopt, pair.peer, SOL_SOCKET, SO_ERROR, &error, &length));
        }
        print("the peer gets %s\n", error ? strerrorname_np(error) : "nothing");
        peer_close(&pair);
        MUST(close(set));
    }
}

static void a_lingering_close_blocks_no_other_connection(void) {
    int set = new_set();
    struct linger patient = {1, 3};
    struct pair pair = joined_narrow(set, EPOLLIN), other = joined_narrow(set, EPOLLIN);
    uint64_t count = write_all_it_takes(set, &pair), others = write_all_it_takes(set, &other);
    struct judge judge, second;
    MUST(setsockopt(pair.app, SOL_SOCKET, SO_LINGER, &patient, sizeof patient));
    judge_start(&second, &other, others);
    double before = now_ms();
    GOT(close(pair.app));
    print("it has waited: %s\n", now_ms() - before >= 2500 ? "yes" : "no");
    judge_print(&second);
    judge_start(&judge, &pair, count);
    judge_print(&judge);
}

/* As another process, which has got the connection: writes as soon as the socket takes bytes. */
static void write_behind(int fd) {
    struct pollfd room = {fd, POLLOUT, 0};
    do
        MUST(direct_poll(&room, 20000));
    while (syscall(SYS_write, fd, "tail", 4) != 4);
}

static void print_tails(bool forks) {
    for (int i = 0; i < 20; i++) {
        int set = new_set(), before = 0, after = 0;
        struct pair pair = joined_narrow(set, EPOLLIN);
        uint64_t count = write_all_it_takes(set, &pair);
        socklen_t length = sizeof before;
        struct judge judge;
        MUST(getsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &before, &length));
        pid_t child = forks ? (pid_t)MUST(fork()) : -1;
        if (child == 0) {
            write_behind(pair.app);
            _exit(0);
        }
        int fd = forks ? -1 : passed_to_itself(pair.app);
        MUST(getsockopt(pair.app, SOL_SOCKET, SO_SNDBUF, &after, &length));
        if (before != after)
            print("the send buffer changed\n");
        pause_ms(2);
        judge_start_reading(&judge, &pair, count);
        if (forks)
            MUST(waitpid(child, NULL, 0));
        else
            write_behind(fd);
        judge_print(&judge);
        peer_gets(&pair, 4);
        MUST(close(pair.app) | close(set) | (forks ? 0 : close(fd)));
        MUST(syscall(SYS_close, pair.peer));
    }
}

static void a_child_writes_behind_deferred_output(void) { print_tails(true); }
static void a_process_that_gets_a_connection_writes_behind_deferred_output(void) { print_tails(false); }

static const struct app_case cases[] = {
    CASE(deferred_output_is_sent_during_a_poll, "served:write"),
    CASE(deferred_output_is_sent_during_a_poll_of_another_file, "served:write"),
    CASE(deferred_output_is_sent_during_a_select, "served:write"),
    CASE(deferred_output_is_sent_during_a_blocking_read, "served:write"),
    CASE(deferred_output_is_sent_while_the_program_polls_without_waiting, "served:write"),
    CASE(deferred_output_is_sent_during_a_wait_on_another_set, "served:write"),
    CASE(deferred_output_is_sent_during_a_join, "served:write"),
    CASE(deferred_output_is_sent_after_a_shutdown, "served:write"),
    CASE(deferred_output_is_sent_after_a_close, "served:write"),
    CASE(deferred_output_is_sent_after_removal_from_its_set, "served:write"),
    CASE(a_blocking_write_comes_after_deferred_output, "served:write"),
    CASE(every_blocking_call_waits_for_deferred_output, "served:write"),
    CASE(a_removed_member_whose_socket_was_full_is_reported_as_writable, "served:epoll_wait back:several_sets<=0"),
    CASE(a_time_limit_ends_a_write_behind_deferred_output, "served:write back:blocking"),
    CASE(a_reset_ends_a_blocking_write_behind_deferred_output, "served:write back:blocking"),
    CASE(a_signal_ends_a_blocking_write_behind_deferred_output_or_does_not, "served:write back:blocking"),
    CASE(a_child_writes_behind_deferred_output, "served:write"),
    CASE(a_process_that_gets_a_connection_writes_behind_deferred_output, "served:write back:passed_on"),
    CASE(deferred_output_is_sent_when_the_thread_of_its_set_has_ended, "served:write"),
    CASE(deferred_output_is_sent_before_the_program_ends, "served:write"),
    CASE(deferred_output_of_many_is_sent_whichever_thread_waits, "served:write"),
    CASE(many_closed_with_deferred_output_in_one_round_get_all_bytes, "served:write"),
    CASE(a_close_that_resets_does_so_at_once, "served:write"),
    CASE(a_lingering_close_blocks_no_other_connection, "served:write"),
};

int main(int argc, char **argv) { return RUN(cases); }
