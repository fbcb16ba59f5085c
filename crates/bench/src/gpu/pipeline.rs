//! A site in this process that serves one model, asked without front ends: what clients on the same
//! host see.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_control::{System, TaskDefaults, TaskDefinition};
use tessera_core::{Device, Error, Result, Tensor, lock};
use tessera_deploy::{Batching, BatchingChoice, HopTiming, Isolation};
use tessera_dispatch::{Dispatcher, InferenceRequest, InferenceResponse};
use tessera_engine::{CudaOptions, EngineName};
use tessera_node::{DeviceUse, InstanceStatus};
use tessera_server::{ManagedSite, TelemetryConfig, WeightLimits};
use tessera_telemetry::{EndedRequest, RequestObserver};
use tessera_tensormq::Transport;

use crate::in_process_site::{InProcessSite, stop_site};

/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// What a pipeline is like.
#[derive(Clone, Copy)]
pub(crate) struct BenchPipelineOptions {
    pub(crate) device: Device,
    pub(crate) cuda: CudaOptions,
    pub(crate) isolation: Isolation,
    pub(crate) transport: Option<Transport>,
    /// Rows that requests are put together to; `None` for none.
    pub(crate) batch: Option<usize>,
    /// Whether blocks are kept apart.
    pub(crate) apart: bool,
}

/// A model that is served in this process.
pub(crate) struct BenchPipeline {
    // Ends before the runtime that it runs on.
    managed: ManagedSite,
    hop_timings: Arc<HopTimingsCollector>,
    runtime: tokio::runtime::Runtime,
    task: String,
    input: String,
    /// Whether whoever waits for an answer stays awake; on a GPU, where the CPU has cores to spare.
    stays_awake: bool,
}

/// Asks a pipeline from a task of its runtime.
#[derive(Clone)]
pub(crate) struct PipelineClient {
    dispatcher: Dispatcher,
    task: String,
    input: String,
}

impl PipelineClient {
    /// Asks once; a request that may not take longer than that is refused or ends late.
    pub(crate) async fn infer_within(
        &self,
        input: &Tensor,
        timeout: Option<Duration>,
    ) -> Result<InferenceResponse> {
        let request = InferenceRequest {
            task: self.task.clone(),
            version: String::new(),
            id: String::new(),
            inputs: vec![(self.input.clone(), input.clone())],
            timeout,
            trace: None,
        };
        self.dispatcher.infer(request).await.map_err(|refusal| refusal.error)
    }
}

/// Keeps what happened to requests.
#[derive(Default)]
pub(crate) struct HopTimingsCollector(Mutex<Vec<Vec<HopTiming>>>);

impl HopTimingsCollector {
    /// What happened to requests since this was last asked.
    pub(crate) fn take_all(&self) -> Vec<Vec<HopTiming>> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl RequestObserver for HopTimingsCollector {
    fn request_ended(&self, ended: &EndedRequest<'_>) {
        let mut all = lock(&self.0);
        all.push(ended.hop_timings.to_vec());
    }
}

impl BenchPipeline {
    /// Serves the model of this name, which is in the repository.
    pub(crate) fn start_serving(
        repository: &Path,
        model: &str,
        input: &str,
        engine: EngineName,
        options: BenchPipelineOptions,
    ) -> Result<Self> {
        // One thread: whoever asks is woken by the answer itself.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::from_io("the runtime of a pipeline", &error))?;
        let hop_timings = Arc::new(HopTimingsCollector::default());
        let managed = runtime.block_on(async {
            let telemetry = TelemetryConfig::default().build()?;
            let site = InProcessSite {
                repository,
                engine,
                cuda: options.cuda,
                transport: options.transport,
                weight_limits: WeightLimits::default(),
                defaults: TaskDefaults {
                    isolation: options.isolation,
                    deadline: DEADLINE,
                    device: options.device,
                },
            };
            let managed = site.config();
            let managed = managed.build(telemetry, Arc::clone(&hop_timings) as _)?;
            let mut task = TaskDefinition::of_model(model);
            task.batching = Some(match options.batch {
                Some(max_rows) => {
                    BatchingChoice::On(Batching { max_rows, max_wait: Duration::ZERO })
                }
                None => BatchingChoice::Off,
            });
            let mut system = System::new([(model.to_owned(), task)].into_iter().collect());
            system.fusion = !options.apart;
            managed.manager().put_system(system).await?;
            Ok::<_, Error>(managed)
        })?;
        let (task, input) = (model.to_owned(), input.to_owned());
        let stays_awake = options.device != Device::Cpu;
        Ok(Self { managed, hop_timings, runtime, task, input, stays_awake })
    }

    /// An input in memory that units can read.
    pub(crate) fn copy_input(&self, tensor: &Tensor) -> Result<Tensor> {
        let mut copy = self
            .managed
            .local_site()
            .dispatcher()
            .allocate_input(tensor.dtype(), tensor.shape())?;
        if let (Some(target), Some(bytes)) = (copy.bytes_mut(), tensor.bytes()) {
            target.copy_from_slice(bytes);
        }
        Ok(copy.freeze())
    }

    fn make_request(&self, input: &Tensor) -> InferenceRequest {
        InferenceRequest {
            task: self.task.clone(),
            version: String::new(),
            id: String::new(),
            inputs: vec![(self.input.clone(), input.clone())],
            timeout: None,
            trace: None,
        }
    }

    /// Asks once, and waits for the answer.
    pub(crate) fn infer_once(&self, input: &Tensor) -> Result<(Duration, InferenceResponse)> {
        let request = self.make_request(input);
        let start = Instant::now();
        let answer = self.runtime.block_on(async {
            let mut answer = std::pin::pin!(self.managed.local_site().dispatcher().infer(request));
            // Being woken is not the pipeline's time.
            loop {
                tokio::select! {
                    biased;
                    answer = &mut answer => return answer,
                    () = tokio::task::yield_now(), if self.stays_awake => {}
                }
            }
        });
        let took = start.elapsed();
        Ok((took, answer.map_err(|refusal| refusal.error)?))
    }

    /// For many requests at the same time, on the runtime of [`Self::block_on`].
    pub(crate) fn new_client(&self) -> PipelineClient {
        let (task, input) = (self.task.clone(), self.input.clone());
        PipelineClient { dispatcher: self.managed.local_site().dispatcher().clone(), task, input }
    }

    /// Runs this on the pipeline's runtime, which has one thread.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// What happened to the requests since this was last asked.
    pub(crate) fn take_hop_timings(&self) -> Vec<Vec<HopTiming>> {
        self.hop_timings.take_all()
    }

    /// What each unit did on its GPU so far, in the order of the path.
    pub(crate) fn gpu_usage(&self) -> Result<Vec<DeviceUse>> {
        let entry = self.managed.local_site().dispatcher().find_task(&self.task, "")?;
        let uses = entry.route.steps.iter().map(|step| {
            let pings = self.managed.local_site().node_supervisor().ping_unit(&step.unit)?;
            let (_, pinged) =
                pings.into_iter().next().ok_or_else(|| Error::lost("an instance is gone"))?;
            Ok(pinged?.1.device)
        });
        uses.collect()
    }

    /// The instances of its units.
    pub(crate) fn instances(&self) -> Vec<InstanceStatus> {
        self.managed.local_site().node_supervisor().instance_statuses()
    }
}

impl Drop for BenchPipeline {
    fn drop(&mut self) {
        stop_site(&self.managed);
    }
}
