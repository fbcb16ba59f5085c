//! Joins the block graphs of several steps into one path.
//!
//! Steps come from different models, so that equal names of symbols mean nothing across them: every
//! step has symbols of its own, and those that meet where one step takes what another gives become
//! the same size (see [`SymbolTable`]).

use std::collections::{BTreeMap, HashSet};

use tessera_core::{ContentHash, Error, Result};
use tessera_graph::{BlockGraph, BlockNode, Exit, InputDefault, TensorPort, TensorSource};

use crate::symbol_table::{SymbolTable, SymbolicType, unique_name};

/// One step of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathPart {
    /// Its name, for messages.
    pub name: String,
    /// Its blocks.
    pub graph: BlockGraph,
    /// Where its inputs come from, in its order; `None` for the outputs of the step before it, and
    /// for the inputs of the task where it is the first.
    pub inputs: Option<Vec<PathPartInput>>,
}

/// Where an input of a step comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathPartInput {
    /// An input of the task, by number.
    Task(usize),
    /// An output of an earlier step.
    Part {
        /// Number of the step, from 0.
        part: usize,
        /// Number of its output.
        output: usize,
    },
}

/// Joins `parts` into one path.
///
/// It gives what the last step gives, and what those steps give of which nobody uses anything.
/// Types are unified: a size that is fixed in one step is fixed in every step that it meets.
pub fn compose_path(parts: &[PathPart]) -> Result<BlockGraph> {
    if parts.is_empty() {
        return Err(Error::usage("the path has no steps"));
    }
    let mut composer = PathComposer {
        parts,
        symbols: SymbolTable::default(),
        inputs: BTreeMap::new(),
        blocks: Vec::new(),
        gives: Vec::new(),
        is_used: Vec::new(),
        exits: Vec::new(),
    };
    for number in 0..parts.len() {
        composer.add_part(number)?;
    }
    composer.into_block_graph()
}

/// How messages name a step.
fn part_label(parts: &[PathPart], number: usize) -> String {
    let name = parts.get(number).map_or("", |part| part.name.as_str());
    format!("step {} (\"{name}\")", number + 1)
}

/// The inputs that a step takes, one for each that it has.
fn wanted_inputs(parts: &[PathPart], number: usize) -> Result<Vec<PathPartInput>> {
    let part = &parts[number];
    let expected = part.graph.inputs.len();
    let (wanted, giver): (Vec<PathPartInput>, _) = match (&part.inputs, number.checked_sub(1)) {
        (Some(inputs), _) => (inputs.clone(), None),
        (None, None) => ((0..expected).map(PathPartInput::Task).collect(), None),
        (None, Some(before)) => {
            let outputs = 0..parts[before].graph.outputs.len();
            let take = |output| PathPartInput::Part { part: before, output };
            (outputs.map(take).collect(), Some(before))
        }
    };
    if wanted.len() == expected {
        return Ok(wanted);
    }
    // What may be left out is, and can be given to the task.
    let needed = part.graph.inputs.iter().filter(|port| port.default.is_none()).count();
    if wanted.len() == needed {
        let mut wanted = wanted.into_iter();
        let mut left_out = left_out_input(parts, number)..;
        let take = |port: &TensorPort| match port.default {
            Some(_) => left_out.next().map(PathPartInput::Task),
            None => wanted.next(),
        };
        return Ok(part.graph.inputs.iter().filter_map(take).collect());
    }
    let listed = |names: &[&str]| match names {
        [] => "0".to_owned(),
        names => format!("{} (\"{}\")", names.len(), names.join("\", \"")),
    };
    let inputs: Vec<&str> = part.graph.inputs.iter().map(|port| port.name.as_str()).collect();
    let given = match giver {
        Some(giver) => {
            let outputs = parts[giver].graph.outputs.iter();
            let outputs: Vec<&str> = outputs.map(|(port, _)| port.name.as_str()).collect();
            format!("{} gives {}", part_label(parts, giver), listed(&outputs))
        }
        None => format!("its path names {}", wanted.len()),
    };
    Err(Error::usage(format!(
        "{} has inputs: {}, and {given}",
        part_label(parts, number),
        listed(&inputs)
    )))
}

