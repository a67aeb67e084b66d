/* Processes: children that share the connections of their parent, programs started by a server, a daemon, another user,
 * another root, a filter, no stdout. The rule: a child has its parent's sockets as it would without the library, and
 * the child does not disturb its parent. */
#include "app.h"
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

extern char **environ;

static void reap(pid_t child) {
    int status = 0;
    MUST(waitpid(child, &status, 0));
    print("exit %d, signal %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void a_child_that_closes_everything_disturbs_nothing(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLRDHUP);
    for (int i = 0; i < 3; i++) {
        exchange(set, &pair);
        MUST(write(pair.app, "queued ", 7));
        peer_send(&pair, "pending");
        await_delivery(&pair);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            for (int fd = 3; fd < 1024; fd++)
                close(fd);
            exit(i);
        }
        reap(child);
        print_next(set);
        print_read(pair.app, 100);
        peer_gets(&pair, 7);
    }
}

/* Starts a child that writes to the connection `to` when a line arrives on `from`. */
static pid_t child_of_kind(int kind, int from, int to) {
    char script[100], line[160], byte;
    snprintf(script, sizeof script, "read -u %d line; echo the rest >&%d", from, to);
    snprintf(line, sizeof line, "bash -c '%s' &", script);
    char *arguments[] = {"bash", "-c", script, NULL};
    pid_t child = -1;
    switch (kind) {
    case 0:
        child = (pid_t)MUST(fork());
        if (child == 0) {
            MUST(read(from, &byte, 1));
            MUST(write(to, "the rest\n", 9));
            exit(0);
        }
        break;
    case 1:
        MUST(-posix_spawn(&child, "/bin/bash", NULL, NULL, arguments, environ));
        break;
    case 2:
        MUST(-posix_spawnp(&child, "bash", NULL, NULL, arguments, environ));
        break;
    case 3:
        print("system: %d\n", WEXITSTATUS(system(line)));
        break;
    case 4:
        print("popen: %d\n", pclose(popen(line, "w")));
    }
    return child;
}

static void a_child_writes_to_a_connection_that_its_parent_has_closed(void) {
    int set = new_set(), line[2];
    for (int kind = 0; kind < 5; kind++) {
        struct pair pair = joined(set, EPOLLIN);
        peer_send(&pair, "question");
        await_delivery(&pair);
        print_next(set);
        print_read(pair.app, 100);
        MUST(write(pair.app, "the head, ", 10));
        MUST(pipe(line));
        MUST(fcntl(pair.app, F_SETFD, 0));
        pid_t child = child_of_kind(kind, line[0], pair.app);
        MUST(write(pair.app, "more, ", 6));
        GOT(close(pair.app));
        print_now(set);
        MUST(write(line[1], "go\n", 3));
        if (child > 0)
            reap(child);
        char all[100] = "";
        long result;
        for (long have = 0; (result = syscall(SYS_read, pair.peer, all + have, 99 - have)) > 0;)
            have += result;
        print("the peer gets %s, then %s\n", all, result == 0 ? "the end" : strerrorname_np(errno));
        MUST(close(line[0]));
        MUST(close(line[1]));
    }
}

static void a_child_may_read_and_write_what_it_inherits(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    MUST(write(pair.app, "parent ", 7));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        MUST(write(pair.app, "child ", 6));
        peer_send(&pair, "for the child");
        await_delivery(&pair);
        print_read(pair.app, 100);
        exit(0);
    }
    reap(child);
    MUST(write(pair.app, "parent", 6));
    print_now(set);
    peer_gets(&pair, 19);
    exchange(set, &pair);
}

static void bytes_that_were_reported_are_read_by_one_of_two_processes(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "once only");
    await_delivery(&pair);
    print_next(set);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        print_read(pair.app, 4);
        exit(0);
    }
    reap(child);
    print_read(pair.app, 100);
    print_now(set);
    exchange(set, &pair);
}

static void a_child_may_wait_in_the_set_it_inherits(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        exchange(set, &pair);
        struct pair late = connected();
        add(set, late.app, EPOLLIN, 2);
        exchange(set, &late);
        del(set, late.app);
        exit(0);
    }
    reap(child);
    exchange(set, &pair);
}

