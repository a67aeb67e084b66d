/* Several threads: on one set, on separate sets, on one socket; changes to a set whose owner sleeps in it; threads that
 * end or are cancelled. The rule: other threads observe the effects of a call on a set or a socket as they would
 * without the library. The library may serve other connections, but bytes and events stay the same. */
#include "app.h"
#include <setjmp.h>
#include <sys/time.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

struct task {
    pthread_t thread;
    void (*run)(struct task *);
    int set;
    struct pair pair;
    int other;
    long id, result;
};

static void *run_task(void *argument) {
    struct task *task = argument;
    task->run(task);
    return NULL;
}

static void start(struct task *task, void (*run)(struct task *)) {
    task->run = run;
    task->result = 0;
    MUST(-pthread_create(&task->thread, NULL, run_task, task));
}

static void join(struct task *task) { pthread_join(task->thread, NULL); }

static void about_to_sleep(struct task *task) {
    task->id = syscall(SYS_gettid);
    __atomic_store_n(&task->result, 1, __ATOMIC_RELEASE);
}

/* Waits until a thread sleeps in the call that it has announced. A ring may be made before that. */
static void until_it_sleeps(struct task *task) {
    while (!__atomic_load_n(&task->result, __ATOMIC_ACQUIRE))
        pause_ms(1);
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/syscall", task->id);
    for (;;) {
        int file = (int)MUST(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY));
        text[MUST(syscall(SYS_read, file, text, sizeof text - 1))] = 0;
        MUST(syscall(SYS_close, file));
        /* "running", or the number of the call in which the thread sleeps. */
        switch (text[0] == 'r' ? -1 : atol(text)) {
        case SYS_read:
        case LIBC_EPOLL_WAIT:
#ifdef SYS_epoll_wait
        case SYS_epoll_pwait:
#endif
        case SYS_epoll_pwait2:
        case SYS_io_uring_enter:
            return;
        }
        pause_ms(1);
    }
}

/* Runs a function in another thread and waits for its end, so that both never run at the same time. */
static void elsewhere(struct task *task, void (*run)(struct task *)) {
    start(task, run);
    join(task);
}

static void read_it(struct task *task) { print_read(task->pair.app, 100); }
static void write_it(struct task *task) { MUST(write(task->pair.app, "from the other", 14)); }
static void wait_there(struct task *task) { print_next(task->set); }
static void look_there(struct task *task) { print_now(task->set); }

static void another_thread_may_read_and_write(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    peer_send(&task.pair, "for the other");
    await_delivery(&task.pair);
    print_next(task.set);
    print_read(task.pair.app, 4);
    MUST(write(task.pair.app, "from the owner ", 15));
    elsewhere(&task, write_it);
    elsewhere(&task, read_it);
    print_now(task.set);
    peer_gets(&task.pair, 29);
    peer_send(&task.pair, "for the owner");
    await_delivery(&task.pair);
    print_next(task.set);
    print_read(task.pair.app, 100);
    peer_send(&task.pair, "once more for the other");
    await_delivery(&task.pair);
    elsewhere(&task, read_it);
}

static void a_set_passes_through_once_other_threads_use_all_its_connections(void) {
    struct task tasks[8];
    int set = new_set();
    for (int i = 0; i < 8; i++) {
        tasks[i] = (struct task){.set = set, .pair = connected()};
        add(set, tasks[i].pair.app, EPOLLIN, (uint64_t)i);
        exchange(set, &tasks[i].pair);
    }
    for (int i = 0; i < 8; i++) {
        peer_send(&tasks[i].pair, "for the other");
        await_delivery(&tasks[i].pair);
        print_next(set);
        elsewhere(&tasks[i], read_it);
    }
    for (int i = 0; i < 8; i++)
        exchange(set, &tasks[i].pair);
}

/* A ring that took the first connection over could receive bytes behind those that the other thread is reading. */
static void another_thread_reads_before_there_is_a_ring(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    peer_send(&task.pair, "for the other");
    await_delivery(&task.pair);
    print_next(task.set);
    elsewhere(&task, read_it);
    for (uint64_t number = 2; number < 4; number++) {
        struct pair more = connected();
        add(task.set, more.app, EPOLLIN, number);
        exchange(task.set, &more);
    }
    peer_send(&task.pair, "for the owner");
    await_delivery(&task.pair);
    print_next(task.set);
    print_read(task.pair.app, 100);
}

