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
    // zeromq-src leaves out what its configure script would have found on Linux: without these,
    // libzmq takes the options for keeping TCP connections alive and ignores them.
    let keep_alive = " -DZMQ_HAVE_SO_KEEPALIVE=1 -DZMQ_HAVE_TCP_KEEPCNT=1 \
                      -DZMQ_HAVE_TCP_KEEPIDLE=1 -DZMQ_HAVE_TCP_KEEPINTVL=1";
    let flags = env::var("CXXFLAGS").unwrap_or_default() + " -w" + keep_alive;
    env::set_var("CXXFLAGS", flags);

    // zeromq-src 0.2 prints this path in quotes, which rustc does not find.
    println!("cargo:rustc-link-search=native={}", lib);
    zeromq_src::Build::new()
        .with_libsodium(Some(zeromq_src::LibLocation::new(lib, include)))
        .build();
}
