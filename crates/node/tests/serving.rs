//! What serves: units that are loaded, workers, and the cores that they share.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tessera_core::{ContentHash, DType, Device, Dim, Result, Tensor};
use tessera_deploy::{
    Batching, BatchingChoice, Hop, HopExit, HopTiming, Isolation, ReplyOutcome, ResidencyChoice,
    SourceRoute, Unit, UnitId, UnitSettings,
};
use tessera_engine::{Engine, LoadOptions, OnnxRuntime, Program, Rten, find_library};
use tessera_graph::builder::{GraphBuilder, int_attribute};
use tessera_graph::onnx::{self, ModelProto};
use tessera_graph::{
    BlockGraph, BlockNode, NoExternalData, Partition, ScoreKind, Split, TensorSource, infer,
    normalised_entropy, split_into_chain,
};
use tessera_node::{
    CorePermits, ExitPolicy, HostMemory, LoadedUnit, MachineCorePermits, ModelLoader,
    ProgramSource, UnitMemory, UnitResources, Worker, WorkerParts, compare_output,
};
use tessera_tensormq::{
    Deadline, Endpoint, EndpointOptions, Inbox, InboxOptions, Message, Peers, Received, RequestId,
    Wait,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn wait() -> Wait {
    Wait::at_most(PATIENCE)
}

fn cut(model: ModelProto, how: &Split) -> Partition {
    let graph = onnx::read::from_proto(model, &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    split_into_chain(&graph, &types, how, &[]).unwrap()
}

fn unit(graph: BlockGraph) -> Unit {
    Unit {
        id: UnitId("unit".to_owned()),
        graph,
        settings: UnitSettings {
            isolation: Isolation::Thread,
            replicas: 1,
            node: None,
            device: Device::Cpu,
            batching: BatchingChoice::Off,
            residency: ResidencyChoice::Auto,
        },
        takes_single_rows: false,
        is_batchable: false,
    }
}

fn load(engine: Arc<dyn Engine>, graph: &BlockGraph, source: &dyn ProgramSource) -> LoadedUnit {
    load_with(engine, graph, source, MachineCorePermits::new(NonZeroUsize::MIN))
}

fn load_with(
    engine: Arc<dyn Engine>,
    graph: &BlockGraph,
    source: &dyn ProgramSource,
    cores: MachineCorePermits,
) -> LoadedUnit {
    let memory = UnitMemory::InProcess(Arc::new(HostMemory::default()));
    let resources = UnitResources::new(Arc::new(cores), memory);
    let (unit, options) = (unit(graph.clone()), LoadOptions::default());
    LoadedUnit::load_blocks(engine, source, &unit, resources, options).unwrap()
}

fn run(unit: &LoadedUnit, inputs: &[Tensor]) -> Vec<Tensor> {
    unit.run_unit(NonZeroUsize::MIN, inputs, &HostMemory::default(), wait()).unwrap()
}

/// Every engine that this machine has.
fn engines() -> Vec<Arc<dyn Engine>> {
    let mut engines: Vec<Arc<dyn Engine>> = vec![Arc::new(Rten::new())];
    if find_library().is_some() {
        engines.push(Arc::new(OnnxRuntime::new().unwrap()));
    }
    engines
}

/// Numbers that look random, below one.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7919 + seed * 104_729) % 1021) as f32 / 1021.0 - 0.5).collect()
}

fn row(values: &[f32]) -> Tensor {
    Tensor::from_f32(&[1, values.len()], values).unwrap()
}

const WIDTH: usize = 64;

/// `x` of any number of rows after three layers.
fn layers() -> ModelProto {
    let mut graph = GraphBuilder::new("layers");
    let batch = Dim::Symbol("batch".to_owned());
    let mut value = graph.add_input("x", DType::F32, [batch, Dim::Fixed(WIDTH)]);
    for seed in 0..3 {
        let w = graph.add_weight("w", &[WIDTH, WIDTH], numbers(WIDTH * WIDTH, seed));
        let product = graph.add_node("MatMul", &[&value, &w], []);
        value = graph.add_node("Tanh", &[&product], []);
    }
    graph.add_output(&value);
    graph.build_model()
}

#[test]
fn a_fused_unit_gives_what_its_blocks_give_one_after_the_other() {
    for how in [Split::Blocks(3), Split::Every] {
        let partition = cut(layers(), &how);
        assert!(partition.graph.blocks.len() >= 3);
        for engine in engines() {
            let unit = load(Arc::clone(&engine), &partition.graph, &partition);
            assert!(unit.is_fused());
            let weights: usize = 3 * WIDTH * WIDTH * 4;
            assert_eq!(unit.weight_bytes(), weights);
            let apart = ModelLoader::new(engine, LoadOptions::default());
            let apart = apart.load_model(&partition.graph, &partition).unwrap();
            // Shapes that come back find memory that was used before.
            for (rows, seed) in [(1, 0), (3, 1), (1, 2), (3, 3), (1, 4)] {
                let x = Tensor::from_f32(&[rows, WIDTH], &numbers(rows * WIDTH, seed)).unwrap();
                let found = run(&unit, std::slice::from_ref(&x));
                let expected = apart.run_model(&[x], ExitPolicy::TakeExits).unwrap().outputs;
                assert_eq!(found.len(), 1);
                let difference = compare_output("y", &found[0], &expected[0].1).unwrap();
                assert!(difference.max_relative <= 1e-5, "{difference:?}");
            }
        }
    }
}

/// The blocks of two models.
struct Both(Partition, Partition);

impl ProgramSource for Both {
    fn fetch_program(&self, hash: ContentHash) -> Result<Program> {
        ProgramSource::fetch_program(&self.0, hash)
            .or_else(|_| ProgramSource::fetch_program(&self.1, hash))
    }
}

/// `softmax(x)` along the last dimension, in this version of the operators.
fn softmax(opset: i64) -> Partition {
    let mut graph = GraphBuilder::new("softmax").with_opset(opset);
    let x = graph.add_input("x", DType::F32, [1, 4]);
    graph.add_node_into("softmax", "Softmax", &[&x], &["y"], [int_attribute("axis", 1)]);
    graph.add_typed_output("y", DType::F32, [1, 4]);
    cut(graph.build_model(), &Split::Blocks(1))
}

#[test]
fn blocks_that_can_not_be_fused_run_one_after_the_other() {
    let (old, new) = (softmax(11), softmax(13));
    let after = BlockNode {
        inputs: vec![TensorSource::Block { block: 0, output: 0 }],
        ..new.graph.blocks[0].clone()
    };
    let graph = BlockGraph {
        inputs: old.graph.inputs.clone(),
        outputs: vec![(after.outputs[0].clone(), TensorSource::Block { block: 1, output: 0 })],
        blocks: vec![old.graph.blocks[0].clone(), after],
        exits: Vec::new(),
        row_obstacle: None,
        relies_on_dim_names: false,
    };
    assert_ne!(graph.blocks[0].block, graph.blocks[1].block);
    let both = Both(old, new);
    for engine in engines() {
        let unit = load(engine, &graph, &both);
        assert!(!unit.is_fused());
        for seed in 0..3 {
            let values = numbers(4, seed);
            let softmax = |values: &[f64]| -> Vec<f64> {
                let sum: f64 = values.iter().map(|value| value.exp()).sum();
                values.iter().map(|value| value.exp() / sum).collect()
            };
            let once = softmax(&values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>());
            let found = run(&unit, &[row(&values)])[0].to_f64().unwrap();
            for (found, expected) in found.iter().zip(softmax(&once)) {
                assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
            }
        }
    }
}

/// Where `x` is not zero: how many places that are depends on what is in it.
fn places() -> ModelProto {
    let mut graph = GraphBuilder::new("places");
    let x = graph.add_input("x", DType::F32, [8]);
    let active = graph.add_node("Relu", &[&x], []);
    graph.add_node_into("places", "NonZero", &[&active], &["y"], []);
    graph.add_output("y");
    graph.build_model()
}

fn shapes_are_right_every_time(engine: &Arc<dyn Engine>) {
    for how in [Split::Blocks(1), Split::Every] {
        let partition = cut(places(), &how);
        let unit = load(Arc::clone(engine), &partition.graph, &partition);
        let mut earlier: Vec<(Tensor, Vec<f64>)> = Vec::new();
        for count in [3, 5, 3, 0, 8, 1, 3, 3] {
            let mut values = [0.0; 8];
            values[..count].fill(1.0);
            // Not always the same places.
            values.rotate_left(count);
            let expected: Vec<f64> =
                (0..8).filter(|&index| values[index] > 0.0).map(|index| index as f64).collect();
            let x = Tensor::from_f32(&[8], &values).unwrap();
            let found = run(&unit, &[x]).remove(0);
            assert_eq!(found.shape(), [1, count]);
            assert_eq!(found.to_f64().unwrap(), expected);
            earlier.push((found, expected));
        }
        // And none was overwritten by another.
        for (found, expected) in earlier {
            assert_eq!(found.to_f64().unwrap(), expected);
        }
    }
}

#[test]
fn a_shape_that_depends_on_what_is_in_a_tensor_is_right_every_time_on_onnxruntime() {
    if find_library().is_none() {
        eprintln!("SKIPPED: no libonnxruntime found");
        return;
    }
    let engine: Arc<dyn Engine> = Arc::new(OnnxRuntime::new().unwrap());
    shapes_are_right_every_time(&engine);
}

#[test]
fn a_shape_that_depends_on_what_is_in_a_tensor_is_right_every_time_on_rten() {
    let engine: Arc<dyn Engine> = Arc::new(Rten::new());
    shapes_are_right_every_time(&engine);
}

#[test]
fn runs_at_the_same_time_do_not_see_each_other() {
    let partition = cut(layers(), &Split::Blocks(3));
    for engine in engines() {
        let unit = load(engine, &partition.graph, &partition);
        let memory = HostMemory::default();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (unit, memory) = (&unit, &memory);
                scope.spawn(move || {
                    let x = [row(&numbers(WIDTH, seed))];
                    let expected = run(unit, &x)[0].to_f64().unwrap();
                    for _ in 0..20 {
                        let found = unit.run_unit(NonZeroUsize::MIN, &x, memory, wait()).unwrap();
                        assert_eq!(found[0].to_f64().unwrap(), expected);
                    }
                });
            }
        });
    }
}

