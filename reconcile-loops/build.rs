//! How the program is linked.

fn main() {
    // Packed relocations: most of a mebibyte less that every start reads and keeps in memory. glibc since 2.36, musl
    // since 1.2.4.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
