/* The duration and the end of a wait: timeouts, signals and their masks, handlers that use served sockets, a stop. The
 * rule: a wait is never shorter than requested, and a signal ends the same waits as with the kernel's epoll. No result
 * depends on the time at which an event arrives. */
#include "app.h"
#include <limits.h>
#include <setjmp.h>
#include <sys/signalfd.h>
#include <sys/time.h>

static volatile sig_atomic_t handled;
static int handler_fd = -1;
static const char *volatile handler_text;

static void count_signal(int number) {
    (void)number;
    handled++;
}

static volatile sig_atomic_t handler_only_once, handler_ran;

static void write_in_handler(int number) {
    (void)number;
    int before = errno;
    if (handler_only_once && handler_ran)
        return;
    handler_ran = 1;
    handled++;
    if (write(handler_fd, handler_text, strlen(handler_text)) != (long)strlen(handler_text))
        handled += 1000;
    errno = before;
}

static void on(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    MUST(sigaction(number, &action, NULL));
}

static sigset_t only(int number) {
    sigset_t signals;
    sigemptyset(&signals);
    if (number)
        sigaddset(&signals, number);
    return signals;
}

/* Repeatedly: on a slow machine the first alarm may arrive before the wait that it should end. */
static void ring_each_ms(long ms) {
    struct itimerval timer = {{0, ms * 1000}, {0, ms * 1000}};
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
}

static struct pair added(int set, uint32_t mask) {
    struct pair pair = connected();
    add(set, pair.app, mask, 1);
    return pair;
}

/* A wait without a timeout, and the bytes that are written during it. */
static void print_late_bytes(int set, const struct pair *pair) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        pause_ms(15);
        syscall(SYS_write, pair->peer, "late", 4);
        syscall(SYS_exit_group, 0);
    }
    print_wait(set, -1);
    print_read(pair->app, 10);
    MUST(waitpid(child, NULL, 0));
}

static void a_timeout_is_never_early(void) {
    int set = new_set(), early = 0;
    added(set, EPOLLIN);
    static const int waits_ms[] = {1, 2, 3, 5, 10, 25, 1, 7};
    for (int i = 0; i < 8; i++) {
        double start = now_ms();
        print_wait(set, waits_ms[i]);
        early += now_ms() - start < waits_ms[i];
        start = now_ms();
        struct timespec precise = {0, 300000 + waits_ms[i] * 100000};
        struct epoll_event event;
        GOT(epoll_pwait2(set, &event, 1, &precise, NULL));
        early += now_ms() - start < (double)precise.tv_nsec / 1e6;
    }
    print("early: %d\n", early);
}

/* Many unused connections, each added in a separate round. */
static void burst(int set, int listener, int port, int count) {
    for (int i = 0; i < count; i++) {
        struct pair pair = {.peer = peer_connect(port)};
        struct epoll_event event;
        MUST(epoll_wait(set, &event, 1, 10000));
        if (event.data.u64 == 1000)
            pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    }
}

static void a_wait_in_a_burst_of_connections_ends_as_any_other(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port), early = 0;
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    add(set, listener, EPOLLIN, 1000);
    burst(set, listener, port, 12);
    static const int waits_ms[] = {1, 2, 5, 25};
    for (int i = 0; i < 4; i++) {
        double start = now_ms();
        print_wait(set, waits_ms[i]);
        early += now_ms() - start < waits_ms[i];
    }
    print("early: %d\n", early);
    on(SIGALRM, count_signal, 0);
    ring_each_ms(5);
    print_wait(set, -1);
    ring_each_ms(0);
    print_late_bytes(set, &pair);
}

