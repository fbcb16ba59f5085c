//! What serves: units that are loaded, workers, and the cores that they share.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tessera_core::{ContentHash, DType, Device, Dim, Result, Tensor};
use tessera_engine::{Engine, LoadOptions, OnnxRuntime, Program, Rten, find_library};
use tessera_graph::builder::{GraphBuilder, int};
use tessera_graph::onnx::{self, ModelProto};
use tessera_graph::{
    BlockGraph, BlockNode, NoExternalData, Partition, ScoreKind, Source, Split, infer,
    normalised_entropy, split,
};
use tessera_node::{
    Cores, HostMemory, LoadedUnit, Loader, MachineCores, ProgramSource, RunOptions, Worker,
    WorkerParts, compare,
};
use tessera_plan::{
    Batching, BatchingChoice, ExitLeg, Isolation, Leg, Log, Outcome, Unit, UnitId, UnitSettings,
};
use tessera_tensormq::{
    Courier, CourierOptions, Deadline, Inbox, InboxOptions, Message, Peers, Received, RequestId,
    Wait,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn wait() -> Wait {
    Wait::at_most(PATIENCE)
}

fn cut(model: ModelProto, how: &Split) -> Partition {
    let graph = onnx::read::from_proto(model, &mut NoExternalData).unwrap();
    let types = infer::infer(&graph, &BTreeMap::new()).unwrap();
    split(&graph, &types, how, &[]).unwrap()
}

fn unit(graph: BlockGraph) -> Unit {
    Unit {
        id: UnitId("unit".to_owned()),
        graph,
        settings: UnitSettings {
            isolation: Isolation::Thread,
            replicas: 1,
            device: Device::Cpu,
            batching: BatchingChoice::Off,
        },
        tasks: vec!["task".to_owned()],
        is_batchable: false,
    }
}

fn load(engine: Arc<dyn Engine>, graph: &BlockGraph, source: &dyn ProgramSource) -> LoadedUnit {
    let threads = [NonZeroUsize::MIN];
    LoadedUnit::load(engine, source, &unit(graph.clone()), &threads, LoadOptions::default())
        .unwrap()
}

fn run(unit: &LoadedUnit, inputs: &[Tensor]) -> Vec<Tensor> {
    unit.run(NonZeroUsize::MIN, inputs, &HostMemory::default(), wait()).unwrap()
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
    let mut value = graph.input("x", DType::F32, [batch, Dim::Fixed(WIDTH)]);
    for seed in 0..3 {
        let w = graph.weight("w", &[WIDTH, WIDTH], numbers(WIDTH * WIDTH, seed));
        let product = graph.node("MatMul", &[&value, &w], []);
        value = graph.node("Tanh", &[&product], []);
    }
    graph.output(&value);
    graph.build()
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
            let apart = Loader::new(engine, LoadOptions::default());
            let apart = apart.load(&partition.graph, &partition).unwrap();
            // Shapes that come back find memory that was used before.
            for (rows, seed) in [(1, 0), (3, 1), (1, 2), (3, 3), (1, 4)] {
                let x = Tensor::from_f32(&[rows, WIDTH], &numbers(rows * WIDTH, seed)).unwrap();
                let found = run(&unit, std::slice::from_ref(&x));
                let expected = apart.run(&[x], RunOptions::TakeExits).unwrap().outputs;
                assert_eq!(found.len(), 1);
                let difference = compare("y", &found[0], &expected[0].1).unwrap();
                assert!(difference.max_relative <= 1e-5, "{difference:?}");
            }
        }
    }
}

/// The blocks of two models.
struct Both(Partition, Partition);

impl ProgramSource for Both {
    fn program(&self, hash: ContentHash) -> Result<Program> {
        ProgramSource::program(&self.0, hash).or_else(|_| ProgramSource::program(&self.1, hash))
    }
}