static void another_thread_may_wait(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    peer_send(&task.pair, "one");
    await_delivery(&task.pair);
    print_next(task.set);
    elsewhere(&task, wait_there);
    elsewhere(&task, read_it);
    elsewhere(&task, look_there);
    print_now(task.set);
    MUST(write(task.pair.app, "result", 6));
    elsewhere(&task, look_there);
    peer_gets(&task.pair, 6);
    peer_send(&task.pair, "two");
    await_delivery(&task.pair);
    print_next(task.set);
    print_read(task.pair.app, 100);
}

/* A common server: the first thread creates the set and its members, and another thread runs the loop. */
static void a_set_may_be_made_by_one_thread_and_run_by_another(void) {
    struct task task = {.set = new_set()};
    task.pair = connected();
    add(task.set, task.pair.app, EPOLLIN, 1);
    peer_send(&task.pair, "hello");
    await_delivery(&task.pair);
    elsewhere(&task, wait_there);
    elsewhere(&task, read_it);
    elsewhere(&task, write_it);
    elsewhere(&task, look_there);
    peer_gets(&task.pair, 14);
}

static void write_soon(struct task *task) {
    pause_ms(10);
    MUST(write(task->pair.app, "written meanwhile", 17));
}

static void a_write_of_another_leaves_while_the_owner_sleeps(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    peer_send(&task.pair, "x");
    print_next(task.set);
    print_read(task.pair.app, 10);
    start(&task, write_soon);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        /* The owner sleeps until this response, which needs the other thread's request. */
        char bytes[17];
        for (long done = 0; done < 17;)
            done += MUST(syscall(SYS_read, task.pair.peer, bytes + done, 17 - done));
        syscall(SYS_write, task.pair.peer, "heard", 5);
        syscall(SYS_exit_group, 0);
    }
    print_wait(task.set, -1);
    print_read(task.pair.app, 10);
    MUST(waitpid(child, NULL, 0));
    join(&task);
}

static void change_soon(struct task *task) {
    pause_ms(10);
    struct pair pair = connected();
    add(task->set, pair.app, EPOLLIN, 2);
    peer_send(&pair, "of the new member");
    task->other = pair.app;
}

static void a_member_may_be_added_while_the_owner_sleeps(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    for (int i = 0; i < 2; i++) {
        start(&task, change_soon);
        print_wait(task.set, -1);
        join(&task);
        print_read(task.other, 100);
        MUST(close(task.other));
    }
    print_now(task.set);
}

static void modify_soon(struct task *task) {
    pause_ms(10);
    mod(task->set, task->pair.app, EPOLLIN | EPOLLOUT, 3);
}

static void delete_soon(struct task *task) {
    pause_ms(10);
    del(task->set, task->pair.app);
    peer_send(&task->pair, "too late");
    await_delivery(&task->pair);
}

static void members_may_be_changed_and_taken_while_the_owner_sleeps(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    start(&task, modify_soon);
    print_wait(task.set, -1);
    join(&task);
    mod(task.set, task.pair.app, EPOLLIN, 1);
    start(&task, delete_soon);
    print_wait(task.set, 60);
    join(&task);
    print_read(task.pair.app, 100);
}

static void close_soon(struct task *task) {
    pause_ms(10);
    MUST(write(task->pair.app, "last", 4));
    MUST(close(task->pair.app));
}

static void a_member_may_be_closed_while_the_owner_sleeps(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN | EPOLLRDHUP);
    start(&task, close_soon);
    print_wait(task.set, 60);
    join(&task);
    peer_gets(&task.pair, 100);
    print_now(task.set);
}

static void wait_with_a_listener(struct task *task) {
    task->set = new_set();
    task->pair = joined(task->set, EPOLLIN);
    add(task->set, task->other, EPOLLIN, 2);
    poll_once(task->set);
    about_to_sleep(task);
    print_wait(task->set, 10000);
    print_read(task->pair.app, 10);
}

/* The ring of the owner refers to the listener until its poll is cancelled. */
static void a_listener_that_another_thread_closes_leaves_its_port(void) {
    for (int deletes = 0; deletes < 2; deletes++) {
        int port;
        struct task task = {.other = listen_on(0, &port)};
        struct sockaddr_in address = loopback(port);
        start(&task, wait_with_a_listener);
        until_it_sleeps(&task);
        if (deletes)
            del(task.set, task.other);
        MUST(close(task.other));
        int fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
        GOT(bind(fd, (struct sockaddr *)&address, sizeof address));
        peer_send(&task.pair, "x");
        join(&task);
        MUST(close(fd));
    }
}

