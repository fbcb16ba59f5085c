//! What every other crate of Tessera speaks in: dtypes, shapes, tensors and where they live,
//! content hashes and errors. No I/O, no async, no engine.

#![forbid(unsafe_code)]

mod device;
mod dtype;
mod error;
mod hash;
mod random;
mod region;
mod shape;
mod tensor;

pub use device::Device;
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use hash::ContentHash;
pub use random::Random;
pub use region::{Buffer, Event, HostBuffer, Location, PoolId, PoolSlot, Region, ToBeWritten};
pub use shape::{Dim, TensorType, display_shape, element_count};
pub use tensor::{Tensor, TensorMut, byte_len};