/// `softmax(x)` along the last dimension, in this version of the operators.
fn softmax(opset: i64) -> Partition {
    let mut graph = GraphBuilder::new("softmax").opset(opset);
    let x = graph.input("x", DType::F32, [1, 4]);
    graph.node_into("softmax", "Softmax", &[&x], &["y"], [int("axis", 1)]);
    graph.output_typed("y", DType::F32, [1, 4]);
    cut(graph.build(), &Split::Blocks(1))
}

#[test]
fn blocks_that_can_not_be_fused_run_one_after_the_other() {
    let (old, new) = (softmax(11), softmax(13));
    let after = BlockNode {
        inputs: vec![Source::Block { block: 0, output: 0 }],
        ..new.graph.blocks[0].clone()
    };
    let graph = BlockGraph {
        inputs: old.graph.inputs.clone(),
        outputs: vec![(after.outputs[0].clone(), Source::Block { block: 1, output: 0 })],
        blocks: vec![old.graph.blocks[0].clone(), after],
        exits: Vec::new(),
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
    let x = graph.input("x", DType::F32, [8]);
    let active = graph.node("Relu", &[&x], []);
    graph.node_into("places", "NonZero", &[&active], &["y"], []);
    graph.output("y");
    graph.build()
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
                        let found = unit.run(NonZeroUsize::MIN, &x, memory, wait()).unwrap();
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
    let machine = MachineCores::new(NonZeroUsize::new(ALL).unwrap());
    let (used, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (machine, used, most) = (&machine, &used, &most);
            scope.spawn(move || {
                for round in 0..50 {
                    let share = machine.take(round * 8 + thread).unwrap();
                    let size = share.cores().get();
                    let now = used.fetch_add(size, Ordering::SeqCst) + size;
                    assert!(now <= ALL, "{now} cores are in use");
                    most.fetch_max(now, Ordering::SeqCst);
                    std::thread::yield_now();
                    used.fetch_sub(size, Ordering::SeqCst);
                    drop(share);
                }
            });
        }
    });
    assert_eq!(used.load(Ordering::SeqCst), 0);
    assert_eq!(most.load(Ordering::SeqCst), ALL);
    // All of them are back.
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(machine.take(0).unwrap().cores().get(), ALL);
}

/// A worker with an inbox for its answers, and the only core, which the test may take.
struct Bench {
    worker: Option<Worker>,
    peers: Arc<Peers>,
    home: Inbox,
    cores: MachineCores,
    given_up: Arc<tessera_node::GivenUp>,
}

impl Bench {
    fn new(batching: Option<Batching>) -> Self {
        let partition = cut(layers(), &Split::Blocks(1));
        let courier = Courier::start(CourierOptions::default()).unwrap();
        let peers = Arc::new(Peers::new(courier.clone()));
        let home = courier.inbox("home", &InboxOptions::default()).unwrap();
        peers.add("home", home.address().clone());
        let cores = MachineCores::new(NonZeroUsize::MIN);
        let given_up = Arc::new(tessera_node::GivenUp::default());
        let worker = Worker::start(WorkerParts {
            name: "block".to_owned(),
            unit: load(Arc::new(Rten::new()), &partition.graph, &partition),
            batching,
            cores: Arc::new(cores.clone()),
            memory: Arc::new(HostMemory::default()),
            peers: Arc::clone(&peers),
            at_once: NonZeroUsize::MIN,
            given_up: Arc::clone(&given_up),
            local: Arc::default(),
            overseer: Arc::new(tessera_node::Alone),
        })
        .unwrap();
        peers.add("block", worker.address().clone());
        Self { worker: Some(worker), peers, home, cores, given_up }
    }

    fn worker(&self) -> &Worker {
        self.worker.as_ref().unwrap()
    }

    /// Sends a request of one leg.
    fn ask(&self, number: u128, rows: usize, deadline: Duration, exit: Option<ExitLeg>) {
        let keep = if exit.is_some() { vec![0] } else { vec![1] };
        let leg = Leg { instance: "block".to_owned(), inputs: vec![0], keep, exit }.encode();
        let now = Deadline::now().nanoseconds();
        let log = Log {
            home: "home".to_owned(),
            accepted: now,
            sent: now,
            part: u32::try_from(number).unwrap(),
            records: Vec::new(),
        };
        let x = Tensor::from_f32(&[rows, WIDTH], &numbers(rows * WIDTH, 1)).unwrap();
        let message = Message::new(RequestId(number), "task", &[&leg, &log.encode()])
            .unwrap()
            .with_deadline(Deadline::after(deadline))
            .with_tensors(vec![x]);
        self.peers.send("block", message, wait()).unwrap();
    }