static void wait_once_with_a_listener(struct task *task) {
    task->set = new_set();
    task->pair = joined(task->set, EPOLLIN);
    add(task->set, task->other, EPOLLIN, 2);
    print_wait(task->set, 20);
}

static void a_listener_of_a_thread_that_has_ended_leaves_its_port(void) {
    int port;
    struct task task = {.other = listen_on(0, &port)};
    struct sockaddr_in address = loopback(port);
    start(&task, wait_once_with_a_listener);
    join(&task);
    MUST(close(task.other));
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    GOT(bind(fd, (struct sockaddr *)&address, sizeof address));
    exchange(task.set, &task.pair);
}

static void close_it(struct task *task) { MUST(close(task->pair.app)); }

static void write_and_close_it(struct task *task) {
    MUST(write(task->pair.app, "last", 4));
    MUST(close(task->pair.app));
}

/* The owner does not wait on the set again before the peer has been notified. */
static void a_member_may_be_closed_while_the_owner_is_busy(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    elsewhere(&task, close_it);
    peer_gets(&task.pair, 100);
    task.pair = joined(task.set, EPOLLIN);
    elsewhere(&task, write_and_close_it);
    peer_gets(&task.pair, 100);
    task.pair = joined(task.set, EPOLLIN | EPOLLRDHUP);
    peer_send(&task.pair, "not read");
    await_delivery(&task.pair);
    elsewhere(&task, close_it);
    peer_gets(&task.pair, 100);
    print_now(task.set);
}

static void arm_again_soon(struct task *task) {
    pause_ms(10);
    mod(task->set, task->pair.app, EPOLLIN | EPOLLONESHOT, 1);
}

/* A thread pool with oneshot: a worker reads, then re-arms the socket while the owner sleeps. */
static void a_worker_may_arm_oneshot_again_while_the_owner_sleeps(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN | EPOLLONESHOT);
    for (int i = 0; i < 3; i++) {
        peer_send(&task.pair, "work ");
        await_delivery(&task.pair);
        if (i == 0)
            print_next(task.set);
        elsewhere(&task, read_it);
        peer_send(&task.pair, "while not armed");
        await_delivery(&task.pair);
        print_now(task.set);
        start(&task, arm_again_soon);
        print_wait(task.set, -1);
        join(&task);
        elsewhere(&task, read_it);
        if (i < 2)
            mod(task.set, task.pair.app, EPOLLIN | EPOLLONESHOT, 1);
        else
            break;
        peer_send(&task.pair, "again");
        await_delivery(&task.pair);
        print_next(task.set);
    }
}

static void wake_soon(struct task *task) {
    pause_ms(10);
    MUST(eventfd_write(task->other, 1));
}

static void another_thread_wakes_the_owner_by_an_eventfd(void) {
    struct task task = {.set = new_set(), .other = eventfd(0, EFD_NONBLOCK)};
    task.pair = joined(task.set, EPOLLIN);
    add(task.set, task.other, EPOLLIN | EPOLLET, 5);
    for (int i = 0; i < 3; i++) {
        start(&task, wake_soon);
        print_wait(task.set, -1);
        join(&task);
        uint64_t count;
        GOT(read(task.other, &count, sizeof count));
        print_now(task.set);
    }
}

enum { WORKERS = 3, ASKS = 400 };

static volatile int responses_left;

static void serve_shared(struct task *task) {
    struct epoll_event event;
    char bytes[64];
    while (__atomic_load_n(&responses_left, __ATOMIC_SEQ_CST) > 0) {
        if (epoll_wait(task->set, &event, 1, 20) != 1)
            continue;
        int fd = (int)event.data.u64;
        long done = read(fd, bytes, sizeof bytes);
        if (done > 0 && write(fd, bytes, (size_t)done) == done)
            __atomic_fetch_sub(&responses_left, 1, __ATOMIC_SEQ_CST);
        mod(task->set, fd, EPOLLIN | EPOLLONESHOT, (uint64_t)fd);
    }
}

