//! The parts in which weights come to a GPU: what is small at first and at once, and then groups in
//! the order in which a run uses them, for each of which it waits where it uses it first. Tables
//! that runs look some rows up in may be apart from these, at the end of the file: they stay in the
//! host's memory. So do others where the GPU's is to have no more than so many bytes.
//!
//! A run waits in operators of ours ([`WAIT_DOMAIN`]) that hand a weight on as it is. Whoever uses
//! the weight takes it from there, so that nobody can be before it. Such an operator also takes
//! what its user computes with: without that it would be run long before, and all waits with it.

use std::collections::{HashMap, HashSet};
use std::fmt;

use tessera_graph::onnx::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    attribute_proto,
};

use super::external_weights::is_external;
use crate::weight_parts::WeightParts;

/// Where the operators that wait belong; their names are those of element types.
pub(super) const WAIT_DOMAIN: &str = "tessera.weights";

/// The attribute of those operators that says what they wait for.
pub(super) const PART_ATTRIBUTE: &str = "part";

/// Weights of fewer bytes are all there before a run begins.
const LEAST_AWAITED: usize = 64 << 10;

/// Bytes that the first group has at least, which a run waits for at once; each of the next has
/// twice as many.
const FIRST_GROUP_BYTES: usize = 1 << 20;

/// With so many copies go as fast as the bus does: groups need no more.
const GROUP_BYTES: usize = 8 << 20;

/// The element types of weights that a run can wait for, as ONNX numbers them.
pub(super) const AWAITED_TYPES: [i32; 12] = [1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 16];

/// Tables of fewer bytes come as fast as they are looked up.
const LEAST_TABLE: usize = 2 << 20;

/// How a file has weights for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WeightLayout {
    /// In the order in which a run needs them.
    InParts,
    /// The same with tables behind the others.
    TablesApart,
    /// The same with so many of the others behind these that no more than some bytes are before.
    AtMost(u64),
}

impl fmt::Display for WeightLayout {
    /// How it is called in names of files.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InParts => to.write_str("parts"),
            Self::TablesApart => to.write_str("tables"),
            Self::AtMost(bytes) => write!(to, "most{bytes}"),
        }
    }
}

/// The name of the operator that waits for weights of an element type.
pub(super) fn wait_operator_name(element_type: i32) -> String {
    format!("Wait{element_type}")
}

/// Where a layout has a weight in the file: those of the first place come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WeightPlace {
    /// All are there before a run begins.
    AtFirst,
    /// A run waits for it where it uses it.
    Awaited,
    /// It stays in the host's memory.
    OnHost,
}

/// The places of weights that are not there at first.
pub(super) fn place_weights(
    graph: &GraphProto,
    layout: WeightLayout,
) -> HashMap<String, WeightPlace> {
    let awaited = awaited_weights(graph);
    let mut on_host = match layout {
        WeightLayout::InParts => HashSet::new(),
        WeightLayout::TablesApart | WeightLayout::AtMost(_) => lookup_tables(graph),
    };
    if let WeightLayout::AtMost(bytes) = layout {
        let most = usize::try_from(bytes).unwrap_or(usize::MAX);
        add_until_others_fit(graph, most, &awaited, &mut on_host);
    }
    let place = |name: String| {
        let is_on_host = on_host.contains(&name);
        (name, if is_on_host { WeightPlace::OnHost } else { WeightPlace::Awaited })
    };
    awaited.into_iter().map(place).collect()
}

/// Adds weights to those on the host until all others take so many bytes at most, or until none is
/// left that may be there.
///
/// Those of convolutions come first, which are about as quick over the bus as from memory behind a
/// copy; then those that come last, by when all copies are under way.
fn add_until_others_fit(
    graph: &GraphProto,
    most: usize,
    awaited: &HashSet<String>,
    on_host: &mut HashSet<String>,
) {
    let mut last_use: HashMap<&str, (bool, usize)> = HashMap::new();
    for (number, node) in graph.node.iter().enumerate() {
        let is_convolution = node.op_type().ends_with("Conv");
        for name in &node.input {
            let (only_convolutions, _) = last_use.get(name.as_str()).copied().unwrap_or((true, 0));
            last_use.insert(name, (only_convolutions && is_convolution, number));
        }
    }
    let is_left = |tensor: &&TensorProto| is_external(tensor) && !on_host.contains(tensor.name());
    let left: Vec<&TensorProto> = graph.initializer.iter().filter(is_left).collect();
    let bytes_of = |tensor: &TensorProto| external_number(tensor, "length");
    let mut bytes: usize = left.iter().map(|tensor| bytes_of(tensor)).sum();
    let mut movable: Vec<&TensorProto> =
        left.into_iter().filter(|tensor| awaited.contains(tensor.name())).collect();
    movable.sort_by_key(|tensor| last_use.get(tensor.name()).copied().unwrap_or_default());
    while bytes > most
        && let Some(tensor) = movable.pop()
    {
        bytes -= bytes_of(tensor);
        on_host.insert(tensor.name().to_owned());
    }
}

