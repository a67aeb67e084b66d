/* A library that is loaded with the preload library, before or behind it, and has functions of the same names. It makes
 * its system calls by `syscall`, which is a hook: each of the two may call the other once, and not recurse endlessly. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

ssize_t read(int fd, void *bytes, size_t count) { return syscall(SYS_read, fd, bytes, count); }
ssize_t write(int fd, const void *bytes, size_t count) { return syscall(SYS_write, fd, bytes, count); }
int close(int fd) { return (int)syscall(SYS_close, fd); }
