//! What every other crate of Tessera speaks in: dtypes, shapes, tensors and where they live,
//! content hashes and errors. No I/O, no async, no engine.

#![forbid(unsafe_code)]

mod concatenate;
mod content_tree;
mod device;
mod dtype;
mod error;
mod hash;
mod hex;
mod name;
mod proc_text;
mod random;
mod random_tensor;
mod region;
mod shape;
mod sync;
mod tensor;

pub use concatenate::{concatenate_rows, concatenated_shape, join_adjacent};
pub use content_tree::{ContentTree, RANGE_BYTES, RangeCheck};
pub use device::Device;
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use hash::ContentHash;
pub use hex::{parse_hex, write_hex};
pub use name::{escape_unshown, is_plain_name, is_unshown};
pub use proc_text::{ProcessStat, bytes_of_line};
pub use random::Random;
pub use random_tensor::{RandomElements, random_tensor};
pub use region::{
    Buffer, Fence, HostBuffer, MemoryLocation, PoolId, PoolSlot, Region, UnwrittenRegion,
};
pub use shape::{Dim, TensorType, display_shape, element_count};
pub use sync::lock;
pub use tensor::{Tensor, TensorMut, byte_len};
