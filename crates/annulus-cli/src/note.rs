//! Messages on standard error.

/// Prints a line to standard error. `eprintln!` would panic if standard error is a closed pipe or a full disk; here the
/// line is lost.
macro_rules! note {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}
