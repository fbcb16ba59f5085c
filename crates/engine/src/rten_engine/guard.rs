//! Panics inside rten, as errors.
//!
//! A model that rten did not expect can make it panic (seen in its shape inference); that must not
//! take the process down, nor write a backtrace beside our one line.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use tessera_core::{Error, Result};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// What the names of rten's own threads begin with.
const POOL_THREADS: &str = "rten-";

/// Calls rten; a panic becomes an error about the block or file that `label` names.
pub(super) fn guard_panics<T>(label: &str, call: impl FnOnce() -> T) -> Result<T> {
    silence_guarded_panics();
    let before = GUARDED.replace(true);
    // What the call was working on is dropped with the error, and never looked at again.
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(before);
    result
        .map_err(|panic| Error::engine(format!("{label}: rten failed: {}", panic_message(&*panic))))
}

/// Has panics under guard say nothing; all others are reported as ever.
fn silence_guarded_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            let is_pool = thread.name().is_some_and(|name| name.starts_with(POOL_THREADS));
            if !GUARDED.get() && !is_pool {
                report(info);
            }
        }));
    });
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "for a reason that it did not give",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_that_names_the_block() {
        let error = guard_panics("block abc", || -> u32 { panic!("index {}", 3) }).unwrap_err();
        assert_eq!(error.to_string(), "block abc: rten failed: index 3");
        assert_eq!(guard_panics("block abc", || 7).unwrap(), 7);
    }
}
