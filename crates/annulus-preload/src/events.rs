//! The events of a connection, as a function of its states.

use crate::outbound::{Fin, Outbound};

/// Events of a readable socket.
pub(crate) const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// Events of a writable socket.
pub(crate) const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(crate) const HUP: u32 = libc::EPOLLHUP as u32;
pub(crate) const ERR: u32 = libc::EPOLLERR as u32;
pub(crate) const EDGE_TRIGGERED: u32 = libc::EPOLLET as u32;
pub(crate) const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// Urgent data. It is never reported: a connection is served until the program asks for urgent data.
pub(crate) const PRI: u32 = libc::EPOLLPRI as u32;
/// Flags of epoll that a served connection supports. A member with any other flag passes through.
pub(crate) const KNOWN: u32 = IN
    | OUT
    | RDHUP
    | HUP
    | ERR
    | PRI
    | EDGE_TRIGGERED
    | ONESHOT
    | (libc::EPOLLRDBAND | libc::EPOLLWRBAND | libc::EPOLLMSG) as u32;

/// The states that decide the events of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    pub(crate) outbound: Outbound,
    pub(crate) fin: Fin,
    /// The program can read bytes.
    pub(crate) has_bytes: bool,
    /// The peer has sent FIN.
    pub(crate) ended: bool,
    pub(crate) has_error: bool,
}

impl Readiness {
    /// Returns the events that `poll` would return, by the rules of the kernel's `tcp_poll`.
    #[inline]
    pub(crate) fn events(self) -> u32 {
        let output = match (self.outbound, self.fin) {
            (Outbound::Dead, _) => IN | RDHUP | OUT | HUP,
            (_, Fin::AfterBacklog | Fin::Sent) if self.ended => OUT | HUP,
            (Outbound::Full, Fin::Open) => 0,
            (Outbound::Writable | Outbound::Broken, _) | (Outbound::Full, _) => OUT,
        };
        let input = match (self.has_bytes, self.ended) {
            (_, true) => IN | RDHUP,
            (true, false) => IN,
            (false, false) => 0,
        };
        let error = if self.has_error { ERR } else { 0 };
        output | input | error
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns all combinations, of the bits (bytes, end, error) in order for each pair of states.
    pub(crate) fn all() -> impl Iterator<Item = Readiness> {
        use Outbound::{Broken, Dead, Full, Writable};
        let pairs = [Writable, Full, Broken, Dead]
            .into_iter()
            .flat_map(|outbound| {
                [Fin::Open, Fin::AfterBacklog, Fin::Sent].map(|fin| (outbound, fin))
            });
        pairs.flat_map(|(outbound, fin)| {
            (0..8).map(move |bits| Readiness {
                outbound,
                fin,
                has_bytes: bits & 4 != 0,
                ended: bits & 2 != 0,
                has_error: bits & 1 != 0,
            })
        })
    }

    #[test]
    fn each_combination_of_states_has_the_events_of_the_table() {
        // In the order of the bits; i: IN, r: RDHUP, o: OUT, h: HUP, e: ERR.
        let open = "o oe iro iroe io ioe iro iroe ";
        let full = "- e ir ire i ie ir ire ";
        let shut = "o oe iroh iroeh io ioe iroh iroeh ";
        let dead = "iroh iroeh ".repeat(4);
        let writable = [open, shut, shut].concat();
        let table = [&writable, full, shut, shut, &writable, &dead, &dead, &dead].concat();
        let names = [(IN, 'i'), (RDHUP, 'r'), (OUT, 'o'), (ERR, 'e'), (HUP, 'h')];
        let rows: Vec<Readiness> = all().collect();
        assert_eq!(table.split_whitespace().count(), rows.len());
        for (row, expected) in rows.into_iter().zip(table.split_whitespace()) {
            let events = row.events();
            let named = names.iter().filter(|(event, _)| events & event == *event);
            let named: String = named.map(|(_, name)| name).collect();
            assert_eq!(named, expected.trim_matches('-'), "{row:?}");
        }
    }
}
