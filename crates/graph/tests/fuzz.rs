//! Mutates small real files and lets everything loose on them that a file can meet: nothing may
//! panic or hang, and every error must be one line.
//!
//! `TESSERA_FUZZ_SECONDS` says for how long (5 unless told), `TESSERA_FUZZ_SEED` from where, and
//! `TESSERA_FUZZ_CASE` repeats one case of a seed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;
mod corpus;

use std::any::Any;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Model, one_line};
use prost::Message;
use tessera_core::{Error, Result};
use tessera_graph::infer::infer_types;
use tessera_graph::onnx::tensor_shape_proto::dimension::Value as DimValue;
use tessera_graph::onnx::type_proto::Value as TypeValue;
use tessera_graph::onnx::{GraphProto, ModelProto, NodeProto, TypeProto};
use tessera_graph::{
    Block, ExitSpec, Graph, InferredTypes, NoExternalData, SharedModel, Split, block_cost,
    cut_points, fold_shapes, read_model, share_blocks, split_into_chain,
};

/// A case that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(20);

/// The operators that there are, to put one in another's place.
const OPERATORS: &str = include_str!("../src/operators.txt");

/// Integers that arithmetic stumbles over.
const EXTREMES: [i64; 14] = [
    i64::MIN,
    i64::MIN + 1,
    i64::MAX,
    i64::MAX - 1,
    -1,
    0,
    1,
    2,
    65_536,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 32,
    1 << 62,
    -7,
];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 where there is none.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn extreme(&mut self) -> i64 {
        EXTREMES[self.below(EXTREMES.len())]
    }
}

/// Changes the bytes of a file somewhere.
fn mutate_bytes(file: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(file.len() + 1);
    let length = random.below(16usize.min(file.len() - at + 1));
    match random.below(9) {
        0 if at < file.len() => file[at] ^= 1 << random.below(8),
        1 if at < file.len() => file[at] = [0, 1, 0x7F, 0x80, 0xFF][random.below(5)],
        2 if at < file.len() => file[at] = random.next() as u8,
        3 => file.truncate(at),
        4 => {
            let slice = file[at..at + length].to_vec();
            let to = random.below(file.len() + 1);
            drop(file.splice(to..to, slice));
        }
        5 => drop(file.drain(at..at + length)),
        6 => {
            let new: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            drop(file.splice(at..at, new));
        }
        7 => {
            // The head of one file, the tail of another.
            file.truncate(at);
            file.extend_from_slice(&other[random.below(other.len())..]);
        }
        _ => {
            // The largest varint there is, and one that is longer than any.
            let mut varint = vec![0xFF; 9 + random.below(3)];
            varint.push(1);
            let end = (at + random.below(2) * varint.len()).min(file.len());
            drop(file.splice(at..end, varint));
        }
    }
}

/// A graph of the model: its own, or one in a body.
fn any_graph<'a>(graph: &'a mut GraphProto, random: &mut Random) -> &'a mut GraphProto {
    let mut bodies = Vec::new();
    for (place, node) in graph.node.iter().enumerate() {
        for (attribute, each) in node.attribute.iter().enumerate() {
            if each.g.is_some() {
                bodies.push((place, attribute));
            }
        }
    }
    if bodies.is_empty() || random.one_in(2) {
        return graph;
    }
    let (place, attribute) = bodies[random.below(bodies.len())];
    let body = graph.node[place].attribute[attribute].g.get_or_insert_default();
    any_graph(body, random)
}

/// Nodes of the model: of a graph, or of a function.
fn any_nodes<'a>(model: &'a mut ModelProto, random: &mut Random) -> &'a mut Vec<NodeProto> {
    let functions = model.functions.len();
    if functions > 0 && random.one_in(2) {
        let chosen = random.below(functions);
        return &mut model.functions[chosen].node;
    }
    &mut any_graph(model.graph.get_or_insert_default(), random).node
}

fn names(nodes: &[NodeProto]) -> Vec<String> {
    let names = nodes.iter().flat_map(|node| node.input.iter().chain(&node.output));
    let mut names: Vec<String> = names.cloned().collect();
    names.push(String::new());
    names.push("nowhere".to_owned());
    names
}

