/* Children that libc creates without fork handlers, or does not know about; ways to end a program that run no exit
 * handler; system call filters that a program sets for itself. The rule: written bytes arrive once and in order,
 * whichever process ends, and the library makes no call that a filter forbids. */
#include "app.h"
#include <assert.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>

extern void __stack_chk_fail(void);
extern void __chk_fail(void);
extern int __clone(int (*)(void *), void *, int, void *, ...);
extern pid_t __vfork(void);
extern char **environ;

/* Makes a system call without a function of libc. */
static long raw(long number, long a, long b, long c, long d, long e) {
    return kernel_call(number, a, b, c, d, e, 0);
}

static void print_status(int status) {
    print("exit %d, signal %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void reap(pid_t child) {
    int status = 0;
    MUST(waitpid(child, &status, __WALL));
    print_status(status);
}

/* ---- children ---- */

static char child_stack[1 << 16] __attribute__((aligned(16)));
static void *stack_top(void) { return child_stack + sizeof child_stack; }
static int inherited;

static int only_exits(void *_) {
    exit(0);
    return 0;
}
static int writes_and_exits(void *_) {
    MUST(write(inherited, "B", 1));
    exit(0);
    return 0;
}
static int closes_everything(void *_) {
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    return 0;
}

enum { FORK_BY_ITSELF, CLONE, CLONE_TOO, VFORK, VFORK_TOO, RAW, WAYS };

static pid_t child_by(int way, int (*run)(void *)) {
    pid_t child;
    switch (way) {
    case FORK_BY_ITSELF:
        child = _Fork();
        break;
    case CLONE:
        return (pid_t)MUST(clone(run, stack_top(), SIGCHLD, NULL));
    case CLONE_TOO:
        return (pid_t)MUST(__clone(run, stack_top(), SIGCHLD, NULL));
    case VFORK:
        child = vfork();
        if (child == 0)
            _exit(0);
        return child;
    case VFORK_TOO:
        child = __vfork();
        if (child == 0)
            _exit(0);
        return child;
    default:
        child = (pid_t)raw(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    }
    if (child == 0)
        run(NULL);
    return (pid_t)MUST(child);
}

static void a_child_made_in_any_way_sends_nothing_of_its_parents(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    for (int way = 0; way < WAYS; way++) {
        MUST(write(pair.app, "A", 1));
        reap(child_by(way, only_exits));
        MUST(write(pair.app, "C", 1));
        poll_once(set);
        peer_gets(&pair, 2);
        exchange(set, &pair);
    }
    MUST(close(pair.app));
    poll_once(set);
    peer_gets(&pair, 100);
}

static void a_child_that_libc_makes_writes_behind_its_parent(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    inherited = pair.app;
    exchange(set, &pair);
    for (int way = FORK_BY_ITSELF; way <= CLONE_TOO; way++) {
        MUST(write(pair.app, "A", 1));
        reap(child_by(way, writes_and_exits));
        MUST(write(pair.app, "C", 1));
        poll_once(set);
        peer_gets(&pair, 3);
    }
    exchange(set, &pair);
}

static int serves(void *_) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLET);
    exchange(set, &pair);
    exchange(set, &pair);
    exit(0);
    return 0;
}

static void a_child_made_in_any_way_may_serve(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    const int ways[] = {FORK_BY_ITSELF, CLONE, RAW};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        reap(child_by(ways[i], serves));
        exchange(set, &pair);
    }
}

static void a_child_in_the_same_memory_may_close_its_own_descriptors(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    for (int i = 0; i < 2; i++) {
        MUST(write(pair.app, "queued ", 7));
        peer_send(&pair, "pending");
        await_delivery(&pair);
        reap((pid_t)MUST(clone(closes_everything, stack_top(), SIGCHLD | CLONE_VM | CLONE_VFORK, NULL)));
        print_next(set);
        print_read(pair.app, 100);
        peer_gets(&pair, 7);
        exchange(set, &pair);
    }
}

/* ---- ends ---- */

static int last_fd, last_set;

static void end_quickly(void) { quick_exit(3); }
static void last_words(void) { MUST(write(last_fd, ", and more", 10)); }
static void end_quickly_with_a_handler(void) {
    MUST(-at_quick_exit(last_words));
    quick_exit(4);
}
static void end_by_assert(void) { __assert_fail("ended", "ends.c", 1, "end_by_assert"); }
static void end_by_the_stack_protector(void) { __stack_chk_fail(); }
static void end_by_a_check(void) { __chk_fail(); }
static void end_by_execveat(void) {
    char *arguments[] = {"sh", "-c", "exit 6", NULL};
    execveat(AT_FDCWD, "/bin/sh", arguments, environ, 0);
}
static void end_by_raise(void) { raise(SIGTERM); }
static void end_by_gsignal(void) { gsignal(SIGUSR1); }
static void end_by_kill(void) { kill(getpid(), SIGTERM); }
static void end_by_sigkill(void) { kill(getpid(), SIGKILL); }
static void end_by_killpg(void) {
    MUST(setpgid(0, 0));
    killpg(0, SIGTERM);
}
static void end_by_tgkill(void) { tgkill(getpid(), (pid_t)syscall(SYS_gettid), SIGUSR2); }
static void end_by_pthread_kill(void) { pthread_kill(pthread_self(), SIGTERM); }
static void end_by_sigqueue(void) { sigqueue(getpid(), SIGTERM, (union sigval){0}); }
static void end_by_pthread_sigqueue(void) { pthread_sigqueue(pthread_self(), SIGTERM, (union sigval){0}); }

