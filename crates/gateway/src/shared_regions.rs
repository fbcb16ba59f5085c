//! The regions of shared memory that clients have registered, of the host and of GPUs, for inputs and
//! outputs that never pass through a socket.
//!
//! Both kinds are in one table: a request names a region and not its kind, so that a name is one of
//! either.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tessera_core::{Error, Result};

use crate::cuda_memory::{CudaOffer, CudaRegion, CudaStatus};
use crate::shared_memory::{RegionStatus, SystemRegion};

/// Where a tensor is in a registered region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: String,
    pub(crate) offset: u64,
    pub(crate) byte_size: u64,
}

impl Place {
    /// Refuses a place that is not inside its region of so many bytes.
    pub(crate) fn check_inside(&self, byte_size: u64) -> Result<()> {
        let end = self.offset.checked_add(self.byte_size);
        if end.is_some_and(|end| end <= byte_size) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "shared memory region '{}' has {byte_size} bytes, asked for {} at offset {}",
            self.region, self.byte_size, self.offset
        )))
    }

    /// Refuses a tensor of so many bytes where the place has fewer.
    pub(crate) fn check_room(&self, len: usize) -> Result<()> {
        if self.byte_size >= len as u64 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "shared memory region '{}': {} bytes were set aside, the tensor has {len}",
            self.region, self.byte_size
        )))
    }
}

/// A region, which stays open for as long as somebody uses it, registered or not.
#[derive(Clone, Debug)]
pub(crate) enum Region {
    /// Of the host.
    System(Arc<SystemRegion>),
    /// Of a GPU.
    Cuda(Arc<CudaRegion>),
}

/// The regions that clients have registered, by name.
#[derive(Debug, Default)]
pub struct SharedRegions {
    regions: Mutex<BTreeMap<String, Region>>,
}

impl SharedRegions {
    /// Registers a region of the host; a name that is taken is refused.
    pub(crate) fn register(&self, status: RegionStatus) -> Result<()> {
        let name = status.name.clone();
        self.add(name, || Ok(Region::System(Arc::new(SystemRegion::open(status)?))))
    }

    /// Registers a region of a GPU; a name that is taken is refused.
    pub(crate) fn register_cuda(&self, offer: CudaOffer) -> Result<()> {
        let name = offer.name.clone();
        self.add(name, || Ok(Region::Cuda(Arc::new(CudaRegion::open(offer)?))))
    }

    fn add(&self, name: String, open: impl FnOnce() -> Result<Region>) -> Result<()> {
        if name.is_empty() {
            return Err(Error::invalid("a shared memory region needs a name"));
        }
        if self.lock().contains_key(&name) {
            return Err(taken(&name));
        }
        // Not under the lock: it may take a moment.
        let region = open()?;
        let mut regions = self.lock();
        // Two clients may have got here with the same name: the first one has it.
        if regions.contains_key(&name) {
            drop(regions);
            return Err(taken(&name));
        }
        regions.insert(name, region);
        Ok(())
    }

    /// Forgets a region of the host, or each of them for the empty name; a name that nobody registered
    /// is fine.
    pub(crate) fn unregister(&self, name: &str) {
        self.forget(|known, region| {
            matches!(region, Region::System(_)) && (name.is_empty() || known == name)
        });
    }

    /// The same for regions of GPUs.
    pub(crate) fn unregister_cuda(&self, name: &str) {
        self.forget(|known, region| {
            matches!(region, Region::Cuda(_)) && (name.is_empty() || known == name)
        });
    }

    fn forget(&self, is_it: impl Fn(&str, &Region) -> bool) {
        let forgotten: Vec<Region> = {
            let mut regions = self.lock();
            regions.extract_if(.., |name, region| is_it(name, region)).map(|(_, it)| it).collect()
        };
        // Closed outside the lock: memory of a GPU waits for the work that reads it.
        drop(forgotten);
    }

    /// One region of the host, or each of them for the empty name.
    pub(crate) fn status(&self, name: &str) -> Result<Vec<RegionStatus>> {
        self.told("system", name, |region| match region {
            Region::System(region) => Some(region.status().clone()),
            Region::Cuda(_) => None,
        })
    }