/* Another process usually takes the bytes before the wait that was woken for them has checked. */
static void a_spurious_wakeup_does_not_shorten_a_wait(void) {
    int set = new_set(), port, listener = listen_on(SOCK_NONBLOCK, &port), early = 0;
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    add(set, listener, EPOLLIN, 1000);
    int runs[2];
    MUST(pipe(runs));
    for (int i = 0; i < 50; i++) {
        burst(set, listener, port, 12);
        pid_t child = (pid_t)MUST(fork());
        for (long round = 0; child == 0; round++) {
            syscall(SYS_write, pair.peer, "x", 1);
            syscall(SYS_read, pair.app, &(char){0}, 1);
            if (round == 100)
                syscall(SYS_write, runs[1], "x", 1);
        }
        MUST(read(runs[0], &(char){0}, 1));
        struct epoll_event event;
        double start = now_ms();
        if (MUST(epoll_wait(set, &event, 1, 10)) == 0)
            early += now_ms() - start < 10;
        MUST(kill(child, SIGKILL));
        MUST(waitpid(child, NULL, 0));
        for (char bytes[64]; read(pair.app, bytes, sizeof bytes) > 0;)
            ;
    }
    print("early: %d\n", early);
}

static void bad_timeouts_are_refused(void) {
    int set = new_set();
    struct epoll_event event;
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    GOT(epoll_pwait2(set, &event, 1, &(struct timespec){0, 1000000000}, NULL));
    GOT(epoll_pwait2(set, &event, 1, &(struct timespec){-1, 0}, NULL));
    GOT(epoll_pwait2(set, &event, 1, &(struct timespec){0, -1}, NULL));
    GOT(epoll_pwait2(set, &event, 1, &(struct timespec){0, 0}, NULL));
    GOT(epoll_pwait2(set, &event, 0, &(struct timespec){0, 0}, NULL));
    peer_send(&pair, "x");
    GOT(epoll_pwait2(set, &event, 1, NULL, NULL));
    GOT(epoll_pwait2(set, &event, 1, &(struct timespec){LONG_MAX, 999999999}, NULL));
    GOT(epoll_wait(set, &event, 1, INT32_MIN));
    GOT(epoll_pwait(set, &event, 1, -1, NULL));
}

static void a_buffer_for_one_event_suffices_for_a_polled_set(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    peer_send(&pair, "x");
    await_delivery(&pair);
    print_now(set);
    struct pollfd poller = {.fd = set, .events = POLLIN};
    GOT(poll(&poller, 1, 0));
    for (int i = 0; i < 4; i++) {
        struct epoll_event event;
        GOT(epoll_wait(set, &event, 1, i % 2 ? 0 : 2000));
    }
    GOT(poll(&poller, 1, 0));
    print_read(pair.app, 10);
    GOT(poll(&poller, 1, 0));
    print_now(set);
}

static void a_wait_without_end_is_ended_by_bytes(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    print_late_bytes(set, &pair);
    print_now(set);
}

static void a_signal_ends_a_wait(void) {
    int set = new_set();
    added(set, EPOLLIN);
    /* A handler with SA_RESTART changes nothing: this call is never restarted. */
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        on(SIGALRM, count_signal, flags);
        ring_each_ms(4);
        print_wait(set, -1);
        print_wait(set, 20000);
        ring_each_ms(0);
        print("handled: %s\n", handled >= 2 ? "yes" : "no");
        handled = 0;
    }
    on(SIGALRM, SIG_IGN, 0);
    ring_each_ms(2);
    print_wait(set, 20);
}

static void a_mask_lets_a_signal_in_for_the_wait_only(void) {
    int set = new_set();
    struct epoll_event event;
    struct pair pair = added(set, EPOLLIN);
    sigset_t blocked = only(SIGUSR1), none = only(0);
    on(SIGUSR1, count_signal, 0);
    print_now(set);
    MUST(sigprocmask(SIG_BLOCK, &blocked, NULL));
    MUST(kill(getpid(), SIGUSR1));
    GOT(epoll_pwait(set, &event, 1, 5, NULL));
    print("handled: %d\n", handled);
    GOT(epoll_pwait(set, &event, 1, 20000, &none));
    print("handled: %d\n", handled);
    MUST(kill(getpid(), SIGUSR1));
    GOT(epoll_pwait2(set, &event, 1, NULL, &none));
    print("handled: %d\n", handled);
    MUST(kill(getpid(), SIGUSR1));
    print("handled: %d\n", handled);
    peer_send(&pair, "x");
    await_delivery(&pair);
    /* A pending event is reported first, and the signal stays pending. */
    GOT(epoll_pwait(set, &event, 1, -1, &none));
    print("handled: %d\n", handled);
    print_read(pair.app, 10);
    GOT(epoll_pwait(set, &event, 1, -1, &none));
    print("handled: %d\n", handled);
}

