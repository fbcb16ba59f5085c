//! From tasks to units and routes: what is shared, what is fused, and what a request carries.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use proptest::prelude::*;
use tessera_core::{ContentHash, DType, Device, Dim, Result, TensorType};
use tessera_deploy::{
    Batching, BatchingChoice, Deployment, Isolation, PlannedTask, TaskChange, TaskRoute,
    TaskSettings, Unit, UnitId,
};
use tessera_graph::{BlockGraph, BlockNode, Exit, ScoreKind, TensorPort, TensorSource};

fn rows(symbol: &str) -> TensorType {
    TensorType::new(DType::F32, vec![Dim::Symbol(symbol.to_owned()), Dim::Fixed(4)])
}

fn port(name: impl Into<String>, symbol: &str) -> TensorPort {
    TensorPort { name: name.into(), tensor_type: rows(symbol), is_row_wise: true, default: None }
}

fn input(index: usize) -> TensorSource {
    TensorSource::Input(index)
}

fn made(block: usize) -> TensorSource {
    TensorSource::Block { block, output: 0 }
}

/// A use of the block `name`, with one output.
fn node(name: &str, inputs: &[TensorSource]) -> BlockNode {
    BlockNode {
        block: ContentHash::of_content(name.as_bytes()),
        inputs: inputs.to_vec(),
        outputs: vec![port(format!("{name} made"), "N")],
    }
}

fn graph(inputs: usize, blocks: Vec<BlockNode>, outputs: &[TensorSource]) -> BlockGraph {
    let outputs = outputs.iter().enumerate();
    BlockGraph {
        inputs: (0..inputs).map(|number| port(format!("x{number}"), "N")).collect(),
        outputs: outputs.map(|(number, &from)| (port(format!("y{number}"), "N"), from)).collect(),
        blocks,
        exits: Vec::new(),
        row_obstacle: None,
        relies_on_dim_names: false,
    }
}

/// One block after the other.
fn chain(names: &[&str]) -> BlockGraph {
    let from = |index: usize| if index == 0 { input(0) } else { made(index - 1) };
    let blocks = names.iter().enumerate().map(|(index, name)| node(name, &[from(index)]));
    graph(1, blocks.collect(), &[from(names.len())])
}

fn task(name: &str, graph: BlockGraph) -> PlannedTask {
    let (name, version) = (name.to_owned(), "1".to_owned());
    PlannedTask { name, version, graph, settings: TaskSettings::default() }
}

/// A unit, and the tasks that use it.
#[derive(Debug, PartialEq)]
struct UsedUnit {
    unit: Arc<Unit>,
    tasks: Vec<String>,
}

impl std::ops::Deref for UsedUnit {
    type Target = Unit;

    fn deref(&self) -> &Unit {
        &self.unit
    }
}

/// A deployment as it is at the moment, its routes in the order of the tasks that were given.
#[derive(Debug)]
struct Planned {
    units: Vec<UsedUnit>,
    routes: Vec<Arc<TaskRoute>>,
}

fn planned<'a>(deployment: &Deployment, tasks: impl Iterator<Item = &'a str>) -> Planned {
    let used = |unit: Arc<Unit>| UsedUnit { tasks: deployment.unit_tasks(&unit.id), unit };
    Planned {
        units: deployment.units().into_iter().map(used).collect(),
        routes: tasks.map(|task| Arc::clone(deployment.find_route(task).unwrap())).collect(),
    }
}

fn plan_deployment(tasks: &[PlannedTask], fuse: bool) -> Result<Planned> {
    let deployment = Deployment::of_tasks(tasks.iter().cloned(), fuse)?;
    Ok(planned(&deployment, tasks.iter().map(|task| task.name.as_str())))
}

/// The units as the names of their blocks, with the tasks that use them.
fn shown(deployment: &Planned, names: &[&str]) -> Vec<String> {
    let by_hash: BTreeMap<ContentHash, &str> =
        names.iter().map(|name| (ContentHash::of_content(name.as_bytes()), *name)).collect();
    let units = deployment.units.iter();
    units
        .map(|unit| {
            let blocks: Vec<&str> = unit.block_hashes().map(|hash| by_hash[&hash]).collect();
            format!("{}: {}", blocks.join("+"), unit.tasks.join(","))
        })
        .collect()
}