/* An edge that the parent has reported is not reported by the child; a later one is. */
static void a_child_reports_no_edge_again(void) {
    for (int i = 0; i < 3; i++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN | EPOLLOUT | EPOLLET), other = joined(set, EPOLLIN);
        exchange(set, &pair);
        print_now(set);
        if (i == 1)
            peer_send(&pair, "before the child");
        await_delivery(&pair);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            print_now(set);
            peer_send(&other, "to both");
            await_delivery(&other);
            print_next(set);
            if (i == 2) {
                peer_send(&pair, "in the child");
                await_delivery(&pair);
                print_next(set);
                print_read(pair.app, 100);
            }
            exit(0);
        }
        reap(child);
    }
}

static void a_oneshot_member_of_an_inherited_set_is_reported_by_one_process(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLONESHOT), other = joined(set, EPOLLIN);
    exchange(set, &other);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        peer_send(&pair, "to one of them");
        await_delivery(&pair);
        print_next(set);
        exit(0);
    }
    reap(child);
    print_now(set);
}

static void a_child_may_serve_with_a_set_of_its_own(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    for (int i = 0; i < 2; i++) {
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            MUST(close(set));
            int own = new_set();
            struct pair mine = joined(own, EPOLLIN | EPOLLET);
            exchange(own, &mine);
            exchange(own, &mine);
            exit(0);
        }
        reap(child);
    }
    exchange(set, &pair);
}

/* A connection is closed when its last holder closes it: a child that was forked earlier does not hold it. */
static void a_connection_ends_though_an_older_child_lives(void) {
    int set = new_set(), status;
    struct pair before = joined(set, EPOLLIN);
    exchange(set, &before);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        pause_ms(60000);
        _exit(0);
    }
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    MUST(write(pair.app, "bye", 3));
    MUST(close(pair.app));
    poll_once(set);
    peer_gets(&pair, 100);
    MUST(kill(child, SIGKILL));
    MUST(waitpid(child, &status, 0));
}

static void a_closed_number_is_reported_while_a_child_has_its_connection(void) {
    int set = new_set(), status;
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        pause_ms(60000);
        _exit(0);
    }
    MUST(close(pair.app));
    peer_send(&pair, "for the child");
    pause_ms(20);
    print_now(set);
    MUST(kill(child, SIGKILL));
    MUST(waitpid(child, &status, 0));
}

static void a_killed_process_ends_its_connections_though_its_child_lives(void) {
    int port, listener = listen_on(0, &port), two[2], status;
    pid_t grandchild;
    MUST(pipe(two));
    struct pair pair = {.peer = peer_connect(port)};
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        syscall(SYS_close, pair.peer);
        int set = new_set();
        poll_once(set);
        grandchild = (pid_t)MUST(fork());
        if (grandchild == 0) {
            close(listener);
            pause_ms(60000);
            _exit(0);
        }
        MUST(syscall(SYS_write, two[1], &grandchild, sizeof grandchild));
        pair.app = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
        add(set, pair.app, EPOLLIN, 1);
        print_next(set);
        print_read(pair.app, 100);
        MUST(write(pair.app, "result", 6));
        print_wait(set, 60000);
        _exit(0);
    }
    MUST(close(listener));
    peer_send(&pair, "question");
    peer_gets(&pair, 6);
    MUST(syscall(SYS_read, two[0], &grandchild, sizeof grandchild));
    MUST(kill(child, SIGKILL));
    MUST(waitpid(child, &status, 0));
    peer_gets_the_end(&pair);
    MUST(kill(grandchild, SIGKILL));
}

/* ---- programs that are started ---- */

static void started_program(int fd) {
    char bytes[100];
    got_bytes("the new program reads", bytes, read(fd, bytes, sizeof bytes));
    MUST(write(fd, "from the new program", 20));
}

static void start_with(int fd) {
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    MUST(fcntl(fd, F_SETFD, 0));
    execl("/proc/self/exe", "processes", "started", number, (char *)NULL);
    print("not started\n");
}