/* One set and several threads that wait on it, with oneshot, so that only one thread at a time has each socket. */
static void several_threads_may_share_a_set(void) {
    struct task tasks[WORKERS];
    struct pair pairs[8];
    int set = new_set(), right = 0;
    responses_left = ASKS;
    for (int i = 0; i < 8; i++) {
        pairs[i] = connected();
        add(set, pairs[i].app, EPOLLIN | EPOLLONESHOT, (uint64_t)pairs[i].app);
    }
    for (int i = 0; i < WORKERS; i++) {
        tasks[i] = (struct task){.set = set};
        start(&tasks[i], serve_shared);
    }
    for (int i = 0; i < ASKS; i += 8) {
        char bytes[8][16];
        for (int k = 0; k < 8; k++) {
            snprintf(bytes[k], sizeof bytes[k], "get %d", i + k);
            peer_send(&pairs[k], bytes[k]);
        }
        for (int k = 0; k < 8; k++) {
            char back[16] = "";
            syscall(SYS_read, pairs[k].peer, back, sizeof back);
            right += !strcmp(back, bytes[k]);
        }
    }
    for (int i = 0; i < WORKERS; i++)
        join(&tasks[i]);
    print("right: %d\n", right);
}

static void serve_own(struct task *task) {
    struct epoll_event event;
    char bytes[64];
    if (task->other)
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    int set = new_set();
    add(set, task->pair.app, EPOLLIN | EPOLLRDHUP, 1);
    for (;;) {
        MUST(epoll_wait(set, &event, 1, 20000));
        long done = read(task->pair.app, bytes, sizeof bytes);
        if (done <= 0)
            break;
        MUST(write(task->pair.app, bytes, (size_t)done));
        task->result++;
    }
    MUST(close(task->pair.app));
    MUST(close(set));
}

static void serve_by_threads(bool without_privileges) {
    struct task tasks[6] = {0};
    int right = 0;
    for (int i = 0; i < 6; i++) {
        tasks[i].pair = connected();
        tasks[i].other = without_privileges;
        start(&tasks[i], serve_own);
        /* The thread before is being served when the next one begins. */
        peer_send(&tasks[i].pair, "first");
        peer_gets(&tasks[i].pair, 5);
    }
    for (int round = 0; round < 100; round++)
        for (int i = 0; i < 6; i++) {
            char text[32], back[32] = "";
            snprintf(text, sizeof text, "%d of %d", round, i);
            peer_send(&tasks[i].pair, text);
            syscall(SYS_read, tasks[i].pair.peer, back, sizeof back);
            right += !strcmp(text, back);
        }
    for (int i = 0; i < 6; i++) {
        peer_shutdown(&tasks[i].pair);
        join(&tasks[i]);
        print("results: %ld, ", tasks[i].result);
        peer_gets(&tasks[i].pair, 1);
    }
    print("right: %d\n", right);
}

/* memcached: each worker has its set, and gets its connections from the thread that accepts. */
static void each_thread_may_have_its_set(void) { serve_by_threads(false); }

/* HAProxy: each thread does this before its first wait, while others are served already. */
static void threads_that_set_no_new_privileges_are_served(void) { serve_by_threads(true); }

static void pass_to_thread(struct task *task) {
    int set = new_set();
    add(set, task->pair.app, EPOLLIN, 8);
    print_next(set);
    print_read(task->pair.app, 100);
    MUST(write(task->pair.app, "from the new owner", 18));
    print_now(set);
    MUST(close(set));
}

static void a_socket_may_move_to_another_threads_set(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    peer_send(&task.pair, "bytes that the first set holds");
    await_delivery(&task.pair);
    print_next(task.set);
    print_read(task.pair.app, 6);
    MUST(write(task.pair.app, "from the first owner, ", 22));
    del(task.set, task.pair.app);
    elsewhere(&task, pass_to_thread);
    peer_gets(&task.pair, 40);
    add(task.set, task.pair.app, EPOLLIN, 9);
    peer_send(&task.pair, "back");
    await_delivery(&task.pair);
    print_next(task.set);
    print_read(task.pair.app, 100);
}

static void read_pipe(struct task *task) {
    char byte;
    about_to_sleep(task);
    task->result = read(task->other, &byte, 1);
}

static void wait_without_timeout(struct task *task) {
    settle(task->set);
    about_to_sleep(task);
    /* The end of an earlier ring may interrupt a wait of a program that handles signals (trap 16). */
    while (epoll_wait(task->set, &(struct epoll_event){0}, 1, -1) < 0 && errno == EINTR)
        ;
    task->result = 2;
}

