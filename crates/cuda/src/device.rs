//! What GPUs there are.

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{result, sys};
use serde::Serialize;
use tessera_core::Result;

use crate::Gpu;
use crate::driver::{check_cuda, open_driver};

/// A GPU, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuInfo {
    /// Its number, as in `cuda:0`.
    pub number: u32,
    /// What it is called.
    pub name: String,
    /// What it can do, as in `9.0`.
    pub compute_capability: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Memory that nobody uses.
    pub free_bytes: u64,
    /// Where it is on the PCIe bus.
    pub pci: String,
    /// Whether other processes can be given its memory (CUDA IPC).
    pub shares_memory: bool,
    /// How it reaches the other GPUs.
    pub peers: Vec<GpuPeer>,
}

/// How a GPU reaches another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuPeer {
    /// The other one's number.
    pub number: u32,
    /// Whether it reads and writes the other's memory itself.
    pub access: bool,
}

/// All GPUs that the driver sees.
pub fn list_gpus() -> Result<Vec<GpuInfo>> {
    open_driver()?;
    let count = check_cuda("the number of GPUs", result::device::get_count())?;
    let numbers = 0..u32::try_from(count).unwrap_or(0);
    numbers.clone().map(|number| describe_gpu(number, numbers.clone())).collect()
}

/// Where a GPU is on the PCIe bus. It is not used for that: no memory is taken there.
pub fn pci_bus_id(number: u32) -> Result<String> {
    open_driver()?;
    let device = check_cuda("a GPU", result::device::get(number as i32))?;
    let mut text = [0; 32];
    // SAFETY: at most 32 bytes with a zero at the end are written.
    check_cuda("its place on the bus", unsafe {
        sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device).result()
    })?;
    Ok(text.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect())
}

fn describe_gpu(number: u32, all: std::ops::Range<u32>) -> Result<GpuInfo> {
    let get = |number: u32| check_cuda("a GPU", result::device::get(number as i32));
    let device = get(number)?;
    let attribute = |which: Attribute| {
        // SAFETY: the device was just found.
        check_cuda("an attribute", unsafe { result::device::get_attribute(device, which) })
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    let (free, memory) = Gpu::open(number)?.memory_info()?;
    let mut peers = Vec::new();
    for other in all.filter(|&other| other != number) {
        let mut access = 0;
        let peer = get(other)?;
        // SAFETY: the answer is written to the number that is given; both devices were just found.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut access, device, peer).result() };
        check_cuda("peer access", asked)?;
        peers.push(GpuPeer { number: other, access: access != 0 });
    }
    Ok(GpuInfo {
        number,
        name: check_cuda("its name", result::device::get_name(device))?,
        compute_capability: format!("{major}.{minor}"),
        memory_bytes: memory as u64,
        free_bytes: free as u64,
        pci: pci_bus_id(number)?,
        // Integrated ones (Jetson) have no IPC of this kind.
        shares_memory: !integrated,
        peers,
    })
}
