//! The regions of shared memory that clients have registered, of the host and of GPUs, for inputs
//! and outputs that never pass through a socket.
//!
//! Both kinds are in one table: a request names a region and not its kind, so that a name is one of
//! either. What a region is, is in `system.rs` and `cuda.rs`.

mod cuda;
mod system;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tessera_core::{Error, Result, Tensor, lock};

use crate::byte_budget::ByteLease;
use crate::protocol::{InputHeader, RegionRange};
use crate::service::InferenceService;
use cuda::CudaRegion;
pub(crate) use cuda::{CudaRegionStatus, CudaRegistration};
use system::SystemRegion;
pub(crate) use system::SystemRegionStatus;

/// A region, which stays open for as long as somebody uses it, registered or not.
#[derive(Clone, Debug)]
enum RegisteredRegion {
    /// Of the host.
    System(Arc<SystemRegion>),
    /// Of a GPU.
    Cuda(Arc<CudaRegion>),
}

/// Where in shared memory an output goes. A client may unregister the region while its request is
/// computed.
#[derive(Clone, Debug)]
pub(crate) struct OutputPlace {
    region: RegisteredRegion,
    range: RegionRange,
}

impl OutputPlace {
    /// What the client said of it.
    pub(crate) fn range(&self) -> &RegionRange {
        &self.range
    }

    /// Writes an output there, and returns how many bytes it has.
    pub(crate) fn write_output(&self, tensor: &Tensor) -> Result<usize> {
        match &self.region {
            RegisteredRegion::System(region) => region.write_tensor(&self.range, tensor),
            RegisteredRegion::Cuda(region) => region.write_tensor(&self.range, tensor),
        }
    }
}

/// Which regions clients may register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionRules {
    /// None.
    Nothing,
    /// Those whose keys begin so; all of them for the empty one. Regions of GPUs have no keys, and
    /// whoever has a handle was given it.
    KeysWith(String),
}

impl Default for RegionRules {
    fn default() -> Self {
        Self::KeysWith(String::new())
    }
}

/// Most regions at a time: each has a file of its own open.
const MOST_REGIONS: usize = 256;

/// The regions that clients have registered, by name.
#[derive(Debug, Default)]
pub struct SharedRegions {
    rules: RegionRules,
    regions: Mutex<BTreeMap<String, RegisteredRegion>>,
}

impl SharedRegions {
    /// No regions yet, and these rules for those to come.
    pub fn new(rules: RegionRules) -> Self {
        Self { rules, regions: Mutex::default() }
    }

    /// Registers a region of the host; a name that is taken is refused.
    pub(crate) fn register_system(&self, status: SystemRegionStatus) -> Result<()> {
        if let RegionRules::KeysWith(prefix) = &self.rules
            && !status.key.trim_start_matches('/').starts_with(prefix.as_str())
        {
            return Err(Error::invalid(format!(
                "keys of shared memory begin with \"{prefix}\" here (--shared-memory)"
            )));
        }
        let name = status.name.clone();
        self.add_region(name, || {
            Ok(RegisteredRegion::System(Arc::new(SystemRegion::open(status)?)))
        })
    }

    /// Registers a region of a GPU; a name that is taken is refused.
    fn register_cuda(&self, registration: CudaRegistration) -> Result<()> {
        let name = registration.name.clone();
        self.add_region(name, || {
            Ok(RegisteredRegion::Cuda(Arc::new(CudaRegion::open(registration)?)))
        })
    }

    /// Registers a region of a GPU off the threads that serve connections: a GPU takes a moment to
    /// be opened.
    pub(crate) async fn register_cuda_blocking(
        self: &Arc<Self>,
        registration: CudaRegistration,
    ) -> Result<()> {
        self.run_blocking(move |regions| regions.register_cuda(registration)).await?
    }

    /// Forgets one in the same way: memory that a GPU still reads takes a moment to be closed.
    pub(crate) async fn unregister_cuda_blocking(self: &Arc<Self>, name: String) -> Result<()> {
        self.run_blocking(move |regions| regions.unregister_cuda(&name)).await
    }

