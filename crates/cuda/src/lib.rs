//! GPUs: what there is, and memory, streams and events on them.
//!
//! Nothing of CUDA is needed to build this. The driver's library (libcuda) and NVML are opened when somebody
//! first asks for a GPU; where they are missing, the error says so.
//!
//! All work of a process on a GPU goes into one stream ([`Gpu::stream`]): what is put in later runs later. So
//! blocks of one process hand memory to each other without events, and memory that is given back on the host may
//! be used again at once: whoever writes it next does so after all who read it before. Between processes, numbers in
//! memory that all of them share order ([`Registered`]). Copies from the host to memory of other processes
//! ([`SharedMemory::write`]) are the one exception: nothing else uses what they write, and they need not wait for what
//! blocks compute.

mod copies;
mod device;
mod driver;
mod entropy;
mod event;
mod gpu;
mod growing;
mod memory;
mod monitor;
mod recording;
mod registered;
mod shared;
mod span;
mod transfer;

pub use copies::{Copies, copies};
pub use device::{GpuInfo, Peer, devices, pci};
pub use driver::{driver_version, is_there};
pub use entropy::entropy;
pub use event::CudaEvent;
pub use gpu::Gpu;
pub use growing::GrowingBuffer;
pub use memory::{DeviceBuffer, Pinned, PinnedBuffer};
pub use monitor::{GpuProcess, GpuReading, Monitor};
pub use recording::{Recording, SideStream};
pub use registered::Registered;
pub use shared::{HANDLE, SharedMemory};
pub use span::{OpenSpan, Span};
pub use transfer::{bring, bring_later, copy, copy_across, join, peek, to_device, to_host};
