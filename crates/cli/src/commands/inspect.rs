//! `tessera inspect`

use crate::arguments::InspectArguments;
use serde::Serialize;
use tessera_core::Result;
use tessera_graph::{CutPoints, ExitSpec, Graph, RowObstacle, cost, prove_rows};
use tessera_report::{Table, format_bytes, format_count, output};
use tessera_repository::ModelFile;

#[derive(Serialize)]
struct InspectReport {
    model: String,
    opsets: std::collections::BTreeMap<String, i64>,
    inputs: Vec<NamedTensorType>,
    outputs: Vec<NamedTensorType>,
    /// Inputs that may be left out.
    optional_inputs: Vec<String>,
    /// Parameters that the file also lists as inputs.
    fixed_inputs: Vec<String>,
    nodes: usize,
    constant_nodes: usize,
    weights: usize,
    parameters: u64,
    weight_bytes: u64,
    flops: u64,
    /// Whether every shape was known, so that the counts are exact.
    exact: bool,
    exits: Vec<ExitSpec>,
    /// Why requests are not put together row by row; none where they can be.
    row_obstacle: Option<RowObstacle>,
    /// Outputs whose maps were taken off, and what the columns of their tensors are.
    map_outputs: Vec<MapColumns>,
    /// Whether dimensions of inputs that have the same name must have the same size.
    relies_on_dim_names: bool,
    cut_points: Vec<CutPoint>,
}

#[derive(Serialize)]
struct NamedTensorType {
    name: String,
    #[serde(rename = "type")]
    tensor_type: String,
}

#[derive(Serialize)]
struct MapColumns {
    output: String,
    classes: Vec<String>,
}

#[derive(Serialize)]
struct CutPoint {
    tensor: String,
    #[serde(rename = "type")]
    tensor_type: String,
    /// Bytes that a hop here carries, side tensors included, where all shapes are known.
    bytes: Option<u64>,
    /// Smaller tensors that are alive too, and ride along.
    sides: Vec<NamedTensorType>,
    /// Nodes before it.
    nodes: usize,
    /// FLOPs before it.
    flops: u64,
    /// Bytes of weights before it.
    weight_bytes: u64,
}

pub(super) fn run_inspect(arguments: &InspectArguments) -> Result<()> {
    let shapes = arguments.arguments.parse_shapes()?;
    let model =
        ModelFile::read_file(&arguments.model, &shapes, &arguments.arguments.parse_exits()?)?;
    let points = model.cut_points()?;
    let report = inspect_model(&model, &points);
    if arguments.json {
        return output::print_json(&report);
    }
    print_inspection(&report)
}

fn inspect_model(model: &ModelFile, points: &CutPoints) -> InspectReport {
    let graph = &model.graph;
    let value = |id| NamedTensorType {
        name: graph.value_name(id).to_owned(),
        tensor_type: model.type_of(id),
    };
    let mut cut_points = Vec::with_capacity(points.cuts.len());
    let (mut flops, mut weight_bytes, mut nodes, mut exact) = (0u64, 0u64, 0, true);
    for (position, &id) in points.order.iter().enumerate() {
        if let Some(cut) = points.cuts.get(cut_points.len())
            && cut.position == position
        {
            cut_points.push(CutPoint {
                tensor: graph.value_name(cut.tensor).to_owned(),
                tensor_type: model.type_of(cut.tensor),
                bytes: cut.hop_bytes(&model.types),
                sides: cut.sides.iter().map(|&id| value(id)).collect(),
                nodes,
                flops,
                weight_bytes,
            });
        }
        let node = cost::node_cost(graph, &model.types, id);
        exact &= node.known;
        flops = flops.saturating_add(node.cost.flops);
        weight_bytes = weight_bytes.saturating_add(node.cost.weight_bytes);
        nodes += 1;
    }
    InspectReport {
        model: model.path.display().to_string(),
        opsets: graph.opsets().clone(),
        inputs: graph.inputs().iter().map(|&id| value(id)).collect(),
        outputs: graph.outputs().iter().map(|&id| value(id)).collect(),
        optional_inputs: graph
            .inputs()
            .iter()
            .filter(|&&id| graph.input_default(id).is_some())
            .map(|&id| graph.value_name(id).to_owned())
            .collect(),
        fixed_inputs: graph
            .fixed_inputs()
            .iter()
            .map(|&id| graph.value_name(id).to_owned())
            .collect(),
        nodes: graph.nodes().len(),
        constant_nodes: graph.node_ids().filter(|&id| graph.is_constant_node(id)).count(),
        weights: graph.weights().count(),
        parameters: count_parameters(graph),
        weight_bytes: graph.weight_bytes() as u64,
        flops,
        exact,
        exits: model.exits.clone(),
        row_obstacle: prove_rows(graph, &model.types).obstacle().cloned(),
        map_outputs: graph
            .map_outputs()
            .iter()
            .map(|map| MapColumns { output: map.output.clone(), classes: map.classes.clone() })
            .collect(),
        relies_on_dim_names: graph.relies_on_dim_names(),
        cut_points,
    }
}

