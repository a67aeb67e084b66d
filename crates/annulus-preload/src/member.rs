//! The membership of a connection in its set, as the program sees it. The first variant is the initial state: the table
//! is zeroed memory.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Member {
    Out,
    /// The readiness has not changed since it was reported, or since the connection was added.
    Reported,
    /// The readiness has changed since then.
    Changed,
    /// Reported once (EPOLLONESHOT); disabled until the program re-arms it.
    Disabled,
}

impl Member {
    /// Returns whether events of the connection are reported.
    #[inline]
    pub(crate) fn is_enabled(self) -> bool {
        matches!(self, Member::Reported | Member::Changed)
    }

    /// Adds the connection, or re-arms it.
    pub(crate) fn enable(&mut self) {
        if !self.is_enabled() {
            *self = Member::Reported;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Member::{Changed, Disabled, Out, Reported};

    #[test]
    fn a_change_that_was_not_reported_survives_a_change_of_the_interest() {
        let before = [Out, Reported, Changed, Disabled];
        let after = before.map(|mut member| {
            member.enable();
            member
        });
        assert_eq!(after, [Reported, Reported, Changed, Reported]);
        assert_eq!(
            before.map(|member| member.is_enabled()),
            [false, true, true, false]
        );
    }
}
