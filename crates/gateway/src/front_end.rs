//! What the front ends have in common: who answers, what they allow, and shared memory.

use std::sync::Arc;

use tessera_core::{ErrorKind, Result, Tensor};

use crate::byte_budget::{ByteBudget, ByteLease};
use crate::long_work::LongWork;
use crate::protocol::{
    InputHeader, RegionRange, RequestedOutput, SERVER_NAME, check_requested, reshape_inputs,
    triton_wording,
};
use crate::regions::SharedRegions;
use crate::service::{InferenceService, LoadOverrides, TaskInfo};
use crate::settings::ServerSettings;

/// Bodies of up to 1 GiB: a batch of 1,700 images of 3×224×224 `f32` fits.
const LARGEST_BODY: usize = 1 << 30;

/// What the front ends allow.
///
/// Give clones of the same options to HTTP and gRPC: a region of shared memory that a client
/// registers with one of them is then known to the other.
#[derive(Clone, Debug)]
pub struct FrontEndOptions {
    /// Most bytes of a request, after decompression, and of a gRPC response.
    pub largest_body: usize,
    /// The bytes of requests and answers under way.
    pub budget: Arc<ByteBudget>,
    /// The regions of shared memory that clients have registered.
    pub shared_memory: Arc<SharedRegions>,
    /// What is logged and traced, which clients may change.
    pub settings: Arc<ServerSettings>,
    /// Whether the server calls itself `triton` and words common errors as Triton does.
    pub triton_names: bool,
}

impl Default for FrontEndOptions {
    fn default() -> Self {
        Self {
            largest_body: LARGEST_BODY,
            budget: Arc::default(),
            shared_memory: Arc::default(),
            settings: Arc::default(),
            triton_names: false,
        }
    }
}

/// A service together with what the front ends allow.
pub(crate) struct FrontEnd {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) options: FrontEndOptions,
    /// What takes long.
    pub(crate) long_work: LongWork,
}

impl FrontEnd {
    pub(crate) fn new(service: Arc<dyn InferenceService>, options: FrontEndOptions) -> Arc<Self> {
        Arc::new(Self { service, options, long_work: LongWork::default() })
    }

    /// What the server is called.
    pub(crate) fn server_name(&self) -> &'static str {
        if self.options.triton_names { "triton" } else { SERVER_NAME }
    }

    /// A task; `NotFound` names the task or the version that is not there.
    pub(crate) fn find_task(&self, name: &str, version: &str) -> Result<TaskInfo> {
        self.service.find_task(name, version).map_err(|error| match error.kind() {
            ErrorKind::NotFound if self.options.triton_names => {
                triton_wording::unknown_model(name, version)
            }
            _ => error,
        })
    }

    /// Refuses outputs that the task does not have and those that are asked for twice.
    pub(crate) fn check_requested(
        &self,
        task: &TaskInfo,
        requested: &[RequestedOutput],
    ) -> Result<()> {
        if self.options.triton_names {
            triton_wording::check_outputs(task, requested)?;
        }
        check_requested(requested, task)
    }

    /// The inputs as the task has them. Whether they are its own the service sees, unless that is
    /// to be said in other words.
    pub(crate) fn fit_inputs(
        &self,
        task: &TaskInfo,
        id: &str,
        inputs: Vec<(String, Tensor)>,
    ) -> Result<Vec<(String, Tensor)>> {
        let inputs = reshape_inputs(task, inputs)?;
        if self.options.triton_names {
            triton_wording::check_inputs(task, id, &inputs)?;
        }
        Ok(inputs)
    }

    /// Loads a model, and waits until it answers.
    pub(crate) async fn load_task(&self, name: &str, overrides: LoadOverrides) -> Result<()> {
        let is_known = || self.service.list_tasks().iter().any(|task| task.name == name);
        if self.options.triton_names && overrides.files.is_empty() && !is_known() {
            return Err(triton_wording::missing_model(name));
        }
        self.service.load_task(name, overrides).await
    }

    /// An input that a client has put into shared memory; the lease is for what is copied of it.
    pub(crate) async fn read_shared(
        &self,
        header: &InputHeader,
        range: &RegionRange,
        lease: &mut ByteLease,
    ) -> Result<Tensor> {
        let regions = &self.options.shared_memory;
        let bytes = usize::try_from(range.byte_size).unwrap_or(usize::MAX);
        let read = || regions.read_input(self.service.as_ref(), header, range, lease);
        let read = self.long_work.run(bytes, read).await;
        read.map_err(|error| header.within_input(error))
    }

    /// Finds the places in shared memory that outputs go to, before anything is computed for them.
    pub(crate) fn open_places(&self, requested: &mut [RequestedOutput]) -> Result<()> {
        for output in requested {
            if let Some(range) = &output.region_range {
                let place = self.options.shared_memory.open_place(range).map_err(|error| {
                    error.with_context(format_args!("output \"{}\"", output.name))
                })?;
                output.place = Some(place);
            }
        }
        Ok(())
    }
}