/// The units of a route, by number.
fn steps(deployment: &Planned, route: usize) -> Vec<usize> {
    let at = |id: &UnitId| deployment.units.iter().position(|unit| unit.id == *id).unwrap();
    deployment.routes[route].steps.iter().map(|step| at(&step.unit)).collect()
}

#[test]
fn another_device_keeps_blocks_apart() {
    let on = |name: &str, devices: [u32; 4]| {
        let mut made = task(name, chain(&["p", "q", "r", "s"]));
        made.settings.device = Device::Cuda(0);
        let elsewhere = devices.into_iter().enumerate().filter(|(_, device)| *device != 0);
        made.settings.device_overrides =
            elsewhere.map(|(at, device)| (at, Device::Cuda(device))).collect();
        made
    };
    let found = |tasks: &[PlannedTask]| shown(&plan_deployment(tasks, true).unwrap(), &NAMES);
    assert_eq!(found(&[on("a", [0, 0, 0, 0])]), ["p+q+r+s: a"]);
    assert_eq!(found(&[on("a", [1, 0, 0, 2])]), ["p: a", "q+r: a", "s: a"]);
    // What runs on the same is shared, and no more.
    let both = [on("a", [0, 0, 1, 1]), on("b", [0, 0, 0, 1])];
    assert_eq!(found(&both), ["p+q: a,b", "r: a", "s: a,b", "r: b"]);
    // A block twice in one path, on two devices: two units.
    let mut twice = task("a", chain(&["p", "p"]));
    twice.settings.device_overrides = [(1, Device::Cuda(0))].into();
    let deployment = plan_deployment(&[twice], true).unwrap();
    assert_eq!(steps(&deployment, 0), [0, 1]);
    assert_eq!(deployment.units[0].settings.device, Device::Cpu);
    assert_eq!(deployment.units[1].settings.device, Device::Cuda(0));
}

const NAMES: [&str; 6] = ["p", "q", "r", "s", "l", "j"];

#[test]
fn neighbours_that_the_same_tasks_use_in_the_same_way_are_one_unit() {
    let gives_both = graph(1, chain(&["p", "q"]).blocks, &[made(0), made(1)]);
    let diamond = || {
        let blocks = vec![
            node("p", &[input(0)]),
            node("l", &[made(0)]),
            node("r", &[made(0)]),
            node("j", &[made(1), made(2)]),
        ];
        graph(1, blocks, &[made(3)])
    };
    let turned = || {
        let mut turned = diamond();
        turned.blocks[3].inputs.reverse();
        turned
    };
    let cases: Vec<(&str, Vec<BlockGraph>, Vec<&str>)> = vec![
        ("alone", vec![chain(&["p", "q", "r"])], vec!["p+q+r: a"]),
        (
            "a beginning in common",
            vec![chain(&["p", "q", "r"]), chain(&["p", "q", "s"])],
            vec!["p+q: a,b", "r: a", "s: b"],
        ),
        (
            "an end in common",
            vec![chain(&["r", "p", "q"]), chain(&["s", "p", "q"])],
            vec!["r: a", "p+q: a,b", "s: b"],
        ),
        ("all in common", vec![chain(&["p", "q"]), chain(&["p", "q"])], vec!["p+q: a,b"]),
        ("a part of another", vec![chain(&["p", "q"]), chain(&["p"])], vec!["p: a,b", "q: a"]),
        (
            "a beginning of another",
            vec![chain(&["p", "q", "r"]), chain(&["p", "q"])],
            vec!["p+q: a,b", "r: a"],
        ),
        (
            "the other way round",
            vec![chain(&["p", "q"]), chain(&["q", "p"])],
            vec!["p: a,b", "q: a,b"],
        ),
        ("more of it given", vec![chain(&["p", "q"]), gives_both], vec!["p: a,b", "q: a,b"]),
        ("the same block twice", vec![chain(&["p", "p"])], vec!["p+p: a"]),
        ("branches", vec![diamond()], vec!["p+l+r+j: a"]),
        ("branches in common", vec![diamond(), diamond()], vec!["p+l+r+j: a,b"]),
        (
            "branches joined in another order",
            vec![diamond(), turned()],
            vec!["p: a,b", "l: a,b", "r: a,b", "j: a,b"],
        ),
        (
            "one branch in common",
            vec![diamond(), chain(&["p", "l"])],
            vec!["p: a,b", "l: a,b", "r+j: a"],
        ),
    ];
    for (what, graphs, expected) in cases {
        let tasks: Vec<PlannedTask> =
            ["a", "b"].iter().zip(graphs).map(|(name, graph)| task(name, graph)).collect();
        assert_eq!(shown(&plan_deployment(&tasks, true).unwrap(), &NAMES), expected, "{what}");
    }
}