/// How many inputs a step takes by its path.
fn named_input_count(parts: &[PathPart], number: usize) -> usize {
    match (&parts[number].inputs, number.checked_sub(1)) {
        (Some(inputs), _) => inputs.len(),
        (None, None) => parts[number].graph.inputs.len(),
        (None, Some(before)) => parts[before].graph.outputs.len(),
    }
}

/// The number of the first input of the task that stands for what the path of a step leaves out:
/// behind those that steps name, and behind those of earlier steps.
fn left_out_input(parts: &[PathPart], number: usize) -> usize {
    let named = parts.iter().enumerate().map(|(at, part)| match (&part.inputs, at) {
        (Some(inputs), _) => {
            let task_input = |input: &PathPartInput| match input {
                PathPartInput::Task(index) => index + 1,
                PathPartInput::Part { .. } => 0,
            };
            inputs.iter().map(task_input).max().unwrap_or(0)
        }
        (None, 0) => part.graph.inputs.len(),
        (None, _) => 0,
    });
    let left_out =
        |at: usize| parts[at].graph.inputs.len().saturating_sub(named_input_count(parts, at));
    named.max().unwrap_or(0) + (0..number).map(left_out).sum::<usize>()
}

/// A tensor of the path.
struct PathTensor {
    name: String,
    known: SymbolicType,
    is_row_wise: bool,
    default: Option<InputDefault>,
}

impl PathTensor {
    fn of_port(symbols: &mut SymbolTable, part: usize, port: &TensorPort) -> Self {
        let known = symbols.symbolic_type(part, &port.tensor_type);
        let TensorPort { name, is_row_wise, default, .. } = port.clone();
        Self { name, known, is_row_wise, default }
    }

    /// The same in a step: it is row-wise where all that the step takes is.
    fn within_step(mut self, takes_rows: bool) -> Self {
        self.is_row_wise &= takes_rows;
        self
    }
}

/// An input of the task, and the step that took it first.
struct PathTaskInput {
    first: usize,
    value: PathTensor,
}

/// A block of the path.
struct PathBlock {
    block: ContentHash,
    inputs: Vec<TensorSource>,
    outputs: Vec<PathTensor>,
}

/// The path as far as it is joined.
struct PathComposer<'a> {
    parts: &'a [PathPart],
    symbols: SymbolTable,
    inputs: BTreeMap<usize, PathTaskInput>,
    blocks: Vec<PathBlock>,
    /// Per step, its outputs.
    gives: Vec<Vec<(PathTensor, TensorSource)>>,
    /// Per step, whether another one takes any of its outputs.
    is_used: Vec<bool>,
    /// The exits, each with its step.
    exits: Vec<(usize, Exit)>,
}

