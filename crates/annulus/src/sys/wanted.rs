//! What ends an enter that waits.

/// So many completions; or any after a while, where that is not 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(super) completions: u32,
    pub(super) any_after_us: u32,
}

impl Wanted {
    /// The enter does not wait.
    pub(super) const NOTHING: Wanted = Wanted::completions(0);
    pub(super) const ONE: Wanted = Wanted::completions(1);

    const fn completions(completions: u32) -> Wanted {
        Wanted {
            completions,
            any_after_us: 0,
        }
    }

    /// On a kernel that knows no patience (before Linux 6.12, `IORING_FEAT_MIN_TIMEOUT`).
    pub(super) fn without_patience(self) -> Wanted {
        Wanted::completions(self.completions.min(1))
    }
}
