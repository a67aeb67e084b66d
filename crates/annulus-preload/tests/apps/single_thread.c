/* A single-threaded program under the library, with an operator's settings. It stays single-threaded, makes calls that
 * only such a process may make, and its peer has the response whenever the program blocks outside its set. The last
 * peer is another process, so that no hooked call waits for it. */
#include "app.h"
#include <netdb.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <threads.h>

/* The compiler calls these in place of others. */
ssize_t __getdelim(char **text, size_t *capacity, int end, FILE *stream);
int __uflow(FILE *stream);
char *__fgets_chk(char *bytes, size_t capacity, int count, FILE *stream);
size_t __fread_chk(void *bytes, size_t capacity, size_t size, size_t count, FILE *stream);

/* A system call that bypasses the hooks. */
static long raw(long number, long a, long b, long c) {
    return kernel_call(number, a, b, c, 0, 0, 0);
}

/* Makes rounds of one request and one response, in quick succession. */
static void quick(int set, struct pair *pair, int rounds) {
    char byte;
    for (int i = 0; i < rounds; i++) {
        peer_send(pair, "q");
        epoll_wait(set, &(struct epoll_event){0}, 1, 10000);
        MUST(read(pair->app, &byte, 1));
        MUST(write(pair->app, "a", 1));
        poll_once(set);
        MUST(syscall(SYS_read, pair->peer, &byte, 1));
    }
}

/* Makes a round with a late response, as the program computes. Afterwards the flush thread runs. */
static void slow_once(int set, struct pair *pair) {
    char byte;
    quick(set, pair, 100);
    peer_send(pair, "q");
    epoll_wait(set, &(struct epoll_event){0}, 1, 10000);
    MUST(read(pair->app, &byte, 1));
    MUST(write(pair->app, "a", 1));
    for (double until = now_ms() + 5; now_ms() < until;)
        continue;
    poll_once(set);
    MUST(syscall(SYS_read, pair->peer, &byte, 1));
    quick(set, pair, 600);
}

static struct pair served(int set) {
    struct pair pair = connected();
    add(set, pair.app, EPOLLIN, 1);
    return pair;
}

static int threads(void) {
    char line[200];
    int count = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        sscanf(line, "Threads: %d", &count);
    fclose(file);
    return count;
}

static void a_quick_server_has_one_thread(void) {
    int set = new_set();
    struct pair pair = served(set);
    quick(set, &pair, 300);
    print("threads: %d\n", threads());
    quick(set, &pair, 300);
    print("threads: %d\n", threads());
}

