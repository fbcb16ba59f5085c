//! The shapes that the caller gives for inputs, and the symbols that they fix.

use std::collections::{BTreeMap, HashMap};

use tessera_core::{Dim, Error, Result, TensorType};

use crate::model::{Graph, ValueId};

/// What the given shapes fix.
#[derive(Debug, Default)]
pub(crate) struct GivenShapes {
    inputs: HashMap<ValueId, Vec<usize>>,
    symbols: HashMap<String, usize>,
}

impl GivenShapes {
    /// Checks the given shapes against the inputs; tells all that is wrong with them.
    pub(crate) fn new(graph: &Graph, shapes: &BTreeMap<String, Vec<usize>>) -> Result<Self> {
        let mut given = Self::default();
        let mut fixed_by: HashMap<&str, &str> = HashMap::new();
        let mut problems = Vec::new();
        let inputs: HashMap<&str, ValueId> = match shapes.is_empty() {
            true => HashMap::new(),
            false => graph.inputs().iter().map(|&id| (graph.value_name(id), id)).collect(),
        };
        for (name, shape) in shapes {
            let Some(&id) = inputs.get(name.as_str()) else {
                problems.push(format!("no input \"{name}\", the model has {}", list_inputs(graph)));
                continue;
            };
            given.inputs.insert(id, shape.clone());
            let Some(declared) = graph.declared_type(id) else {
                continue;
            };
            let Some(dims) = &declared.dims else { continue };
            let mut wrong = |what: String| {
                problems.push(format!(
                    "input \"{name}\": shape {} {what}, the model expects {declared}",
                    join_sizes(shape)
                ));
            };
            if dims.len() != shape.len() {
                wrong(format!("has {} dimensions", shape.len()));
                continue;
            }
            for (axis, (dim, &size)) in dims.iter().zip(shape).enumerate() {
                match dim {
                    Dim::Fixed(fixed) if *fixed != size => {
                        wrong(format!("has size {size} in dimension {axis}"));
                    }
                    Dim::Symbol(symbol) => {
                        let first = *given.symbols.entry(symbol.clone()).or_insert(size);
                        let by = *fixed_by.entry(symbol).or_insert(name);
                        if first != size {
                            wrong(format!(
                                "makes \"{symbol}\" {size}, but input \"{by}\" makes it {first}"
                            ));
                        }
                    }
                    _ => {}
                }
            }
        }
        if problems.is_empty() { Ok(given) } else { Err(Error::usage(problems.join("; "))) }
    }

    /// The type of an input: as given, or as declared with the fixed symbols in place.
    pub(crate) fn input_type(&self, id: ValueId, declared: &TensorType) -> TensorType {
        match self.inputs.get(&id) {
            Some(shape) => {
                let dims = shape.iter().copied().map(Dim::Fixed).collect();
                TensorType::new(declared.dtype, dims)
            }
            None => self.substitute_symbols(declared),
        }
    }

    /// A declared type with the fixed symbols in place.
    pub(crate) fn substitute_symbols(&self, declared: &TensorType) -> TensorType {
        let mut replaced = declared.clone();
        for dim in replaced.dims.iter_mut().flatten() {
            let size = match &*dim {
                Dim::Symbol(name) => self.symbols.get(name).copied(),
                _ => None,
            };
            if let Some(size) = size {
                *dim = Dim::Fixed(size);
            }
        }
        replaced
    }
}

fn list_inputs(graph: &Graph) -> String {
    let inputs = graph.inputs().iter().map(|&id| {
        let declared = graph.declared_type(id).map_or(String::new(), ToString::to_string);
        format!("\"{}\" {declared}", graph.value_name(id))
    });
    let inputs: Vec<String> = inputs.collect();
    if inputs.is_empty() { "none".to_owned() } else { inputs.join(", ") }
}

fn join_sizes(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::infer_types;
    use super::super::testing::{graph_of, shown, symbol};
    use super::*;
    use crate::builder::GraphBuilder;

    fn two_inputs() -> Graph {
        let mut builder = GraphBuilder::new("two");
        let dims = [symbol("batch"), Dim::Fixed(3), Dim::Fixed(224), Dim::Fixed(224)];
        let x = builder.add_input("x", DType::F32, dims);
        let y = builder.add_input("y", DType::F32, [symbol("batch"), symbol("length")]);
        let size = builder.add_node("Size", &[&x], []);
        builder.add_output(&size);
        let relu = builder.add_node("Relu", &[&y], []);
        builder.add_output(&relu);
        graph_of(builder)
    }

    fn given(shapes: &[(&str, &[usize])]) -> BTreeMap<String, Vec<usize>> {
        shapes.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
    }

    fn message(shapes: &[(&str, &[usize])]) -> String {
        infer_types(&two_inputs(), &given(shapes)).unwrap_err().to_string()
    }

    #[test]
    fn a_symbol_that_one_input_fixes_is_fixed_in_the_others() {
        let graph = two_inputs();
        let types = infer_types(&graph, &given(&[("x", &[2, 3, 224, 224])])).unwrap();
        assert_eq!(shown(&graph, &types, "x"), "f32[2,3,224,224]");
        assert_eq!(shown(&graph, &types, "y"), "f32[2,length]");
    }

    #[test]
    fn a_shape_that_its_input_cannot_have_is_refused() {
        assert_eq!(
            message(&[("x", &[1, 3])]),
            "input \"x\": shape 1,3 has 2 dimensions, the model expects f32[batch,3,224,224]"
        );
        assert_eq!(
            message(&[("x", &[1, 4, 224, 224])]),
            "input \"x\": shape 1,4,224,224 has size 4 in dimension 1, \
             the model expects f32[batch,3,224,224]"
        );
        assert_eq!(
            message(&[("x", &[1, 3, 224, 224]), ("y", &[2, 7])]),
            "input \"y\": shape 2,7 makes \"batch\" 2, but input \"x\" makes it 1, \
             the model expects f32[batch,length]"
        );
    }

    #[test]
    fn a_name_that_is_no_input_is_refused_with_those_that_are() {
        let message = message(&[("x", &[1]), ("z", &[1])]);
        assert!(message.contains("input \"x\": shape 1 has 1 dimensions"), "{message}");
        assert!(
            message.contains("no input \"z\", the model has \"x\" f32[batch,3,224,224], \"y\"")
        );
    }
}
