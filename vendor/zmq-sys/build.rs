use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");

    // Set by libsodium-sys-stable (links = "sodium") when it builds its own copy.
    let dir = |name: &str| {
        env::var(name).unwrap_or_else(|_| {
            panic!("{} is not set; unset SODIUM_LIB_DIR and SODIUM_USE_PKG_CONFIG", name)
        })
    };
    let (lib, include) = (dir("DEP_SODIUM_LIB"), dir("DEP_SODIUM_INCLUDE"));

    // Cargo shows a path crate's warnings on every build; these would be libzmq's.
    let flags = env::var("CXXFLAGS").unwrap_or_default() + " -w";
    env::set_var("CXXFLAGS", flags);

    // zeromq-src 0.2 prints this path in quotes, which rustc does not find.
    println!("cargo:rustc-link-search=native={}", lib);
    zeromq_src::Build::new()
        .with_libsodium(Some(zeromq_src::LibLocation::new(lib, include)))
        .build();
}