/* Reads and waits are cancellation points with the library as well. */
static void a_thread_that_sleeps_can_be_cancelled(void) {
    int two[2];
    void *end;
    MUST(pipe(two));
    struct task task = {.other = two[0], .set = new_set()};
    start(&task, read_pipe);
    until_it_sleeps(&task);
    MUST(-pthread_cancel(task.thread));
    pthread_join(task.thread, &end);
    print("cancelled: %s, at %ld\n", end == PTHREAD_CANCELED ? "yes" : "no", task.result);
    /* A set whose only thread is cancelled. */
    task = (struct task){.set = fresh_set(), .pair = connected()};
    add(task.set, task.pair.app, EPOLLIN, 1);
    start(&task, wait_without_timeout);
    until_it_sleeps(&task);
    MUST(-pthread_cancel(task.thread));
    pthread_join(task.thread, &end);
    print("cancelled: %s, at %ld\n", end == PTHREAD_CANCELED ? "yes" : "no", task.result);
    peer_send(&task.pair, "after");
    await_delivery(&task.pair);
    print_next(task.set);
    print_read(task.pair.app, 100);
}

static void wait_again_and_again(struct task *task) {
    if (task->other)
        poll_once(task->set);
    about_to_sleep(task);
    for (;;)
        epoll_wait(task->set, &(struct epoll_event){0}, 1, -1);
}

/* The cancelled thread takes a set from the main thread, or makes a ring. */
static void a_thread_can_be_cancelled_at_any_moment_of_a_wait(void) {
    void *end;
    int cancelled = 0;
    for (int i = 0; i < 200; i++) {
        struct task task = {.set = i % 2 ? new_set() : fresh_set(), .pair = connected(),
            .other = i % 8 == 1};
        add(task.set, task.pair.app, EPOLLIN, 1);
        poll_once(task.set);
        peer_send(&task.pair, "a report each time");
        start(&task, wait_again_and_again);
        /* In some rounds the thread has waited before it is cancelled, so that they do not depend on timing. */
        while (task.other && !*(volatile long *)&task.id)
            sched_yield();
        for (int spins = i * 37 % 200 * 100; spins > 0; spins--)
            asm volatile("");
        MUST(-pthread_cancel(task.thread));
        pthread_join(task.thread, &end);
        cancelled += end == PTHREAD_CANCELED;
        MUST(close(task.set));
        MUST(close(task.pair.app));
        peer_close(&task.pair);
    }
    print("cancelled: %d\n", cancelled);
}

static sigjmp_buf out;
static void jump_out(int number) { siglongjmp(out, number); }

static void another_thread_uses_a_connection_after_a_jump(void) {
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    MUST(sigaction(SIGALRM, &(struct sigaction){.sa_handler = jump_out}, NULL));
    if (sigsetjmp(out, 1) == 0) {
        MUST(setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 20000}, NULL));
        for (struct epoll_event event;;)
            epoll_wait(task.set, &event, 1, -1);
    }
    peer_send(&task.pair, "after the jump");
    await_delivery(&task.pair);
    start(&task, read_it);
    pthread_join(task.thread, NULL);
    exchange(task.set, &task.pair);
}

static void wait_uncancelled(struct task *task) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    settle(task->set);
    about_to_sleep(task);
    print_next(task->set);
    print_read(task->pair.app, 100);
    double before = now_ms();
    print_wait(task->set, 100);
    print("waited: %d\n", now_ms() - before >= 99);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    pthread_testcancel();
    print("not reached\n");
}

static void a_thread_that_disabled_cancellation_sleeps_on(void) {
    struct task task = {.set = fresh_set(), .pair = connected()};
    void *end;
    add(task.set, task.pair.app, EPOLLIN, 1);
    start(&task, wait_uncancelled);
    until_it_sleeps(&task);
    MUST(-pthread_cancel(task.thread));
    pause_ms(20);
    peer_send(&task.pair, "request");
    pthread_join(task.thread, &end);
    print("cancelled: %s, at %ld\n", end == PTHREAD_CANCELED ? "yes" : "no", task.result);
}

static void leave_now(int number) {
    (void)number;
    pthread_exit((void *)1);
}

/* As in programs that do not use pthread_cancel. */
static void a_handler_may_end_the_waiting_thread(void) {
    signal(SIGUSR1, leave_now);
    for (int i = 0; i < 3; i++) {
        struct task task = {.set = fresh_set(), .pair = connected()};
        void *end;
        add(task.set, task.pair.app, EPOLLIN, 1);
        start(&task, wait_without_timeout);
        until_it_sleeps(&task);
        MUST(-pthread_kill(task.thread, SIGUSR1));
        pthread_join(task.thread, &end);
        print("ended by its handler: %d, at %ld\n", end == (void *)1, task.result);
        peer_send(&task.pair, "after");
        await_delivery(&task.pair);
        print_next(task.set);
        print_read(task.pair.app, 100);
        MUST(write(task.pair.app, "the reply", 9));
        peer_gets(&task.pair, 9);
    }
}