impl PathComposer<'_> {
    fn add_part(&mut self, number: usize) -> Result<()> {
        let parts = self.parts;
        let part = &parts[number];
        if !part.graph.is_sound() {
            let here = part_label(parts, number);
            return Err(Error::invalid(format!("{here} uses what no block of it computes")));
        }
        let mut sources = Vec::with_capacity(part.graph.inputs.len());
        for (port, input) in part.graph.inputs.iter().zip(wanted_inputs(parts, number)?) {
            sources.push(match input {
                PathPartInput::Task(index) => self.take_input(number, port, index)?,
                PathPartInput::Part { part, output } => {
                    self.take_output(number, port, part, output)?
                }
            });
        }
        let takes_rows = part.graph.inputs.iter().all(|port| port.is_row_wise)
            && sources.iter().all(|source| self.is_row_wise(source));
        let start = self.blocks.len();
        let place = |source: &TensorSource| match *source {
            TensorSource::Input(index) => sources[index],
            TensorSource::Block { block, output } => {
                TensorSource::Block { block: block + start, output }
            }
        };
        for node in &part.graph.blocks {
            let outputs = node
                .outputs
                .iter()
                .map(|port| PathTensor::of_port(&mut self.symbols, number, port));
            let outputs = outputs.map(|output| output.within_step(takes_rows)).collect();
            let inputs = node.inputs.iter().map(place).collect();
            self.blocks.push(PathBlock { block: node.block, inputs, outputs });
        }
        let mut gives = Vec::with_capacity(part.graph.outputs.len());
        for (port, source) in &part.graph.outputs {
            let given = PathTensor::of_port(&mut self.symbols, number, port);
            gives.push((given.within_step(takes_rows), place(source)));
        }
        self.gives.push(gives);
        self.is_used.push(false);
        part.graph.exits.iter().try_for_each(|exit| self.add_exit(number, exit, start))
    }

    /// Whether what comes from there is row-wise.
    fn is_row_wise(&self, source: &TensorSource) -> bool {
        match *source {
            TensorSource::Input(index) => {
                self.inputs.get(&index).is_some_and(|input| input.value.is_row_wise)
            }
            TensorSource::Block { block, output } => {
                let made = self.blocks.get(block).and_then(|block| block.outputs.get(output));
                made.is_some_and(|made| made.is_row_wise)
            }
        }
    }

    fn take_input(
        &mut self,
        number: usize,
        port: &TensorPort,
        index: usize,
    ) -> Result<TensorSource> {
        let value = PathTensor::of_port(&mut self.symbols, number, port);
        let Some(input) = self.inputs.get_mut(&index) else {
            self.inputs.insert(index, PathTaskInput { first: number, value });
            return Ok(TensorSource::Input(index));
        };
        let expected = self.symbols.type_in_part(&value.known);
        let given = self.symbols.type_in_part(&input.value.known);
        if self.symbols.unify_types(&mut input.value.known, &value.known) {
            // Left out, it would have to be two things.
            input.value.default =
                input.value.default.take().filter(|known| value.default.as_ref() == Some(known));
            return Ok(TensorSource::Input(index));
        }
        Err(Error::usage(format!(
            "{} input \"{}\" expects {expected}, and {} expects input {index} of the task to be \
             {given}",
            part_label(self.parts, number),
            port.name,
            part_label(self.parts, input.first)
        )))
    }

    fn take_output(
        &mut self,
        number: usize,
        port: &TensorPort,
        from: usize,
        output: usize,
    ) -> Result<TensorSource> {
        let here = part_label(self.parts, number);
        if from >= self.parts.len() {
            return Err(Error::usage(format!(
                "{here} input \"{}\" takes from a step number {from}, and there are {} steps, from 0",
                port.name,
                self.parts.len()
            )));
        }
        let giver = part_label(self.parts, from);
        if from == number {
            return Err(Error::usage(format!(
                "the path has a cycle: {here} takes an output of its own"
            )));
        }
        if from > number {
            return Err(Error::usage(format!(
                "the path has a cycle: {here} takes an output of {giver}, which comes after it"
            )));
        }
        let Some((given, source)) = self.gives[from].get(output) else {
            return Err(Error::usage(format!(
                "{here} input \"{}\" takes output {output} of {giver}, which has {}, from 0",
                port.name,
                self.gives[from].len()
            )));
        };
        self.is_used[from] = true;
        let wanted = PathTensor::of_port(&mut self.symbols, number, port);
        let (expected, gives) =
            (self.symbols.type_in_part(&wanted.known), self.symbols.type_in_part(&given.known));
        if self.symbols.unify_types(&mut given.known.clone(), &wanted.known) {
            return Ok(*source);
        }
        Err(Error::usage(format!(
            "{here} input \"{}\" expects {expected}, and {giver} gives \"{}\": {gives}",
            port.name, given.name
        )))
    }

    fn add_exit(&mut self, number: usize, exit: &Exit, start: usize) -> Result<()> {
        if let Some((other, _)) = self.exits.iter().find(|(_, known)| known.output == exit.output) {
            return Err(Error::usage(format!(
                "{} and {} both have an exit \"{}\", expected exits of different names",
                part_label(self.parts, *other),
                part_label(self.parts, number),
                exit.output
            )));
        }
        let head = exit.head + start;
        let after = match exit.after {
            Some(after) => Some(after + start),
            // It hangs off an input of its step, which a block of an earlier step may give.
            None => {
                let given = self.blocks[head].inputs.iter().filter_map(|source| match *source {
                    TensorSource::Block { block, .. } => Some(block),
                    TensorSource::Input(_) => None,
                });
                given.max()
            }
        };
        self.exits.push((number, Exit { head, after, ..exit.clone() }));
        Ok(())
    }

    fn into_block_graph(self) -> Result<BlockGraph> {
        let Self { parts, mut symbols, inputs, blocks, gives, is_used, exits } = self;
        if let Some(missing) = (0..inputs.len()).find(|number| !inputs.contains_key(number)) {
            return Err(Error::usage(format!(
                "no step takes input {missing} of the task, and one takes an input with a higher \
                 number"
            )));
        }
        let mut taken = HashSet::new();
        let mut ports = Vec::with_capacity(inputs.len());
        for input in inputs.values() {
            let name = unique_name(&input.value.name, &mut taken);
            let PathTensor { known, is_row_wise, default, .. } = &input.value;
            let (is_row_wise, default) = (*is_row_wise, default.clone());
            let tensor_type = symbols.type_in_path(known);
            ports.push(TensorPort { name, tensor_type, is_row_wise, default });
        }
        let mut nodes = Vec::with_capacity(blocks.len());
        for placed in blocks {
            let outputs = placed.outputs.into_iter().map(|value| TensorPort {
                tensor_type: symbols.type_in_path(&value.known),
                name: value.name,
                is_row_wise: value.is_row_wise,
                default: None,
            });
            let outputs = outputs.collect();
            nodes.push(BlockNode { block: placed.block, inputs: placed.inputs, outputs });
        }
        let mut taken = HashSet::new();
        let mut outputs = Vec::new();
        // Nobody can use the last step, so that it is among these.
        for (given, _) in gives.iter().zip(is_used).filter(|(_, is_used)| !is_used) {
            for (value, source) in given {
                let name = unique_name(&value.name, &mut taken);
                let tensor_type = symbols.type_in_path(&value.known);
                let is_row_wise = value.is_row_wise;
                let port = TensorPort { name, tensor_type, is_row_wise, default: None };
                outputs.push((port, *source));
            }
        }
        let exits = exits.into_iter().map(|(_, exit)| exit).collect();
        let row_obstacle = parts.iter().find_map(|part| part.graph.row_obstacle.clone());
        let relies_on_dim_names = parts.iter().any(|part| part.graph.relies_on_dim_names);
        Ok(BlockGraph {
            inputs: ports,
            blocks: nodes,
            outputs,
            exits,
            row_obstacle,
            relies_on_dim_names,
        })
    }
}

