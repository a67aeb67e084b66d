//! Calls from one hook to another stay in the library. By default the linker lets another library that is loaded first
//! take them over, as it does for calls of the program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
