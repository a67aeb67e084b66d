//! Can this machine do it? Prints what io_uring can do here, why not, and what to change.

fn main() {
    print!("{}", annulus::support::Support::detect());
}