fn mutate_type(declared: &mut Option<TypeProto>, random: &mut Random) {
    let Some(TypeValue::TensorType(tensor)) = declared.as_mut().and_then(|d| d.value.as_mut())
    else {
        return;
    };
    match random.below(4) {
        0 => tensor.elem_type = Some(random.below(30) as i32),
        1 => tensor.shape = None,
        _ => {
            let dims = &mut tensor.shape.get_or_insert_default().dim;
            if dims.is_empty() || random.one_in(8) {
                dims.push(Default::default());
            }
            let chosen = random.below(dims.len());
            dims[chosen].value = match random.below(4) {
                0 => Some(DimValue::DimParam("n".to_owned())),
                1 => None,
                _ => Some(DimValue::DimValue(random.extreme())),
            };
        }
    }
}

/// Changes what a node says of itself.
fn mutate_node(node: &mut NodeProto, names: &[String], random: &mut Random) {
    let inputs = node.input.len();
    match random.below(9) {
        0 if inputs > 0 => {
            node.input[random.below(inputs)].clone_from(&names[random.below(names.len())]);
        }
        1 if inputs > 1 => node.input.swap(random.below(inputs), random.below(inputs)),
        2 if inputs > 0 => drop(node.input.remove(random.below(inputs))),
        3 => node.input.push(names[random.below(names.len())].clone()),
        4 => {
            let outputs = node.output.len();
            if outputs > 0 {
                let new = names[random.below(names.len())].clone();
                node.output[random.below(outputs)] = new;
            }
        }
        5 => node.output.push(format!("new{}", random.next())),
        6 => {
            let line = OPERATORS.lines().nth(random.below(OPERATORS.lines().count()));
            let mut words = line.unwrap_or_default().split(' ');
            let domain = words.next().filter(|&domain| domain != "ai.onnx");
            node.domain = domain.map(str::to_owned);
            node.op_type = words.next().map(str::to_owned);
        }
        _ => {
            let attributes = node.attribute.len();
            if attributes == 0 {
                return;
            }
            let attribute = &mut node.attribute[random.below(attributes)];
            match random.below(6) {
                0 => attribute.i = Some(random.extreme()),
                1 => attribute.ints.push(random.extreme()),
                2 => attribute.ints.truncate(1),
                3 => attribute.name = Some("axis".to_owned()),
                4 => attribute.f = Some([f32::NAN, f32::INFINITY, 0.0, -1.0][random.below(4)]),
                _ => {
                    let count = attribute.ints.len();
                    if count > 0 {
                        attribute.ints[random.below(count)] = random.extreme();
                    }
                }
            }
        }
    }
}

