//! Prints what this machine supports of io_uring, the reasons for what it lacks, and what to change:
//! `cargo run --release -p annulus --example support`

fn main() {
    print!("{}", annulus::support::Support::detect());
}
