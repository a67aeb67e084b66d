//! Strips the two binaries of a release build, and links `libannulus_preload` as a shared object, which `annulus run`
//! loads into servers. `cargo install` builds and installs each binary of a package, but no `cdylib`.
//! docs/internals/design.md has the alternatives.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(shared_object)");
    // Not by the profile, which is that of the workspace, and which a package on crates.io has not.
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|set| set == value);
    if is("PROFILE", "release") && is("DEBUG", "false") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
    // Set by the build script of `annulus-preload`, which is a dependency only on x86-64 and aarch64 with glibc.
    let Ok(exports) = env::var("DEP_ANNULUS_PRELOAD_EXPORTS") else {
        return;
    };
    // A static executable cannot become a shared object.
    let target_features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if target_features.split(',').any(|one| one == "crt-static") {
        return;
    }
    println!("cargo::rustc-cfg=shared_object");
    for argument in [
        // rustc passes `-pie`, which compilers drop for a shared object.
        "-shared",
        &format!("-Wl,--version-script={exports}"),
        // Calls from one hook to another stay in the library, even if a library that is loaded first has the function.
        "-Wl,-Bsymbolic-functions",
        "-Wl,--entry=annulus_preload_executed",
    ] {
        println!("cargo::rustc-link-arg-bin=libannulus_preload={argument}");
    }
}
