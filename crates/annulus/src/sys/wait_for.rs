//! The condition that ends a waiting enter.

/// A number of completions, or any completion after a time, if that is not 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitFor {
    pub(super) completions: u32,
    pub(super) any_after_us: u32,
}

impl WaitFor {
    /// The enter does not wait.
    pub(super) const NOTHING: WaitFor = WaitFor::completions(0);
    pub(super) const ONE: WaitFor = WaitFor::completions(1);

    const fn completions(completions: u32) -> WaitFor {
        WaitFor {
            completions,
            any_after_us: 0,
        }
    }

    /// Converts it for kernels that cannot wait for several completions (before Linux 6.12, `IORING_FEAT_MIN_TIMEOUT`).
    pub(super) fn without_patience(self) -> WaitFor {
        WaitFor::completions(self.completions.min(1))
    }
}
