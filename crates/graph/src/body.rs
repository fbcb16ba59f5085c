//! The bodies of `If`, `Loop` and `Scan`, brought into one form.
//!
//! A body may use values of the graph around it. Here every such capture becomes `@0`, `@1`, … in
//! the order in which the body meets them, every local value `.depth.number`, and the nodes stand
//! in the order in which the outputs need them: two bodies that compute the same then look the
//! same.

use std::collections::HashMap;

use tessera_core::{Error, Result};

use crate::onnx::tensors;
use crate::onnx::{
    AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, tensor_shape_proto, type_proto,
};
use crate::operators::{self, canonical_domain};

/// Brings the bodies among `attributes` into their one form; returns the captured names.
pub(crate) fn normalise_bodies(
    attributes: &mut [AttributeProto],
    opsets: &std::collections::BTreeMap<String, i64>,
) -> Result<Vec<String>> {
    let mut captures = BodyCaptures::default();
    for attribute in attributes {
        for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
            let taken = std::mem::take(graph);
            *graph = BodyNormaliser::new(taken, 0, opsets)?
                .write_body(&mut |name| captures.placeholder_for(name))?;
        }
    }
    Ok(captures.names)
}

/// Replaces `@k` by `names[k]` in the bodies among `attributes`.
pub(crate) fn restore_captures(attributes: &mut [AttributeProto], names: &[String]) {
    fn restore_name(name: &mut String, names: &[String]) {
        let index = name.strip_prefix('@').and_then(|digits| digits.parse::<usize>().ok());
        if let Some(actual) = index.and_then(|index| names.get(index)) {
            actual.clone_into(name);
        }
    }
    for graph in attributes.iter_mut().flat_map(|a| a.g.iter_mut().chain(&mut a.graphs)) {
        for node in &mut graph.node {
            node.input.iter_mut().for_each(|name| restore_name(name, names));
            restore_captures(&mut node.attribute, names);
        }
        for output in &mut graph.output {
            let mut name = output.name().to_owned();
            restore_name(&mut name, names);
            output.name = Some(name);
        }
    }
}

/// Every operator in the bodies among `attributes`.
pub(crate) fn operators_within<'a>(
    attributes: &'a [AttributeProto],
    found: &mut Vec<(&'a str, &'a str)>,
) {
    for graph in attributes.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
        for node in &graph.node {
            found.push((canonical_domain(node.domain()), node.op_type()));
            operators_within(&node.attribute, found);
        }
    }
}

#[derive(Default)]
struct BodyCaptures {
    names: Vec<String>,
    known: HashMap<String, String>,
}

impl BodyCaptures {
    fn placeholder_for(&mut self, name: &str) -> String {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let placeholder = format!("@{}", self.names.len());
        self.names.push(name.to_owned());
        self.known.insert(name.to_owned(), placeholder.clone());
        placeholder
    }
}

struct BodyNormaliser<'a> {
    graph: GraphProto,
    depth: usize,
    opsets: &'a std::collections::BTreeMap<String, i64>,
    /// Node that makes each local value.
    producer: HashMap<String, usize>,
    initializers: HashMap<String, TensorProto>,
    /// New name of each local value met so far.
    names: HashMap<String, String>,
    written: GraphProto,
}

impl<'a> BodyNormaliser<'a> {
    fn new(
        mut graph: GraphProto,
        depth: usize,
        opsets: &'a std::collections::BTreeMap<String, i64>,
    ) -> Result<Self> {
        let mut producer = HashMap::new();
        let mut defined = std::collections::HashSet::new();
        let twice = |name: &str| {
            Err(Error::invalid(format!("tensor \"{name}\" is defined twice in a body")))
        };
        for (index, node) in graph.node.iter().enumerate() {
            for output in node.output.iter().filter(|name| !name.is_empty()) {
                if !defined.insert(output.clone()) {
                    return twice(output);
                }
                producer.insert(output.clone(), index);
            }
        }
        let mut initializers = HashMap::new();
        for tensor in std::mem::take(&mut graph.initializer) {
            let name = tensor.name().to_owned();
            if !defined.insert(name.clone()) {
                return twice(&name);
            }
            initializers.insert(name, tensor);
        }
        for input in &graph.input {
            if !initializers.contains_key(input.name()) && !defined.insert(input.name().to_owned())
            {
                return twice(input.name());
            }
        }
        if !graph.sparse_initializer.is_empty() {
            return Err(Error::unsupported("sparse initialisers inside a body"));
        }
        Ok(Self {
            graph,
            depth,
            opsets,
            producer,
            initializers,
            names: HashMap::new(),
            written: GraphProto::default(),
        })
    }