static void a_wait_with_a_zero_timeout_lets_no_signal_in(void) {
    int set = new_set();
    struct epoll_event event;
    struct pair pair = added(set, EPOLLIN);
    sigset_t blocked = only(SIGUSR1), none = only(0);
    on(SIGUSR1, count_signal, 0);
    print_now(set);
    MUST(sigprocmask(SIG_BLOCK, &blocked, NULL));
    MUST(kill(getpid(), SIGUSR1));
    GOT(epoll_pwait(set, &event, 1, 0, &none));
    print("handled: %d\n", handled);
    peer_send(&pair, "x");
    await_delivery(&pair);
    GOT(epoll_pwait(set, &event, 1, 0, &none));
    print("handled: %d\n", handled);
}

static void a_mask_keeps_a_signal_out_of_the_wait(void) {
    int set = new_set();
    struct epoll_event event;
    added(set, EPOLLIN);
    sigset_t alarm_only = only(SIGALRM), after;
    on(SIGALRM, count_signal, 0);
    print_now(set);
    struct itimerval once = {.it_value.tv_usec = 2000};
    MUST(setitimer(ITIMER_REAL, &once, NULL));
    GOT(epoll_pwait(set, &event, 1, 15, &alarm_only));
    print("handled: %d\n", handled);
    MUST(sigprocmask(SIG_BLOCK, NULL, &after));
    print("blocked afterwards: %d\n", sigismember(&after, SIGALRM));
}

static void signals_can_be_members(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    sigset_t blocked = only(SIGUSR1);
    struct signalfd_siginfo info;
    MUST(sigprocmask(SIG_BLOCK, &blocked, NULL));
    int fd = (int)MUST(signalfd(-1, &blocked, SFD_NONBLOCK));
    add(set, fd, EPOLLIN, 2);
    print_now(set);
    MUST(kill(getpid(), SIGUSR1));
    print_next(set);
    GOT(read(fd, &info, sizeof info));
    print("signal %s\n", sigabbrev_np((int)info.ssi_signo));
    peer_send(&pair, "x");
    print_next(set);
    print_read(pair.app, 10);
    print_now(set);
}

static void a_handler_may_write_during_the_wait(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN), other = connected();
    add(set, other.app, EPOLLIN, 2);
    print_now(set);
    handler_fd = other.app;
    handler_text = "from the handler";
    on(SIGALRM, write_in_handler, SA_RESTART);
    handler_only_once = 1;
    for (int i = 0; i < 3; i++) {
        MUST(write(pair.app, "from the loop", 13));
        MUST(write(other.app, "first ", 6));
        handler_ran = 0;
        ring_each_ms(3);
        print_wait(set, -1);
        ring_each_ms(0);
        print_now(set);
        peer_gets(&pair, 13);
        peer_gets(&other, 22);
    }
    print("handled: %d\n", handled);
}

static void read_in_handler(int number) {
    (void)number;
    char bytes[64];
    int before = errno;
    long count = read(handler_fd, bytes, sizeof bytes);
    print("in the handler: %ld \"%.*s\"\n", count, count > 0 ? (int)count : 0, bytes);
    errno = before;
}

static void a_handler_may_read(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    handler_fd = pair.app;
    on(SIGUSR1, read_in_handler, 0);
    peer_send(&pair, "hello");
    print_next(set);
    MUST(kill(getpid(), SIGUSR1));
    print_now(set);
    MUST(kill(getpid(), SIGUSR1));
    peer_send(&pair, "again");
    print_next(set);
    print_read(pair.app, 10);
}