static void serve_and_leave(struct task *task) {
    print_next(task->set);
    print_read(task->pair.app, 4);
    MUST(write(task->pair.app, "the reply that none waits for..", 31));
}

static void a_thread_that_ends_leaves_its_set_to_others(void) {
    struct task task = {.set = new_set()};
    task.pair = connected();
    add(task.set, task.pair.app, EPOLLIN, 1);
    peer_send(&task.pair, "for two threads");
    await_delivery(&task.pair);
    elsewhere(&task, serve_and_leave);
    print_next(task.set);
    print_read(task.pair.app, 100);
    peer_gets(&task.pair, 31);
    peer_send(&task.pair, "more");
    await_delivery(&task.pair);
    print_next(task.set);
    print_read(task.pair.app, 100);
}

static void make_and_serve(struct task *task) {
    task->set = new_set();
    task->pair = joined(task->set, EPOLLIN);
    peer_send(&task->pair, "get");
    await_delivery(&task->pair);
    serve_and_leave(task);
}

static void write_and_wait(struct task *task) {
    MUST(write(task->pair.app, ", and another", 13));
    print_now(task->set);
}

/* A new thread usually gets the stack of one that has ended, and then the same pthread_self. */
static void a_thread_that_reuses_an_id_is_another(void) {
    struct task task = {.set = -1};
    elsewhere(&task, make_and_serve);
    elsewhere(&task, write_and_wait);
    peer_gets(&task.pair, 44);
    elsewhere(&task, write_it);
    peer_gets(&task.pair, 14);
    peer_send(&task.pair, "more");
    await_delivery(&task.pair);
    elsewhere(&task, wait_there);
    print_read(task.pair.app, 100);
}

static const struct app_case cases[] = {
    CASE(another_thread_may_read_and_write, "back:other_thread"),
    CASE(another_thread_reads_before_there_is_a_ring, "back:other_thread"),
    CASE(a_set_passes_through_once_other_threads_use_all_its_connections, "back:other_thread passed:several_threads"),
    CASE(another_thread_may_wait, "back:several_threads"),
    CASE(a_set_may_be_made_by_one_thread_and_run_by_another, "back:several_threads"),
    CASE(a_write_of_another_leaves_while_the_owner_sleeps, ""),
    CASE(a_member_may_be_added_while_the_owner_sleeps, ""),
    CASE(members_may_be_changed_and_taken_while_the_owner_sleeps, ""),
    CASE(a_member_may_be_closed_while_the_owner_sleeps, ""),
    CASE(a_member_may_be_closed_while_the_owner_is_busy, ""),
    CASE(a_listener_that_another_thread_closes_leaves_its_port, "served:read"),
    CASE(a_listener_of_a_thread_that_has_ended_leaves_its_port, "back:several_threads"),
    CASE(a_worker_may_arm_oneshot_again_while_the_owner_sleeps, ""),
    CASE(another_thread_wakes_the_owner_by_an_eventfd, "passed:not_a_stream"),
    CASE(several_threads_may_share_a_set, "back:several_threads"),
    CASE(each_thread_may_have_its_set, "served:read served:write"),
    CASE(threads_that_set_no_new_privileges_are_served, "served:read passed:filtered<=0 back:filtered<=0"),
    CASE(a_socket_may_move_to_another_threads_set, ""),
    CASE(a_thread_that_sleeps_can_be_cancelled, "served:epoll_wait"),
    CASE(a_thread_can_be_cancelled_at_any_moment_of_a_wait, "served:epoll_wait back:several_threads"),
    CASE(another_thread_uses_a_connection_after_a_jump, "back:in_handler"),
    CASE(a_thread_that_disabled_cancellation_sleeps_on, "served:epoll_wait"),
    CASE(a_handler_may_end_the_waiting_thread, "served:epoll_wait"),
    CASE(a_thread_that_reuses_an_id_is_another, "back:several_threads"),
    CASE(a_thread_that_ends_leaves_its_set_to_others, ""),
};

int main(int argc, char **argv) { return RUN(cases); }