    fn write_body(mut self, outer: &mut dyn FnMut(&str) -> String) -> Result<GraphProto> {
        self.written.name = Some("body".to_owned());
        for mut input in std::mem::take(&mut self.graph.input) {
            let name = self.name_local(input.name().to_owned());
            input.name = Some(name);
            input.doc_string = None;
            input.metadata_props.clear();
            forget_dimension_names(&mut input.r#type);
            self.written.input.push(input);
        }
        let outputs = std::mem::take(&mut self.graph.output);
        for output in &outputs {
            self.write_needed_nodes(output.name(), outer)?;
        }
        for mut output in outputs {
            let name = self.name_of(output.name(), outer)?;
            output.name = Some(name);
            output.doc_string = None;
            output.metadata_props.clear();
            forget_dimension_names(&mut output.r#type);
            self.written.output.push(output);
        }
        Ok(self.written)
    }

    fn name_local(&mut self, name: String) -> String {
        let new = format!(".{}.{}", self.depth, self.names.len());
        self.names.insert(name, new.clone());
        new
    }

    /// Writes the nodes that `name` needs and that are not written yet, deepest first.
    fn write_needed_nodes(
        &mut self,
        name: &str,
        outer: &mut dyn FnMut(&str) -> String,
    ) -> Result<()> {
        enum BodyStep {
            Enter(usize),
            Leave(usize),
        }
        let mut entered = std::collections::HashSet::new();
        let mut steps: Vec<BodyStep> =
            self.producer.get(name).map(|&node| BodyStep::Enter(node)).into_iter().collect();
        while let Some(step) = steps.pop() {
            match step {
                BodyStep::Enter(index) => {
                    if self.is_written(index) {
                        continue;
                    }
                    let node = &self.graph.node[index];
                    if !entered.insert(index) {
                        return Err(Error::invalid(format!(
                            "node \"{}\" ({}) in a body is part of a cycle",
                            node.name(),
                            node.op_type()
                        )));
                    }
                    steps.push(BodyStep::Leave(index));
                    let mut needed: Vec<String> = node.input.clone();
                    free_names(&node.attribute, &mut needed);
                    let producers =
                        needed.iter().filter_map(|name| self.producer.get(name).copied());
                    let producers: Vec<usize> = producers.collect();
                    steps.extend(producers.into_iter().rev().map(BodyStep::Enter));
                }
                BodyStep::Leave(index) => {
                    entered.remove(&index);
                    if !self.is_written(index) {
                        self.write_node(index, outer)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn is_written(&self, index: usize) -> bool {
        let mut outputs = self.graph.node[index].output.iter().filter(|name| !name.is_empty());
        outputs.next().is_some_and(|name| self.names.contains_key(name))
    }

    fn write_node(&mut self, index: usize, outer: &mut dyn FnMut(&str) -> String) -> Result<()> {
        let mut node = std::mem::take(&mut self.graph.node[index]);
        // The outputs stay behind: they tell whether the node is written.
        self.graph.node[index].output.clone_from(&node.output);
        let domain = canonical_domain(node.domain()).to_owned();
        let opset = self.opsets.get(&domain).copied().ok_or_else(|| {
            Error::invalid(format!(
                "node \"{}\" in a body: the model imports no opset of \"{domain}\"",
                node.name()
            ))
        })?;
        operators::since_version(&domain, node.op_type(), opset)
            .map_err(|error| error.with_context(format!("node \"{}\" in a body", node.name())))?;
        let mut inputs = Vec::with_capacity(node.input.len());
        for name in &node.input {
            inputs.push(if name.is_empty() { String::new() } else { self.name_of(name, outer)? });
        }
        node.attribute.sort_by(|a, b| a.name().cmp(b.name()));
        let (depth, opsets) = (self.depth + 1, self.opsets);
        for attribute in &mut node.attribute {
            attribute.doc_string = None;
            tensors::normalise_attribute(attribute)?;
            for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                let taken = std::mem::take(graph);
                let mut failed = None;
                let body = BodyNormaliser::new(taken, depth, opsets)?.write_body(&mut |name| {
                    self.name_of(name, outer).unwrap_or_else(|error| {
                        failed.get_or_insert(error);
                        String::new()
                    })
                })?;
                if let Some(error) = failed {
                    return Err(error);
                }
                *graph = body;
            }
        }
        let outputs = node
            .output
            .iter()
            .map(|name| if name.is_empty() { String::new() } else { self.name_local(name.clone()) })
            .collect();
        self.written.node.push(NodeProto {
            input: inputs,
            output: outputs,
            op_type: node.op_type,
            domain: (!domain.is_empty()).then_some(domain),
            attribute: node.attribute,
            ..Default::default()
        });
        Ok(())
    }

    /// The new name of a value that exists by now.
    fn name_of(&mut self, name: &str, outer: &mut dyn FnMut(&str) -> String) -> Result<String> {
        if let Some(known) = self.names.get(name) {
            return Ok(known.clone());
        }
        if let Some(tensor) = self.initializers.remove(name) {
            let weight = tensors::weight_from_tensor(tensor)
                .map_err(|error| error.with_context(format!("tensor \"{name}\" in a body")))?;
            let new = self.name_local(name.to_owned());
            self.written.initializer.push(tensors::inline_tensor(new.clone(), &weight));
            return Ok(new);
        }
        if self.producer.contains_key(name) {
            return Err(Error::invalid(format!("tensor \"{name}\" in a body is part of a cycle")));
        }
        Ok(outer(name))
    }
}

/// Names that the bodies among `attributes` use and don't define, as they come.
fn free_names(attributes: &[AttributeProto], found: &mut Vec<String>) {
    for graph in attributes.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
        let mut inner = Vec::new();
        for node in &graph.node {
            inner.extend(node.input.iter().cloned());
            free_names(&node.attribute, &mut inner);
        }
        inner.extend(graph.output.iter().map(|output| output.name().to_owned()));
        let local: std::collections::HashSet<&str> = graph
            .node
            .iter()
            .flat_map(|node| node.output.iter().map(String::as_str))
            .chain(graph.input.iter().map(|input| input.name()))
            .chain(graph.initializer.iter().map(|tensor| tensor.name()))
            .collect();
        found.extend(inner.into_iter().filter(|name| !local.contains(name.as_str())));
    }
}

/// Drops the names of symbolic dimensions, which are names like any other.
fn forget_dimension_names(declared: &mut Option<TypeProto>) {
    let Some(type_proto::Value::TensorType(tensor)) =
        declared.as_mut().and_then(|declared| declared.value.as_mut())
    else {
        return;
    };
    for dim in tensor.shape.iter_mut().flat_map(|shape| &mut shape.dim) {
        if matches!(dim.value, Some(tensor_shape_proto::dimension::Value::DimParam(_))) {
            dim.value = None;
        }
    }
}