static void a_started_program_inherits_the_stream(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    MUST(write(pair.app, "from the old, ", 14));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        peer_send(&pair, "for the new program");
        await_delivery(&pair);
        start_with(pair.app);
    }
    reap(child);
    peer_gets(&pair, 34);
    exchange(set, &pair);
}

static void exec_passes_on_buffered_bytes(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "pending");
    await_delivery(&pair);
    print_next(set);
    MUST(write(pair.app, "queued", 6));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        pause_ms(1);
        peer_gets(&pair, 26);
        syscall(SYS_exit_group, 0);
    }
    start_with(pair.app);
}

static void exec_passes_on_bytes_that_have_just_arrived(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    peer_send(&pair, "for the new program");
    await_delivery(&pair);
    start_with(pair.app);
}

static void an_exec_that_fails_changes_nothing(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    peer_send(&pair, "pending");
    await_delivery(&pair);
    print_next(set);
    MUST(write(pair.app, "queued", 6));
    char *arguments[] = {"none", NULL};
    GOT(execv("/nonexistent", arguments));
    GOT(execve("/", arguments, environ));
    GOT(execvp("no-such-program-anywhere", arguments));
    GOT(execl("/nonexistent", "none", (char *)NULL));
    GOT(execlp("no-such-program-anywhere", "none", (char *)NULL));
    GOT(execle("/nonexistent", "none", (char *)NULL, environ));
    GOT(execvpe("no-such-program-anywhere", arguments, environ));
    GOT(fexecve(0, arguments, environ));
    print_now(set);
    print_read(pair.app, 100);
    peer_gets(&pair, 6);
    exchange(set, &pair);
}

static void every_way_to_start_a_program_works(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    char *arguments[] = {"sh", "-c", "exit 5", NULL}, line[64] = "";
    pid_t child;
    for (int way = 0; way < 7; way++) {
        peer_send(&pair, "pending");
        await_delivery(&pair);
        print_next(set);
        MUST(write(pair.app, "queued", 6));
        switch (way) {
        case 0:
            child = vfork();
            if (child == 0) {
                execv("/bin/sh", arguments);
                _exit(9);
            }
            reap(child);
            break;
        case 1:
            MUST(-posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ));
            reap(child);
            break;
        case 2:
            MUST(-posix_spawnp(&child, "sh", NULL, NULL, arguments, environ));
            reap(child);
            break;
        case 3:
            print("system: %d\n", WEXITSTATUS(system("exit 6")));
            break;
        case 4: {
            FILE *pipe = popen("echo from a pipe", "r");
            print("popen: %s", fgets(line, sizeof line, pipe));
            print("pclose: %d\n", pclose(pipe));
            break;
        }
        case 5:
            child = fork();
            if (child == 0) {
                execlp("sh", "sh", "-c", "exit 7", (char *)NULL);
                _exit(9);
            }
            reap(child);
            break;
        case 6:
            child = vfork();
            if (child == 0)
                _exit(8);
            reap(child);
        }
        print_next(set);
        print_read(pair.app, 100);
        peer_gets(&pair, 6);
    }
}

/* ---- other conditions ---- */

static void a_daemon_goes_on_serving(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    MUST(write(pair.app, "queued", 6));
    MUST(daemon(1, 1));
    /* No other process could end it if it hung. */
    alarm(30);
    peer_gets(&pair, 6);
    exchange(set, &pair);
    struct pair late = connected();
    del(set, pair.app);
    add(set, late.app, EPOLLIN, 2);
    exchange(set, &late);
}

/* Bytes that arrive after a fork are the child's if the parent reads nothing more, however the parent ends its use. */
static void a_parent_that_reads_no_more_takes_no_bytes(void) {
    alarm(30);
    for (int i = 0; i < 5; i++) {
        int set = new_set(), arrived[2], ended[2];
        char byte;
        struct pair pair = joined(set, EPOLLIN);
        exchange(set, &pair);
        MUST(pipe(arrived));
        MUST(pipe(ended));
        pid_t child = (pid_t)MUST(fork());
        if (child > 0) {
            MUST(read(arrived[0], &byte, 1));
            if (i == 0)
                MUST(close(pair.app));
            else if (i == 1)
                del(set, pair.app);
            else if (i == 2)
                MUST(close(set));
            else if (i == 3)
                MUST(kill(getpid(), SIGKILL));
            else
                syscall(SYS_exit_group, 0);
            MUST(close(ended[1]));
            reap(child);
            continue;
        }
        MUST(close(ended[1]));
        peer_send(&pair, "for the child");
        await_delivery(&pair);
        MUST(write(arrived[1], "x", 1));
        MUST(read(ended[0], &byte, 1));
        print_read(pair.app, 100);
        if (i < 3)
            exit(0);
    }
}