    /// The next answer: whose it is, how it ended, its tensors, and the rows of its batch.
    fn answer(&mut self) -> (u128, Outcome, Vec<Tensor>, Option<u64>) {
        loop {
            let received = self.home.receive(wait()).expect("no answer in time");
            let Received::Message(mut message) = received else {
                continue;
            };
            let tensors = message.take_tensors();
            let mut path = message.path();
            let outcome = Outcome::parse(path.next().unwrap()).unwrap();
            let log = Log::parse(path.next().unwrap()).unwrap();
            assert_eq!(u128::from(log.part), message.request().0);
            let batch = log.records.last().map(|record| record.batch);
            return (message.request().0, outcome, tensors, batch);
        }
    }

    /// So many answers, in the order of their numbers.
    fn answers(&mut self, count: usize) -> Vec<(u128, Outcome, Vec<Tensor>, Option<u64>)> {
        let mut answers: Vec<_> = (0..count).map(|_| self.answer()).collect();
        answers.sort_by_key(|(number, ..)| *number);
        answers
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.stop();
        }
    }
}

#[test]
fn a_worker_drops_what_is_too_late_and_what_nobody_waits_for() {
    let mut bench = Bench::new(None);
    bench.ask(1, 1, PATIENCE, None);
    assert_eq!(bench.answer().1, Outcome::Done);

    // While the core is taken one is on it, and the others wait: until it is too late for one of them,
    // and nobody waits for another any more.
    let held = bench.cores.take(0).unwrap();
    bench.ask(2, 1, PATIENCE, None);
    bench.ask(3, 1, Duration::from_millis(20), None);
    bench.ask(4, 1, PATIENCE, None);
    bench.ask(5, 1, PATIENCE, None);
    bench.given_up.add(RequestId(4));
    std::thread::sleep(Duration::from_millis(50));
    drop(held);
    let answers = bench.answers(4);
    let outcomes: Vec<&Outcome> = answers.iter().map(|(_, outcome, ..)| outcome).collect();
    assert_eq!(outcomes, [&Outcome::Done, &Outcome::Late, &Outcome::Late, &Outcome::Done]);
    assert!(answers[1].2.is_empty() && answers[2].2.is_empty());
    // What was dropped was not computed. What was is counted once its answer is on its way.
    let start = Instant::now();
    while bench.worker().pulse().done < 3 && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert_eq!(bench.worker().pulse().done, 3);
    assert!(bench.worker().is_alive());
}

