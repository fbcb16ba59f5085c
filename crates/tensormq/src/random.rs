//! Numbers that are unique over all processes and restarts.

use tessera_core::{Error, Result};

/// A random number, from the kernel.
pub(crate) fn random_u64() -> Result<u64> {
    let mut bytes = [0; 8];
    let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    read.map_err(|error| Error::from_io("random numbers", &error.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}
