//! A site in this process whose tasks have room for the weights of some of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tessera_command::EngineArguments;
use tessera_control::{System, TaskDefaults, TaskDefinition};
use tessera_core::{Error, Result, Tensor};
use tessera_deploy::{BatchingChoice, Isolation, ResidencyChoice};
use tessera_dispatch::{Dispatcher, InferenceRequest};
use tessera_server::{ManagedSite, TelemetryConfig, WeightLimits};

use crate::gpu::HopTimingsCollector;
use crate::in_process_site::{InProcessSite, stop_site};

/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// A site whose tasks have room for the weights of some of them.
pub(super) struct ColdSite {
    // Ends before the runtime that it runs on.
    managed: ManagedSite,
    hop_timings: Arc<HopTimingsCollector>,
    pub(super) runtime: tokio::runtime::Runtime,
}

/// An answer, and what it took.
pub(super) struct TimedAnswer {
    pub(super) took: Duration,
    /// How long of that it waited for weights.
    pub(super) loading: Duration,
    pub(super) outputs: Vec<Vec<u8>>,
}

/// Asks a site from a task of its runtime.
#[derive(Clone)]
pub(super) struct ColdClient {
    dispatcher: Dispatcher,
    inputs: Vec<(String, Tensor)>,
}

impl ColdSite {
    /// Serves these models of the repository, each as a task of its name.
    pub(super) fn start(
        repository: &Path,
        tasks: &[(&str, ResidencyChoice)],
        weight_limits: WeightLimits,
        engine: &EngineArguments,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::from_io("the runtime of a site", &error))?;
        let hop_timings = Arc::new(HopTimingsCollector::default());
        let site = InProcessSite {
            repository,
            engine: engine.engine,
            cuda: engine.cuda.cuda_options(),
            transport: None,
            weight_limits,
            defaults: TaskDefaults {
                isolation: Isolation::Thread,
                deadline: DEADLINE,
                device: engine.device,
            },
        };
        let defined = tasks.iter().map(|(name, residency)| {
            let mut task = TaskDefinition::of_model(*name);
            task.batching = Some(BatchingChoice::Off);
            task.residency = Some(*residency);
            ((*name).to_owned(), task)
        });
        let system = System::new(defined.collect::<BTreeMap<_, _>>());
        let managed = runtime.block_on(async {
            let telemetry = TelemetryConfig::default().build()?;
            let managed = site.config().build(telemetry, Arc::clone(&hop_timings) as _)?;
            managed.manager().put_system(system).await?;
            Ok::<_, Error>(managed)
        })?;
        Ok(Self { managed, hop_timings, runtime })
    }

    /// Who asks with these inputs, from memory that units read.
    pub(super) fn new_client(&self, inputs: &[(String, Tensor)]) -> Result<ColdClient> {
        let dispatcher = self.managed.local_site().dispatcher().clone();
        let copy = |(name, tensor): &(String, Tensor)| {
            let mut copy = dispatcher.allocate_input(tensor.dtype(), tensor.shape())?;
            if let (Some(target), Some(bytes)) = (copy.bytes_mut(), tensor.bytes()) {
                target.copy_from_slice(bytes);
            }
            Ok((name.clone(), copy.freeze()))
        };
        let inputs = inputs.iter().map(copy).collect::<Result<_>>()?;
        Ok(ColdClient { dispatcher, inputs })
    }

    /// How many loads there were so far, how long they took together, and what the weights of a
    /// task take in memory.
    pub(super) fn loads_so_far(&self) -> (u64, Duration, u64) {
        let used = self.managed.local_site().node_supervisor().weight_use();
        let instances: Vec<_> = used.into_iter().flat_map(|(_, used)| used.instances).collect();
        let loads = instances.iter().map(|instance| instance.loads).sum();
        let time = instances.iter().map(|instance| instance.load_time).sum();
        let bytes = instances.iter().map(|instance| instance.bytes).max().unwrap_or(0);
        (loads, time, bytes)
    }

    /// Asks a task, and waits for the answer.
    pub(super) fn ask(&self, client: &ColdClient, task: &str) -> Result<TimedAnswer> {
        self.hop_timings.take_all();
        let (took, outputs) = self.runtime.block_on(client.ask(task))?;
        let timings = self.hop_timings.take_all();
        let loading = timings.iter().flatten().map(|hop| hop.loading).sum();
        Ok(TimedAnswer { took, loading: Duration::from_nanos(loading), outputs })
    }
}

impl ColdClient {
    /// Asks a task: how long it took, and what is in the outputs.
    pub(super) async fn ask(&self, task: &str) -> Result<(Duration, Vec<Vec<u8>>)> {
        let request = InferenceRequest {
            task: task.to_owned(),
            version: String::new(),
            id: String::new(),
            inputs: self.inputs.clone(),
            timeout: None,
            trace: None,
        };
        let start = Instant::now();
        let answer = self.dispatcher.infer(request).await.map_err(|refusal| refusal.error)?;
        let took = start.elapsed();
        let bytes = |(_, tensor): &(String, Tensor)| {
            let tensor = tensor.clone().wait_fence_on_host()?;
            Ok(tensor.bytes().unwrap_or_default().to_vec())
        };
        Ok((took, answer.outputs.iter().map(bytes).collect::<Result<_>>()?))
    }
}

impl Drop for ColdSite {
    fn drop(&mut self) {
        stop_site(&self.managed);
    }
}
