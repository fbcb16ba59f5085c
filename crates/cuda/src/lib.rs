//! GPUs: what there is, and memory, streams and events on them.
//!
//! Nothing of CUDA is needed to build this. The driver's library (libcuda) and NVML are opened when
//! somebody first asks for a GPU; where they are missing, the error says so.
//!
//! All work of a process on a GPU goes into one stream ([`Gpu::stream_pointer`]): what is put in
//! later runs later. So units of one process hand memory to each other without events, and memory
//! that is given back on the host may be used again at once: whoever writes it next does so after
//! all who read it before. Between processes, numbers in memory that all of them share order
//! ([`RegisteredMemory`]). Copies from the host to memory of other processes
//! ([`IpcMemory::write_tensor`]) are the one exception: nothing else uses what they write, and they
//! need not wait for what units compute.

mod copy_counts;
mod copy_order;
mod copy_rate;
mod device;
mod driver;
mod entropy;
mod event;
mod event_pool;
mod free_memory;
mod gpu;
mod gpu_span;
mod graph;
mod growing_buffer;
mod ipc_memory;
mod memory;
mod nvml;
mod paced_copies;
mod part_arrivals;
mod registered_memory;
mod stream_marks;
mod transfer;
mod virtual_range;

pub use copy_counts::{CopyCounts, copy_counts};
pub use copy_rate::measure_copy_rate;
pub use device::{GpuInfo, GpuPeer, list_gpus, pci_bus_id};
pub use driver::{is_cuda_available, supported_cuda_version};
pub use entropy::entropy_on_device;
pub use event::CudaEvent;
pub use gpu::Gpu;
pub use gpu_span::{GpuSpan, OpenGpuSpan};
pub use graph::{CaptureStream, CudaGraph};
pub use growing_buffer::GrowingBuffer;
pub use ipc_memory::{IPC_HANDLE_BYTES, IpcMemory};
pub use memory::{DeviceBuffer, PinnedAllocator, PinnedBuffer};
pub use nvml::{GpuProcess, NvmlMonitor, NvmlReading};
pub use paced_copies::PacedCopies;
pub use part_arrivals::PartArrivals;
pub use registered_memory::RegisteredMemory;
pub use stream_marks::StreamMarks;
pub use transfer::{
    concatenate_on_device, copy_all_to_host, copy_all_to_host_async, copy_between_gpus,
    copy_in_stream, copy_on_device, read_first_bytes, to_device, to_host,
};
pub use virtual_range::{VirtualRange, VirtualSlice, release_spare_memory, unmap_lost_memory};
