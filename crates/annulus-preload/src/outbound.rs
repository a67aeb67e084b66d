//! The states of the bytes that the program writes to a connection, and of its end for writing. The first variant of
//! each is the initial state: the table is zeroed memory.

/// The end of the program's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fin {
    /// The program may write.
    Open,
    /// The program has shut the connection down; FIN follows the deferred output.
    AfterBacklog,
    Sent,
}

/// The bytes that are queued in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Queue {
    /// The connection is not in the list of those with queued bytes.
    Unlisted,
    Listed,
    /// Listed, and the ring has the bytes.
    Pushed,
}

/// The result of the next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outbound {
    Writable,
    /// EAGAIN: the kernel's send buffer is full.
    Full,
    /// EPIPE.
    Broken,
    /// EPIPE, and both directions have ended.
    Dead,
}

impl Outbound {
    #[inline]
    pub(crate) fn is_broken(self) -> bool {
        matches!(self, Outbound::Broken | Outbound::Dead)
    }

    /// Records that the kernel took less than was written.
    #[inline]
    pub(crate) fn fill(&mut self) {
        if *self == Outbound::Writable {
            *self = Outbound::Full;
        }
    }

    /// Records that the send buffer has room again, or that nothing waits for room any more.
    pub(crate) fn drain(&mut self) {
        if *self == Outbound::Full {
            *self = Outbound::Writable;
        }
    }

    /// Records that a send has ended the connection with this error.
    pub(crate) fn fail(&mut self, errno: i32) {
        if errno != libc::EPIPE {
            *self = Outbound::Dead;
        } else if *self != Outbound::Dead {
            *self = Outbound::Broken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Outbound::{self, Broken, Dead, Full, Writable};

    #[test]
    fn no_event_makes_a_broken_connection_writable() {
        for (state, filled, drained, piped) in [
            (Writable, Full, Writable, Broken),
            (Full, Full, Writable, Broken),
            (Broken, Broken, Broken, Broken),
            (Dead, Dead, Dead, Dead),
        ] {
            let after = |event: fn(&mut Outbound)| {
                let mut state = state;
                event(&mut state);
                state
            };
            assert_eq!(after(Outbound::fill), filled);
            assert_eq!(after(Outbound::drain), drained);
            assert_eq!(after(|state| state.fail(libc::EPIPE)), piped);
            assert_eq!(after(|state| state.fail(libc::ECONNRESET)), Dead);
            assert_eq!(state.is_broken(), piped == state);
        }
    }
}