static void a_server_may_leave_its_namespaces(void) {
    for (int slow = 0; slow < 2; slow++) {
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            int set = new_set(), own = open("/proc/self/ns/uts", O_RDONLY);
            struct pair pair = served(set);
            quick(set, &pair, 200);
            if (slow)
                slow_once(set, &pair);
            GOT(unshare(CLONE_FS));
            GOT(setns(own, CLONE_NEWUTS));
            if (slow)
                quick(set, &pair, 10);
            GOT(unshare(CLONE_NEWUSER));
            quick(set, &pair, 10);
            MUST(write(pair.app, "result", 6));
            poll_once(set);
            peer_gets(&pair, 6);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

static void a_process_ends_with_its_only_thread(void) {
    for (int slow = 0; slow < 2; slow++) {
        int status = -1;
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            int set = new_set();
            struct pair pair = served(set);
            quick(set, &pair, 200);
            if (slow)
                slow_once(set, &pair);
            raw(SYS_exit, 7, 0, 0);
        }
        alarm(20);
        MUST(waitpid(child, &status, 0));
        alarm(0);
        print("exit %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
}

/* ---- blocking calls ---- */

static void nothing(int number) { (void)number; }

static int line[2], listener, port, file;
static sem_t *semaphore;
static FILE *stream;
static int set_of_semaphores, queue;

static void *read_line(void *argument) {
    (void)argument;
    char byte;
    return (void *)(intptr_t)read(line[0], &byte, 1);
}
static int read_line_too(void *argument) { return read_line(argument) != NULL; }

enum { BY_LINE, BY_SIGNAL, BY_END, BY_OTHER, BY_NOTHING };

/* Blocks in a call for the peer's reaction to the response, and prints the result. */
static int wait_by(int way, pid_t child, bool doing) {
    struct timespec long_time = {15, 0}, left, until;
    struct epoll_event event;
    struct addrinfo *result = NULL;
    struct rusage usage;
    siginfo_t info;
    sigset_t signals, none;
    pthread_t thread;
    thrd_t other_thread;
    fd_set lines;
    char bytes[16], *text = NULL;
    size_t capacity = 0;
    int number, set, pipes[2];
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &(struct iovec){bytes, 1}, .msg_iovlen = 1}};
    sigemptyset(&none);
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    FD_ZERO(&lines);
    FD_SET(line[0], &lines);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 15;
#define WAY(nth, by, ...)                                                                                              \
    case nth:                                                                                                          \
        if (doing) {                                                                                                   \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
        return by
    switch (way) {
        WAY(0, BY_END, GOT(waitpid(child, NULL, 0) == child));
        WAY(1, BY_END, GOT(wait(NULL) == child));
        WAY(2, BY_END, GOT(wait3(NULL, 0, &usage) == child));
        WAY(3, BY_END, GOT(wait4(child, NULL, 0, &usage) == child));
        WAY(4, BY_END, GOT(waitid(P_PID, (id_t)child, &info, WEXITED)));
        WAY(5, BY_SIGNAL, GOT(nanosleep(&long_time, &left)));
        WAY(6, BY_SIGNAL, GOT(clock_nanosleep(CLOCK_MONOTONIC, 0, &long_time, &left)));
        WAY(7, BY_SIGNAL, GOT(usleep(15000000)));
        WAY(8, BY_SIGNAL, GOT(sleep(15) > 0));
        WAY(9, BY_SIGNAL, GOT(pause()));
        WAY(10, BY_SIGNAL, GOT(sigsuspend(&none)));
        WAY(11, BY_SIGNAL, GOT(sigwait(&signals, &number)));
        WAY(12, BY_SIGNAL, GOT(sigwaitinfo(&signals, &info) == SIGUSR1));
        WAY(13, BY_SIGNAL, GOT(sigtimedwait(&signals, &info, &long_time) == SIGUSR1));
        WAY(14, BY_LINE, GOT(read(line[0], bytes, 1)));
        WAY(15, BY_LINE, GOT(poll(&(struct pollfd){line[0], POLLIN, 0}, 1, 15000)));
        WAY(16, BY_LINE, GOT(ppoll(&(struct pollfd){line[0], POLLIN, 0}, 1, &long_time, NULL)));
        WAY(17, BY_LINE, GOT(select(line[0] + 1, &lines, NULL, NULL, &(struct timeval){15, 0})));
        WAY(18, BY_LINE, GOT(pselect(line[0] + 1, &lines, NULL, NULL, &long_time, NULL)));
        WAY(19, BY_LINE, set = (int)MUST(epoll_create1(0)); add(set, line[0], EPOLLIN, 1);
            GOT(epoll_wait(set, &event, 1, 15000)); close(set));
        WAY(20, BY_END, GOT(flock(file, LOCK_EX)));
        WAY(21, BY_END, GOT(lockf(file, F_LOCK, 0)));
        WAY(22, BY_OTHER, GOT(sem_wait(semaphore)));
        WAY(23, BY_OTHER, GOT(sem_timedwait(semaphore, &until)));
        WAY(24, BY_OTHER, GOT(semop(set_of_semaphores, &(struct sembuf){0, -1, 0}, 1)));
        WAY(25, BY_OTHER, GOT(semtimedop(set_of_semaphores, &(struct sembuf){0, -1, 0}, 1, &long_time)));
        WAY(26, BY_OTHER, GOT(msgrcv(queue, bytes, 1, 0, 0)));
        WAY(27, BY_OTHER, number = accept(listener, NULL, NULL); GOT(number >= 0); close(number));
        WAY(28, BY_NOTHING, GOT(getaddrinfo("127.0.0.1", "80", NULL, &result)); freeaddrinfo(result));
        WAY(29, BY_NOTHING, number = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
            GOT(connect(number, (struct sockaddr *)&(struct sockaddr_in){0}, 0)); close(number));
        WAY(30, BY_LINE, GOT((fgets)(bytes, sizeof bytes, stream) != NULL));
        WAY(31, BY_LINE, GOT(fgetc(stream)));
        WAY(32, BY_LINE, GOT((getc)(stream)));
        WAY(33, BY_LINE, GOT((fread)(bytes, 1, 1, stream)));
        WAY(34, BY_LINE, GOT((getline)(&text, &capacity, stream)));
        WAY(35, BY_LINE, GOT(getdelim(&text, &capacity, '\n', stream)));
        WAY(36, BY_LINE, MUST(dup2(line[0], 0)); GOT((getchar)()));
        WAY(37, BY_LINE, GOT(pclose(stream) >= 0));
        WAY(38, BY_LINE, GOT(__getdelim(&text, &capacity, '\n', stream)));
        WAY(39, BY_LINE, GOT((fgets_unlocked)(bytes, sizeof bytes, stream) != NULL));
        WAY(40, BY_LINE, GOT((fread_unlocked)(bytes, 1, 1, stream)));
        WAY(41, BY_LINE, GOT(__uflow(stream)));
        WAY(42, BY_LINE, GOT(__fgets_chk(bytes, sizeof bytes, sizeof bytes, stream) != NULL));
        WAY(43, BY_LINE, GOT(__fread_chk(bytes, sizeof bytes, 1, 1, stream)));
        WAY(44, BY_END, GOT(lockf64(file, F_LOCK, 0)));
        WAY(45, BY_END, GOT(fcntl(file, F_SETLKW, &(struct flock){.l_type = F_WRLCK})));
        WAY(46, BY_LINE, GOT(recvmmsg(line[0], &message, 1, 0, NULL)));
        WAY(47, BY_LINE, MUST(pipe(pipes)); GOT(splice(line[0], NULL, pipes[1], NULL, 1, 0));
            MUST(close(pipes[0]) | close(pipes[1])));
        /* From here on the process has had a second thread. */
        WAY(48, BY_LINE, GOT(pthread_create(&thread, NULL, read_line, NULL)); GOT(pthread_join(thread, NULL)));
        WAY(49, BY_LINE, GOT(thrd_create(&other_thread, read_line_too, NULL)); GOT(thrd_join(other_thread, NULL)));
    default: return -1;
    }
}

static bool takes_lock(int way) { return way == 20 || way == 21 || way == 44 || way == 45; }

/* The peer's reaction to the response, if the call waits for one. */
static void be_peer(int way, struct pair *pair) {
    char bytes[16];
    size_t have = 0;
    int by = wait_by(way, 0, false);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (takes_lock(way)) {
        if (way == 20)
            MUST(flock((int)MUST(open("/proc/self/exe", O_RDONLY)), LOCK_EX));
        else
            MUST(lockf(file, F_LOCK, 0));
        MUST(write(line[1], "L", 1));
    }
    while (pair && have < 6)
        have += (size_t)MUST(syscall(SYS_read, pair->peer, bytes, 6 - have));
    if (by == BY_LINE || by == BY_NOTHING)
        MUST(write(line[1], "\n", 1));
    /* It may arrive before the call that waits for it. */
    while (by == BY_SIGNAL) {
        kill(getppid(), SIGUSR1);
        pause_ms(1);
    }
    if (way == 22 || way == 23)
        sem_post(semaphore);
    if (way == 24 || way == 25)
        MUST(semop(set_of_semaphores, &(struct sembuf){0, 1, 0}, 1));
    if (way == 26)
        MUST(msgsnd(queue, &(long[2]){1, 0}, 1, 0));
    if (way == 27)
        peer_connect(port);
    _exit(0);
}

static void wait_each_way(bool serves) {
    struct pair pair = {0};
    char byte, command[64];
    signal(SIGUSR1, nothing);
    listener = listen_on(0, &port);
    semaphore = mmap(NULL, sizeof *semaphore, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(sem_init(semaphore, 1, 0));
    set_of_semaphores = (int)MUST(semget(IPC_PRIVATE, 1, 0600));
    queue = (int)MUST(msgget(IPC_PRIVATE, 0600));
    for (int way = 0, by; (by = wait_by(way, 0, false)) >= 0; way++) {
        alarm(20);
        MUST(way == 46 ? socketpair(AF_UNIX, SOCK_STREAM, 0, line) : pipe(line));
        file = way == 20 ? (int)MUST(open("/proc/self/exe", O_RDONLY)) : (int)MUST(syscall(SYS_memfd_create, "file", 0));
        if (serves) {
            int set = new_set();
            pair = served(set);
            quick(set, &pair, 80);
        }
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGUSR1);
        sigprocmask(way >= 10 && way < 14 ? SIG_BLOCK : SIG_UNBLOCK, &signals, NULL);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0)
            be_peer(way, serves ? &pair : NULL);
        if (takes_lock(way))
            MUST(read(line[0], &byte, 1));
        snprintf(command, sizeof command, "head -c 1 <&%d", line[0]);
        stream = way == 37 ? popen(command, "r") : way >= 30 && way < 44 && way != 36 ? fdopen(dup(line[0]), "r") : NULL;
        print("way %d: ", way);
        if (serves)
            MUST(write(pair.app, "result", 6));
        wait_by(way, child, true);
        if (by == BY_NOTHING)
            MUST(raw(SYS_read, line[0], (long)&byte, 1));
        signal(SIGUSR1, SIG_IGN);
        if (by != BY_END || way >= 20) {
            if (by == BY_SIGNAL)
                kill(child, SIGKILL);
            MUST(waitpid(child, NULL, 0));
        }
        signal(SIGUSR1, nothing);
        if (stream && way != 37)
            fclose(stream);
        MUST(close(line[0]));
        MUST(close(line[1]));
        MUST(close(file));
        if (serves) {
            /* The set stays open: closing a ring may interrupt the next wait. */
            MUST(close(pair.app));
            peer_close(&pair);
        }
    }
    alarm(0);
    semctl(set_of_semaphores, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
}

static void a_blocking_call_sends_the_response_first(void) { wait_each_way(true); }
static void waits_of_a_program_that_serves_nothing_are_unchanged(void) { wait_each_way(false); }

/* Repeats a call that does not wait until the peer has reacted to the response. */
static void a_repeated_call_sends_the_response(void) {
    int other = fresh_set(), unknown = passed_to_itself(other);
    char byte;
    MUST(pipe(line));
    listener = listen_on(SOCK_NONBLOCK, &port);
    add(other, line[0], EPOLLIN, 1);
    for (int way = 0; way < 8; way++) {
        int set = new_set(), found = 0, number = -1;
        struct pair pair = served(set);
        struct epoll_event event;
        quick(set, &pair, 80);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            MUST(syscall(SYS_read, pair.peer, &byte, 1));
            if (way < 2)
                peer_send(&pair, "x");
            else if (way == 2)
                peer_connect(port);
            else
                MUST(syscall(SYS_write, line[1], "x", 1));
            syscall(SYS_exit_group, 0);
        }
        MUST(write(pair.app, "a", 1));
        for (double until = now_ms() + 15000; !found && now_ms() < until;) {
            switch (way) {
            case 0: found = read(pair.app, &byte, 1) == 1; break;
            case 1: found = recv(pair.app, &byte, 1, MSG_PEEK) == 1; break;
            case 2: found = (number = accept(listener, NULL, NULL)) >= 0; break;
            case 3: found = ioctl(line[0], FIONREAD, &number) == 0 && number == 1; break;
            case 4: found = poll(&(struct pollfd){line[0], POLLIN, 0}, 1, 0); break;
            case 5: found = epoll_wait(other, &event, 1, 0); break;
            case 6: found = epoll_wait(unknown, &event, 1, 0); break;
            /* This one waits. */
            case 7: found = epoll_wait(unknown, &event, 1, 15000); break;
            }
        }
        print("way %d: %d\n", way, found);
        poll_once(set);
        MUST(waitpid(child, NULL, 0));
        if (way > 2)
            MUST(read(line[0], &byte, 1));
        MUST(close(pair.app));
    }
}

static const struct app_case cases[] = {
    CASE(a_quick_server_has_one_thread, "served:write"),
    CASE(a_server_may_leave_its_namespaces, "served:write"),
    CASE(a_process_ends_with_its_only_thread, "passes"),
    CASE(a_blocking_call_sends_the_response_first, "served:write"),
    CASE(a_repeated_call_sends_the_response, "served:write"),
    CASE(waits_of_a_program_that_serves_nothing_are_unchanged, "passes"),
};

int main(int argc, char **argv) { return RUN(cases); }
