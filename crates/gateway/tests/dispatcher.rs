//! Inputs that a client has on a GPU, on their way to instances here and in other processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_core::{
    DType, Device, Dim, Error, ErrorKind, HostBuffer, Location, Region, Result, Tensor, TensorMut,
    TensorType,
};
use tessera_gateway::{
    Dispatcher, DispatcherOptions, Ended, Observer, Request, ShareInput, UnitEntry,
};
use tessera_graph::Port;
use tessera_plan::{Log, Outcome, Route, Step, UnitId};
use tessera_tensormq::{
    Courier, CourierOptions, Inbox, InboxOptions, Message, Peers, Received, Wait,
};

/// Memory that claims to be on a GPU.
struct Elsewhere(HostBuffer);

impl Region for Elsewhere {
    fn location(&self) -> Location {
        Location::Cuda(7)
    }
    fn address(&self) -> NonNull<u8> {
        self.0.address()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

struct Silent;

impl Observer for Silent {
    fn ended(&self, _: &Ended<'_>) {}
}

fn on_gpu() -> Tensor {
    let region: Arc<dyn Region> = Arc::new(Elsewhere(HostBuffer::new(8)));
    Tensor::from_region(DType::F32, &[2], region).unwrap()
}

fn asked(tensor: Tensor) -> Request {
    Request {
        task: "t".into(),
        version: String::new(),
        id: String::new(),
        inputs: vec![("x".into(), tensor)],
        timeout: None,
        trace: None,
    }
}

fn courier() -> Courier {
    Courier::start(CourierOptions::default()).unwrap()
}

/// A dispatcher with one task, whose one block has the inbox that is returned.
fn start(here: &Courier, there: &Courier, share: ShareInput) -> (Dispatcher, Arc<Peers>, Inbox) {
    let inbox = there.inbox("instance", &InboxOptions::default()).unwrap();
    let peers = Arc::new(Peers::new(here.clone()));
    let mut address = inbox.address().clone();
    address.device = Some(Device::Cuda(7));
    peers.add("instance", address);
    let dispatcher = Dispatcher::start(DispatcherOptions {
        courier: here.clone(),
        peers: Arc::clone(&peers),
        cores: 1,
        memory: Arc::new(TensorMut::zeroed),
        share,
        most_waiting: 1 << 20,
        observer: Arc::new(Silent),
    })
    .unwrap();
    let port = |name: &str| Port {
        name: name.into(),
        tensor_type: TensorType::new(DType::F32, vec![Dim::Fixed(2)]),
    };
    let unit = UnitId("u".into());
    let route = Route {
        task: "t".into(),
        version: "1".into(),
        inputs: vec![port("x")],
        outputs: vec![port("y")],
        steps: vec![Step { unit: unit.clone(), inputs: vec![0], keep: vec![1], exit: None }],
        exits: Vec::new(),
        deadline: Duration::from_secs(20),
        degrade: false,
        max_rows: 0,
    };
    let entry = UnitEntry { window: 1, time: Duration::ZERO };
    dispatcher.swap(vec![route], HashMap::from([(unit.clone(), entry)]));
    dispatcher.instance_up(&unit, "instance");
    (dispatcher, peers, inbox)
}

/// Takes a request, answers it with zeros, and returns its input.
fn serve(there: &Courier, peers: &Peers, inbox: &mut Inbox) -> Tensor {
    let received = inbox.receive(Wait::at_most(Duration::from_secs(10)));
    let Some(Received::Message(mut message)) = received else {
        panic!("no request came");
    };
    let log = Log::parse(message.path().last().unwrap()).unwrap();
    let path = [Outcome::Done.encode(), log.encode()];
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let zeros = Tensor::from_f32(&[2], &[0.0, 0.0]).unwrap();
    let answer =
        Message::new(message.request(), message.task(), &path).unwrap().with_tensors(vec![zeros]);
    let home = peers.addresses().into_iter().find(|(name, _)| *name == log.home).unwrap().1;
    let mut sender = there.connect(&home).unwrap();
    sender.send(answer, Wait::No).unwrap();
    message.take_tensors().pop().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_on_a_gpu_is_brought_to_another_process() {
    let (here, there) = (courier(), courier());
    let devices: Arc<Mutex<Vec<Option<Device>>>> = Arc::default();
    let seen = Arc::clone(&devices);
    let share: ShareInput = Arc::new(move |tensor, device| {
        assert_eq!(tensor.location(), Location::Cuda(7));
        seen.lock().unwrap().push(device);
        Tensor::from_f32(tensor.shape(), &[3.0, 4.0])
    });
    let (dispatcher, peers, mut inbox) = start(&here, &there, share);
    let other = there.clone();
    let block = tokio::task::spawn_blocking(move || serve(&other, &peers, &mut inbox).to_f64());
    dispatcher.infer(asked(on_gpu())).await.unwrap();
    assert_eq!(block.await.unwrap().unwrap(), [3.0, 4.0]);
    assert_eq!(*devices.lock().unwrap(), [Some(Device::Cuda(7))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_on_a_gpu_is_handed_over_within_a_process() {
    let here = courier();
    let share: ShareInput = Arc::new(|_, _| Err(Error::engine("nothing is to be brought")));
    let (dispatcher, peers, mut inbox) = start(&here, &here, share);
    let input = on_gpu();
    let other = here.clone();
    let block = tokio::task::spawn_blocking(move || serve(&other, &peers, &mut inbox));
    dispatcher.infer(asked(input.clone())).await.unwrap();
    let got = block.await.unwrap();
    assert_eq!((got.location(), got.address()), (Location::Cuda(7), input.address()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_can_not_be_brought_fails_and_holds_up_nobody() -> Result<()> {
    let (here, there) = (courier(), courier());
    let share: ShareInput = Arc::new(|_, _| Err(Error::full("no memory")));
    let (dispatcher, peers, mut inbox) = start(&here, &there, share);
    let refused = dispatcher.infer(asked(on_gpu())).await.unwrap_err().error;
    assert_eq!(refused.kind(), ErrorKind::Full);
    assert_eq!(refused.to_string(), "task \"t\": no memory");
    assert_eq!(dispatcher.at_instance("instance"), 0);
    let other = there.clone();
    let block = tokio::task::spawn_blocking(move || serve(&other, &peers, &mut inbox).to_f64());
    dispatcher.infer(asked(Tensor::from_f32(&[2], &[1.0, 2.0])?)).await.unwrap();
    assert_eq!(block.await.unwrap().unwrap(), [1.0, 2.0]);
    Ok(())
}