#[cfg(test)]
mod tests {
    use tessera_core::{DType, Dim, TensorType};
    use tessera_graph::ScoreKind;

    use super::*;

    fn dims(text: &str) -> TensorType {
        let dim = |text: &str| match (text, text.parse()) {
            ("?", _) => Dim::Unknown,
            (_, Ok(size)) => Dim::Fixed(size),
            _ => Dim::Symbol(text.to_owned()),
        };
        match text {
            "" => TensorType::of_any_shape(DType::F32),
            text => TensorType::new(DType::F32, text.split(',').map(dim).collect()),
        }
    }

    fn port(name: &str, shape: &str) -> TensorPort {
        let (name, tensor_type) = (name.to_owned(), dims(shape));
        TensorPort { name, tensor_type, is_row_wise: true, default: None }
    }

    /// A step of one block, with inputs x, x1, … and outputs y, y1, …
    fn part(
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        from: Option<&[PathPartInput]>,
    ) -> PathPart {
        let ports = |letter: &str, shapes: &[&str]| -> Vec<TensorPort> {
            let name = |number: usize| match number {
                0 => letter.to_owned(),
                number => format!("{letter}{number}"),
            };
            shapes.iter().enumerate().map(|(number, shape)| port(&name(number), shape)).collect()
        };
        let outputs = ports("y", outputs);
        let given = outputs.iter().cloned().enumerate();
        let given = given.map(|(output, port)| (port, TensorSource::Block { block: 0, output }));
        let graph = BlockGraph {
            inputs: ports("x", inputs),
            outputs: given.collect(),
            blocks: vec![BlockNode {
                block: ContentHash::of_content(name.as_bytes()),
                inputs: (0..inputs.len()).map(TensorSource::Input).collect(),
                outputs,
            }],
            exits: Vec::new(),
            row_obstacle: None,
            relies_on_dim_names: false,
        };
        PathPart { name: name.to_owned(), graph, inputs: from.map(<[PathPartInput]>::to_vec) }
    }

    fn of(part: usize, output: usize) -> PathPartInput {
        PathPartInput::Part { part, output }
    }