#[test]
fn without_fusion_every_block_is_a_unit_and_is_still_shared() {
    let tasks = [task("a", chain(&["p", "q", "r"])), task("b", chain(&["p", "q", "s"]))];
    let deployment = plan_deployment(&tasks, false).unwrap();
    assert_eq!(shown(&deployment, &NAMES), ["p: a,b", "q: a,b", "r: a", "s: b"]);
    assert_eq!((steps(&deployment, 0), steps(&deployment, 1)), (vec![0, 1, 2], vec![0, 1, 3]));
    // A block that comes twice in a path is one unit that is passed twice.
    let deployment = plan_deployment(&[task("a", chain(&["p", "q", "p"]))], false).unwrap();
    assert_eq!(shown(&deployment, &NAMES), ["p: a", "q: a"]);
    assert_eq!(steps(&deployment, 0), [0, 1, 0]);
}

#[test]
fn what_a_dimension_is_called_makes_no_difference() {
    let mut other = chain(&["p", "q"]);
    let ports = other.blocks.iter_mut().flat_map(|node| &mut node.outputs);
    for port in ports.chain(&mut other.inputs) {
        port.tensor_type = rows("batch");
    }
    for (port, _) in &mut other.outputs {
        port.tensor_type = rows("batch");
    }
    let deployment =
        plan_deployment(&[task("a", chain(&["p", "q"])), task("b", other)], true).unwrap();
    assert_eq!(shown(&deployment, &NAMES), ["p+q: a,b"]);
}

#[test]
fn what_goes_in_makes_a_difference() {
    // A session is made for the types of what goes in.
    let mut fixed = chain(&["p"]);
    fixed.inputs[0].tensor_type = TensorType::new(DType::F32, vec![Dim::Fixed(1), Dim::Fixed(4)]);
    fixed.inputs[0].is_row_wise = false;
    let deployment = plan_deployment(&[task("a", chain(&["p"])), task("b", fixed)], true).unwrap();
    assert_eq!(shown(&deployment, &NAMES), ["p: a", "p: b"]);
    assert!(deployment.units[0].is_batchable);
    assert!(!deployment.units[1].is_batchable);
    assert_ne!(deployment.units[0].id, deployment.units[1].id);
}

/// `p`, the head `s` of an exit, then `q` and `r`.
fn with_exit(threshold: f32) -> BlockGraph {
    let blocks = vec![
        node("p", &[input(0)]),
        node("s", &[made(0)]),
        node("q", &[made(0)]),
        node("r", &[made(2)]),
    ];
    let mut graph = graph(1, blocks, &[made(3)]);
    graph.exits.push(Exit {
        output: "early".to_owned(),
        threshold,
        scores: ScoreKind::Logits,
        head: 1,
        after: Some(0),
    });
    graph
}

