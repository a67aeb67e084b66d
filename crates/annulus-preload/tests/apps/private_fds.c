/* Threads with descriptors of their own: after unshare(CLONE_FILES), close_range with CLOSE_RANGE_UNSHARE, or a clone
 * without CLONE_FILES. The same number is then another file in another thread. */
#include "app.h"
#include <sched.h>

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

struct task {
    pthread_t thread;
    int set;
    struct pair pair;
    int result;
    void (*way)(void);
};

static void by_unshare(void) { MUST(unshare(CLONE_FILES)); }
static void by_close_range(void) { MUST(close_range(1000, 2000, CLOSE_RANGE_UNSHARE)); }
#undef syscall
static void by_syscall(void) { MUST(syscall(SYS_unshare, CLONE_FILES)); }
#define syscall(...) direct(__VA_ARGS__)

/* Puts another file at the number of the main thread's connection and set, and uses it there. */
static void *use_the_same_numbers(void *argument) {
    struct task *task = argument;
    int two[2];
    char bytes[16];
    task->way();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
    MUST(dup2(two[0], task->pair.app));
    MUST(write(two[1], "own", 3));
    got_bytes("own file", bytes, read(task->pair.app, bytes, sizeof bytes));
    MUST(write(task->pair.app, "back", 4));
    got_bytes("other end", bytes, read(two[1], bytes, sizeof bytes));
    MUST(close(task->pair.app));
    MUST(close(task->set));
    print("closed: %d %d\n", fcntl(task->pair.app, F_GETFD), fcntl(task->set, F_GETFD));
    return NULL;
}

/* Serves a connection in the thread that asks for its own descriptors, before and after it. */
static void *serve_before_and_after(void *argument) {
    struct task *task = argument;
    task->set = new_set();
    task->pair = joined(task->set, EPOLLIN);
    exchange(task->set, &task->pair);
    task->way();
    for (int i = 0; i < 3; i++)
        exchange(task->set, &task->pair);
    struct pair other = joined(task->set, EPOLLIN);
    exchange(task->set, &other);
    return NULL;
}

static void *make_another(void *argument) {
    struct task *task = argument, other = *task;
    task->way();
    other.way = by_unshare;
    pthread_t thread;
    MUST(-pthread_create(&thread, NULL, use_the_same_numbers, &other));
    pthread_join(thread, NULL);
    return NULL;
}

static void *close_everything(void *argument) {
    struct task *task = argument;
    GOT(close_range(3, ~0U, CLOSE_RANGE_UNSHARE));
    print("closed: %d %d\n", fcntl(task->pair.app, F_GETFD), fcntl(task->set, F_GETFD));
    return NULL;
}

/* Runs a function in a thread beside a connection that the main thread serves. */
static void beside(void *(*run)(void *), void (*way)(void)) {
    struct task task = {.set = new_set(), .way = way};
    task.pair = joined(task.set, EPOLLIN);
    struct task copy = task;
    exchange(task.set, &task.pair);
    MUST(-pthread_create(&task.thread, NULL, run, &copy));
    pthread_join(task.thread, NULL);
    for (int i = 0; i < 3; i++)
        exchange(task.set, &task.pair);
    struct pair later = joined(task.set, EPOLLIN);
    exchange(task.set, &later);
    MUST(close(later.app));
    peer_gets(&later, 1);
    MUST(close(task.pair.app));
    peer_gets(&task.pair, 1);
}

static void a_thread_that_unshares_its_descriptors_uses_the_same_numbers(void) {
    beside(use_the_same_numbers, by_unshare);
    beside(use_the_same_numbers, by_close_range);
    beside(use_the_same_numbers, by_syscall);
}

static void a_thread_of_such_a_thread_uses_the_same_numbers(void) { beside(make_another, by_unshare); }

static void a_thread_closes_all_its_own_descriptors(void) { beside(close_everything, NULL); }

static void a_thread_that_served_before_goes_on(void) { beside(serve_before_and_after, by_unshare); }

static void a_process_of_one_thread_is_served_on(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    by_unshare();
    by_close_range();
    pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    exchange(set, &pair);
}

/* A child without thread-local storage makes direct calls only. */
static int close_by_direct_calls(void *argument) {
    struct task *task = argument;
    task->result += syscall(SYS_close, task->pair.app) == 0;
    task->result += syscall(SYS_close, task->set) == 0;
    syscall(SYS_exit, 0);
    return 0;
}

static void a_clone_with_its_own_descriptors_disturbs_nothing(void) {
    static char stack[65536];
    struct task task = {.set = new_set()};
    task.pair = joined(task.set, EPOLLIN);
    exchange(task.set, &task.pair);
    int flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    MUST(clone(close_by_direct_calls, stack + sizeof stack, flags, &task));
    for (int i = 0; i < 1000 && *(volatile int *)&task.result < 2; i++)
        pause_ms(1);
    print("closed in the clone: %d\n", task.result);
    for (int i = 0; i < 3; i++)
        exchange(task.set, &task.pair);
}

static const struct app_case cases[] = {
    CASE(a_thread_that_unshares_its_descriptors_uses_the_same_numbers, "served:read served:write back:forked"),
    CASE(a_thread_of_such_a_thread_uses_the_same_numbers, "served:read served:write back:forked"),
    CASE(a_thread_closes_all_its_own_descriptors, "served:read served:write back:forked"),
    CASE(a_thread_that_served_before_goes_on, "served:read back:forked"),
    CASE(a_process_of_one_thread_is_served_on, "served:read back:forked<=0"),
    CASE(a_clone_with_its_own_descriptors_disturbs_nothing, "served:read back:forked"),
};

int main(int argc, char **argv) { return RUN(cases); }
