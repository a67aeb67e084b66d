// Reports synchronisation to ThreadSanitizer that happens in the standard library, which is not instrumented.
//
// Generic and inlined code of std is compiled with the crates that use it, so the sanitizer sees an uncontended lock.
// The rest is machine code in libstd: the contended path of a mutex or a read-write lock, a wait on a condition
// variable, a `Once`, the end of a scoped thread. `ci/sanitize thread` links these wrappers around them (`ld --wrap`).
// Each wrapper acquires or releases the address, as std's code does.

#include <stdbool.h>
#include <stdint.h>

void __tsan_acquire(void *address);
void __tsan_release(void *address);

// The mangled names depend on the compiler: -DMUTEX_LOCK_CONTENDED=_RNv… and so on.
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define REAL(name) JOIN(__real_, name)
#define WRAPPED(name) JOIN(__wrap_, name)

#define CONTENDED(name)                                                                                                \
    void REAL(name)(void *lock);                                                                                       \
    void WRAPPED(name)(void *lock) {                                                                                   \
        REAL(name)(lock);                                                                                              \
        __tsan_acquire(lock);                                                                                          \
    }

CONTENDED(MUTEX_LOCK_CONTENDED)
CONTENDED(RWLOCK_READ_CONTENDED)
CONTENDED(RWLOCK_WRITE_CONTENDED)

void REAL(CONDVAR_WAIT)(void *condvar, void *mutex);
void WRAPPED(CONDVAR_WAIT)(void *condvar, void *mutex) {
    __tsan_release(mutex);
    REAL(CONDVAR_WAIT)(condvar, mutex);
    __tsan_acquire(mutex);
}

// A `Duration` is passed in two registers.
bool REAL(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanoseconds);
bool WRAPPED(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanoseconds) {
    __tsan_release(mutex);
    bool in_time = REAL(CONDVAR_WAIT_TIMEOUT)(condvar, mutex, seconds, nanoseconds);
    __tsan_acquire(mutex);
    return in_time;
}

// Other threads may see a `Once` as complete before its call returns, so the release happens at the end of its
// function. The function is a `&mut dyn FnMut`, passed in two registers: its data and its table of functions. Entries
// four and five of the table are the two ways to call it.
enum { CALL_ONCE = 3, CALL_MUT = 4, TABLE_WORDS = 5 };

struct function {
    void *data;
    void *const *table;
    void *once;
};

static void run(struct function *function, void *state, int way) {
    void (*call)(void *, void *) = (void (*)(void *, void *))function->table[way];
    call(function->data, state);
    __tsan_release(function->once);
}

static void run_once(struct function *function, void *state) { run(function, state, CALL_ONCE); }
static void run_mut(struct function *function, void *state) { run(function, state, CALL_MUT); }

void REAL(ONCE_CALL)(void *once, bool ignores_poison, void *data, void *const *table, void *location);
void WRAPPED(ONCE_CALL)(void *once, bool ignores_poison, void *data, void *const *table, void *location) {
    struct function function = {data, table, once};
    void *ours[TABLE_WORDS];
    for (int word = 0; word < TABLE_WORDS; word++) {
        ours[word] = table[word];
    }
    ours[CALL_ONCE] = (void *)run_once;
    ours[CALL_MUT] = (void *)run_mut;
    REAL(ONCE_CALL)(once, ignores_poison, &function, ours, location);
    __tsan_acquire(once);
}

// The end of a scoped thread: the thread that ended the scope reads one of the fields, unknown here.
void REAL(SCOPE_DECREMENT)(void *scope, bool panicked);
void WRAPPED(SCOPE_DECREMENT)(void *scope, bool panicked) {
    uint64_t *fields = scope;
    for (int field = 0; field < 3; field++) {
        __tsan_release(&fields[field]);
    }
    REAL(SCOPE_DECREMENT)(scope, panicked);
}

// `Arc` orders its last drop with a fence after a release, and ThreadSanitizer does not support fences. Here the
// release also acquires, like in a standard library that was compiled for the sanitizer.
enum { RELEASE = 3, ACQUIRE_RELEASE = 4 };

uint64_t __real___tsan_atomic64_fetch_sub(volatile uint64_t *count, uint64_t by, int order);
uint64_t __wrap___tsan_atomic64_fetch_sub(volatile uint64_t *count, uint64_t by, int order) {
    return __real___tsan_atomic64_fetch_sub(count, by, order == RELEASE ? ACQUIRE_RELEASE : order);
}