/* A user of this process alone: the kernel counts locked memory per user. */
static void become_own_user(void) {
    unsigned user = 20000 + (unsigned)getpid() % 40000;
    MUST(setgroups(0, NULL));
    MUST(setgid(user));
    MUST(setuid(user));
}

static void a_program_may_give_up_its_rights(void) {
    int early = new_set();
    struct pair pair = joined(early, EPOLLIN);
    exchange(early, &pair);
    become_own_user();
    exchange(early, &pair);
    int set = new_set();
    struct pair late = joined(set, EPOLLIN);
    exchange(set, &late);
}

/* Some kernels charge the rings of users other than root to this limit. */
static void a_program_that_may_lock_no_memory_runs_as_before(void) {
    MUST(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){0, 0}));
    become_own_user();
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLOUT | EPOLLET);
    exchange(set, &pair);
    exchange(set, &pair);
}

/* As in a container that has reached its limit of processes. */
static void a_program_that_may_start_no_thread_sends_all_bytes(void) {
    static char bytes[65536];
    MUST(setrlimit(RLIMIT_NPROC, &(struct rlimit){1, 1}));
    become_own_user();
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    long result, sent = 0, received = 0;
    while ((result = write(pair.app, bytes, 3000)) > 0)
        sent += result;
    MUST(close(pair.app));
    MUST(syscall(SYS_setsockopt, pair.peer, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){5, 0}, sizeof(struct timeval)));
    while ((result = syscall(SYS_read, pair.peer, bytes, sizeof bytes)) > 0) {
        received += result;
        poll_once(set);
    }
    print("all: %d, then %s\n", received == sent, result == 0 ? "the end" : strerrorname_np(errno));
}

static void a_program_may_lock_all_its_memory_within_a_limit(void) {
    MUST(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){8 << 20, 8 << 20}));
    become_own_user();
    GOT(mlockall(MCL_CURRENT));
}

static void a_program_may_move_to_an_empty_root(void) {
    char folder[] = "/tmp/annulus-root-XXXXXX";
    MUST(mkdtemp(folder) ? 0 : -1);
    int early = new_set();
    struct pair pair = joined(early, EPOLLIN);
    exchange(early, &pair);
    MUST(chdir(folder));
    MUST(rmdir(folder));
    MUST(chroot("."));
    exchange(early, &pair);
    int set = new_set();
    struct pair late = joined(set, EPOLLIN);
    exchange(set, &late);
    become_own_user();
    exchange(set, &late);
}

/* Makes the calls from `first` to `last` end with `action`, by prctl, as sandboxed programs do. */
static void forbid(int first, int last, uint32_t action) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, last, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}

static void forbid_rings(uint32_t action) { forbid(SYS_io_uring_setup, SYS_io_uring_register, action); }

static void under_a_filter(bool early, uint32_t action) {
    if (early)
        forbid_rings(action);
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLOUT | EPOLLET);
    exchange(set, &pair);
    if (!early) {
        MUST(write(pair.app, "queued ", 7));
        peer_send(&pair, "pending ");
        await_delivery(&pair);
        print_now(set);
        forbid_rings(action);
        MUST(write(pair.app, "after", 5));
        print_read(pair.app, 100);
        /* The write after the hand-back may repeat the edge of writability. */
        poll_once(set);
        peer_gets(&pair, 12);
        exchange(set, &pair);
    }
    int second = new_set();
    struct pair late = joined(second, EPOLLIN);
    exchange(second, &late);
    MUST(write(pair.app, "bye", 3));
    MUST(close(pair.app));
    poll_once(set);
    peer_gets(&pair, 100);
}