/* Signals at any point of any call: bytes that a handler writes must neither be lost nor split the loop's bytes. */
static void handlers_that_write_at_any_moment_tear_nothing(void) {
    int set = new_set();
    struct pair loop = added(set, EPOLLIN | EPOLLOUT | EPOLLET), other = connected();
    add(set, other.app, EPOLLIN | EPOLLET, 2);
    struct reader readers[2];
    struct epoll_event events[4];
    reader_start(&readers[0], loop.peer, 0);
    handler_fd = other.app;
    handler_text = "x";
    on(SIGALRM, write_in_handler, SA_RESTART);
    struct itimerval often = {{0, 400}, {0, 400}};
    MUST(setitimer(ITIMER_REAL, &often, NULL));
    unsigned char bytes[3000];
    uint64_t position = 0, random = 12345;
    double end = now_ms() + 250;
    while (now_ms() < end || handled < 20) {
        for (int i = 0; i < 5; i++) {
            size_t length = next_random(&random) % sizeof bytes + 1;
            fill(bytes, length, position);
            long done = write(loop.app, bytes, length);
            position += done > 0 ? (uint64_t)done : 0;
        }
        epoll_wait(set, events, 4, 1);
    }
    ring_each_ms(0);
    poll_once(set);
    MUST(close(loop.app));
    MUST(shutdown(other.app, SHUT_WR));
    join_polling(&readers[0], set);
    print("the loop's bytes are all there: %s, wrong at %ld\n", readers[0].count == position ? "yes" : "no",
        readers[0].wrong_at);
    int count = 0;
    char byte[256];
    for (long got; (got = syscall(SYS_read, other.peer, byte, sizeof byte)) > 0;)
        count += (int)got;
    print("the handler's too: %s\n", count == handled ? "yes" : "no");
}

static sigjmp_buf back;
static volatile sig_atomic_t may_jump;

static void jump(int number) {
    (void)number;
    if (may_jump) {
        may_jump = 0;
        siglongjmp(back, 1);
    }
}

/* The end of the ring may interrupt a wait of a program that handles signals. */
static void wait_for_a_jump(int set) {
    struct epoll_event event;
    while (epoll_wait(set, &event, 1, -1) == 1 || errno == EINTR)
        continue;
    print("not reached: %s\n", strerrorname_np(errno));
}

static void a_handler_may_jump_out_of_a_wait(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    on(SIGALRM, jump, 0);
    for (volatile int i = 0; i < 3; i++) {
        if (sigsetjmp(back, 1) == 0) {
            MUST(write(pair.app, "before ", 7));
            may_jump = 1;
            ring_each_ms(3);
            wait_for_a_jump(set);
        }
        ring_each_ms(0);
        print_now(set);
        peer_gets(&pair, 7);
        peer_send(&pair, "after the jump");
        print_next(set);
        print_read(pair.app, 100);
    }
}

/* Another process or thread has had the connections, so their ends need the end of the ring's requests. */
static void connections_end_after_a_jump_out_of_a_wait(void) {
    int set = new_set();
    struct pair pairs[3] = {added(set, EPOLLIN), added(set, EPOLLIN), added(set, EPOLLIN)};
    print_now(set);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0)
        _exit(0);
    MUST(waitpid(child, NULL, 0));
    on(SIGALRM, jump, 0);
    for (volatile int i = 0; i < 3; i++) {
        if (sigsetjmp(back, 1) == 0) {
            may_jump = 1;
            ring_each_ms(3);
            wait_for_a_jump(set);
        }
        ring_each_ms(0);
        if (i == 1)
            MUST(write(pairs[i].app, "last words", 10));
        MUST(i == 2 ? dup2(set, pairs[i].app) : close(pairs[i].app));
        peer_gets(&pairs[i], 11);
    }
}

static void *sleep_a_little(void *nothing) {
    usleep(1);
    return nothing;
}

/* At its first call of a function the library looks for libc's. Each child has not called these yet. */
static void a_handler_may_jump_out_of_the_first_call_of_a_function(void) {
    int set = new_set(), ended = 0;
    struct pair pair = joined(set, EPOLLIN);
    for (int i = 0; i < 150; i++) {
        int status = -1;
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            pthread_t thread;
            on(SIGALRM, jump, 0);
            if (sigsetjmp(back, 1) == 0) {
                may_jump = 1;
                MUST(setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 1 + i % 30}, NULL));
                pause();
            }
            MUST(-pthread_create(&thread, NULL, sleep_a_little, NULL));
            pthread_join(thread, NULL);
            _exit(0);
        }
        MUST(waitpid(child, &status, 0));
        ended += status == 0;
    }
    print("ended: %d\n", ended);
    exchange(set, &pair);
}

