//! A site in this process that serves one model, asked without front ends: what clients on the same host see.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_control::{Defaults, MemoryStore, System, Task};
use tessera_core::{Device, Error, Result, Tensor};
use tessera_engine::{CudaOptions, EngineName};
use tessera_gateway::{Answer, Dispatcher, Ended, Monitor, MonitorOptions, Observer, Request};
use tessera_node::{GpuUse, InstanceStatus};
use tessera_plan::{Batching, BatchingChoice, Isolation, Record};
use tessera_tensormq::Transport;

use crate::serve::{Assembly, AssemblyOptions};

/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// What a pipeline is like.
#[derive(Clone, Copy)]
pub(super) struct PipelineOptions {
    pub(super) device: Device,
    pub(super) cuda: CudaOptions,
    pub(super) isolation: Isolation,
    pub(super) transport: Option<Transport>,
    /// Rows that requests are put together to; `None` for none.
    pub(super) batch: Option<usize>,
    /// Whether blocks are kept apart.
    pub(super) apart: bool,
}

/// A model that is served in this process.
pub(super) struct Pipeline {
    // Ends before the runtime that it runs on.
    assembly: Assembly,
    recorder: Arc<Recorder>,
    runtime: tokio::runtime::Runtime,
    task: String,
    input: String,
    /// Whether whoever waits for an answer stays awake; on a GPU, where the CPU has cores to spare.
    stays_awake: bool,
}

/// Asks a pipeline from a task of its runtime.
#[derive(Clone)]
pub(super) struct Asker {
    dispatcher: Dispatcher,
    task: String,
    input: String,
}

impl Asker {
    /// Asks once; a request that may not take longer than that is refused or ends late.
    pub(super) async fn ask(&self, input: &Tensor, timeout: Option<Duration>) -> Result<Answer> {
        let request = Request {
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
pub(super) struct Recorder(Mutex<Vec<Vec<Record>>>);

impl Observer for Recorder {
    fn ended(&self, ended: &Ended<'_>) {
        let mut all = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.push(ended.records.to_vec());
    }
}

impl Pipeline {
    /// Serves the model of this name, which is in the repository.
    pub(super) fn start(
        repository: &Path,
        model: &str,
        input: &str,
        engine: EngineName,
        options: PipelineOptions,
    ) -> Result<Self> {
        // One thread: whoever asks is woken by the answer itself.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::io("the runtime of a pipeline", &error))?;
        let recorder = Arc::new(Recorder::default());
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let assembly = runtime.block_on(async {
            let assembly = Assembly::start(AssemblyOptions {
                repository: repository.to_path_buf(),
                store: Arc::new(MemoryStore::default()),
                engine,
                cuda: options.cuda,
                cores,
                transport: options.transport,
                monitor: Monitor::new(MonitorOptions { traces: None })?,
                observer: Arc::clone(&recorder) as _,
                defaults: Defaults {
                    isolation: options.isolation,
                    deadline: DEADLINE,
                    device: options.device,
                },
            })?;
            let mut task = Task::of_model(model);
            task.batching = Some(match options.batch {
                Some(max_rows) => {
                    BatchingChoice::On(Batching { max_rows, max_wait: Duration::ZERO })
                }
                None => BatchingChoice::Off,
            });
            let mut system = System::new([(model.to_owned(), task)].into_iter().collect());
            system.fusion = !options.apart;
            assembly.manager.put_system(system).await?;
            Ok::<_, Error>(assembly)
        })?;
        let (task, input) = (model.to_owned(), input.to_owned());
        let stays_awake = options.device != Device::Cpu;
        Ok(Self { assembly, recorder, runtime, task, input, stays_awake })
    }

    /// An input in memory that blocks can read.
    pub(super) fn input(&self, tensor: &Tensor) -> Result<Tensor> {
        let mut copy = self.assembly.dispatcher.memory(tensor.dtype(), tensor.shape())?;
        if let (Some(target), Some(bytes)) = (copy.bytes_mut(), tensor.bytes()) {
            target.copy_from_slice(bytes);
        }
        Ok(copy.freeze())
    }

    fn request(&self, input: &Tensor) -> Request {
        Request {
            task: self.task.clone(),
            version: String::new(),
            id: String::new(),
            inputs: vec![(self.input.clone(), input.clone())],
            timeout: None,
            trace: None,
        }
    }

    /// Asks once, and waits for the answer.
    pub(super) fn ask(&self, input: &Tensor) -> Result<(Duration, Answer)> {
        let request = self.request(input);
        let start = Instant::now();
        let answer = self.runtime.block_on(async {
            let mut answer = std::pin::pin!(self.assembly.dispatcher.infer(request));
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
    pub(super) fn asker(&self) -> Asker {
        let (task, input) = (self.task.clone(), self.input.clone());
        Asker { dispatcher: self.assembly.dispatcher.clone(), task, input }
    }

    /// Runs this on the pipeline's runtime, which has one thread.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// What happened to the requests since this was last asked.
    pub(super) fn records(&self) -> Vec<Vec<Record>> {
        let mut all = self.recorder.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::take(&mut *all)
    }

    /// What each block did on its GPU so far, in the order of the path.
    pub(super) fn gpu_use(&self) -> Result<Vec<GpuUse>> {
        let entry = self.assembly.dispatcher.task(&self.task, "")?;
        let uses = entry.route.steps.iter().map(|step| {
            let pings = self.assembly.site.node.ping(&step.unit)?;
            let (_, pinged) =
                pings.into_iter().next().ok_or_else(|| Error::lost("a block is gone"))?;
            Ok(pinged?.1.gpu)
        });
        uses.collect()
    }

    /// The instances of its blocks.
    pub(super) fn instances(&self) -> Vec<InstanceStatus> {
        self.assembly.site.node.status()
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.assembly.dispatcher.close();
        self.assembly.site.node.end();
    }
}
