//! The host's allocator: what is freed goes back to the system.

/// Has the allocator give large pieces back to the system when they are freed.
///
/// By default glibc learns from the first large piece that is freed to keep the next ones, up to 64
/// MB per thread: a server that has loaded its blocks would hold that for good.
pub fn give_large_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the calls take plain numbers and may be made at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 << 20);
    }
}

/// Gives memory that was freed back to the system, as far as the allocator lets it.
///
/// Loading makes and drops much: a model's file, what engines make of weights and share in the end.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointers and may be made at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