/// Changes a model in a way that leaves it a model.
fn mutate_model(model: &mut ModelProto, random: &mut Random) {
    match random.below(10) {
        0 => {
            let count = model.opset_import.len();
            if count > 0 {
                let versions = [1, 6, 9, 11, 13, 15, 18, 21, 24, 28, 30, random.extreme()];
                let version = versions[random.below(versions.len())];
                model.opset_import[random.below(count)].version = Some(version);
            }
        }
        1 => {
            let graph = any_graph(model.graph.get_or_insert_default(), random);
            let mut infos: Vec<_> = graph
                .input
                .iter_mut()
                .chain(&mut graph.output)
                .chain(&mut graph.value_info)
                .collect();
            let chosen = random.below(infos.len());
            if let Some(info) = infos.get_mut(chosen) {
                mutate_type(&mut info.r#type, random);
            }
        }
        2 | 3 => {
            let graph = any_graph(model.graph.get_or_insert_default(), random);
            let count = graph.initializer.len();
            if count == 0 {
                return;
            }
            let tensor = &mut graph.initializer[random.below(count)];
            match random.below(5) {
                0 => tensor.data_type = Some(random.below(30) as i32),
                1 => tensor.dims.push([1, random.extreme()][random.below(2)]),
                2 => tensor.name = Some(format!("w{}", random.below(4))),
                3 if tensor.data_type == Some(7) && tensor.raw_data().len() >= 8 => {
                    // Shapes, axes and counts are small integer tensors: change their elements.
                    let mut data = tensor.raw_data().to_vec();
                    let at = random.below(data.len() / 8) * 8;
                    data[at..at + 8].copy_from_slice(&random.extreme().to_le_bytes());
                    tensor.raw_data = Some(data.into());
                }
                _ => {
                    let rank = tensor.dims.len();
                    if rank > 0 {
                        tensor.dims[random.below(rank)] = random.extreme();
                    }
                }
            }
        }
        4 => {
            let nodes = any_nodes(model, random);
            if !nodes.is_empty() {
                nodes.remove(random.below(nodes.len()));
            }
        }
        5 => {
            let nodes = any_nodes(model, random);
            if !nodes.is_empty() {
                let mut copy = nodes[random.below(nodes.len())].clone();
                if random.one_in(2) {
                    for output in &mut copy.output {
                        output.push('\'');
                    }
                }
                nodes.insert(random.below(nodes.len()), copy);
            }
        }
        _ => {
            let nodes = any_nodes(model, random);
            let names = names(nodes);
            if !nodes.is_empty() {
                let chosen = random.below(nodes.len());
                mutate_node(&mut nodes[chosen], &names, random);
            }
        }
    }
}

/// One case: a file of the corpus, changed.
fn case(seeds: &[Seed], chosen: usize, random: &mut Random) -> Bytes {
    let mut file = seeds[chosen].file.to_vec();
    if random.below(3) > 0 {
        let mut proto = ModelProto::decode(seeds[chosen].file.clone()).unwrap();
        for _ in 0..=random.below(4) {
            mutate_model(&mut proto, random);
        }
        file = proto.encode_to_vec();
        if !random.one_in(8) {
            return file.into();
        }
    }
    let other = seeds[random.below(seeds.len())].file.clone();
    for _ in 0..=random.below(4) {
        mutate_bytes(&mut file, &other, random);
    }
    file.into()
}

/// A file of the corpus, and the model that it is.
struct Seed {
    name: &'static str,
    file: Bytes,
    model: Model,
}

fn exits_of(graph: &Graph) -> Vec<ExitSpec> {
    let names = graph.outputs().iter().map(|&id| graph.value_name(id));
    names.filter(|name| name.starts_with("exit")).map(|name| common::exit(name, 0.5)).collect()
}

fn cut(graph: &Graph, types: &InferredTypes, how: &Split, exits: &[ExitSpec]) -> Result<()> {
    let made = split_into_chain(graph, types, how, exits)?;
    assert!(made.graph.is_sound(), "{how:?} made an unsound graph");
    for block in 0..made.graph.blocks.len() {
        block_cost(graph, types, &made, block);
    }
    for block in made.blocks.values() {
        let again = Block::parse_program(block.program().clone())?;
        assert_eq!(again.hash(), block.hash());
    }
    Ok(())
}

/// Everything that a file can meet; returns whether it could be read.
fn go_through(file: &Bytes, original: &Model) -> bool {
    let check = |result: Result<()>| {
        if let Err(error) = result {
            one_line(&error);
        }
    };
    check(Block::parse_program(file.clone()).map(|_| ()));
    let graph = match read_model(file.clone(), &mut NoExternalData) {
        Ok(graph) => graph,
        Err(error) => {
            one_line(&error);
            return false;
        }
    };
    let types = infer_types(&graph, &BTreeMap::new()).unwrap();
    let exits = exits_of(&graph);
    if let Ok(folded) = fold_shapes(graph.clone(), &types) {
        let types = infer_types(&folded, &BTreeMap::new());
        check(types.and_then(|types| {
            split_into_chain(&folded, &types, &Split::Every, &exits).map(|_| ())
        }));
    }
    check(cut_points(&graph, &types, &exits).map(|_| ()));
    for how in [Split::Every, Split::Blocks(2), Split::Blocks(5)] {
        check(cut(&graph, &types, &how, &exits));
    }
    check(cut(&graph, &types, &Split::Every, &[]));
    let original_exits = exits_of(&original.graph);
    let models = [
        SharedModel { graph: &original.graph, types: &original.types, exits: &original_exits },
        SharedModel { graph: &graph, types: &types, exits: &exits },
    ];
    check(share_blocks(&models, &mut |_| ()).map(|shared| {
        assert!(shared.bytes_shared() <= shared.bytes_apart());
    }));
    true
}

/// The case that runs now, for the one who watches.
#[derive(Default)]
struct Watch {
    now: Mutex<Option<(Instant, String, Bytes)>>,
    over: AtomicBool,
}

impl Watch {
    /// Ends the process when a case hangs: no test can end a thread.
    fn stand_guard(self: Arc<Self>) {
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
            let now = self.now.lock().unwrap().clone();
            if let Some((started, what, file)) = now
                && started.elapsed() > LONGEST
            {
                let kept = keep(&what, &file);
                let line = format!("{what} hangs; its file is {}\n", kept.display());
                // Not `eprintln!`, which the test harness would keep to itself.
                std::io::stderr().write_all(line.as_bytes()).unwrap();
                std::process::exit(101);
            }
        }
    }
}

