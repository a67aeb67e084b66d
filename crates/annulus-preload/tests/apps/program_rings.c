/* Rings that the program makes itself, by libc's `syscall`. An event loop such as libuv's adds members to its set
 * through a ring, and by `epoll_ctl` if it gets no ring. */
#include "app.h"
#include <linux/io_uring.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

/* Rings are made by libc's function. */
#undef syscall

enum { NO_SQARRAY = 1 << 16 };

/* A ring for one entry at a time. */
struct ring {
    int fd;
    struct io_uring_params params;
    unsigned char *queues;
    struct io_uring_sqe *entries;
};

static int make(unsigned entries, struct io_uring_params params) {
    return (int)syscall(SYS_io_uring_setup, entries, &params);
}

static struct ring new_ring(unsigned entries, unsigned flags) {
    struct ring ring = {.params.flags = flags};
    ring.fd = (int)syscall(SYS_io_uring_setup, entries, &ring.params);
    if (ring.fd < 0)
        return ring;
    size_t bytes = ring.params.cq_off.cqes + ring.params.cq_entries * sizeof(struct io_uring_cqe);
    ring.queues = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    bytes = ring.params.sq_entries * sizeof *ring.entries;
    ring.entries = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQES);
    return ring;
}

/* Submits an entry, and waits for as many completions. */
static void submit(struct ring *ring, struct io_uring_sqe entry, unsigned completions) {
    unsigned *tail = (unsigned *)(ring->queues + ring->params.sq_off.tail), slot = *tail % ring->params.sq_entries;
    ring->entries[slot] = entry;
    if (!(ring->params.flags & NO_SQARRAY))
        ((unsigned *)(ring->queues + ring->params.sq_off.array))[slot] = slot;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    MUST(syscall(SYS_io_uring_enter, ring->fd, 1, completions, IORING_ENTER_GETEVENTS, NULL, 0));
}

/* Adds a member to a set through the ring, and returns the result. */
static int add_through(struct ring *ring, int set, int fd, uint32_t mask, uint64_t label) {
    struct epoll_event event = {.events = mask, .data.u64 = label};
    submit(ring, (struct io_uring_sqe){.opcode = IORING_OP_EPOLL_CTL, .fd = set, .addr = (uintptr_t)&event,
                                       .len = EPOLL_CTL_ADD, .off = (uint64_t)fd}, 1);
    unsigned *head = (unsigned *)(ring->queues + ring->params.cq_off.head);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->queues + ring->params.cq_off.cqes);
    int result = done[*head % ring->params.cq_entries].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

static void run_loop(bool has_files, unsigned flags) {
    int set = fresh_set(), port, listener = listen_on(SOCK_NONBLOCK, &port);
    if (has_files) {
        int files = make(64, (struct io_uring_params){.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 10});
        if (files >= 0)
            add(set, files, EPOLLIN, 0);
    }
    struct ring ring = new_ring(256, flags);
    int fds[] = {listener, -1};
    struct pair pair = {.peer = peer_connect(port)};
    for (int i = 0; i < 2; i++) {
        print("added: %d\n", ring.fd < 0 ? control(set, EPOLL_CTL_ADD, fds[i], EPOLLIN, (uint64_t)i + 1)
                                         : add_through(&ring, set, fds[i], EPOLLIN, (uint64_t)i + 1));
        if (i == 0) {
            print_next(set);
            pair.app = fds[1] = (int)MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        }
    }
    exchange(set, &pair);
    exchange(set, &pair);
}

static void a_loop_without_its_ring_is_served(void) { run_loop(false, 0); }

/* On Linux 6.6 and later. */
static void a_loop_without_its_ring_of_newer_kernels_is_served(void) { run_loop(false, NO_SQARRAY); }

/* libuv 1.45 to 1.48 makes a ring for files first. */
static void a_loop_with_a_ring_for_files_only_is_served(void) { run_loop(true, 0); }

static void print_made(const char *what, int ring) {
    print("%s: %s\n", what, ring < 0 ? strerrorname_np(errno) : "made");
    if (ring >= 0)
        MUST(close(ring));
}

static void rings_for_other_purposes_are_made(void) {
    struct io_uring_params plain = {0};
    print_made("before any set", make(256, plain));
    int set = fresh_set();
    print_made("another size", make(128, plain));
    print_made("a flag", make(256, (struct io_uring_params){.flags = IORING_SETUP_CLAMP}));
    print_made("a size of completions",
        make(256, (struct io_uring_params){.flags = IORING_SETUP_CQSIZE, .cq_entries = 1024}));
    print_made("a thread", make(256, (struct io_uring_params){.flags = IORING_SETUP_SQPOLL}));
    print_made("no parameters", (int)syscall(SYS_io_uring_setup, 256, NULL));
    add(set, eventfd(0, 0), EPOLLIN, 1);
    print_made("a set with a member", make(256, plain));
    set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    print_made("a served set", make(256, plain));
    set = fresh_set();
    MUST(close(set));
    print_made("a closed set", make(256, plain));
}

static void members_added_through_a_ring_are_reported(void) {
    int set = new_set(), event = eventfd(0, EFD_NONBLOCK);
    struct pair pair = joined(set, EPOLLIN), other = connected();
    exchange(set, &pair);
    struct ring ring = new_ring(8, 0);
    if (ring.fd < 0) {
        print("no ring\n");
        return;
    }
    print("added: %d\n", add_through(&ring, set, event, EPOLLIN, 2));
    print("added: %d\n", add_through(&ring, set, other.app, EPOLLIN, 3));
    MUST(eventfd_write(event, 1));
    print_next(set);
    MUST(eventfd_read(event, &(eventfd_t){0}));
    exchange(set, &other);
    exchange(set, &pair);
}

static void a_set_that_a_ring_polls_reports_its_members(void) {
    int set = new_set();
    struct pair pair = joined(set, EPOLLIN);
    exchange(set, &pair);
    struct ring ring = new_ring(8, 0);
    submit(&ring, (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = set, .poll32_events = POLLIN}, 0);
    peer_send(&pair, "x");
    await_delivery(&pair);
    MUST(syscall(SYS_io_uring_enter, ring.fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0));
    print("completions: %u\n", *(unsigned *)(ring.queues + ring.params.cq_off.tail));
}

static const struct app_case cases[] = {
    CASE(a_loop_without_its_ring_is_served, "served:read served:write"),
    CASE(a_loop_without_its_ring_of_newer_kernels_is_served, "served:read served:write"),
    CASE(a_loop_with_a_ring_for_files_only_is_served, "served:read served:write"),
    CASE(rings_for_other_purposes_are_made, ""),
    CASE(members_added_through_a_ring_are_reported, "served:read"),
    CASE(a_set_that_a_ring_polls_reports_its_members, ""),
};

int main(int argc, char **argv) { return RUN(cases); }