static void end_by_a_broken_pipe(void) {
    struct pair other = joined(last_set, EPOLLIN);
    MUST(shutdown(other.app, SHUT_WR));
    poll_once(last_set);
    MUST(write(last_fd, ", and more", 10));
    GOT(write(other.app, "x", 1));
}

static void reports_and_exits(int signal_number) {
    last_words();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}
static void end_in_a_handler(void) {
    signal(SIGTERM, reports_and_exits);
    raise(SIGTERM);
}
static void end_in_a_handler_of_a_wait(void) {
    signal(SIGALRM, reports_and_exits);
    struct itimerval soon = {.it_value.tv_usec = 20000};
    MUST(setitimer(ITIMER_REAL, &soon, NULL));
    for (;;)
        epoll_wait(last_set, &(struct epoll_event){0}, 1, 10000);
}
static void only_reports(int _) { last_words(); }
static void end_by_abort_with_a_handler(void) {
    signal(SIGABRT, only_reports);
    abort();
}
static void end_by_assert_with_a_handler(void) {
    signal(SIGABRT, only_reports);
    assert(!"ended");
}

/* A separate program that serves one connection and ends before its response was sent. */
static void print_end(void (*end)(void)) {
    int port, listener = listen_on(0, &port), status = 0;
    struct pair pair = {.peer = peer_connect(port)};
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        syscall(SYS_close, pair.peer);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        int set = last_set = new_set();
        pair.app = last_fd = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        add(set, pair.app, EPOLLIN, 1);
        print_next(set);
        print_read(pair.app, 10);
        MUST(write(pair.app, "the last result", 15));
        end();
    }
    MUST(close(listener));
    peer_send(&pair, "get");
    peer_gets(&pair, 100);
    MUST(waitpid(child, &status, 0));
    print_status(status);
    peer_close(&pair);
}

static void every_way_to_end_sends_written_bytes(void) {
    static void (*const ends[])(void) = {
        end_quickly,     end_quickly_with_a_handler, end_by_assert,   end_by_the_stack_protector, end_by_a_check,
        end_by_execveat, end_by_raise,               end_by_gsignal,  end_by_kill,                end_by_sigkill,
        end_by_killpg,   end_by_tgkill,              end_by_sigqueue, end_by_pthread_kill,        end_by_pthread_sigqueue,
        end_by_a_broken_pipe,
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        print("%zu\n", i);
        print_end(ends[i]);
    }
}

static void bytes_that_a_handler_writes_before_the_end_arrive(void) {
    print_end(end_in_a_handler);
    print_end(end_in_a_handler_of_a_wait);
    print_end(end_by_abort_with_a_handler);
    print_end(end_by_assert_with_a_handler);
}

/* Queries whether filters are supported, as programs do for which they are optional. */
static void a_query_about_filters_changes_nothing(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    GOT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0));
    GOT(prctl(PR_SET_NO_NEW_PRIVS, 2, 0, 0, 0));
    MUST(write(pair.app, "served", 6));
    print_now(set);
    peer_gets(&pair, 6);
    for (int i = 0; i < 100; i++)
        poll_once(set);
    exchange(set, &pair);
}

static void signals_that_do_not_end_the_process_are_unchanged(void) {
    GOT(kill(getpid(), 0));
    GOT(kill(-1234567, SIGTERM));
    GOT(kill(getpid(), 999));
    GOT(raise(SIGCHLD));
    GOT(gsignal(SIGCHLD));
    GOT(raise(-1));
    GOT(killpg(getpgrp(), SIGWINCH));
    GOT(tgkill(getpid(), 1, SIGTERM));
    GOT(pthread_kill(pthread_self(), SIGURG));
    GOT(sigqueue(getpid(), SIGCHLD, (union sigval){0}));
    GOT(pthread_sigqueue(pthread_self(), SIGCHLD, (union sigval){0}));
    GOT(execveat(AT_FDCWD, "/nonexistent", environ, environ, 0));
    signal(SIGTERM, SIG_IGN);
    GOT(raise(SIGTERM));
}

/* ---- filters ---- */

/* Calls libc's `syscall`, not the macro of app.h. */
static bool by_libc;