/// Elements of the weights that are numbers a training could have set.
fn count_parameters(graph: &Graph) -> u64 {
    let counted = graph.weights().filter(|(_, weight)| {
        weight.tensor_type().is_some_and(|known| cost::is_parameter(known.dtype))
    });
    counted.map(|(_, weight)| weight.element_count() as u64).sum()
}

fn print_inspection(report: &InspectReport) -> Result<()> {
    let list = |values: &[NamedTensorType]| {
        let shown: Vec<String> =
            values.iter().map(|value| format!("{} {}", value.name, value.tensor_type)).collect();
        shown.join(", ")
    };
    let opsets: Vec<String> = report
        .opsets
        .iter()
        .map(|(domain, version)| match domain.as_str() {
            "" => format!("ai.onnx {version}"),
            _ => format!("{domain} {version}"),
        })
        .collect();
    output::print_line(&format!("model       {}", report.model))?;
    output::print_line(&format!("opsets      {}", opsets.join(", ")))?;
    output::print_line(&format!("inputs      {}", list(&report.inputs)))?;
    output::print_line(&format!("outputs     {}", list(&report.outputs)))?;
    output::print_line(&match &report.row_obstacle {
        None => "rows        independent: requests can be put together".to_owned(),
        Some(obstacle) => format!("rows        {obstacle}: requests are not put together"),
    })?;
    for map in &report.map_outputs {
        output::print_line(&format!(
            "map         {} is the tensor of its scores, a column for each of: {}",
            map.output,
            map.classes.join(", ")
        ))?;
    }
    if report.relies_on_dim_names {
        output::print_line(
            "sizes       must be equal where dimensions of inputs have the same name",
        )?;
    }
    if !report.optional_inputs.is_empty() {
        let names = report.optional_inputs.join(", ");
        output::print_line(&format!(
            "optional    {names}: they have a value where they are left out"
        ))?;
    }
    if !report.fixed_inputs.is_empty() {
        let count = report.fixed_inputs.len();
        output::print_line(&format!("fixed       {count} parameters that are listed as inputs"))?;
    }
    let constant = match report.constant_nodes {
        0 => String::new(),
        count => format!(", {count} of them computed from constants alone"),
    };
    output::print_line(&format!("nodes       {}{constant}", report.nodes))?;
    output::print_line(&format!(
        "weights     {} in {} tensors, {} parameters",
        format_bytes(report.weight_bytes),
        report.weights,
        format_count(report.parameters)
    ))?;
    let exact = if report.exact { "" } else { " (open dimensions counted as 1)" };
    output::print_line(&format!("FLOPs       {}{exact}", format_count(report.flops)))?;
    for exit in &report.exits {
        output::print_line(&format!("exit        {} at {}", exit.output, exit.threshold))?;
    }
    output::print_line(&format!("cut points  {}", report.cut_points.len()))?;
    if report.cut_points.is_empty() {
        return Ok(());
    }
    output::print_line("")?;
    let mut table = Table::new(&[
        "tensor",
        "type",
        ">hop",
        "beside it",
        ">nodes before",
        ">FLOPs before",
        ">weights before",
    ]);
    for cut in &report.cut_points {
        table.add_row([
            cut.tensor.clone(),
            cut.tensor_type.clone(),
            cut.bytes.map_or("?".to_owned(), format_bytes),
            match cut.sides.len() {
                0 => String::new(),
                _ => list(&cut.sides),
            },
            cut.nodes.to_string(),
            format_count(cut.flops),
            format_bytes(cut.weight_bytes),
        ]);
    }
    table.print_table()
}
