//! Inlines the functions that a model defines for itself.
//!
//! Exporters wrap whole layers in functions; left as calls they would hide every cut point inside.
//! ONNX requires that an operator means the same in the function's opsets and in the model's, so
//! the bodies can move into the graph as they are.

use std::collections::{HashMap, HashSet};

use tessera_core::{Error, Result};

use super::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};
use crate::limits::MOST_NODES;
use crate::operators::canonical_domain;

/// Calls nested deeper than this are taken for a recursion.
const MOST_NESTED_CALLS: usize = 64;

type FunctionKey = (String, String, String);

struct FunctionInliner {
    functions: HashMap<FunctionKey, FunctionProto>,
    calls: usize,
    /// Nodes and calls so far; those with many names, or long ones, count for several.
    work: usize,
}

/// Replaces every call of a function of the model by the function's nodes.
pub(crate) fn inline_functions(model: &mut ModelProto) -> Result<()> {
    if model.functions.is_empty() {
        return Ok(());
    }
    let mut functions = HashMap::new();
    for function in std::mem::take(&mut model.functions) {
        for opset in &function.opset_import {
            let known = |o: &super::OperatorSetIdProto| {
                canonical_domain(o.domain()) == canonical_domain(opset.domain())
            };
            if !model.opset_import.iter().any(known) {
                model.opset_import.push(opset.clone());
            }
        }
        let key = function_key(function.domain(), function.name(), function.overload());
        if let Some(twice) = functions.insert(key, function) {
            return Err(Error::invalid(format!(
                "function \"{}.{}\" is defined twice",
                twice.domain(),
                twice.name()
            )));
        }
    }
    let mut inliner = FunctionInliner { functions, calls: 0, work: 0 };
    if let Some(graph) = &mut model.graph {
        inliner.inline_graph(graph, 0)?;
    }
    Ok(())
}

fn function_key(domain: &str, name: &str, overload: &str) -> FunctionKey {
    (canonical_domain(domain).to_owned(), name.to_owned(), overload.to_owned())
}

impl FunctionInliner {
    fn inline_graph(&mut self, graph: &mut GraphProto, depth: usize) -> Result<()> {
        graph.node = self.inline_nodes(std::mem::take(&mut graph.node), depth)?;
        Ok(())
    }

    fn inline_nodes(&mut self, nodes: Vec<NodeProto>, depth: usize) -> Result<Vec<NodeProto>> {
        let mut inlined = Vec::with_capacity(nodes.len());
        for mut node in nodes {
            for attribute in &mut node.attribute {
                for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                    self.inline_graph(graph, depth)?;
                }
            }
            let key = function_key(node.domain(), node.op_type(), node.overload());
            let Some(function) = self.functions.get(&key) else {
                self.work += 1;
                inlined.push(node);
                continue;
            };
            let called = || format!("node \"{}\": function \"{}\"", node.name(), node.op_type());
            if depth >= MOST_NESTED_CALLS {
                return Err(Error::invalid(format!("{} calls itself", called())));
            }
            self.calls += 1;
            self.work += 1;
            let body = FunctionCall::new(function, &node, self.calls)
                .and_then(FunctionCall::inlined_nodes)
                .map_err(|error| error.with_context(called()))?;
            self.work = self.work.saturating_add(body.iter().map(extra_work).sum());
            if self.work.saturating_add(body.len()) > MOST_NODES {
                return Err(Error::invalid(format!(
                    "{}: the model has over {MOST_NODES} nodes once its functions are inlined",
                    called()
                )));
            }
            inlined.extend(self.inline_nodes(body, depth + 1)?);
        }
        Ok(inlined)
    }
}

/// How many nodes more the names of a node count for: they are copied for each call.
fn extra_work(node: &NodeProto) -> usize {
    const NODE_BYTES: usize = 1024;
    let names = node.input.iter().chain(&node.output).chain(&node.name);
    names.map(|name| name.len() + size_of::<String>()).sum::<usize>() / NODE_BYTES
}

/// One call of a function: what its names and attributes stand for.
struct FunctionCall<'a> {
    function: &'a FunctionProto,
    prefix: String,
    names: HashMap<&'a str, String>,
    attributes: HashMap<&'a str, &'a AttributeProto>,
    identities: Vec<(String, String)>,
}

