//! Queueing: how busy blocks are, how long requests wait for them, and how many replicas they need.
//!
//! Each block is a queue with some replicas that serve it. What arrives there is what all tasks
//! that share it send, less what left at exits on the way: requests that come at random (Poisson)
//! do so together as well. The load of a block is its arrivals times the time that each takes, and
//! its utilisation the load over its replicas. Above 1 its queue grows without end. The block that
//! is busiest is the bottleneck, and says how much more all tasks could send.
//!
//! The thesis behind this ("BlockFlow", section 4.2.1) has the sum of the arrivals (4.3), the load
//! (4.2), and the time of a request as overhead, inference and waiting of each block (4.1). Three
//! things are different here. It takes inference alone for the time that a block is busy; but a
//! process that receives and sends does not compute meanwhile: with the overhead, the highest rate
//! of its own pipeline comes to 215 requests a second where it measured 217, without it to 249. It
//! asks that the arrivals of every block stay below the rate of the slowest one, which is right
//! where all requests pass all blocks; with sharing and exits each block has its own. And it
//! measures waiting; here is a formula.
//!
//! What is exact: arrivals, utilisation, bottleneck and highest rates, whatever the times are
//! distributed like. Waiting at a block with Poisson arrivals is exact with one replica (Pollaczek
//! and Khinchine), and with several where times vary exponentially (Erlang); in between it is the
//! approximation of Allen and Cunneen, and with batches a bound of Inoue. That requests leave a
//! block as randomly as they came is exact for exponential times only (Burke): behind blocks with
//! steady times they come more evenly, and wait less than it says here.
//!
//! There is one strategy so far, [`FewestReplicas`].

mod consistency;
mod load;
mod problem;
mod replicas;
mod service_times;
mod strategies;
mod waiting_time;

pub use load::{BlockLoad, QueueingLoad, TaskLoad, compute_load};
pub use problem::{QueueingBatch, QueueingBlock, QueueingProblem, QueueingTask, ReplicaBudget};
pub use replicas::{
    FewestReplicas, ReplicaPlan, ReplicaSolution, evaluate_replicas, plan_replicas,
};
pub use strategies::{ReplicaStrategy, replica_strategies};
pub use waiting_time::{erlang_c, mean_waiting_time, mean_waiting_time_batched};