/* The set of the last call below, if a jump has left it open. */
static volatile int brief = -1;

/* Calls that change nothing that the transcript shows: with the set's lock, and those of a set for one wait. */
static void interrupted_call(int set, struct pair *pair, struct pair *other, int round) {
    char byte;
    struct epoll_event event;
    switch (round % 4) {
    case 0: epoll_wait(set, &event, 1, round % 2); break;
    case 1: recv(pair->app, &byte, 1, MSG_PEEK); break;
    case 2: mod(set, pair->app, EPOLLIN, 1); break;
    case 3:
        close(brief);
        brief = epoll_create1(0);
        add(brief, other->app, EPOLLIN, 1);
        epoll_wait(brief, &event, 1, 0);
        break;
    }
}

static void a_handler_may_jump_out_of_any_call_at_any_moment(void) {
    int set = new_set(), deaf = 0;
    struct pair pair = added(set, EPOLLIN), other = connected();
    struct sigevent by_signal = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    char byte;
    on(SIGUSR1, jump, SA_NODEFER);
    MUST(timer_create(CLOCK_MONOTONIC, &by_signal, &timer));
    for (volatile int i = 0; i < 2000 && !deaf; i++) {
        struct itimerspec soon = {{0}, {0, 20000 + rand() % 100000}}, never = {{0}};
        if (sigsetjmp(back, 1) == 0) {
            may_jump = 1;
            MUST(timer_settime(timer, 0, &soon, NULL));
            for (;;)
                interrupted_call(set, &pair, &other, i);
        }
        MUST(timer_settime(timer, 0, &never, NULL));
        MUST(syscall(SYS_write, pair.peer, "q", 1));
        deaf += epoll_wait(set, &(struct epoll_event){0}, 1, 5000) != 1;
        deaf += read(pair.app, &byte, 1) != 1;
        deaf += write(pair.app, "r", 1) != 1;
        epoll_wait(set, &(struct epoll_event){0}, 1, 0);
        deaf += syscall(SYS_read, pair.peer, &byte, 1) != 1;
    }
    print("deaf: %d\n", deaf);
    add(set, other.app, EPOLLIN, 2);
    exchange(set, &other);
}

static void a_stop_and_its_end_interrupt_a_wait(void) {
    int set = new_set();
    added(set, EPOLLIN);
    print_now(set);
    pid_t parent = getpid(), child = (pid_t)MUST(fork());
    while (child == 0) {
        pause_ms(8);
        syscall(SYS_kill, parent, SIGSTOP);
        pause_ms(4);
        if (syscall(SYS_kill, parent, SIGCONT) < 0)
            syscall(SYS_exit_group, 0);
    }
    print_wait(set, 20000);
    MUST(kill(child, SIGKILL));
    MUST(waitpid(child, NULL, 0));
}

static void a_signal_between_waits_does_not_end_them(void) {
    int set = new_set();
    struct pair pair = added(set, EPOLLIN);
    on(SIGUSR1, count_signal, 0);
    print_now(set);
    for (int i = 0; i < 20; i++) {
        MUST(kill(getpid(), SIGUSR1));
        MUST(write(pair.app, "x", 1));
        print_wait(set, 1);
    }
    print("handled: %d\n", handled);
    peer_gets(&pair, 20);
}

static void an_empty_set_waits_for_its_timeout(void) {
    int set = new_set();
    struct epoll_event event;
    double start = now_ms();
    print_wait(set, 12);
    print("early: %d\n", now_ms() - start < 12);
    GOT(epoll_pwait(set, &event, 1, 1, NULL));
    GOT(epoll_pwait2(set, &event, 1, &(struct timespec){0, 100000}, NULL));
    struct pair pair = added(set, EPOLLIN);
    print_now(set);
    del(set, pair.app);
    start = now_ms();
    print_wait(set, 12);
    print("early: %d\n", now_ms() - start < 12);
}

