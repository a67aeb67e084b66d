//! Lets the program decide whether RocksDB uses io_uring.

fn main() {
    if std::env::var_os("CARGO_FEATURE_ROCKSDB").is_some() {
        // `librocksdb-sys` defines the function, and it always returns true. RocksDB calls ours instead (`rocks.rs`).
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap=RocksDbIOUringEnable");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
