/*
 * Loaded before the library: changes the operator's switch before every second wait of the program, by writing to the
 * word that other processes would write to. The variable SWITCHER_WORD is the word's offset in the file, bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns the counter file of this process, among the library's descriptors. */
static int word_file(void) {
    for (int fd = 512; fd < 530; fd++) {
        char path[64], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (syscall(SYS_readlinkat, -100, path, target, sizeof target - 1) > 0 && strstr(target, "annulus-metrics"))
            return fd;
    }
    return -1;
}

static void flip_switch(void) {
    static int calls;
    int before = errno, fd = word_file();
    const char *offset = getenv("SWITCHER_WORD");
    if (fd >= 0 && offset && ++calls % 2 == 0) {
        uint64_t word = 0;
        long at = atol(offset);
        syscall(SYS_pread64, fd, &word, sizeof word, at);
        word++;
        syscall(SYS_pwrite64, fd, &word, sizeof word, at);
    }
    errno = before;
}

int epoll_wait(int set, struct epoll_event *events, int max, int timeout) {
    static int (*next)(int, struct epoll_event *, int, int);
    if (!next)
        next = dlsym(RTLD_NEXT, "epoll_wait");
    flip_switch();
    return next(set, events, max, timeout);
}

int epoll_pwait(int set, struct epoll_event *events, int max, int timeout, const sigset_t *mask) {
    static int (*next)(int, struct epoll_event *, int, int, const sigset_t *);
    if (!next)
        next = dlsym(RTLD_NEXT, "epoll_pwait");
    flip_switch();
    return next(set, events, max, timeout, mask);
}