static void the_end_of_a_set_interrupts_no_later_wait(void) {
    for (int i = 0; i < 3; i++) {
        int set = new_set();
        struct pair pair = added(set, EPOLLIN);
        peer_send(&pair, "a request");
        print_next(set);
        print_read(pair.app, 100);
        MUST(close(set));
        int ends[2];
        MUST(pipe(ends));
        set = new_set();
        if (i == 1)
            add(set, pair.app, EPOLLIN, 1);
        else
            add(set, ends[0], EPOLLIN, 1);
        if (i == 2)
            GOT(epoll_pwait2(set, &(struct epoll_event){0}, 1, &(struct timespec){0, 150000000}, NULL));
        print_wait(set, 150);
        MUST(close(set));
    }
}

static void end_set_in_handler(int number) {
    (void)number;
    if (handler_text)
        close(handler_fd);
    else
        poll(&(struct pollfd){handler_fd, POLLIN, 0}, 1, 0);
}

static void *interrupt_the_wait(void *waiting) {
    while (!main_thread_sleeps())
        pause_ms(1);
    pthread_kill(*(pthread_t *)waiting, SIGALRM);
    return NULL;
}

/* A set that is closed or polled in a handler is no longer served, and the wait that was interrupted returns. */
static void a_handler_may_end_the_set_that_it_interrupts(void) {
    interrupts_matter = true;
    on(SIGALRM, end_set_in_handler, 0);
    for (int closes = 0; closes < 2; closes++) {
        int set = new_set();
        struct pair pair = added(set, EPOLLIN);
        exchange(set, &pair);
        pthread_t self = pthread_self(), thread;
        handler_fd = set;
        handler_text = closes ? "" : NULL;
        MUST(-pthread_create(&thread, NULL, interrupt_the_wait, &self));
        print_wait(set, -1);
        pthread_join(thread, NULL);
        print_now(set);
        peer_send(&pair, "more");
        await_delivery(&pair);
        print_now(set);
        print_read(pair.app, 10);
    }
}

static const struct app_case cases[] = {
    CASE(a_timeout_is_never_early, "served:epoll_wait"),
    CASE(a_wait_in_a_burst_of_connections_ends_as_any_other, "served:epoll_wait served:read"),
    CASE(a_spurious_wakeup_does_not_shorten_a_wait, "served:epoll_wait"),
    CASE(bad_timeouts_are_refused, "served:epoll_wait"),
    CASE(a_buffer_for_one_event_suffices_for_a_polled_set, "back:polled_otherwise"),
    CASE(a_wait_without_end_is_ended_by_bytes, "served:epoll_wait"),
    CASE(a_signal_ends_a_wait, "served:epoll_wait"),
    CASE(a_handler_may_end_the_set_that_it_interrupts, "served:epoll_wait"),
    CASE(a_mask_lets_a_signal_in_for_the_wait_only, "served:epoll_wait"),
    CASE(a_wait_with_a_zero_timeout_lets_no_signal_in, ""),
    CASE(a_mask_keeps_a_signal_out_of_the_wait, ""),
    CASE(signals_can_be_members, "served:read passed:not_a_stream"),
    CASE(a_handler_may_write_during_the_wait, ""),
    CASE(a_handler_may_read, "served:read"),
    CASE(handlers_that_write_at_any_moment_tear_nothing, "served:write served:epoll_wait"),
    CASE(a_handler_may_jump_out_of_a_wait, "back:in_handler"),
    CASE(connections_end_after_a_jump_out_of_a_wait, "back:in_handler"),
    CASE(a_handler_may_jump_out_of_the_first_call_of_a_function, "served:read"),
    CASE(a_handler_may_jump_out_of_any_call_at_any_moment, "back:in_handler"),
    CASE(a_stop_and_its_end_interrupt_a_wait, ""),
    CASE(a_signal_between_waits_does_not_end_them, ""),
    CASE(an_empty_set_waits_for_its_timeout, ""),
    CASE(the_end_of_a_set_interrupts_no_later_wait, "served:read"),
};

int main(int argc, char **argv) {
    interrupts_matter = true;
    return RUN(cases);
}
