//! Tensors on a GPU, between two processes. Without a GPU there is nothing to test, and the test
//! says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tessera_core::{DType, MemoryLocation, Tensor, TensorMut, UnwrittenRegion};
use tessera_cuda::{Gpu, copy_between_gpus, copy_on_device, to_device, to_host};
use tessera_tensormq::{
    Address, Buffers, Endpoint, EndpointOptions, Inbox, InboxOptions, Message, Received, RequestId,
    Wait,
};

/// Tells the other process where to send its tensors.
const OTHER: &str = "TESSERA_TEST_OTHER";
const COUNT: usize = 1 << 18;
const ROUNDS: usize = 40;

fn patience() -> Wait {
    Wait::at_most(Duration::from_secs(20))
}

fn has_gpu() -> bool {
    let gpu = Gpu::open(0);
    if let Err(error) = &gpu {
        println!("skipped: no GPU: {error}");
    }
    gpu.is_ok()
}

fn values(round: usize) -> Vec<f32> {
    (0..COUNT).map(|index| (index * 7 + round * 13) as f32).collect()
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    to_host(tensor).unwrap().wait_fence_on_host().unwrap().to_f64().unwrap()
}

fn next(inbox: &mut Inbox) -> Message {
    loop {
        match inbox.receive(patience()) {
            Some(Received::Message(message)) => return message,
            Some(Received::Closed(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The other process: sends tensors of two pools on the GPU, every second one before the work that
/// writes it was launched.
#[test]
fn the_other_process() {
    let Ok(address) = std::env::var(OTHER) else { return };
    let address: Address = serde_json::from_str(&address).unwrap();
    let gpu = Gpu::open(0).unwrap();
    let endpoint = Endpoint::start(EndpointOptions::default()).unwrap();
    let mut sender = endpoint.connect(&address).unwrap();
    let buffers = [Buffers { bytes: COUNT * 4, count: 3 }];
    let pools = [
        endpoint.create_gpu_pool(0, &buffers).unwrap(),
        endpoint.create_gpu_pool(0, &buffers).unwrap(),
    ];
    for round in 0..ROUNDS {
        let source = Tensor::from_f32(&[COUNT], &values(round)).unwrap();
        let source = to_device(&gpu, &source).unwrap();
        let buffer = pools[round % 2].borrow_buffer(COUNT * 4, patience()).unwrap();
        let message = Message::new(RequestId(round as u128), "task", b"next").unwrap();
        if round % 2 == 0 {
            let mut tensor = TensorMut::from_buffer(DType::F32, &[COUNT], buffer).unwrap();
            // As between two GPUs, of which there is one.
            copy_between_gpus(&source, &mut tensor).unwrap();
            sender.send(message.with_tensors(vec![tensor.freeze()]), patience()).unwrap();
        } else {
            let tensor = TensorMut::from_buffer(DType::F32, &[COUNT], buffer).unwrap().freeze();
            let (region, _) = tensor.region().unwrap();
            let mut target = TensorMut::from_buffer(
                DType::F32,
                &[COUNT],
                Box::new(UnwrittenRegion(region.clone())),
            )
            .unwrap();
            sender
                .send(message.with_tensors(vec![tensor.clone()]).with_early_send(), patience())
                .unwrap();
            // Long enough for a receiver that is a little behind.
            std::thread::sleep(Duration::from_millis(20));
            copy_on_device(&source, &mut target).unwrap();
            endpoint.signal_write_fence(&tensor).unwrap();
        }
    }
    sender.wait_until_finished(patience()).unwrap();
    // One that is announced and never written: whoever waits for it learns of this process' end.
    let buffer = pools[0].borrow_buffer(COUNT * 4, patience()).unwrap();
    let tensor = TensorMut::from_buffer(DType::F32, &[COUNT], buffer).unwrap().freeze();
    let message = Message::new(RequestId(999), "task", b"next").unwrap();
    sender.send(message.with_tensors(vec![tensor]).with_early_send(), patience()).unwrap();
    std::io::stdout().flush().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    std::process::abort();
}

#[test]
fn tensors_stay_on_the_gpu_between_processes_and_are_waited_for_there() {
    if std::env::var_os(OTHER).is_some() || !has_gpu() {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let endpoint = Endpoint::start(EndpointOptions::default()).unwrap();
    let mut inbox = endpoint.create_inbox("here", &InboxOptions::default()).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(OTHER, serde_json::to_string(inbox.address()).unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut was_early = 0;
    for round in 0..ROUNDS {
        let message = next(&mut inbox);
        assert_eq!(message.request(), RequestId(round as u128));
        assert_eq!(message.route(), b"next");
        let tensor = message.tensors()[0].clone();
        assert_eq!(tensor.location(), MemoryLocation::Cuda(0));
        was_early += usize::from(tensor.fence().is_some_and(|fence| !fence.is_done()));
        // On the stream, which waits for the other process, and not on the host.
        let start = Instant::now();
        let on_device = to_device(&gpu, &tensor).unwrap();
        // The first time is longer.
        let took = start.elapsed();
        assert!(round < 2 || took < Duration::from_millis(4), "round {round}: {took:?}");
        let expected: Vec<f64> = values(round).into_iter().map(f64::from).collect();
        assert!(floats(&on_device) == expected, "round {round}");
    }
    assert!(was_early >= ROUNDS / 4, "{was_early} of {ROUNDS} came before they were written");
    let never = next(&mut inbox);
    let tensor = never.tensors()[0].clone();
    assert!(!other.wait().unwrap().success());
    let start = Instant::now();
    // It is not written, and nobody waits for it any longer.
    tensor.wait_fence_on_host().ok();
    gpu.synchronise_stream().unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