#[test]
fn an_exit_keeps_apart_what_is_before_it_and_what_is_after() {
    let deployment = plan_deployment(&[task("a", with_exit(0.5))], true).unwrap();
    assert_eq!(shown(&deployment, &NAMES), ["p: a", "s: a", "q+r: a"]);
    let route = &deployment.routes[0];
    let exits: Vec<Option<usize>> = route.steps.iter().map(|step| step.exit).collect();
    assert_eq!(exits, [None, Some(0), None]);
    assert_eq!(route.exits[0].name, "early");
    assert_eq!((route.exits[0].threshold, route.exits[0].output), (0.5, 0));
    // The head adds nothing to what is carried.
    let keep: Vec<&[usize]> = route.steps.iter().map(|step| step.keep.as_slice()).collect();
    assert_eq!(keep, [&[1][..], &[0], &[1]]);

    // A task that has the same blocks and no exit shares them; thresholds make no other units.
    let tasks = [task("a", with_exit(0.5)), task("b", with_exit(0.1))];
    let deployment = plan_deployment(&tasks, true).unwrap();
    assert_eq!(shown(&deployment, &NAMES), ["p: a,b", "s: a,b", "q+r: a,b"]);
    let tasks = [task("a", with_exit(0.5)), task("b", chain(&["p", "q", "r"]))];
    let deployment = plan_deployment(&tasks, true).unwrap();
    let (with, without) = (steps(&deployment, 0), steps(&deployment, 1));
    assert!(without.iter().all(|unit| with.contains(unit)), "{:?}", shown(&deployment, &NAMES));
    assert_eq!(with.len(), without.len() + 1);
}

#[test]
fn an_exit_that_can_not_stand_for_the_output_is_refused() {
    let mut two = with_exit(0.5);
    two.outputs.push((port("z", "N"), made(2)));
    let message = plan_deployment(&[task("ants", two)], true).unwrap_err().to_string();
    assert!(message.contains("\"ants\"") && message.contains("\"early\""), "{message}");
    let mut wide = with_exit(0.5);
    wide.blocks[1].outputs[0].tensor_type =
        TensorType::new(DType::F32, vec![Dim::Symbol("N".to_owned()), Dim::Fixed(9)]);
    let message = plan_deployment(&[task("ants", wide)], true).unwrap_err().to_string();
    for word in ["\"ants\"", "\"early\"", "f32[N,9]", "f32[N,4]"] {
        assert!(message.contains(word), "no {word} in: {message}");
    }
}

#[test]
fn a_shared_unit_is_as_its_most_demanding_task_wants_it() {
    let batching = Batching { max_rows: 8, max_wait: std::time::Duration::from_millis(1) };
    let mut demanding = task("b", chain(&["p"]));
    demanding.settings.isolation = Isolation::Process;
    demanding.settings.replicas = 3;
    demanding.settings.batching = BatchingChoice::On(batching);
    let modest = || task("a", chain(&["p", "q"]));
    for tasks in [[modest(), demanding.clone()], [demanding, modest()]] {
        let deployment = plan_deployment(&tasks, true).unwrap();
        let shared = deployment.units.iter().find(|unit| unit.tasks.len() == 2).unwrap();
        assert_eq!(shared.settings.isolation, Isolation::Process);
        assert_eq!(shared.settings.replicas, 3);
        assert_eq!(shared.settings.batching, BatchingChoice::On(batching));
        let own = deployment.units.iter().find(|unit| unit.tasks == ["a"]).unwrap();
        assert_eq!((own.settings.isolation, own.settings.replicas), (Isolation::Thread, 1));
    }
    // One that runs in another way has another name, and one with more instances has not.
    let id = |change: fn(&mut TaskSettings)| {
        let mut task = modest();
        change(&mut task.settings);
        plan_deployment(&[task], true).unwrap().units[0].id.clone()
    };
    let usual = id(|_| {});
    assert_eq!(id(|settings| settings.replicas = 3), usual);
    assert_eq!(id(|settings| settings.degrade = true), usual);
    assert_ne!(id(|settings| settings.isolation = Isolation::Process), usual);
    assert_ne!(id(|settings| settings.batching = BatchingChoice::Off), usual);
}

