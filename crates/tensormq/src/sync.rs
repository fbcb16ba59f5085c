//! The primitives of alarms and of the hand-over between threads, in one place so that their test
//! can put loom's there.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

pub(crate) use tessera_core::lock;