fn keep(what: &str, file: &Bytes) -> PathBuf {
    let name: String = what.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let path = std::env::temp_dir().join(format!("tessera-fuzz-{name}.onnx"));
    std::fs::write(&path, file).unwrap();
    path
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something that is no text")
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is \"{text}\", expected a number")))
}

#[test]
fn no_file_makes_it_panic_or_hang() {
    let seconds = setting("TESSERA_FUZZ_SECONDS").unwrap_or(5);
    let seed = setting("TESSERA_FUZZ_SEED").unwrap_or(20_261_115);
    let only = setting("TESSERA_FUZZ_CASE");
    println!("TESSERA_FUZZ_SEED={seed}");
    let seeds: Vec<Seed> = corpus::all()
        .into_iter()
        .map(|(name, proto)| Seed {
            name,
            file: proto.encode_to_vec().into(),
            model: Model::read(&proto),
        })
        .collect();
    for seed in &seeds {
        assert!(go_through(&seed.file, &seed.model), "{}", seed.name);
    }
    let watch = Arc::new(Watch::default());
    let guard = std::thread::spawn({
        let watch = watch.clone();
        move || watch.stand_guard()
    });
    let started = Instant::now();
    let (mut number, mut could_be_read) = (only.unwrap_or(0), 0);
    let first = number;
    while started.elapsed() < Duration::from_secs(seconds) {
        let mut random = Random(seed ^ number.wrapping_mul(0xD134_2543_DE82_EF95));
        let chosen = random.below(seeds.len());
        let file = case(&seeds, chosen, &mut random);
        let what = format!("seed {seed} case {number} of {}", seeds[chosen].name);
        *watch.now.lock().unwrap() = Some((Instant::now(), what.clone(), file.clone()));
        let outcome = catch_unwind(AssertUnwindSafe(|| go_through(&file, &seeds[chosen].model)));
        *watch.now.lock().unwrap() = None;
        match outcome {
            Ok(was_read) => could_be_read += u64::from(was_read),
            Err(panic) => panic!(
                "{what} panics: {}; its file is {}; again with TESSERA_FUZZ_SEED={seed} TESSERA_FUZZ_CASE={number}",
                said(panic.as_ref()),
                keep(&what, &file).display()
            ),
        }
        number += 1;
        if only.is_some() {
            break;
        }
    }
    watch.over.store(true, Ordering::Relaxed);
    guard.join().unwrap();
    let ran = number - first;
    println!("{ran} cases, {could_be_read} of which could be read");
    assert!(only.is_some() || seconds == 0 || could_be_read > 0, "none of {ran} could be read");
}

#[test]
fn an_error_is_one_line_whatever_the_names_are() {
    let error = Error::invalid("tensor \"a\nb\": wrong\r\n");
    assert_eq!(one_line(&error), "tensor \"a b\": wrong");
}
