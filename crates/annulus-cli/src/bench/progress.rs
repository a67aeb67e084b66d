//! The progress bar. Shown on a terminal only, and updated only between runs, because drawing costs CPU time.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar with one step per run.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new(runs: usize) -> Progress {
        // `stderr()` draws nothing if standard error is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(runs as u64), ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)")
        {
            bar.set_style(style);
        }
        Progress { bar }
    }

    /// Shows the run that starts now.
    pub(crate) fn begin(&self, what: String) {
        self.bar.set_message(what);
        self.bar.tick();
    }

    /// Counts a finished run.
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    /// Removes the bar before other output.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
