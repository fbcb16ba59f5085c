//! The dispatcher: it looks a task's route up, writes it into the request's messages, and waits for
//! the answer.
//!
//! All waiting is here: a request is sent to the units of its route only when each of them has room
//! for it, so that no unit ever waits for another and no queue but this one grows. What can't be
//! finished in time is refused at once. A request ends in exactly one answer, whatever happens to
//! instances.

mod cancellation;
mod changes;
mod exchange;
mod infer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use tessera_core::{DType, Result, TensorMut, lock};
use tessera_telemetry::RequestObserver;
use tessera_tensormq::{Address, Endpoint, MAX_INBOX_DEPTH, Peers, RequestId};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::device_tensors::ExportInput;
use crate::instances::TaskAvailability;
use crate::routing_table::TaskEntry;
use crate::state::DispatcherState;
use crate::statistics::TaskStatistics;

/// Makes memory for an input.
pub type AllocateInput = Arc<dyn Fn(DType, &[usize]) -> Result<TensorMut> + Send + Sync>;

/// What a dispatcher works with.
pub struct DispatcherOptions {
    /// The transport.
    pub endpoint: Endpoint,
    /// Who it sends to.
    pub peers: Arc<Peers>,
    /// The name of the inbox that replies come to, which nobody else has who sends to its units.
    pub reply_inbox: String,
    /// Cores that units compute on: a first guess at how many requests are computed at once.
    pub cores: usize,
    /// Whether others send to the units, too: then admission goes by how long requests wait there.
    pub shares_units: bool,
    /// Makes memory that units can read.
    pub allocate_input: AllocateInput,
    /// Brings inputs to other processes.
    pub export_input: ExportInput,
    /// Most bytes of inputs that may wait.
    pub most_waiting_bytes: usize,
    /// Is told of every request that ended.
    pub observer: Arc<dyn RequestObserver>,
}

/// Takes requests to units and answers back.
#[derive(Clone)]
pub struct Dispatcher(Arc<DispatcherInner>);

struct DispatcherInner {
    /// Itself, for what goes on beside it, and where that does.
    own: Weak<DispatcherInner>,
    runtime: Handle,
    peers: Arc<Peers>,
    allocate_input: AllocateInput,
    export_input: ExportInput,
    observer: Arc<dyn RequestObserver>,
    state: Mutex<DispatcherState>,
    reply_address: Address,
    next_number: AtomicU64,
    /// The upper half of request numbers, another in every run of the server.
    run_id: u64,
    /// Notified when a request has ended.
    request_ended: Notify,
    is_closing: AtomicBool,
    /// Tells instances that nobody waits for a request any more.
    on_cancelled: OnceLock<Box<dyn Fn(RequestId) + Send + Sync>>,
}

impl Dispatcher {
    /// Starts a dispatcher without tasks, on the runtime that this is called on.
    pub fn start_empty(options: DispatcherOptions) -> Result<Self> {
        let DispatcherOptions {
            endpoint,
            peers,
            reply_inbox,
            cores,
            shares_units,
            allocate_input,
            export_input,
            most_waiting_bytes,
            observer,
        } = options;
        let inbox = peers.create_inbox(&reply_inbox, MAX_INBOX_DEPTH)?;
        let reply_address = inbox.address().clone();
        peers.add_peer(&reply_inbox, reply_address.clone());
        let inner = Arc::new_cyclic(|own| DispatcherInner {
            own: own.clone(),
            runtime: Handle::current(),
            peers,
            allocate_input,
            export_input,
            observer,
            state: Mutex::new(DispatcherState::new(
                cores,
                shares_units,
                most_waiting_bytes,
                reply_inbox,
            )),
            reply_address,
            next_number: AtomicU64::new(1),
            run_id: endpoint.id(),
            request_ended: Notify::new(),
            is_closing: AtomicBool::new(false),
            on_cancelled: OnceLock::new(),
        });
        exchange::start_receiving(&inner, inbox)?;
        exchange::keep_ending_overdue(&inner);
        Ok(Self(inner))
    }

    /// The tasks there are.
    pub fn list_tasks(&self) -> Vec<Arc<TaskEntry>> {
        self.0.lock_state().list_tasks()
    }

    /// One task.
    pub fn find_task(&self, name: &str, version: &str) -> Result<Arc<TaskEntry>> {
        self.0.lock_state().find_task(name, version)
    }

    /// Whether a task answers now.
    pub fn task_availability(&self, task: &TaskEntry) -> TaskAvailability {
        self.0.lock_state().task_availability(task)
    }

    /// How many requests of a task wait or are on their way.
    pub fn task_in_flight(&self, task: &str) -> usize {
        self.0.lock_state().task_in_flight(task)
    }

    /// How many requests are on their way to or through an instance.
    pub fn instance_in_flight(&self, instance: &str) -> usize {
        self.0.lock_state().instance_in_flight(instance)
    }

    /// How many requests wait to be sent.
    pub fn queue_length(&self) -> usize {
        self.0.lock_state().queue_length()
    }

    /// What a task did.
    pub fn task_statistics(&self, name: &str) -> Result<TaskStatistics> {
        Ok(self.find_task(name, "")?.statistics())
    }

    /// Sets the threshold of an exit; requests that are accepted from now on use it.
    pub fn set_threshold(&self, task: &str, exit: &str, threshold: f32) -> Result<()> {
        self.find_task(task, "")?.set_exit_threshold(exit, threshold)
    }

    /// Memory for an input.
    pub fn allocate_input(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        (self.0.allocate_input)(dtype, shape)
    }

    /// Where replies come to.
    pub fn reply_address(&self) -> &Address {
        &self.0.reply_address
    }

    /// Whether it takes requests.
    pub fn is_accepting(&self) -> bool {
        !self.0.is_closing.load(Ordering::Acquire)
    }

    /// Takes no more requests.
    pub fn stop_accepting(&self) {
        self.0.is_closing.store(true, Ordering::Release);
    }
}

impl DispatcherInner {
    fn lock_state(&self) -> MutexGuard<'_, DispatcherState> {
        lock(&self.state)
    }
}
