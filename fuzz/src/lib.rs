//! What anybody can send, given to whoever reads it: nothing may panic, hang or fill the memory.
//!
//! Each target is a program of its own in `src/bin`, which libFuzzer runs. See `scripts/fuzz`.

use std::collections::BTreeMap;
use std::hint::black_box;

use bytes::Bytes;
use tessera_deploy::{HopTiming, SourceRoute};
use tessera_graph::infer::infer_types;
use tessera_graph::{
    Block, NoExternalData, RunForecast, Split, check_constants, cut_points, fold_shapes,
    read_model, split_into_chain,
};
use tessera_tensormq::layout::HeaderView;

mod front_ends;

pub use front_ends::{send_grpc_message, send_http_body};

/// Reads a model, and cuts it.
pub fn cut_model(file: &[u8]) {
    let file = Bytes::copy_from_slice(file);
    if let Ok(block) = Block::parse_program(file.clone()) {
        let shapes = vec![vec![1, 3, 8, 8]; block.inputs().len()];
        black_box(RunForecast::of_block(&block, &shapes).ok());
    }
    let Ok(graph) = read_model(file, &mut NoExternalData) else { return };
    let Ok(types) = infer_types(&graph, &BTreeMap::new()) else { return };
    let Ok(graph) = fold_shapes(graph, &types) else { return };
    let Ok(types) = infer_types(&graph, &BTreeMap::new()) else { return };
    black_box(check_constants(&graph, &types).ok());
    black_box(cut_points(&graph, &types, &[]).ok());
    for how in [Split::Every, Split::Blocks(3)] {
        if let Ok(made) = split_into_chain(&graph, &types, &how, &[]) {
            assert!(made.graph.is_sound(), "{how:?} made an unsound graph");
        }
    }
}

/// Reads a source route, and follows it to its end.
pub fn follow_route(bytes: &[u8]) {
    let Ok(mut route) = SourceRoute::read(bytes) else { return };
    black_box((route.reply_inbox().len(), route.part(), route.previous_batch_rows()));
    while let Some(hop) = route.current_hop() {
        black_box((hop.instance().len(), hop.inputs().count(), hop.keep().count(), hop.exit()));
        let next = route.next_hop().map(|next| next.instance().to_owned());
        route.complete_hop(&HopTiming::default());
        assert_eq!(route.current_hop().map(|hop| hop.instance().to_owned()), next);
    }
    black_box((route.hop_timings(), route.outcome()));
    SourceRoute::read(route.as_bytes()).expect("a route that was followed is one still");
}

/// Reads the header of a TensorMQ message.
pub fn parse_header(bytes: &[u8]) {
    let Ok(header) = HeaderView::parse(bytes) else { return };
    assert!(header.task().len() + header.route().len() <= bytes.len());
    black_box((header.request(), header.accepted(), header.made(), header.deadline()));
    black_box((header.trace(), header.sequence()));
    for tensor in header.tensors() {
        black_box(tensor.is_contiguous());
    }
}