static void a_program_runs_though_a_filter_refuses_rings_from_the_start(void) {
    under_a_filter(true, SECCOMP_RET_ERRNO | EPERM);
}

static void a_program_runs_though_a_later_filter_refuses_rings(void) {
    under_a_filter(false, SECCOMP_RET_ERRNO | EPERM);
}

static void a_filter_that_kills_for_rings_from_the_start_is_not_triggered(void) {
    under_a_filter(true, SECCOMP_RET_KILL_PROCESS);
}

static void a_later_filter_that_kills_for_rings_is_not_triggered(void) {
    under_a_filter(false, SECCOMP_RET_KILL_PROCESS);
}

static void filtered_program(void) { under_a_filter(false, SECCOMP_RET_ALLOW); }

/* As in a container, the filter is set before the program starts. */
static void a_program_runs_under_an_earlier_filter(void) {
    forbid_rings(SECCOMP_RET_ERRNO | EPERM);
    execl("/proc/self/exe", "processes", "filtered", (char *)NULL);
}

static volatile sig_atomic_t child_signals;

static void on_child(int signal) { child_signals++; }

/* Returns the page faults of all children that the process has waited for. It grows with each child. */
static long faults_of_children(void) {
    struct rusage usage;
    MUST(getrusage(RUSAGE_CHILDREN, &usage));
    return usage.ru_minflt;
}

static void *another_set(void *unused) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    return NULL;
}

/* A program whose filter was set before it started. It has no child, whatever the library does to examine the filter,
 * and the filter is examined at most once. */
static void inherited_filter_program(void) {
    signal(SIGCHLD, on_child);
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN | EPOLLOUT | EPOLLET);
    exchange(set, &pair);
    GOT(waitpid(-1, NULL, WNOHANG));
    long before = faults_of_children();
    pthread_t thread;
    MUST(-pthread_create(&thread, NULL, another_set, NULL));
    MUST(-pthread_join(thread, NULL));
    print("other children: %d, their signals: %d\n", faults_of_children() != before, child_signals);
}

/* Runs that program under a filter that `set_filter` sets, and prints how it ends. */
static void run_under(void (*set_filter)(uint32_t), uint32_t action) {
    pid_t child = MUST(fork());
    if (child == 0) {
        /* A core dump of a program that dies here would be noise. */
        MUST(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}));
        set_filter(action);
        execl("/proc/self/exe", "processes", "inherited", (char *)NULL);
    }
    int status = -1;
    MUST(waitpid(child, &status, 0));
    print("it ends with %d, signal %d\n", WEXITSTATUS(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

/* As Docker's default profile: what only administrators and io_uring use fails with EPERM, and clone3 with ENOSYS. */
static void docker_profile(uint32_t unused) {
    static const int forbidden[] = {SYS_acct, SYS_add_key, SYS_bpf, SYS_delete_module, SYS_finit_module,
        SYS_fanotify_init, SYS_init_module, SYS_kexec_load, SYS_keyctl, SYS_mount, SYS_move_mount, SYS_open_tree,
        SYS_perf_event_open, SYS_pivot_root, SYS_quotactl, SYS_request_key, SYS_setns, SYS_swapon, SYS_umount2,
        SYS_unshare, SYS_userfaultfd};
    forbid(SYS_clone3, SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++)
        forbid(forbidden[i], forbidden[i], SECCOMP_RET_ERRNO | EPERM);
    forbid_rings(SECCOMP_RET_ERRNO | EPERM);
}

static void forbid_setup(uint32_t action) { forbid(SYS_io_uring_setup, SYS_io_uring_setup, action); }
static void forbid_enter(uint32_t action) { forbid(SYS_io_uring_enter, SYS_io_uring_enter, action); }
static void forbid_register(uint32_t action) { forbid(SYS_io_uring_register, SYS_io_uring_register, action); }

static void a_profile_that_refuses_rings_lets_a_program_run(void) { run_under(docker_profile, 0); }

static void a_profile_that_allows_rings_lets_a_program_be_served(void) {
    run_under(forbid_rings, SECCOMP_RET_ALLOW);
}

/* As HAProxy in a container: each thread sets no_new_privs, and no filter beside the inherited one. */
static void a_thread_without_new_privileges_is_served_under_an_earlier_filter(void) {
    forbid_rings(SECCOMP_RET_ALLOW);
    execl("/proc/self/exe", "processes", "unprivileged", (char *)NULL);
}

static void *unprivileged_thread(void *unused) {
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    for (int i = 0; i < 100; i++)
        exchange(set, &pair);
    return NULL;
}

static void unprivileged_program(void) {
    pthread_t thread;
    MUST(-pthread_create(&thread, NULL, unprivileged_thread, NULL));
    MUST(-pthread_join(thread, NULL));
}

static void a_profile_that_kills_for_rings_kills_no_program(void) {
    static const uint32_t actions[] = {SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_KILL_THREAD, SECCOMP_RET_TRAP};
    for (int i = 0; i < 3; i++)
        run_under(forbid_rings, actions[i]);
    run_under(forbid_setup, SECCOMP_RET_KILL_PROCESS);
    run_under(forbid_enter, SECCOMP_RET_KILL_PROCESS);
    run_under(forbid_register, SECCOMP_RET_KILL_PROCESS);
}

/* The first child of a process in a new namespace is its init process: if it ends, no other child can be created. */
static void a_probe_of_a_filter_is_not_the_first_process_of_a_namespace(void) {
    forbid_rings(SECCOMP_RET_ERRNO | EPERM);
    execl("/proc/self/exe", "processes", "namespace", (char *)NULL);
}

static void namespace_program(void) {
    MUST(unshare(CLONE_NEWPID));
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0)
            for (;;)
                pause();
        print("a child: %s\n", children[i] < 0 ? strerrorname_np(errno) : "created");
    }
    for (int i = 1; i >= 0; i--)
        if (children[i] > 0) {
            MUST(kill(children[i], SIGKILL));
            reap(children[i]);
        }
}

