//! How uncertain scores are, found on a GPU and on the host: the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use tessera_core::Tensor;
use tessera_engine::{entropy_on_device, to_gpu};
use tessera_graph::{ScoreKind, normalised_entropy};

const KINDS: [ScoreKind; 2] = [ScoreKind::Logits, ScoreKind::Probabilities];

fn has_gpu() -> bool {
    let found = tessera_cuda::list_gpus();
    found.inspect_err(|error| eprintln!("SKIPPED on the GPU: {error}")).is_ok()
}

fn on_gpu(scores: &Tensor, kind: ScoreKind) -> Option<Vec<f64>> {
    let there = to_gpu(0, scores).unwrap();
    let found = entropy_on_device(&there, kind == ScoreKind::Probabilities).unwrap()?;
    Some(found.wait_fence_on_host().unwrap().to_f64().unwrap())
}

/// Numbers that look random, from 0 to 1.
fn number(index: usize) -> f32 {
    (index.wrapping_mul(2_654_435_761) >> 7) as u16 as f32 / 65535.0
}

#[test]
fn a_gpu_finds_what_the_host_finds() {
    if !has_gpu() {
        return;
    }
    let mut worst: f64 = 0.0;
    for (rows, classes) in [(1, 2), (1, 10), (3, 31), (5, 32), (2, 33), (64, 1000), (7, 30_000)] {
        for (kind, spread) in [(KINDS[0], 1.0), (KINDS[0], 40.0), (KINDS[1], 1.0)] {
            let values: Vec<f32> = (0..rows * classes)
                .map(|index| number(index) * spread)
                // One stands out, in some rows.
                .enumerate()
                .map(|(index, value)| if index % (classes + 7) == 5 { value * 30.0 } else { value })
                .collect();
            let scores = Tensor::from_f32(&[rows, classes], &values).unwrap();
            let found = on_gpu(&scores, kind).expect("there is a kernel for these");
            let rows = values.chunks(classes).map(|row| {
                normalised_entropy(&row.iter().copied().map(f64::from).collect::<Vec<_>>(), kind)
            });
            let expected: Vec<f64> = rows.collect();
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                worst = worst.max((found - expected).abs());
                assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
            }
        }
    }
    println!("largest difference: {worst:.1e}");
}

#[test]
fn what_is_no_number_is_as_uncertain_as_can_be() {
    if !has_gpu() {
        return;
    }
    let rows: Vec<[f32; 3]> = vec![
        [f32::NAN, 1.0, 0.0],
        [f32::INFINITY, 1.0, 0.0],
        [f32::NEG_INFINITY; 3],
        [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY],
        [0.0; 3],
        [-1.0, -2.0, -3.0],
        [1e30, 0.0, -1e30],
    ];
    for kind in KINDS {
        let scores = Tensor::from_f32(&[rows.len(), 3], &rows.concat()).unwrap();
        let found = on_gpu(&scores, kind).unwrap();
        for (row, found) in rows.iter().zip(found) {
            let expected = normalised_entropy(&row.map(f64::from), kind);
            assert!((found - expected).abs() < 1e-5, "{kind:?} {row:?}: {found}, {expected}");
        }
    }
}

#[test]
fn other_scores_are_left_to_the_host() {
    let doubles = Tensor::from_bytes(tessera_core::DType::F64, &[1, 2], vec![0; 16].into());
    let doubles = doubles.unwrap();
    assert!(entropy_on_device(&doubles, false).unwrap().is_none());
    if !has_gpu() {
        return;
    }
    for other in [doubles, Tensor::from_f32(&[4, 1], &[1.0; 4]).unwrap()] {
        assert_eq!(on_gpu(&other, ScoreKind::Logits), None);
    }
}