impl<'a> FunctionCall<'a> {
    fn new(function: &'a FunctionProto, node: &'a NodeProto, number: usize) -> Result<Self> {
        for (given, taken, what) in [
            (node.input.len(), function.input.len(), "inputs"),
            (node.output.len(), function.output.len(), "outputs"),
        ] {
            if given > taken {
                return Err(Error::invalid(format!(
                    "called with {given} {what}, expected {taken}"
                )));
            }
        }
        let mut names = HashMap::new();
        for (index, formal) in function.input.iter().enumerate() {
            names.insert(formal.as_str(), node.input.get(index).cloned().unwrap_or_default());
        }
        let mut identities = Vec::new();
        for (formal, actual) in function.output.iter().zip(&node.output) {
            if actual.is_empty() {
                continue;
            }
            match names.get(formal.as_str()) {
                Some(known) => identities.push((known.clone(), actual.clone())),
                None => {
                    names.insert(formal, actual.clone());
                }
            }
        }
        let mut attributes = HashMap::new();
        for attribute in function.attribute_proto.iter().chain(&node.attribute) {
            attributes.insert(attribute.name(), attribute);
        }
        Ok(Self {
            function,
            prefix: format!("{}#{number}.", node.op_type()),
            names,
            attributes,
            identities,
        })
    }

    fn inlined_nodes(self) -> Result<Vec<NodeProto>> {
        let mut nodes = Vec::with_capacity(self.function.node.len() + self.identities.len());
        for node in &self.function.node {
            let mut node = node.clone();
            node.name = Some(format!("{}{}", self.prefix, node.name()));
            self.rewrite_node(&mut node, &HashSet::new());
            nodes.push(node);
        }
        for (from, to) in self.identities {
            nodes.push(NodeProto {
                name: Some(format!("{}Identity", self.prefix)),
                op_type: Some("Identity".to_owned()),
                input: vec![from],
                output: vec![to],
                ..Default::default()
            });
        }
        Ok(nodes)
    }

    fn rewrite_node(&self, node: &mut NodeProto, local: &HashSet<String>) {
        for name in node.input.iter_mut().chain(&mut node.output) {
            self.rename_value(name, local);
        }
        let attributes = std::mem::take(&mut node.attribute);
        for mut attribute in attributes {
            // A body that the caller passes speaks of the caller's values: it stays as it is.
            if !attribute.ref_attr_name().is_empty() {
                let Some(given) = self.attributes.get(attribute.ref_attr_name()) else {
                    continue;
                };
                let name = attribute.name.take();
                attribute = (*given).clone();
                attribute.name = name;
                node.attribute.push(attribute);
                continue;
            }
            for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                self.rewrite_body(graph, local);
            }
            node.attribute.push(attribute);
        }
    }

    fn rewrite_body(&self, graph: &mut GraphProto, outer: &HashSet<String>) {
        let mut local = outer.clone();
        local.extend(graph.input.iter().map(|input| input.name().to_owned()));
        local.extend(graph.initializer.iter().map(|tensor| tensor.name().to_owned()));
        local.extend(graph.node.iter().flat_map(|node| node.output.iter().cloned()));
        for node in &mut graph.node {
            self.rewrite_node(node, &local);
        }
        for info in graph.input.iter_mut().chain(&mut graph.output) {
            info.name = info.name.take().map(|name| self.graph_name(name, &local));
        }
        for tensor in &mut graph.initializer {
            tensor.name = tensor.name.take().map(|name| self.graph_name(name, &local));
        }
    }

    fn rename_value(&self, name: &mut String, local: &HashSet<String>) {
        *name = self.graph_name(std::mem::take(name), local);
    }

    /// What a name of the function is called in the graph: a formal one is the caller's, any other
    /// is ours alone, and so is one that a body defines for itself.
    fn graph_name(&self, name: String, local: &HashSet<String>) -> String {
        if name.is_empty() {
            return name;
        }
        match self.names.get(name.as_str()) {
            Some(actual) if !local.contains(&name) => actual.clone(),
            _ => format!("{}{name}", self.prefix),
        }
    }
}