#[test]
fn a_worker_puts_together_what_waits_and_takes_it_apart_again() {
    let batching = Batching { max_rows: 8, max_wait: Duration::ZERO };
    let mut bench = Bench::new(Some(batching));
    bench.ask(1, 1, PATIENCE, None);
    let (_, _, alone, _) = bench.answer();
    let alone = alone[0].to_f64().unwrap();
    let held = bench.cores.take(0).unwrap();
    // The first takes along what fits: 1 + 2 + 3 rows, and then there is no room for 4 more.
    for (number, rows) in [(2, 1), (3, 2), (4, 3), (5, 4)] {
        bench.ask(number, rows, PATIENCE, None);
    }
    std::thread::sleep(Duration::from_millis(50));
    drop(held);
    for ((number, outcome, outputs, batch), rows) in bench.answers(4).into_iter().zip(1..) {
        assert_eq!(outcome, Outcome::Done, "{number}");
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
        |threshold| ExitLeg { number: 0, threshold, scores: ScoreKind::Logits, standby: true };
    bench.ask(1, 1, PATIENCE, Some(exit(1.0)));
    let (_, outcome, scores, _) = bench.answer();
    assert_eq!(outcome, Outcome::Exit(0));
    assert_eq!(scores[0].shape(), [1, WIDTH]);
    // It goes on with what it had, and its scores are told first.
    bench.ask(2, 1, PATIENCE, Some(exit(0.0)));
    let (_, outcome, told, _) = bench.answer();
    assert_eq!(outcome, Outcome::Standby(0));
    assert_eq!(told[0].to_f64().unwrap(), scores[0].to_f64().unwrap());
    let (_, outcome, kept, _) = bench.answer();
    assert_eq!(outcome, Outcome::Done);
    let x: Vec<f64> = numbers(WIDTH, 1).into_iter().map(f64::from).collect();
    assert_eq!(kept[0].to_f64().unwrap(), x);
}

#[test]
fn some_of_a_batch_leave_and_others_go_on() {
    let batching = Batching { max_rows: 8, max_wait: Duration::ZERO };
    let mut bench = Bench::new(Some(batching));
    let exit =
        |threshold| ExitLeg { number: 0, threshold, scores: ScoreKind::Logits, standby: true };
    // How uncertain each is alone: all of them have the same first row.
    let alone = [(1, 1), (2, 3)].map(|(number, rows)| {
        bench.ask(number, rows, PATIENCE, Some(exit(0.0)));
        let (_, outcome, scores, _) = bench.answer();
        assert_eq!(outcome, Outcome::Standby(0));
        assert_eq!(bench.answer().1, Outcome::Done);
        let scores = scores[0].to_f64().unwrap();
        let rows = scores.chunks(WIDTH).map(|row| normalised_entropy(row, ScoreKind::Logits));
        rows.fold(0.0, f64::max)
    });
    assert!(alone[0] < alone[1], "{alone:?}");
    let between = ((alone[0] + alone[1]) / 2.0) as f32;
    let held = bench.cores.take(0).unwrap();
    for (number, rows) in [(3, 3), (4, 1), (5, 3)] {
        bench.ask(number, rows, PATIENCE, Some(exit(between)));
    }
    std::thread::sleep(Duration::from_millis(50));
    drop(held);
    let mut found: Vec<(u128, Outcome)> = Vec::new();
    for _ in 0..5 {
        let (number, outcome, _, batch) = bench.answer();
        assert!(batch.is_none_or(|batch| batch == 7), "a batch of {batch:?} rows");
        found.push((number, outcome));
    }
    found.sort_by_key(|(number, _)| *number);
    let (standby, done) = (Outcome::Standby(0), Outcome::Done);
    let expected =
        [(3, standby.clone()), (3, done.clone()), (4, Outcome::Exit(0)), (5, standby), (5, done)];
    assert_eq!(found, expected);
}

#[test]
fn a_message_that_makes_no_sense_goes_home_with_what_is_wrong() {
    let mut bench = Bench::new(None);
    let log = Log { home: "home".to_owned(), part: 9, ..Log::default() }.encode();
    let no_leg = Message::new(RequestId(9), "task", &["nonsense", &log]).unwrap();
    bench.peers.send("block", no_leg, wait()).unwrap();
    let leg = Leg { instance: "block".to_owned(), inputs: vec![3], keep: vec![1], exit: None };
    let too_few = Message::new(RequestId(9), "task", &[&leg.encode(), &log]).unwrap();
    bench.peers.send("block", too_few, wait()).unwrap();
    for _ in 0..2 {
        let (_, outcome, ..) = bench.answer();
        assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    }
    // A tensor of the wrong shape spoils no other request.
    let leg = Leg { inputs: vec![0], ..leg };
    let narrow = Message::new(RequestId(9), "task", &[&leg.encode(), &log]).unwrap();
    let narrow = narrow.with_tensors(vec![row(&[1.0; 3])]);
    bench.peers.send("block", narrow, wait()).unwrap();
    assert!(matches!(bench.answer().1, Outcome::Failed(_)));
    bench.ask(1, 1, PATIENCE, None);
    assert_eq!(bench.answer().1, Outcome::Done);
}