    async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        what: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T> {
        let regions = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || what(&regions)).await;
        done.map_err(|error| Error::engine(format!("shared memory of a GPU: {error}")))
    }

    fn add_region(
        &self,
        name: String,
        open: impl FnOnce() -> Result<RegisteredRegion>,
    ) -> Result<()> {
        if name.is_empty() {
            return Err(Error::invalid("a shared memory region needs a name"));
        }
        if self.rules == RegionRules::Nothing {
            return Err(Error::invalid("this server uses no shared memory (--shared-memory)"));
        }
        check_room(&self.lock_regions(), &name)?;
        // Not under the lock: it may take a moment.
        let region = open()?;
        let mut regions = self.lock_regions();
        // Several clients may have got here with the same name, or for the last place: the first
        // one has it.
        let checked = check_room(&regions, &name);
        if checked.is_ok() {
            regions.insert(name, region);
        }
        checked
    }

    /// Forgets a region of the host, or each of them for the empty name; a name that nobody
    /// registered is fine.
    pub(crate) fn unregister_system(&self, name: &str) {
        self.remove_regions(|known, region| {
            matches!(region, RegisteredRegion::System(_)) && (name.is_empty() || known == name)
        });
    }

    /// The same for regions of GPUs.
    fn unregister_cuda(&self, name: &str) {
        self.remove_regions(|known, region| {
            matches!(region, RegisteredRegion::Cuda(_)) && (name.is_empty() || known == name)
        });
    }

    fn remove_regions(&self, is_it: impl Fn(&str, &RegisteredRegion) -> bool) {
        let forgotten: Vec<RegisteredRegion> = {
            let mut regions = self.lock_regions();
            regions.extract_if(.., |name, region| is_it(name, region)).map(|(_, it)| it).collect()
        };
        // Closed outside the lock: memory of a GPU waits for the work that reads it.
        drop(forgotten);
    }

    /// One region of the host, or each of them for the empty name.
    pub(crate) fn system_status(&self, name: &str) -> Result<Vec<SystemRegionStatus>> {
        self.region_statuses("system", name, |region| match region {
            RegisteredRegion::System(region) => Some(region.status().clone()),
            RegisteredRegion::Cuda(_) => None,
        })
    }

    /// The same for regions of GPUs.
    pub(crate) fn cuda_status(&self, name: &str) -> Result<Vec<CudaRegionStatus>> {
        self.region_statuses("cuda", name, |region| match region {
            RegisteredRegion::Cuda(region) => Some(region.status().clone()),
            RegisteredRegion::System(_) => None,
        })
    }

    fn region_statuses<T>(
        &self,
        kind: &str,
        name: &str,
        status: impl Fn(&RegisteredRegion) -> Option<T>,
    ) -> Result<Vec<T>> {
        let regions = self.lock_regions();
        if name.is_empty() {
            return Ok(regions.values().filter_map(status).collect());
        }
        let found = regions.get(name).and_then(status);
        found.map(|one| vec![one]).ok_or_else(|| {
            Error::not_found(format!("Unable to find {kind} shared memory region: '{name}'"))
        })
    }

    /// An input that a client has put into shared memory; the lease is for what is copied of it.
    pub(crate) fn read_input(
        &self,
        service: &dyn InferenceService,
        header: &InputHeader,
        range: &RegionRange,
        lease: &mut ByteLease,
    ) -> Result<Tensor> {
        match self.find_region(range)? {
            RegisteredRegion::System(region) => region.read_tensor(service, header, range, lease),
            RegisteredRegion::Cuda(region) => region.read_tensor(header, range),
        }
    }

    /// The place of an output, which stays whatever becomes of the region's name.
    pub(crate) fn open_place(&self, range: &RegionRange) -> Result<OutputPlace> {
        Ok(OutputPlace { region: self.find_region(range)?, range: range.clone() })
    }

    /// The region that a range is in, of either kind.
    fn find_region(&self, range: &RegionRange) -> Result<RegisteredRegion> {
        self.lock_regions().get(&range.region).cloned().ok_or_else(|| {
            Error::not_found(format!("Unable to find shared memory region: '{}'", range.region))
        })
    }

    fn lock_regions(&self) -> MutexGuard<'_, BTreeMap<String, RegisteredRegion>> {
        lock(&self.regions)
    }
}

/// Refuses a region whose name is taken, or for which there is no room.
fn check_room(regions: &BTreeMap<String, RegisteredRegion>, name: &str) -> Result<()> {
    if regions.contains_key(name) {
        return Err(name_taken(name));
    }
    if regions.len() >= MOST_REGIONS {
        return Err(Error::full(format!(
            "{MOST_REGIONS} regions of shared memory are registered, the most there can be"
        )));
    }
    Ok(())
}

fn name_taken(name: &str) -> Error {
    Error::invalid(format!("shared memory region '{name}' already in manager"))
}

#[cfg(test)]
mod tests {
    use super::system::Scratch;
    use super::*;

    fn range(offset: u64, byte_size: u64) -> RegionRange {
        RegionRange { region: "r".into(), offset, byte_size }
    }

    fn registration(name: &str) -> CudaRegistration {
        CudaRegistration { name: name.into(), handle: vec![0; 64], device_id: 0, byte_size: 4 }
    }

    #[test]
    fn a_name_is_registered_once_and_forgotten_as_often_as_one_likes() {
        let scratch = Scratch::new("once", 16);
        let regions = SharedRegions::default();
        regions.register_system(scratch.region(0, 16)).unwrap();
        let error = regions.register_system(scratch.region(0, 8)).unwrap_err();
        assert_eq!(error.to_string(), "shared memory region 'r' already in manager");
        assert_eq!(regions.system_status("r").unwrap(), [scratch.region(0, 16)]);
        assert_eq!(regions.system_status("").unwrap().len(), 1);
        regions.unregister_system("r");
        regions.unregister_system("r");
        assert!(regions.system_status("r").is_err());
        assert!(regions.system_status("").unwrap().is_empty());
        let nameless = SystemRegionStatus { name: String::new(), ..scratch.region(0, 16) };
        let error = regions.register_system(nameless).unwrap_err();
        assert_eq!(error.to_string(), "a shared memory region needs a name");
    }

    #[test]
    fn a_name_is_one_of_the_host_or_of_a_gpu() {
        let scratch = Scratch::new("either", 16);
        let regions = SharedRegions::default();
        regions.register_system(scratch.region(0, 16)).unwrap();
        // Refused before any GPU is looked for.
        let error = regions.register_cuda(registration("r")).unwrap_err();
        assert_eq!(error.to_string(), "shared memory region 'r' already in manager");
        assert!(regions.cuda_status("").unwrap().is_empty());
        let error = regions.cuda_status("r").unwrap_err();
        assert_eq!(error.to_string(), "Unable to find cuda shared memory region: 'r'");
        regions.unregister_cuda("r");
        regions.unregister_cuda("");
        assert_eq!(regions.system_status("r").unwrap(), [scratch.region(0, 16)]);
        assert!(matches!(regions.find_region(&range(0, 1)).unwrap(), RegisteredRegion::System(_)));
        regions.unregister_system("");
        let error = regions.find_region(&range(0, 1)).unwrap_err();
        assert_eq!(error.to_string(), "Unable to find shared memory region: 'r'");
    }
}
