//! The states of receiving from a connection. The first variant of each is the initial state: the table is zeroed
//! memory.

use Inbound::{Armed, Direct, Idle, Listed, Readable, Stopping, StoppingDirect, StoppingReadable};

/// The reader of a connection: the ring by a receive. For large transfers (*direct*), the program's own calls read, and
/// the ring only polls.
///
/// The order makes each question below one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Inbound {
    /// No receive is pending.
    Idle,
    /// In the list of connections that need a receive.
    Listed,
    Direct,
    /// Direct, and the kernel has data.
    Readable,
    /// `Readable` once the receive has been cancelled.
    StoppingReadable,
    /// `Direct` once the receive has been cancelled.
    StoppingDirect,
    /// `Idle` once the receive has been cancelled.
    Stopping,
    /// A receive is pending in the kernel.
    Armed,
}

impl Inbound {
    /// Returns whether the kernel has a receive.
    #[inline]
    pub(crate) fn is_armed(self) -> bool {
        matches!(self, Armed | Stopping | StoppingDirect | StoppingReadable)
    }

    #[inline]
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Direct | Readable | StoppingDirect | StoppingReadable)
    }

    /// Returns whether the program is to read data that the kernel has.
    #[inline]
    pub(crate) fn is_readable(self) -> bool {
        matches!(self, Readable | StoppingReadable)
    }

    /// Records the end of a receive, or that the list of needed receives was dropped.
    #[inline]
    pub(crate) fn complete(&mut self) {
        *self = match *self {
            Idle | Listed | Stopping | Armed => Idle,
            Direct | StoppingDirect => Direct,
            Readable | StoppingReadable => Readable,
        };
    }

    /// Stops the receive. Returns whether it must be cancelled.
    pub(crate) fn stop(&mut self) -> bool {
        let is_armed = *self == Armed;
        if is_armed {
            *self = Stopping;
        }
        is_armed
    }

    /// Stops the receive, and lets the program read. Returns whether the receive must be cancelled.
    pub(crate) fn stop_for_direct(&mut self) -> bool {
        let is_armed = self.stop();
        *self = match *self {
            Idle | Listed => Direct,
            Stopping | Armed => StoppingDirect,
            direct => direct,
        };
        is_armed
    }

    /// Lets the ring receive again.
    pub(crate) fn leave_direct(&mut self) {
        *self = match *self {
            Direct | Readable => Idle,
            StoppingDirect | StoppingReadable => Stopping,
            other => other,
        };
    }

    /// Records whether the kernel has data for a direct reader.
    pub(crate) fn set_readable(&mut self, has_data: bool) {
        *self = match *self {
            Direct | Readable if has_data => Readable,
            Direct | Readable => Direct,
            StoppingDirect | StoppingReadable if has_data => StoppingReadable,
            StoppingDirect | StoppingReadable => StoppingDirect,
            other => other,
        };
    }
}

/// The kind of the next receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NextReceive {
    /// The connection may end after one request: then there is no receive to cancel.
    Single,
    /// The connection has received before.
    Multishot,
    /// The last receive found no free buffer.
    PollFirst,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Inbound; 8] = [
        Idle,
        Listed,
        Direct,
        Readable,
        StoppingReadable,
        StoppingDirect,
        Stopping,
        Armed,
    ];

    /// Checks an event on each state. `expected` maps the questions (armed, direct, readable) to those after the event.
    fn check<T>(
        event: impl Fn(&mut Inbound) -> T,
        expected: impl Fn((bool, bool, bool)) -> (bool, bool, bool),
    ) {
        let questions = |state: Inbound| (state.is_armed(), state.is_direct(), state.is_readable());
        for before in ALL {
            let mut after = before;
            event(&mut after);
            assert_eq!(
                questions(after),
                expected(questions(before)),
                "{before:?} {after:?}"
            );
        }
    }

    #[test]
    fn each_event_changes_one_answer() {
        check(Inbound::complete, |(_, direct, readable)| {
            (false, direct, readable)
        });
        check(Inbound::stop, |same| same);
        check(Inbound::stop_for_direct, |(armed, _, readable)| {
            (armed, true, readable)
        });
        check(Inbound::leave_direct, |(armed, _, _)| (armed, false, false));
        for data in [false, true] {
            let event = |state: &mut Inbound| state.set_readable(data);
            check(event, |(armed, direct, _)| (armed, direct, direct && data));
        }
    }

    #[test]
    fn a_receive_is_cancelled_once() {
        let stops: [fn(&mut Inbound) -> bool; 2] = [Inbound::stop, Inbound::stop_for_direct];
        for (stop, mut state) in stops.iter().flat_map(|stop| ALL.map(|state| (stop, state))) {
            let was_armed = state == Armed;
            assert_eq!(stop(&mut state), was_armed);
            assert!(!stop(&mut state));
            state.leave_direct();
            assert_ne!(state, Armed, "it would be cancelled again");
        }
    }
}