#[test]
fn cores_are_never_given_out_twice_and_everybody_gets_some() {
    const ALL: usize = 4;
    let machine = MachineCorePermits::new(NonZeroUsize::new(ALL).unwrap());
    let (used, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (machine, used, most) = (&machine, &used, &most);
            scope.spawn(move || {
                for round in 0..50 {
                    let permit = machine.acquire_permit(round * 8 + thread).unwrap();
                    let size = permit.cores().get();
                    let now = used.fetch_add(size, Ordering::SeqCst) + size;
                    assert!(now <= ALL, "{now} cores are in use");
                    most.fetch_max(now, Ordering::SeqCst);
                    std::thread::yield_now();
                    used.fetch_sub(size, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert_eq!(used.load(Ordering::SeqCst), 0);
    assert_eq!(most.load(Ordering::SeqCst), ALL);
    // All of them are back.
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(machine.acquire_permit(0).unwrap().cores().get(), ALL);
}

/// A worker with an inbox for its answers, and the only core, which the test may take.
struct Bench {
    worker: Option<Worker>,
    peers: Arc<Peers>,
    replies: Inbox,
    cores: MachineCorePermits,
    cancelled: Arc<tessera_node::CancelledRequests>,
}

impl Bench {
    fn new(batching: Option<Batching>) -> Self {
        let partition = cut(layers(), &Split::Blocks(1));
        let endpoint = Endpoint::start(EndpointOptions::default()).unwrap();
        let peers = Arc::new(Peers::new(endpoint.clone()));
        let replies = endpoint.create_inbox("replies", &InboxOptions::default()).unwrap();
        peers.add_peer("replies", replies.address().clone());
        let cores = MachineCorePermits::new(NonZeroUsize::MIN);
        let cancelled = Arc::new(tessera_node::CancelledRequests::default());
        let worker = Worker::spawn_threads(WorkerParts {
            name: "instance".to_owned(),
            unit: load_with(Arc::new(Rten::new()), &partition.graph, &partition, cores.clone()),
            batching,
            peers: Arc::clone(&peers),
            most_concurrent_runs: NonZeroUsize::MIN,
            cancelled: Arc::clone(&cancelled),
            local_workers: Arc::default(),
            loss_reporter: Arc::new(tessera_node::NoLossReporter),
        })
        .unwrap();
        peers.add_peer("instance", worker.address().clone());
        Self { worker: Some(worker), peers, replies, cores, cancelled }
    }

    fn worker(&self) -> &Worker {
        self.worker.as_ref().unwrap()
    }

    /// Sends a request of one hop.
    fn ask(&self, number: u128, rows: usize, deadline: Duration, exit: Option<HopExit>) {
        let keep = if exit.is_some() { vec![0] } else { vec![1] };
        let hop = Hop { instance: "instance".to_owned(), inputs: vec![0], keep, exit };
        let route = SourceRoute::write("replies", u32::try_from(number).unwrap(), &[hop]).unwrap();
        let x = Tensor::from_f32(&[rows, WIDTH], &numbers(rows * WIDTH, 1)).unwrap();
        let message = Message::new(RequestId(number), "task", route.as_bytes())
            .unwrap()
            .with_deadline(Deadline::after(deadline))
            .with_tensors(vec![x]);
        self.peers.send_to("instance", message, wait()).unwrap();
    }

    /// The next answer: whose it is, how it ended, its tensors, and the rows of its batch.
    fn answer(&mut self) -> (u128, ReplyOutcome, Vec<Tensor>, Option<u64>) {
        loop {
            let received = self.replies.receive(wait()).expect("no answer in time");
            let Received::Message(mut message) = received else {
                continue;
            };
            let tensors = message.take_tensors();
            let route = SourceRoute::read(message.route()).unwrap();
            assert_eq!(u128::from(route.part()), message.request().0);
            let batch = route.hop_timings().last().map(|timing| timing.batch);
            return (message.request().0, route.outcome().unwrap(), tensors, batch);
        }
    }

    /// So many answers, in the order of their numbers.
    fn answers(&mut self, count: usize) -> Vec<(u128, ReplyOutcome, Vec<Tensor>, Option<u64>)> {
        let mut answers: Vec<_> = (0..count).map(|_| self.answer()).collect();
        answers.sort_by_key(|(number, ..)| *number);
        answers
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.stop_and_join(PATIENCE);
        }
    }
}

#[test]
fn a_worker_drops_what_is_too_late_and_what_nobody_waits_for() {
    let mut bench = Bench::new(None);
    bench.ask(1, 1, PATIENCE, None);
    assert_eq!(bench.answer().1, ReplyOutcome::Done);

    // While the core is taken one is on it, and the others wait: until it is too late for one of
    // them, and nobody waits for another any more.
    let permit = bench.cores.acquire_permit(0).unwrap();
    bench.ask(2, 1, PATIENCE, None);
    bench.ask(3, 1, Duration::from_millis(20), None);
    bench.ask(4, 1, PATIENCE, None);
    bench.ask(5, 1, PATIENCE, None);
    bench.cancelled.mark_cancelled(RequestId(4));
    std::thread::sleep(Duration::from_millis(50));
    drop(permit);
    let answers = bench.answers(4);
    let outcomes: Vec<&ReplyOutcome> = answers.iter().map(|(_, outcome, ..)| outcome).collect();
    assert_eq!(
        outcomes,
        [&ReplyOutcome::Done, &ReplyOutcome::Late, &ReplyOutcome::Late, &ReplyOutcome::Done]
    );
    assert!(answers[1].2.is_empty() && answers[2].2.is_empty());
    // What was dropped was not computed. What was is counted once its answer is on its way.
    let start = Instant::now();
    while bench.worker().current_heartbeat().done < 3 && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert_eq!(bench.worker().current_heartbeat().done, 3);
    assert!(bench.worker().is_alive());
}

#[test]
fn a_worker_puts_together_what_waits_and_takes_it_apart_again() {
    let batching = Batching { max_rows: 8, max_wait: Duration::ZERO };
    let mut bench = Bench::new(Some(batching));
    bench.ask(1, 1, PATIENCE, None);
    let (_, _, alone, _) = bench.answer();
    let alone = alone[0].to_f64().unwrap();
    let permit = bench.cores.acquire_permit(0).unwrap();
    // The first takes along what fits: 1 + 2 + 3 rows, and then there is no room for 4 more.
    for (number, rows) in [(2, 1), (3, 2), (4, 3), (5, 4)] {
        bench.ask(number, rows, PATIENCE, None);
    }
    std::thread::sleep(Duration::from_millis(50));
    drop(permit);
    for ((number, outcome, outputs, batch), rows) in bench.answers(4).into_iter().zip(1..) {
        assert_eq!(outcome, ReplyOutcome::Done, "{number}");
        assert_eq!(outputs[0].shape(), [rows, WIDTH], "{number}");
        assert_eq!(batch, Some(if rows < 4 { 6 } else { 4 }), "{number}");
        // The first row is the same in all of them.
        let first = &outputs[0].to_f64().unwrap()[..WIDTH];
        for (found, expected) in first.iter().zip(&alone) {
            assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
        }
    }
}

#[test]
fn a_worker_lets_leave_who_is_certain_enough_and_tells_the_scores_of_the_others() {
    let mut bench = Bench::new(None);
    let exit =
        |threshold| HopExit { number: 0, threshold, scores: ScoreKind::Logits, standby: true };
    bench.ask(1, 1, PATIENCE, Some(exit(1.0)));
    let (_, outcome, scores, _) = bench.answer();
    assert_eq!(outcome, ReplyOutcome::Exit(0));
    assert_eq!(scores[0].shape(), [1, WIDTH]);
    // It goes on with what it had, and its scores are told first.
    bench.ask(2, 1, PATIENCE, Some(exit(0.0)));
    let (_, outcome, standby, _) = bench.answer();
    assert_eq!(outcome, ReplyOutcome::Standby(0));
    assert_eq!(standby[0].to_f64().unwrap(), scores[0].to_f64().unwrap());
    let (_, outcome, kept, _) = bench.answer();
    assert_eq!(outcome, ReplyOutcome::Done);
    let x: Vec<f64> = numbers(WIDTH, 1).into_iter().map(f64::from).collect();
    assert_eq!(kept[0].to_f64().unwrap(), x);
}

#[test]
fn some_of_a_batch_leave_and_others_go_on() {
    let batching = Batching { max_rows: 8, max_wait: Duration::ZERO };
    let mut bench = Bench::new(Some(batching));
    let exit =
        |threshold| HopExit { number: 0, threshold, scores: ScoreKind::Logits, standby: true };
    // How uncertain each is alone: all of them have the same first row.
    let alone = [(1, 1), (2, 3)].map(|(number, rows)| {
        bench.ask(number, rows, PATIENCE, Some(exit(0.0)));
        let (_, outcome, scores, _) = bench.answer();
        assert_eq!(outcome, ReplyOutcome::Standby(0));
        assert_eq!(bench.answer().1, ReplyOutcome::Done);
        let scores = scores[0].to_f64().unwrap();
        let rows = scores.chunks(WIDTH).map(|row| normalised_entropy(row, ScoreKind::Logits));
        rows.fold(0.0, f64::max)
    });
    assert!(alone[0] < alone[1], "{alone:?}");
    let between = ((alone[0] + alone[1]) / 2.0) as f32;
    let permit = bench.cores.acquire_permit(0).unwrap();
    for (number, rows) in [(3, 3), (4, 1), (5, 3)] {
        bench.ask(number, rows, PATIENCE, Some(exit(between)));
    }
    std::thread::sleep(Duration::from_millis(50));
    drop(permit);
    let mut found: Vec<(u128, ReplyOutcome)> = Vec::new();
    for _ in 0..5 {
        let (number, outcome, _, batch) = bench.answer();
        assert!(batch.is_none_or(|batch| batch == 7), "a batch of {batch:?} rows");
        found.push((number, outcome));
    }
    found.sort_by_key(|(number, _)| *number);
    let (standby, done) = (ReplyOutcome::Standby(0), ReplyOutcome::Done);
    let expected = [
        (3, standby.clone()),
        (3, done.clone()),
        (4, ReplyOutcome::Exit(0)),
        (5, standby),
        (5, done),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_message_that_makes_no_sense_gets_a_reply_with_what_is_wrong() {
    let mut bench = Bench::new(None);
    let hop = Hop { instance: "instance".to_owned(), inputs: vec![3], keep: vec![1], exit: None };
    let route = |hop: &Hop| SourceRoute::write("replies", 9, std::slice::from_ref(hop)).unwrap();
    let mut at_its_end = route(&hop);
    at_its_end.complete_hop(&HopTiming::default());
    let no_hop = Message::new(RequestId(9), "task", at_its_end.as_bytes()).unwrap();
    bench.peers.send_to("instance", no_hop, wait()).unwrap();
    // Without a route there is nobody to tell.
    let no_route = Message::new(RequestId(9), "task", b"nonsense").unwrap();
    bench.peers.send_to("instance", no_route, wait()).unwrap();
    let too_few = Message::new(RequestId(9), "task", route(&hop).as_bytes()).unwrap();
    bench.peers.send_to("instance", too_few, wait()).unwrap();
    for _ in 0..2 {
        let (_, outcome, ..) = bench.answer();
        assert!(matches!(outcome, ReplyOutcome::Failed(_)), "{outcome:?}");
    }
    // A tensor of the wrong shape spoils no other request.
    let hop = Hop { inputs: vec![0], ..hop };
    let narrow = Message::new(RequestId(9), "task", route(&hop).as_bytes()).unwrap();
    let narrow = narrow.with_tensors(vec![row(&[1.0; 3])]);
    bench.peers.send_to("instance", narrow, wait()).unwrap();
    assert!(matches!(bench.answer().1, ReplyOutcome::Failed(_)));
    bench.ask(1, 1, PATIENCE, None);
    assert_eq!(bench.answer().1, ReplyOutcome::Done);
}
