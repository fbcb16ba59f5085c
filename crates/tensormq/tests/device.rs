//! Tensors on a GPU, between two processes. Without a GPU there is nothing to test, and the test says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tessera_core::{DType, Location, Tensor, TensorMut, ToBeWritten};
use tessera_cuda::{Gpu, copy, copy_across, to_device, to_host};
use tessera_tensormq::{
    Address, Buffers, Courier, CourierOptions, Inbox, InboxOptions, Message, Received, RequestId,
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
    to_host(tensor).unwrap().settled().unwrap().to_f64().unwrap()
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

/// The other process: sends tensors of two pools on the GPU, every second one before the GPU was told to write it.
#[test]
fn the_other_process() {
    let Ok(address) = std::env::var(OTHER) else { return };
    let address: Address = serde_json::from_str(&address).unwrap();
    let gpu = Gpu::open(0).unwrap();
    let courier = Courier::start(CourierOptions::default()).unwrap();
    let mut sender = courier.connect(&address).unwrap();
    let buffers = [Buffers { bytes: COUNT * 4, count: 3 }];
    let pools = [courier.pool_on(0, &buffers).unwrap(), courier.pool_on(0, &buffers).unwrap()];
    for round in 0..ROUNDS {
        let source = Tensor::from_f32(&[COUNT], &values(round)).unwrap();
        let source = to_device(&gpu, &source).unwrap();
        let buffer = pools[round % 2].borrow(COUNT * 4, patience()).unwrap();
        let message = Message::new(RequestId(round as u128), "task", &["next"]).unwrap();
        if round % 2 == 0 {
            let mut tensor = TensorMut::over(DType::F32, &[COUNT], buffer).unwrap();
            // As between two GPUs, of which there is one.
            copy_across(&source, &mut tensor).unwrap();
            sender.send(message.with_tensors(vec![tensor.freeze()]), patience()).unwrap();
        } else {
            let tensor = TensorMut::over(DType::F32, &[COUNT], buffer).unwrap().freeze();
            let (region, _) = tensor.region().unwrap();
            let mut target =
                TensorMut::over(DType::F32, &[COUNT], Box::new(ToBeWritten(region.clone())))
                    .unwrap();
            sender.send(message.with_tensors(vec![tensor.clone()]).ahead(), patience()).unwrap();
            // Long enough for a receiver that is a little behind.
            std::thread::sleep(Duration::from_millis(20));
            copy(&source, &mut target).unwrap();
            courier.written(&tensor).unwrap();
        }
    }
    sender.finish(patience()).unwrap();
    // One that is announced and never written: whoever waits for it learns of this process' end.
    let buffer = pools[0].borrow(COUNT * 4, patience()).unwrap();
    let tensor = TensorMut::over(DType::F32, &[COUNT], buffer).unwrap().freeze();
    let message = Message::new(RequestId(999), "task", &["next"]).unwrap();
    sender.send(message.with_tensors(vec![tensor]).ahead(), patience()).unwrap();
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
    let courier = Courier::start(CourierOptions::default()).unwrap();
    let mut inbox = courier.inbox("here", &InboxOptions::default()).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(OTHER, serde_json::to_string(inbox.address()).unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut was_ahead = 0;
    for round in 0..ROUNDS {
        let message = next(&mut inbox);
        assert_eq!(message.request(), RequestId(round as u128));
        let tensor = message.tensors()[0].clone();
        assert_eq!(tensor.location(), Location::Cuda(0));
        was_ahead += usize::from(tensor.after().is_some_and(|after| !after.is_done()));
        // On the stream, which waits for the other process, and not on the host.
        let start = Instant::now();
        let held = to_device(&gpu, &tensor).unwrap();
        // The first time is longer.
        let took = start.elapsed();
        assert!(round < 2 || took < Duration::from_millis(4), "round {round}: {took:?}");
        let expected: Vec<f64> = values(round).into_iter().map(f64::from).collect();
        assert!(floats(&held) == expected, "round {round}");
    }
    assert!(was_ahead >= ROUNDS / 4, "{was_ahead} of {ROUNDS} came before they were written");
    let never = next(&mut inbox);
    let tensor = never.tensors()[0].clone();
    assert!(!other.wait().unwrap().success());
    let start = Instant::now();
    // It is not written, and nobody waits for it any longer.
    tensor.settled().ok();
    gpu.synchronise().unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