/* With 0, 1 and 2 closed, the next files get these numbers, and output to stdout would go to a client. */
static void a_program_without_a_stdout_is_not_written_to(void) {
    struct pair pairs[3] = {0};
    int port, listener = listen_on(0, &port);
    for (int i = 0; i < 3; i++)
        pairs[i].peer = peer_connect(port);
    MUST(syscall(SYS_dup3, 1, 200, O_CLOEXEC));
    for (int fd = 0; fd < 3; fd++)
        MUST(close(fd));
    for (int i = 0; i < 3; i++)
        pairs[i].app = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    int set = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < 3; i++) {
        control(set, EPOLL_CTL_ADD, pairs[i].app, EPOLLIN, (uint64_t)i);
        if (write(pairs[i].app, "clean", 5) != 5)
            _exit(8);
    }
    settle(set);
    pid_t child = fork();
    if (child == 0)
        exit(0);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 3; i++)
        shutdown(pairs[i].app, SHUT_WR);
    /* Not by a raw call, which bypasses the library: the library would close the number later, with any file that has
     * it. */
    MUST(dup2(200, 1));
    for (int i = 0; i < 3; i++) {
        print("number %d: ", pairs[i].app);
        peer_gets(&pairs[i], 100);
    }
}

/* A line of the library must not end the program by SIGPIPE, nor by SIGXFSZ. */
static void a_stderr_without_a_reader_ends_no_program(void) {
    int ends[2];
    MUST(pipe(ends));
    MUST(dup2(ends[1], 2));
    MUST(close(ends[0]) | close(ends[1]));
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
}

static void a_limit_on_the_size_of_files_ends_no_program(void) {
    MUST(setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0}));
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
}