#[test]
fn a_path_that_makes_no_sense_is_refused_with_its_task() {
    let uses_later = graph(1, vec![node("p", &[made(1)]), node("q", &[input(0)])], &[made(0)]);
    let nothing = graph(1, Vec::new(), &[input(0)]);
    let missing = graph(1, vec![node("p", &[input(3)])], &[made(0)]);
    for wrong in [uses_later, nothing, missing] {
        for fuse in [true, false] {
            let tasks = [task("fine", chain(&["p"])), task("ants", wrong.clone())];
            let message = plan_deployment(&tasks, fuse).unwrap_err().to_string();
            assert!(message.contains("\"ants\""), "{message}");
        }
    }
}

/// What stands for a tensor: it follows from the blocks that it went through.
type Stand = u64;

fn computed(block: ContentHash, inputs: &[Stand], output: usize) -> Stand {
    let mut hasher = DefaultHasher::new();
    (block.as_bytes(), inputs, output).hash(&mut hasher);
    hasher.finish()
}

/// What the outputs of a graph stand for.
fn evaluate(graph: &BlockGraph, inputs: &[Stand]) -> Vec<Stand> {
    let mut values: Vec<Vec<Stand>> = Vec::new();
    let find = |values: &[Vec<Stand>], source: &TensorSource| match *source {
        TensorSource::Input(index) => inputs[index],
        TensorSource::Block { block, output } => values[block][output],
    };
    for node in &graph.blocks {
        let given: Vec<Stand> = node.inputs.iter().map(|from| find(&values, from)).collect();
        let outputs = 0..node.outputs.len();
        values.push(outputs.map(|output| computed(node.block, &given, output)).collect());
    }
    graph.outputs.iter().map(|(_, from)| find(&values, from)).collect()
}

/// What a request has after its way through units, step by step as a worker does it.
fn walk(deployment: &Planned, route: &TaskRoute, inputs: &[Stand]) -> Vec<Stand> {
    let mut carried = inputs.to_vec();
    for step in &route.steps {
        let unit = deployment.units.iter().find(|unit| unit.id == step.unit).unwrap();
        let given: Vec<Stand> = step.inputs.iter().map(|&index| carried[index]).collect();
        let outputs = evaluate(&unit.graph, &given);
        if step.exit.is_none() {
            carried.extend(outputs);
        }
        carried = step.keep.iter().map(|&index| carried[index]).collect();
    }
    carried
}

/// A graph that numbers choose, per block: which it is, and what it takes. Blocks of the same
/// number are the same.
fn chosen(choices: &[(usize, usize, usize)], also_given: usize) -> BlockGraph {
    const INPUTS: usize = 2;
    let mut sources: Vec<TensorSource> = (0..INPUTS).map(TensorSource::Input).collect();
    let mut blocks = Vec::new();
    for (index, &(which, first, second)) in choices.iter().enumerate() {
        // Some have two inputs, some two outputs: it belongs to the block.
        let mut inputs = vec![sources[first % sources.len()]];
        if which % 2 == 1 {
            inputs.push(sources[second % sources.len()]);
        }
        let outputs = 1 + usize::from(which % 3 == 2);
        blocks.push(BlockNode {
            block: ContentHash::of_content(&[which as u8]),
            inputs,
            outputs: (0..outputs).map(|output| port(format!("{index}.{output}"), "N")).collect(),
        });
        sources.extend((0..outputs).map(|output| TensorSource::Block { block: index, output }));
    }
    let last = TensorSource::Block { block: choices.len() - 1, output: 0 };
    let other = sources[INPUTS + also_given % (sources.len() - INPUTS)];
    let outputs = if other == last { vec![last] } else { vec![other, last] };
    graph(INPUTS, blocks, &outputs)
}