    fn shapes<'a>(ports: impl IntoIterator<Item = &'a TensorPort>) -> Vec<String> {
        let shown = |port: &TensorPort| format!("{}: {}", port.name, port.tensor_type);
        ports.into_iter().map(shown).collect()
    }

    fn outputs(graph: &BlockGraph) -> Vec<String> {
        shapes(graph.outputs.iter().map(|(port, _)| port))
    }

    fn refused(parts: &[PathPart]) -> String {
        compose_path(parts).unwrap_err().to_string()
    }

    #[test]
    fn one_step_is_what_it_was() {
        let one = part("a", &["N,3"], &["N,4"], None);
        assert_eq!(compose_path(std::slice::from_ref(&one)).unwrap(), one.graph);
    }

    #[test]
    fn a_chain_runs_one_step_after_the_other() {
        let whole = compose_path(&[
            part("a", &["N,3"], &["N,4"], None),
            part("b", &["M,4"], &["M,5"], None),
            part("c", &["N,5"], &["N,6"], None),
        ])
        .unwrap();
        assert!(whole.is_sound());
        assert_eq!(whole.blocks.len(), 3);
        assert_eq!(whole.blocks[2].inputs, [TensorSource::Block { block: 1, output: 0 }]);
        assert_eq!(shapes(&whole.inputs), ["x: f32[N,3]"]);
        assert_eq!(outputs(&whole), ["y: f32[N,6]"]);
    }

    #[test]
    fn equal_names_of_symbols_in_different_steps_are_different_symbols() {
        let whole = compose_path(&[
            part("a", &["N,3"], &["N,K"], None),
            part("b", &["N,4"], &["N,K"], Some(&[of(0, 0)])),
            part("c", &["K,4"], &["K,N"], Some(&[of(0, 0)])),
        ])
        .unwrap();
        assert_eq!(shapes(&whole.blocks[0].outputs), ["y: f32[N,4]"]);
        assert_eq!(outputs(&whole), ["y: f32[N,K]", "y_2: f32[N,N_2]"]);
    }

    #[test]
    fn a_fixed_size_is_fixed_wherever_it_is_met() {
        let before = part("a", &["N,3"], &["N,4"], None);
        let after = part("b", &["1,K"], &["1,K"], None);
        let whole = compose_path(&[before, after]).unwrap();
        assert_eq!(shapes(&whole.inputs), ["x: f32[1,3]"]);
        assert_eq!(outputs(&whole), ["y: f32[1,4]"]);
    }

    #[test]
    fn what_is_unknown_accepts_everything() {
        for (given, expected) in [("N,3", "?,?"), ("?,3", "N,3"), ("", "N,3"), ("N,3", "")] {
            let first = part("a", &["N,3"], &[given], None);
            let whole = compose_path(&[first, part("b", &[expected], &["8"], None)]).unwrap();
            assert_eq!(outputs(&whole), ["y: f32[8]"], "{given} {expected}");
        }
    }

    #[test]
    fn an_input_that_two_steps_take_has_the_type_that_fits_both() {
        let task = [PathPartInput::Task(0)];
        let whole = compose_path(&[
            part("a", &["?,3,K"], &["4"], Some(&task)),
            part("b", &["N,M,7"], &["M"], Some(&task)),
        ])
        .unwrap();
        assert_eq!(shapes(&whole.inputs), ["x: f32[N,3,7]"]);
        assert_eq!(outputs(&whole), ["y: f32[4]", "y_2: f32[3]"]);
    }

    #[test]
    fn types_that_do_not_fit_name_both_steps() {
        let first = part("block1", &["N,3,224,224"], &["N,256,56,56"], None);
        let second = part("block3", &["N,512,28,28"], &["N,10"], None);
        assert_eq!(
            refused(&[first, second]),
            "step 2 (\"block3\") input \"x\" expects f32[N,512,28,28], and step 1 (\"block1\") gives \
             \"y\": f32[N,256,56,56]"
        );
        let first = part("a", &["N"], &["2,N", "3,N"], None);
        let second = part("b", &["K,M", "K,M"], &["M"], None);
        assert_eq!(
            refused(&[first, second]),
            "step 2 (\"b\") input \"x1\" expects f32[2,M], and step 1 (\"a\") gives \"y1\": f32[3,N]"
        );
    }

    #[test]
    fn a_path_branches_and_joins() {
        let whole = compose_path(&[
            part("stem", &["N,3"], &["N,4", "N,9"], Some(&[PathPartInput::Task(0)])),
            part("left", &["N,4"], &["N,5"], Some(&[of(0, 0)])),
            part("right", &["N,4", "N,2"], &["N,6"], Some(&[of(0, 0), PathPartInput::Task(1)])),
            part("join", &["N,6", "N,5"], &["N,7"], Some(&[of(2, 0), of(1, 0)])),
        ])
        .unwrap();
        assert!(whole.is_sound());
        assert_eq!(shapes(&whole.inputs), ["x: f32[N,3]", "x1: f32[N,2]"]);
        assert_eq!(whole.blocks[2].inputs[1], TensorSource::Input(1));
        let joined: Vec<TensorSource> =
            [2, 1].map(|block| TensorSource::Block { block, output: 0 }).into_iter().collect();
        assert_eq!(whole.blocks[3].inputs, joined);
        assert_eq!(outputs(&whole), ["y: f32[N,7]"]);
    }

    #[test]
    fn inputs_of_equal_names_are_told_apart() {
        let take = |number| vec![PathPartInput::Task(number)];
        let whole = compose_path(&[
            part("a", &["3"], &["4"], Some(&take(1))),
            part("b", &["5"], &["6"], Some(&take(0))),
        ])
        .unwrap();
        assert_eq!(shapes(&whole.inputs), ["x: f32[5]", "x_2: f32[3]"]);
        assert_eq!(whole.blocks[0].inputs, [TensorSource::Input(1)]);
        assert!(refused(&[part("a", &["3"], &["4"], Some(&take(1)))]).contains("input 0"));
    }

    #[test]
    fn a_cycle_names_its_steps() {
        let own = part("a", &["3"], &["3"], Some(&[of(0, 0)]));
        assert_eq!(
            refused(&[own]),
            "the path has a cycle: step 1 (\"a\") takes an output of its own"
        );
        let first = part("a", &["3"], &["3"], Some(&[of(1, 0)]));
        let message = refused(&[first, part("b", &["3"], &["3"], None)]);
        assert!(message.contains("cycle"), "{message}");
        assert!(message.contains("step 1 (\"a\")"), "{message}");
        assert!(message.contains("step 2 (\"b\")"), "{message}");
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let first = || part("a", &["3"], &["3"], None);
        assert!(refused(&[]).contains("no steps"));
        let message = refused(&[first(), part("b", &["3"], &["3"], Some(&[of(0, 1)]))]);
        assert!(message.contains("takes output 1 of step 1"), "{message}");
        let message = refused(&[first(), part("b", &["3"], &["3"], Some(&[of(7, 0)]))]);
        assert!(message.contains("there are 2 steps"), "{message}");
        assert_eq!(
            refused(&[first(), part("b", &["3", "4"], &["3"], None)]),
            "step 2 (\"b\") has inputs: 2 (\"x\", \"x1\"), and step 1 (\"a\") gives 1 (\"y\")"
        );
    }

    #[test]
    fn exits_come_along() {
        let with_exit = |name: &str, exit: &str| {
            let mut part = part(name, &["N,3"], &["N,3"], None);
            part.graph.blocks.push(BlockNode {
                block: ContentHash::of_content(exit.as_bytes()),
                inputs: vec![TensorSource::Input(0)],
                outputs: vec![port(exit, "N,10")],
            });
            part.graph.exits.push(Exit {
                output: exit.to_owned(),
                threshold: 0.5,
                scores: ScoreKind::Logits,
                head: 1,
                after: None,
            });
            part
        };
        let whole = compose_path(&[with_exit("a", "early"), with_exit("b", "late")]).unwrap();
        assert!(whole.is_sound());
        let exits: Vec<_> =
            whole.exits.iter().map(|exit| (exit.output.as_str(), exit.head, exit.after)).collect();
        assert_eq!(exits, [("early", 1, None), ("late", 3, Some(0))]);
        let message = refused(&[with_exit("a", "early"), with_exit("b", "early")]);
        assert!(message.contains("both have an exit \"early\""), "{message}");
    }
}
