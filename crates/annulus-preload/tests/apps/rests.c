/* What a program was told is written, to peers for whom there was no room, and what the program does then: everything
 * but wait on its set. The rule: it arrives, as it would from the kernel's own buffer, whatever the program does. */
#include "app.h"

static struct pair joined_narrow(int set, uint32_t mask) {
    struct pair pair = connected_narrow();
    add(set, pair.app, mask, 1);
    turn(set);
    return pair;
}

/* All in one round: answers and ends that follow one another closely. */
static void many_that_are_closed_full_in_one_round_get_all(void) {
    enum { MANY = 100 };
    static struct reader readers[MANY];
    struct pair pairs[MANY];
    uint64_t counts[MANY];
    unsigned char bytes[3000];
    int right = 0;
    for (int round = 0; round < 8; round++) {
        int set = new_set();
        for (int i = 0; i < MANY; i++)
            pairs[i] = joined_narrow(set, EPOLLIN);
        for (int i = 0; i < MANY; i++) {
            counts[i] = 0;
            for (int k = 0; k < 10; k++) {
                fill(bytes, sizeof bytes, counts[i]);
                long done = write(pairs[i].app, bytes, sizeof bytes);
                counts[i] += done > 0 ? (uint64_t)done : 0;
            }
            MUST(close(pairs[i].app));
        }
        turn(set);
        for (int i = 0; i < MANY; i++)
            reader_start(&readers[i], pairs[i].peer, 0);
        for (int i = 0; i < MANY; i++) {
            join_turning(&readers[i], set);
            right += readers[i].count == counts[i] && readers[i].wrong_at < 0 && !readers[i].error;
            peer_close(&pairs[i]);
        }
        MUST(close(set));
    }
    say("right: %d\n", right);
}

static const struct app_case cases[] = {
    CASE(many_that_are_closed_full_in_one_round_get_all, "served:write"),
};

int main(int argc, char **argv) { return RUN(cases); }