/// Weights of which nodes look rows up, and do nothing else with them.
fn lookup_tables(graph: &GraphProto) -> HashSet<String> {
    let is_lookup = |node: &NodeProto, input: usize| {
        let is_by_row = || {
            let axis = node.attribute.iter().find(|attribute| attribute.name() == "axis");
            axis.is_none_or(|axis| axis.i() == 0)
        };
        match node.op_type() {
            "Gather" => input == 0 && is_by_row(),
            // Words, positions, and kinds of words.
            "EmbedLayerNormalization" => (2..5).contains(&input),
            _ => false,
        }
    };
    let (mut looked_up, mut otherwise) = (HashSet::new(), HashSet::new());
    for node in &graph.node {
        for (number, name) in node.input.iter().enumerate() {
            let uses = if is_lookup(node, number) { &mut looked_up } else { &mut otherwise };
            uses.insert(name.as_str());
        }
    }
    let is_table = |tensor: &&TensorProto| {
        external_number(tensor, "length") >= LEAST_TABLE
            && looked_up.contains(tensor.name())
            && !otherwise.contains(tensor.name())
    };
    let tables = graph.initializer.iter().filter(is_table);
    tables.map(|tensor| tensor.name().to_owned()).collect()
}

/// The weights that a run can wait for where it uses them: large ones that nodes of the graph
/// itself use, and nobody else.
fn awaited_weights(graph: &GraphProto) -> HashSet<String> {
    let mut elsewhere: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    let bodies = graph.node.iter().flat_map(bodies_of);
    bodies.for_each(|body| add_names_of_body(body, &mut elsewhere));
    let used: HashSet<&str> =
        graph.node.iter().flat_map(|node| &node.input).map(String::as_str).collect();
    let is_awaited = |tensor: &&TensorProto| {
        is_external(tensor)
            && external_number(tensor, "length") >= LEAST_AWAITED
            && AWAITED_TYPES.contains(&tensor.data_type())
            && used.contains(tensor.name())
            && !elsewhere.contains(tensor.name())
    };
    let awaited = graph.initializer.iter().filter(is_awaited);
    awaited.map(|tensor| tensor.name().to_owned()).collect()
}

/// Has a model wait for its weights, which a file of `file_len` bytes has in the order of their
/// use. Returns the parts; as one, and without waiting, where the order is another.
pub(super) fn wait_for_parts(
    model: &mut ModelProto,
    layout: WeightLayout,
    file_len: usize,
) -> WeightParts {
    let graph = model.graph.get_or_insert_default();
    let places = place_weights(graph, layout);
    let (parts, part_of) = divide_weights(graph, &places, file_len);
    if part_of.is_empty() {
        return parts;
    }
    insert_waits(graph, &part_of);
    let (domain, version) = (Some(WAIT_DOMAIN.to_owned()), Some(1));
    model.opset_import.push(OperatorSetIdProto { domain, version });
    parts
}

/// Which part each awaited weight is in, and its element type.
fn divide_weights(
    graph: &GraphProto,
    places: &HashMap<String, WeightPlace>,
    file_len: usize,
) -> (WeightParts, HashMap<String, (usize, i32)>) {
    let mut tensors: Vec<&TensorProto> =
        graph.initializer.iter().filter(|tensor| is_external(tensor)).collect();
    tensors.sort_by_key(|tensor| external_number(tensor, "offset"));
    let place =
        |tensor: &TensorProto| places.get(tensor.name()).copied().unwrap_or(WeightPlace::AtFirst);
    if !tensors.is_sorted_by_key(|tensor| place(tensor)) {
        return (WeightParts::whole(file_len), HashMap::new());
    }
    let small = tensors.partition_point(|tensor| place(tensor) == WeightPlace::AtFirst);
    let (at_first, others) = tensors.split_at(small);
    let count = others.partition_point(|tensor| place(tensor) == WeightPlace::Awaited);
    let (groups, tables) = others.split_at(count);
    let table_start = tables.first().map(|tensor| external_number(tensor, "offset"));
    let table_start = table_start.unwrap_or(file_len);
    let end = |tensor: &TensorProto| {
        external_number(tensor, "offset") + external_number(tensor, "length")
    };
    let mut ends = vec![at_first.iter().map(|tensor| end(tensor)).max().unwrap_or(0)];
    let mut part_of = HashMap::new();
    let (mut begin, mut wanted) = (ends[0], FIRST_GROUP_BYTES);
    for tensor in groups {
        part_of.insert(tensor.name().to_owned(), (ends.len(), tensor.data_type()));
        if end(tensor) - begin >= wanted {
            begin = end(tensor);
            ends.push(begin);
            wanted = (2 * wanted).min(GROUP_BYTES);
        }
    }
    let last_end = groups.last().map_or(0, |tensor| end(tensor));
    match ends.last_mut() {
        Some(last) if *last >= last_end => *last = table_start,
        // What is left over is a group of its own.
        _ => ends.push(table_start),
    }
    (WeightParts::new(ends, file_len - table_start), part_of)
}