fn any_tasks() -> impl Strategy<Value = Vec<PlannedTask>> {
    let choices = prop::collection::vec((0usize..6, 0usize..64, 0usize..64), 1..8);
    let common = prop::collection::vec((0usize..6, 0usize..64, 0usize..64), 0..4);
    let devices = prop::collection::btree_map(0usize..8, (0u32..2).prop_map(Device::Cuda), 0..3);
    let tasks = prop::collection::vec((choices, 0usize..64, devices), 1..4);
    (common, tasks).prop_map(|(common, tasks)| {
        let tasks = tasks.into_iter().enumerate();
        tasks
            .map(|(number, (own, also_given, devices))| {
                let choices = [common.clone(), own].concat();
                let mut task = task(&format!("task{number}"), chosen(&choices, also_given));
                task.settings.device_overrides = devices;
                task
            })
            .collect::<Vec<_>>()
    })
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_request_gets_what_its_path_says(tasks in any_tasks(), fuse in any::<bool>()) {
        let deployment = plan_deployment(&tasks, fuse).unwrap();
        prop_assert_eq!(deployment.routes.len(), tasks.len());
        for (task, route) in tasks.iter().zip(&deployment.routes) {
            prop_assert_eq!(&task.name, &route.task);
            let inputs = [1, 2];
            let expected = evaluate(&task.graph, &inputs);
            prop_assert_eq!(walk(&deployment, route, &inputs), expected);
        }
    }

    #[test]
    fn nothing_is_carried_that_nobody_needs(tasks in any_tasks(), fuse in any::<bool>()) {
        let deployment = plan_deployment(&tasks, fuse).unwrap();
        for route in &deployment.routes {
            // Everything that is ever carried has a number.
            let mut carried: Vec<usize> = (0..route.inputs.len()).collect();
            let mut count = carried.len();
            let (mut kept, mut used) = (Vec::new(), Vec::new());
            for (number, step) in route.steps.iter().enumerate() {
                used.extend(step.inputs.iter().map(|&index| (number, carried[index])));
                let unit = deployment.units.iter().find(|unit| unit.id == step.unit).unwrap();
                let made = unit.graph.outputs.len();
                carried.extend(count..count + made);
                count += made;
                carried = step.keep.iter().map(|&index| carried[index]).collect();
                kept.extend(carried.iter().map(|&tensor| (number, tensor)));
            }
            for (number, tensor) in kept {
                let is_used = used.iter().any(|&(step, used)| step > number && used == tensor);
                prop_assert!(is_used || carried.contains(&tensor), "{:?}", route.steps);
            }
        }
    }

    #[test]
    fn the_same_tasks_make_the_same_units(tasks in any_tasks(), fuse in any::<bool>()) {
        let (first, second) = (plan_deployment(&tasks, fuse).unwrap(), plan_deployment(&tasks, fuse).unwrap());
        prop_assert_eq!(&first.units, &second.units);
        prop_assert_eq!(&first.routes, &second.routes);
        // And whichever comes first.
        let turned: Vec<PlannedTask> = tasks.iter().rev().cloned().collect();
        let ids = |deployment: &Planned| {
            let mut ids: Vec<UnitId> = deployment.units.iter().map(|unit| unit.id.clone()).collect();
            ids.sort();
            ids
        };
        prop_assert_eq!(ids(&first), ids(&plan_deployment(&turned, fuse).unwrap()));
    }

    #[test]
    fn every_block_runs_where_its_task_says(tasks in any_tasks(), fuse in any::<bool>()) {
        let deployment = plan_deployment(&tasks, fuse).unwrap();
        for (task, route) in tasks.iter().zip(&deployment.routes) {
            let units = route.steps.iter().map(|step| {
                deployment.units.iter().find(|unit| unit.id == step.unit).unwrap()
            });
            let found = units.flat_map(|unit| unit.block_hashes().map(|block| (block, unit.settings.device)));
            let blocks = task.graph.blocks.iter().enumerate();
            let expected = blocks.map(|(at, node)| (node.block, task.settings.device_of(at)));
            prop_assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_unit_is_there_once_and_is_passed(tasks in any_tasks(), fuse in any::<bool>()) {
        let deployment = plan_deployment(&tasks, fuse).unwrap();
        let mut ids: Vec<&UnitId> = deployment.units.iter().map(|unit| &unit.id).collect();
        ids.sort();
        let count = ids.len();
        ids.dedup();
        prop_assert_eq!(ids.len(), count);
        for unit in &deployment.units {
            prop_assert!(unit.graph.is_sound());
            for (task, route) in tasks.iter().zip(&deployment.routes) {
                let passes = route.steps.iter().any(|step| step.unit == unit.id);
                prop_assert_eq!(passes, unit.tasks.contains(&task.name));
            }
        }
    }

    #[test]
    fn change_by_change_it_comes_to_the_same(
        tasks in prop::collection::vec(any_tasks(), 1..6),
        steps in prop::collection::vec(prop::collection::vec((0usize..4, any::<prop::sample::Index>()), 1..4), 1..12),
        fuse in any::<bool>(),
    ) {
        let tasks: Vec<PlannedTask> = tasks.into_iter().flatten().collect();
        let mut deployment = Deployment::new(fuse);
        let mut wanted: BTreeMap<String, PlannedTask> = BTreeMap::new();
        // What an observer knows who is only told of changes.
        let (mut units, mut routes) = (BTreeMap::new(), BTreeMap::new());
        for step in steps {
            let mut change = TaskChange::default();
            let before = wanted.clone();
            for (number, index) in step {
                let name = format!("task{number}");
                if change.put.iter().any(|task| task.name == name) || change.removed.contains(&name) {
                    continue;
                }
                if index.index(4) == 0 {
                    wanted.remove(&name);
                    change.removed.push(name);
                } else {
                    let mut task = index.get(&tasks).clone();
                    task.name = name.clone();
                    task.settings.replicas = 1 + index.index(3);
                    if index.index(5) == 0 {
                        task.settings.isolation = Isolation::Process;
                    }
                    wanted.insert(name, task.clone());
                    change.put.push(Arc::new(task));
                }
            }
            let found = deployment.change_tasks(change).unwrap();
            if found.routes.len().is_multiple_of(2) {
                // Taken back and done again: it comes to the same.
                let again: Vec<PlannedTask> = wanted.values().cloned().collect();
                let redo = TaskChange {
                    put: again.into_iter().filter(|task| before.get(&task.name) != Some(task)).map(Arc::new).collect(),
                    removed: found.removed_tasks.clone(),
                };
                deployment.change_tasks(found.undo.clone()).unwrap();
                compare_with_scratch(&deployment, &before, fuse)?;
                deployment.change_tasks(redo).unwrap();
            }
            for id in &found.removed_units {
                prop_assert!(units.remove(id).is_some(), "{id:?} was never there");
            }
            for unit in &found.new_units {
                prop_assert!(units.insert(unit.id.clone(), unit.settings.clone()).is_none());
            }
            for unit in &found.changed_units {
                prop_assert!(units.insert(unit.id.clone(), unit.settings.clone()).is_some());
            }
            for task in &found.removed_tasks {
                prop_assert!(routes.remove(task).is_some());
            }
            routes.extend(found.routes.iter().map(|route| (route.task.clone(), Arc::clone(route))));
            let expected = compare_with_scratch(&deployment, &wanted, fuse)?;
            let settings = expected.units.iter().map(|unit| (unit.id.clone(), unit.settings.clone()));
            prop_assert_eq!(&units, &settings.collect::<BTreeMap<_, _>>());
            let told: Vec<_> = routes.values().cloned().collect();
            prop_assert_eq!(told, expected.routes);
        }
    }
}

/// What is deployed is what the tasks make of nothing.
fn compare_with_scratch(
    deployment: &Deployment,
    tasks: &BTreeMap<String, PlannedTask>,
    fuse: bool,
) -> std::result::Result<Planned, TestCaseError> {
    let all: Vec<PlannedTask> = tasks.values().cloned().collect();
    let expected = plan_deployment(&all, fuse).unwrap();
    let found = planned(deployment, tasks.keys().map(String::as_str));
    let sorted = |planned: &Planned| {
        let of = |unit: &UsedUnit| {
            let mut tasks = unit.tasks.clone();
            tasks.sort();
            (unit.id.clone(), unit.settings.clone(), unit.is_batchable, tasks)
        };
        let mut units: Vec<_> = planned.units.iter().map(of).collect();
        units.sort_by(|a, b| a.0.cmp(&b.0));
        units
    };
    prop_assert_eq!(sorted(&found), sorted(&expected));
    prop_assert_eq!(&found.routes, &expected.routes);
    prop_assert_eq!(deployment.routes().count(), tasks.len());
    Ok(expected)
}