    /// The same for regions of GPUs.
    pub(crate) fn cuda_status(&self, name: &str) -> Result<Vec<CudaStatus>> {
        self.told("cuda", name, |region| match region {
            Region::Cuda(region) => Some(region.status().clone()),
            Region::System(_) => None,
        })
    }

    fn told<T>(
        &self,
        kind: &str,
        name: &str,
        tell: impl Fn(&Region) -> Option<T>,
    ) -> Result<Vec<T>> {
        let regions = self.lock();
        if name.is_empty() {
            return Ok(regions.values().filter_map(tell).collect());
        }
        let found = regions.get(name).and_then(tell);
        found.map(|one| vec![one]).ok_or_else(|| {
            Error::not_found(format!("Unable to find {kind} shared memory region: '{name}'"))
        })
    }

    /// The region that a place is in, of either kind.
    pub(crate) fn find(&self, place: &Place) -> Result<Region> {
        self.lock().get(&place.region).cloned().ok_or_else(|| {
            Error::not_found(format!("Unable to find shared memory region: '{}'", place.region))
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Region>> {
        self.regions.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn taken(name: &str) -> Error {
    Error::invalid(format!("shared memory region '{name}' already in manager"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_memory::Scratch;

    fn place(offset: u64, byte_size: u64) -> Place {
        Place { region: "r".into(), offset, byte_size }
    }

    fn offer(name: &str) -> CudaOffer {
        CudaOffer { name: name.into(), handle: vec![0; 64], device_id: 0, byte_size: 4 }
    }

    #[test]
    fn a_name_is_registered_once_and_forgotten_as_often_as_one_likes() {
        let scratch = Scratch::new("once", 16);
        let regions = SharedRegions::default();
        regions.register(scratch.region(0, 16)).unwrap();
        let error = regions.register(scratch.region(0, 8)).unwrap_err();
        assert_eq!(error.to_string(), "shared memory region 'r' already in manager");
        assert_eq!(regions.status("r").unwrap(), [scratch.region(0, 16)]);
        assert_eq!(regions.status("").unwrap().len(), 1);
        regions.unregister("r");
        regions.unregister("r");
        assert!(regions.status("r").is_err());
        assert!(regions.status("").unwrap().is_empty());
        let nameless = RegionStatus { name: String::new(), ..scratch.region(0, 16) };
        let error = regions.register(nameless).unwrap_err();
        assert_eq!(error.to_string(), "a shared memory region needs a name");
    }

    #[test]
    fn a_name_is_one_of_the_host_or_of_a_gpu() {
        let scratch = Scratch::new("either", 16);
        let regions = SharedRegions::default();
        regions.register(scratch.region(0, 16)).unwrap();
        // Refused before any GPU is looked for.
        let error = regions.register_cuda(offer("r")).unwrap_err();
        assert_eq!(error.to_string(), "shared memory region 'r' already in manager");
        assert!(regions.cuda_status("").unwrap().is_empty());
        let error = regions.cuda_status("r").unwrap_err();
        assert_eq!(error.to_string(), "Unable to find cuda shared memory region: 'r'");
        regions.unregister_cuda("r");
        regions.unregister_cuda("");
        assert_eq!(regions.status("r").unwrap(), [scratch.region(0, 16)]);
        assert!(matches!(regions.find(&place(0, 1)).unwrap(), Region::System(_)));
        regions.unregister("");
        let error = regions.find(&place(0, 1)).unwrap_err();
        assert_eq!(error.to_string(), "Unable to find shared memory region: 'r'");
    }

    #[test]
    fn a_place_is_inside_its_region_and_has_room() {
        place(2, 6).check_inside(8).unwrap();
        for (offset, byte_size) in [(0, 9), (8, 1), (u64::MAX, 1)] {
            let error = place(offset, byte_size).check_inside(8).unwrap_err().to_string();
            assert!(error.contains("has 8 bytes, asked for"), "{error}");
        }
        place(0, 3).check_room(3).unwrap();
        let error = place(0, 2).check_room(3).unwrap_err().to_string();
        assert!(error.contains("2 bytes were set aside, the tensor has 3"), "{error}");
    }
}