/* The child's ring would take the bytes that it reads by the other number. */
static void a_child_serves_no_connection_that_its_parent_shared(void) {
    for (int way = 0; way < 4; way++) {
        int set = new_set();
        struct pair pair = joined(set, EPOLLIN);
        if (way == 2)
            MUST(fcntl(pair.app, F_SETFL, 0) | fcntl(pair.app, F_SETFL, O_NONBLOCK));
        if (way == 3)
            del(set, pair.app);
        int twin = (int)MUST(way == 0 ? dup(pair.app) : passed_to_itself(pair.app));
        if (way == 3)
            add(set, pair.app, EPOLLIN, 1);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            int own = new_set();
            add(own, pair.app, EPOLLIN, 2);
            poll_once(own);
            peer_send(&pair, "for the child");
            await_delivery(&pair);
            print_next(own);
            print_stream(twin, 100);
            _exit(0);
        }
        MUST(waitpid(child, NULL, 0));
        exchange(set, &pair);
    }
}

static const struct app_case cases[] = {
    CASE(a_child_that_closes_everything_disturbs_nothing, "served:read"),
    CASE(a_child_writes_to_a_connection_that_its_parent_has_closed, "served:write served:close"),
    CASE(a_child_may_read_and_write_what_it_inherits, "passed:forked served:read"),
    CASE(bytes_that_were_reported_are_read_by_one_of_two_processes, ""),
    CASE(a_child_may_wait_in_the_set_it_inherits, ""),
    CASE(a_child_reports_no_edge_again, "served:read"),
    CASE(a_oneshot_member_of_an_inherited_set_is_reported_by_one_process, "served:read"),
    CASE(a_child_may_serve_with_a_set_of_its_own, "served:read"),
    CASE(a_child_serves_no_connection_that_its_parent_shared,
        "back:duplicated passed:duplicated back:passed_on passed:passed_on passed:blocking"),
    CASE(a_connection_ends_though_an_older_child_lives, "served:read"),
    CASE(a_closed_number_is_reported_while_a_child_has_its_connection, "served:read"),
    CASE(a_killed_process_ends_its_connections_though_its_child_lives, "passes"),
    CASE(a_started_program_inherits_the_stream, ""),
    CASE(exec_passes_on_buffered_bytes, ""),
    CASE(exec_passes_on_bytes_that_have_just_arrived, "passes"),
    CASE(an_exec_that_fails_changes_nothing, "served:read served:write"),
    CASE(every_way_to_start_a_program_works, "served:read"),
    CASE(a_daemon_goes_on_serving, "passed:forked"),
    CASE(a_parent_that_reads_no_more_takes_no_bytes, "passed:forked"),
    CASE(a_program_may_give_up_its_rights, "root served:read"),
    CASE(a_program_that_may_lock_no_memory_runs_as_before, "root passes"),
    CASE(a_program_that_may_start_no_thread_sends_all_bytes, "root served:write"),
    CASE(a_program_may_lock_all_its_memory_within_a_limit, "root passes"),
    CASE(a_program_may_move_to_an_empty_root, "root served:read"),
    CASE(a_program_runs_though_a_filter_refuses_rings_from_the_start, "passed:filtered"),
    CASE(a_program_runs_though_a_later_filter_refuses_rings, "back:filtered"),
    CASE(a_filter_that_kills_for_rings_from_the_start_is_not_triggered, "passes"),
    CASE(a_later_filter_that_kills_for_rings_is_not_triggered, "back:filtered"),
    CASE(a_program_runs_under_an_earlier_filter, "passed:refused"),
    CASE(a_profile_that_refuses_rings_lets_a_program_run, "passed:refused"),
    CASE(a_profile_that_allows_rings_lets_a_program_be_served, "served:read served:write"),
    CASE(a_thread_without_new_privileges_is_served_under_an_earlier_filter, "served:read served:write"),
    CASE(a_profile_that_kills_for_rings_kills_no_program, "passed:refused"),
    CASE(a_probe_of_a_filter_is_not_the_first_process_of_a_namespace, "root passed:refused"),
    CASE(a_program_without_a_stdout_is_not_written_to, ""),
    CASE(a_stderr_without_a_reader_ends_no_program, "served:read"),
    CASE(a_limit_on_the_size_of_files_ends_no_program, "passes"),
};

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "started")) {
        started_program(atoi(argv[2]));
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "filtered")) {
        filtered_program();
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "inherited")) {
        inherited_filter_program();
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "unprivileged")) {
        unprivileged_program();
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "namespace")) {
        namespace_program();
        return 0;
    }
    return RUN(cases);
}
