//! Blocks of one task on different devices: tensors get from each to the next, whichever it is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tessera_core::{DType, Device, Dim, Tensor};
use tessera_deploy::{
    Batching, Deployment, Hop, PlannedTask, ReplyOutcome, SourceRoute, TaskSettings,
};
use tessera_engine::{Engine, LoadOptions, OnnxRuntime, find_library};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{NoExternalData, Partition, Split, infer, onnx, split_into_chain};
use tessera_node::{
    CancelledRequests, HostMemory, LoadedUnit, MachineCorePermits, NoLossReporter, UnitMemory,
    UnitResources, Worker, WorkerParts,
};
use tessera_tensormq::{
    Deadline, Endpoint, EndpointOptions, Inbox, InboxOptions, Message, Peers, Received, RequestId,
    Wait,
};

const BLOCKS: usize = 3;
const WIDTH: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);

/// Layers in a row, of any number of rows.
fn layers() -> Partition {
    let mut graph = GraphBuilder::new("layers");
    let rows = Dim::Symbol("rows".to_owned());
    let mut value = graph.add_input("x", DType::F32, [rows, Dim::Fixed(WIDTH)]);
    for seed in 0..BLOCKS {
        let w = graph.add_weight("w", &[WIDTH, WIDTH], numbers(WIDTH * WIDTH, seed));
        let product = graph.add_node("MatMul", &[&value, &w], []);
        value = graph.add_node("Tanh", &[&product], []);
    }
    graph.add_output(&value);
    let graph = onnx::read::from_proto(graph.build_model(), &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    split_into_chain(&graph, &types, &Split::Blocks(BLOCKS), &[]).unwrap()
}

/// Numbers that look random, below one half.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7919 + seed * 104_729) % 1021) as f32 / 1021.0 - 0.5).collect()
}

/// A task of one process, with a worker for each of its blocks.
struct Chain {
    deployment: Deployment,
    _workers: Vec<Worker>,
    peers: Arc<Peers>,
    replies: Inbox,
}

impl Chain {
    fn new(engine: &Arc<dyn Engine>, devices: [Device; BLOCKS]) -> Self {
        let partition = layers();
        let elsewhere = devices.into_iter().enumerate().collect();
        let task = PlannedTask {
            name: "task".to_owned(),
            version: "1".to_owned(),
            graph: partition.graph.clone(),
            settings: TaskSettings { device_overrides: elsewhere, ..TaskSettings::default() },
        };
        let deployment = Deployment::of_tasks([task], false).unwrap();
        let endpoint = Endpoint::start(EndpointOptions::default()).unwrap();
        let peers = Arc::new(Peers::new(endpoint.clone()));
        let replies = endpoint.create_inbox("replies", &InboxOptions::default()).unwrap();
        peers.add_peer("replies", replies.address().clone());
        let (local_workers, cancelled) = (Arc::default(), Arc::new(CancelledRequests::default()));
        let cores = Arc::new(MachineCorePermits::new(NonZeroUsize::MIN));
        let workers = deployment.units().into_iter().map(|unit| {
            let options = LoadOptions::default();
            let memory = UnitMemory::InProcess(Arc::new(HostMemory::default()));
            let resources = UnitResources::new(Arc::clone(&cores) as _, memory);
            let engine = Arc::clone(engine);
            let loaded =
                LoadedUnit::load_blocks(engine, &partition, &unit, resources, options).unwrap();
            let worker = Worker::spawn_threads(WorkerParts {
                name: unit.id.to_string(),
                unit: loaded,
                batching: Some(Batching { max_rows: 16, max_wait: Duration::from_millis(1) }),
                peers: Arc::clone(&peers),
                most_concurrent_runs: NonZeroUsize::MIN,
                cancelled: Arc::clone(&cancelled),
                local_workers: Arc::clone(&local_workers),
                loss_reporter: Arc::new(NoLossReporter),
            });
            let worker = worker.unwrap();
            peers.add_peer(&unit.id.to_string(), worker.address().clone());
            worker
        });
        let workers = workers.collect();
        Self { deployment, _workers: workers, peers, replies }
    }

    fn ask(&self, number: u32, rows: usize) {
        let hops = self.deployment.routes().next().unwrap().steps.iter().map(|step| {
            let (inputs, keep) = (step.inputs.clone(), step.keep.clone());
            Hop { instance: step.unit.to_string(), inputs, keep, exit: None }
        });
        let hops: Vec<Hop> = hops.collect();
        let route = SourceRoute::write("replies", number, &hops).unwrap();
        let x = Tensor::from_f32(&[rows, WIDTH], &numbers(rows * WIDTH, number as usize)).unwrap();
        let message =
            Message::new(RequestId(u128::from(number)), "task", route.as_bytes()).unwrap();
        let message = message.with_deadline(Deadline::after(PATIENCE)).with_tensors(vec![x]);
        let first = &self.deployment.routes().next().unwrap().steps[0].unit;
        self.peers.send_to(&first.to_string(), message, Wait::at_most(PATIENCE)).unwrap();
    }

    /// So many answers, by number.
    fn answers(&mut self, count: usize) -> BTreeMap<u128, Vec<f64>> {
        let mut answers = BTreeMap::new();
        while answers.len() < count {
            let received =
                self.replies.receive(Wait::at_most(PATIENCE)).expect("no answer in time");
            let Received::Message(mut message) = received else { continue };
            let tensors = message.take_tensors();
            let outcome = SourceRoute::read(message.route()).unwrap().outcome().unwrap();
            assert_eq!(outcome, ReplyOutcome::Done, "{}", message.request());
            let rows = 1 + message.request().0 as usize % 3;
            assert_eq!(tensors[0].shape(), [rows, WIDTH]);
            let output = tensors[0].clone().wait_fence_on_host().unwrap().to_f64().unwrap();
            answers.insert(message.request().0, output);
        }
        answers
    }

    /// Requests one after the other, and then many at the same time.
    fn all(&mut self) -> BTreeMap<u128, Vec<f64>> {
        let mut found = BTreeMap::new();
        for number in 0..4 {
            self.ask(number, 1 + number as usize % 3);
            found.extend(self.answers(1));
        }
        for number in 4..40 {
            self.ask(number, 1 + number as usize % 3);
        }
        found.extend(self.answers(36));
        found
    }
}

#[test]
fn each_block_runs_on_the_device_that_it_was_given() {
    if find_library().is_none() {
        eprintln!("SKIPPED: ONNX Runtime is not there");
        return;
    }
    let engine: Arc<dyn Engine> = Arc::new(OnnxRuntime::new().unwrap());
    let on_cpu = Chain::new(&engine, [Device::Cpu; BLOCKS]).all();
    if let Err(error) = tessera_engine::begin_gpu_span(Device::Cuda(0)) {
        eprintln!("SKIPPED on the GPU: {error}");
        return;
    }
    for choice in 1u32..1 << BLOCKS {
        let on_gpu = |block: usize| choice >> block & 1 == 1;
        let devices: [Device; BLOCKS] =
            std::array::from_fn(|block| if on_gpu(block) { Device::Cuda(0) } else { Device::Cpu });
        let found = Chain::new(&engine, devices).all();
        let mut worst: f64 = 0.0;
        for (number, expected) in &on_cpu {
            for (found, expected) in found[number].iter().zip(expected) {
                worst = worst.max((found - expected).abs());
            }
        }
        println!("{devices:?}: {} answers, {worst:.1e} from the CPU's at most", found.len());
        assert!(worst < 1e-5, "{devices:?}: {worst}");
    }
}