static void set_filter(struct sock_filter *filter, size_t count, long flags) {
    struct sock_fprog program = {(unsigned short)count, filter};
    long output = by_libc ? (syscall)(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program)
                        : raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, (long)&program, 0, 0);
    print("the filter: %ld\n", output);
}

/* Makes io_uring calls end the process, by a call that bypasses the hooks. */
static void forbid_rings(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    set_filter(filter, sizeof filter / sizeof *filter, 0);
}

/* The calls of a simple server and of this program; any other call, by any thread, ends the process. */
static void allow_little(void) {
    static const int allowed[] = {SYS_read,      SYS_write,      LIBC_EPOLL_WAIT, SYS_close,  SYS_getsockopt,
                                  SYS_nanosleep, SYS_exit_group, SYS_fstat,       SYS_munmap, SYS_brk};
    enum { ALLOWED = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[ALLOWED + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (int i = 0; i < ALLOWED; i++)
        filter[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i],
                                                     (unsigned char)(ALLOWED - i), 0);
    filter[ALLOWED + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[ALLOWED + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    set_filter(filter, sizeof filter / sizeof *filter, SECCOMP_FILTER_FLAG_TSYNC);
}

static void serve_on(int set, struct pair *pair) {
    MUST(write(pair->app, "after", 5));
    print_read(pair->app, 100);
    /* The write after a hand-back may repeat the edge of writability. */
    poll_once(set);
    peer_gets(pair, 12);
    exchange(set, pair);
    exchange(set, pair);
}

static void have_something_pending(int set, struct pair *pair) {
    MUST(write(pair->app, "queued ", 7));
    peer_send(pair, "pending ");
    await_delivery(pair);
    print_now(set);
}

static void an_unhooked_filter_after_no_new_privileges_kills_no_process(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLOUT | EPOLLET);
    exchange(set, &pair);
    have_something_pending(set, &pair);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    forbid_rings();
    serve_on(set, &pair);
    int second = new_set();
    struct pair late = joined(second, EPOLLIN);
    exchange(second, &late);
}

/* Sets a filter as libseccomp does, long after the process set no_new_privs. */
static void a_filter_set_by_libcs_syscall_is_detected_first(void) {
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    for (int i = 0; i < 100; i++)
        poll_once(set);
    exchange(set, &pair);
    GOT((syscall)(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL));
    GOT((syscall)(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL));
    have_something_pending(set, &pair);
    by_libc = true;
    forbid_rings();
    serve_on(set, &pair);
}

static void an_unhooked_filter_during_the_checks_kills_no_process(void) {
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLOUT | EPOLLET);
    exchange(set, &pair);
    have_something_pending(set, &pair);
    forbid_rings();
    serve_on(set, &pair);
}

static void an_unhooked_filter_beside_an_earlier_one_kills_no_process(void) {
    struct sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    set_filter(nothing, 1, 0);
    execl("/proc/self/exe", "termination", "filtered", (char *)NULL);
}

static void a_strict_filter_has_nothing_to_forbid(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    have_something_pending(set, &pair);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    allow_little();
    serve_on(set, &pair);
    /* Long enough for other threads of the process to run. */
    print_wait(set, 300);
    exchange(set, &pair);
    peer_send(&pair, "unread");
    await_delivery(&pair);
    print_now(set);
    MUST(close(pair.app));
}

/* Closing a ring interrupts a wait of its thread some milliseconds later. */
static void a_wait_under_a_strict_filter_ends_normally(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    allow_little();
    interrupts_matter = true;
    print_wait(set, 300);
    exchange(set, &pair);
}

static const struct app_case cases[] = {
    CASE(a_child_made_in_any_way_sends_nothing_of_its_parents, "served:write"),
    CASE(a_child_that_libc_makes_writes_behind_its_parent, "served:write"),
    CASE(a_child_made_in_any_way_may_serve, "served:read"),
    CASE(a_child_in_the_same_memory_may_close_its_own_descriptors, "served:write back:forked"),
    CASE(every_way_to_end_sends_written_bytes, "served:write"),
    CASE(bytes_that_a_handler_writes_before_the_end_arrive, "served:write"),
    CASE(signals_that_do_not_end_the_process_are_unchanged, "passes"),
    CASE(a_query_about_filters_changes_nothing, "served:write"),
    CASE(an_unhooked_filter_after_no_new_privileges_kills_no_process, "back:filtered"),
    CASE(a_filter_set_by_libcs_syscall_is_detected_first, "back:filtered"),
    CASE(an_unhooked_filter_during_the_checks_kills_no_process, "back:filtered"),
    CASE(an_unhooked_filter_beside_an_earlier_one_kills_no_process, "back:filtered"),
    CASE(a_strict_filter_has_nothing_to_forbid, "back:filtered"),
    CASE(a_wait_under_a_strict_filter_ends_normally, "back:filtered"),
};

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "filtered")) {
        an_unhooked_filter_during_the_checks_kills_no_process();
        return 0;
    }
    return RUN(cases);
}