fn insert_waits(graph: &mut GraphProto, part_of: &HashMap<String, (usize, i32)>) {
    let weights: HashSet<String> =
        graph.initializer.iter().map(|tensor| tensor.name().to_owned()).collect();
    let input = graph.input.iter().find(|input| !weights.contains(input.name()));
    let input = input.map(|input| input.name().to_owned());
    let mut arrived: HashMap<String, String> = HashMap::new();
    for mut node in std::mem::take(&mut graph.node) {
        let computed = |name: &&String| !name.is_empty() && !weights.contains(*name);
        let beside = node.input.iter().find(computed).or(input.as_ref()).cloned();
        for name in &mut node.input {
            let Some((part, element_type)) = part_of.get(name) else { continue };
            let known = arrived.get(name).cloned();
            let handed_on = known.unwrap_or_else(|| {
                let handed_on = format!("{name}/arrived");
                let inputs = std::iter::once(name.clone()).chain(beside.clone());
                graph.node.push(wait_node(inputs.collect(), &handed_on, *part, *element_type));
                arrived.insert(name.clone(), handed_on.clone());
                handed_on
            });
            *name = handed_on;
        }
        graph.node.push(node);
    }
}

fn wait_node(input: Vec<String>, output: &str, part: usize, element_type: i32) -> NodeProto {
    let part = AttributeProto {
        name: Some(PART_ATTRIBUTE.to_owned()),
        r#type: Some(attribute_proto::AttributeType::Int as i32),
        i: i64::try_from(part).ok(),
        ..AttributeProto::default()
    };
    NodeProto {
        name: Some(output.to_owned()),
        op_type: Some(wait_operator_name(element_type)),
        domain: Some(WAIT_DOMAIN.to_owned()),
        input,
        output: vec![output.to_owned()],
        attribute: vec![part],
        ..NodeProto::default()
    }
}

/// All that a body refers to, with its own bodies.
fn add_names_of_body<'a>(body: &'a GraphProto, names: &mut HashSet<&'a str>) {
    names.extend(body.output.iter().map(|output| output.name()));
    for node in &body.node {
        names.extend(node.input.iter().map(String::as_str));
        bodies_of(node).for_each(|body| add_names_of_body(body, names));
    }
}

fn bodies_of(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
}

/// What the place of a weight in its file says: its offset, or its length.
fn external_number(tensor: &TensorProto, key: &str) -> usize {
    let entry = tensor.external_data.iter().find(|entry| entry.key() == key);
    entry.and_then(|entry| entry.value().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use tessera_graph::onnx::{StringStringEntryProto, ValueInfoProto, tensor_proto};

    use super::*;

    const MEGABYTES: usize = 1 << 20;

    fn weight(name: &str, offset: usize, length: usize) -> TensorProto {
        let entry = |key: &str, value: usize| StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(value.to_string()),
        };
        TensorProto {
            name: Some(name.to_owned()),
            data_type: Some(1),
            data_location: Some(tensor_proto::DataLocation::External as i32),
            external_data: vec![entry("offset", offset), entry("length", length)],
            ..TensorProto::default()
        }
    }

    fn node(inputs: &[&str], output: &str) -> NodeProto {
        NodeProto {
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        }
    }

    fn model(nodes: Vec<NodeProto>, weights: &[(&str, usize)]) -> (ModelProto, usize) {
        let mut at = 0;
        let mut place = |&(name, length): &(&str, usize)| {
            at += length;
            weight(name, at - length, length)
        };
        let initializer = weights.iter().map(&mut place).collect();
        let input = ValueInfoProto { name: Some("x".to_owned()), ..ValueInfoProto::default() };
        let graph =
            GraphProto { node: nodes, initializer, input: vec![input], ..GraphProto::default() };
        (ModelProto { graph: Some(graph), ..ModelProto::default() }, at)
    }

    #[test]
    fn a_run_waits_for_each_large_weight_where_it_is_used_first() {
        let nodes = vec![
            node(&["x", "bias"], "a"),
            node(&["a", "first", "second"], "b"),
            node(&["third", "b"], "c"),
            node(&["c", "first"], "d"),
        ];
        let weights =
            [("bias", 100), ("first", MEGABYTES), ("second", MEGABYTES), ("third", MEGABYTES)];
        let (mut model, len) = model(nodes, &weights);
        let parts = wait_for_parts(&mut model, WeightLayout::InParts, len);
        assert_eq!(parts.count(), 3);
        assert_eq!(parts.range(0), 0..100);
        assert_eq!(parts.range(1), 100..100 + MEGABYTES);
        assert_eq!(parts.range(2), 100 + MEGABYTES..len);
        let nodes = model.graph.unwrap().node;
        let described = nodes.iter().map(|node| {
            let part = node.attribute.first().map(|attribute| attribute.i());
            (node.op_type().to_owned(), node.input.join(" "), part)
        });
        let plain = |inputs: &str| (String::new(), inputs.to_owned(), None);
        let wait = |inputs: &str, part| ("Wait1".to_owned(), inputs.to_owned(), Some(part));
        let expected = [
            plain("x bias"),
            wait("first a", 1),
            wait("second a", 2),
            plain("a first/arrived second/arrived"),
            wait("third b", 2),
            plain("third/arrived b"),
            plain("c first/arrived"),
        ];
        assert_eq!(described.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn tables_that_rows_are_looked_up_in_are_apart() {
        let mut lookup = node(&["table", "x"], "rows");
        lookup.op_type = Some("Gather".to_owned());
        let both = NodeProto { output: vec!["tied rows".to_owned()], ..lookup.clone() };
        let both = NodeProto { input: vec!["tied".to_owned(), "x".to_owned()], ..both };
        let nodes = vec![lookup, both, node(&["rows", "own"], "a"), node(&["a", "tied"], "b")];
        let weights = [("own", MEGABYTES), ("tied", 4 * MEGABYTES), ("table", 3 * MEGABYTES)];
        let (mut model, len) = model(nodes, &weights);
        let places = place_weights(model.graph.as_ref().unwrap(), WeightLayout::TablesApart);
        assert_eq!(places["table"], WeightPlace::OnHost);
        assert_eq!(places["tied"], WeightPlace::Awaited, "it is multiplied by, too");
        let parts = wait_for_parts(&mut model, WeightLayout::TablesApart, len);
        assert_eq!(parts.count(), 3);
        assert_eq!(parts.tables(), 5 * MEGABYTES..len);
        let nodes = model.graph.unwrap().node;
        assert!(nodes.iter().all(|node| node.input[0] != "table" || node.op_type() == "Gather"));
    }

    #[test]
    fn what_does_not_fit_stays_on_the_host_convolutions_first() {
        let mut lookup = node(&["table", "x"], "rows");
        lookup.op_type = Some("Gather".to_owned());
        let mut convolution = node(&["rows", "filter"], "a");
        convolution.op_type = Some("Conv".to_owned());
        let nodes =
            vec![lookup, convolution, node(&["a", "first"], "b"), node(&["b", "last"], "c")];
        let weights = [
            ("first", 4 * MEGABYTES),
            ("last", 3 * MEGABYTES),
            ("filter", 2 * MEGABYTES),
            ("table", 5 * MEGABYTES),
        ];
        let (model, _) = model(nodes, &weights);
        let on_host = |most: usize| {
            let layout = WeightLayout::AtMost((most * MEGABYTES) as u64);
            let places = place_weights(model.graph.as_ref().unwrap(), layout);
            let found = places.into_iter().filter(|(_, place)| *place == WeightPlace::OnHost);
            let mut names: Vec<String> = found.map(|(name, _)| name).collect();
            names.sort_unstable();
            names.join(" ")
        };
        assert_eq!(on_host(100), "table");
        assert_eq!(on_host(8), "filter table");
        assert_eq!(on_host(6), "filter last table");
        assert_eq!(on_host(0), "filter first last table");
    }

    #[test]
    fn what_bodies_use_is_there_before_a_run_begins() {
        let mut branch = node(&["x"], "b");
        branch.attribute.push(AttributeProto {
            g: Some(GraphProto { node: vec![node(&["inner"], "y")], ..GraphProto::default() }),
            ..AttributeProto::default()
        });
        let nodes = vec![branch, node(&["b", "inner", "own"], "c")];
        let (graph, _) = model(nodes.clone(), &[("inner", MEGABYTES), ("own", MEGABYTES)]);
        assert_eq!(
            awaited_weights(graph.graph.as_ref().unwrap()),
            HashSet::from(["own".to_owned()])
        );
        // One that is waited for comes before one that is not: then nothing is.
        let (mut model, len) = model(nodes, &[("own", MEGABYTES), ("inner", MEGABYTES)]);
        let before = model.clone();
        assert_eq!(wait_for_parts(&mut model, WeightLayout::InParts, len), WeightParts::whole(len));
        assert_eq!(model, before);
    }
}
