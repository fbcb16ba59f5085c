//! Inputs that a client has on a GPU, on their way to instances here and in other processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_core::{
    DType, Device, Dim, Error, ErrorKind, HostBuffer, MemoryLocation, Region, Result, Tensor,
    TensorMut, TensorType,
};
use tessera_deploy::{HopTiming, ReplyOutcome, RouteStep, SourceRoute, TaskRoute, UnitId};
use tessera_dispatch::{
    Dispatcher, DispatcherOptions, ExportInput, InferenceRequest, RouteChange, UnitEntry,
};
use tessera_graph::TensorPort;
use tessera_telemetry::{EndedRequest, RequestObserver};
use tessera_tensormq::{
    Endpoint, EndpointOptions, Inbox, InboxOptions, Message, Peers, Received, Wait,
};

/// Memory that claims to be on a GPU.
struct Elsewhere(HostBuffer);

impl Region for Elsewhere {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Cuda(7)
    }
    fn address(&self) -> NonNull<u8> {
        self.0.address()
    }
    fn byte_len(&self) -> usize {
        self.0.byte_len()
    }
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

struct Silent;

impl RequestObserver for Silent {
    fn request_ended(&self, _: &EndedRequest<'_>) {}
}

fn on_gpu() -> Tensor {
    let region: Arc<dyn Region> = Arc::new(Elsewhere(HostBuffer::new(8)));
    Tensor::from_region(DType::F32, &[2], region).unwrap()
}

fn asked(tensor: Tensor) -> InferenceRequest {
    InferenceRequest {
        task: "t".into(),
        version: String::new(),
        id: String::new(),
        inputs: vec![("x".into(), tensor)],
        timeout: None,
        trace: None,
    }
}

fn endpoint() -> Endpoint {
    Endpoint::start(EndpointOptions::default()).unwrap()
}

/// A dispatcher with one task, whose one unit has the inbox that is returned.
fn start(
    here: &Endpoint,
    there: &Endpoint,
    export_input: ExportInput,
) -> (Dispatcher, Arc<Peers>, Inbox) {
    let inbox = there.create_inbox("instance", &InboxOptions::default()).unwrap();
    let peers = Arc::new(Peers::new(here.clone()));
    let mut address = inbox.address().clone();
    address.device = Some(Device::Cuda(7));
    peers.add_peer("instance", address);
    let dispatcher = Dispatcher::start_empty(DispatcherOptions {
        reply_inbox: "replies".to_owned(),
        endpoint: here.clone(),
        peers: Arc::clone(&peers),
        cores: 1,
        shares_units: false,
        allocate_input: Arc::new(TensorMut::new_zeroed),
        export_input,
        most_waiting_bytes: 1 << 20,
        observer: Arc::new(Silent),
    })
    .unwrap();
    let port = |name: &str| TensorPort {
        name: name.into(),
        tensor_type: TensorType::new(DType::F32, vec![Dim::Fixed(2)]),
        is_row_wise: false,
        default: None,
    };
    let unit = UnitId("u".into());
    let route = TaskRoute {
        weight: 1,
        task: "t".into(),
        version: "1".into(),
        inputs: vec![port("x")],
        outputs: vec![port("y")],
        steps: vec![RouteStep { unit: unit.clone(), inputs: vec![0], keep: vec![1], exit: None }],
        exits: Vec::new(),
        deadline: Duration::from_secs(20),
        degrade: false,
        relies_on_dim_names: true,
        max_rows: 0,
    };
    let entry = UnitEntry { window: 1, time: Duration::ZERO };
    let units = vec![(unit.clone(), entry)];
    let routes = vec![Arc::new(route)];
    dispatcher.change_routes(RouteChange { routes, removed: Vec::new(), units });
    dispatcher.instance_up(&unit, "instance");
    (dispatcher, peers, inbox)
}

/// Takes a request, answers it with zeros, and returns its input.
fn serve(there: &Endpoint, peers: &Peers, inbox: &mut Inbox) -> Tensor {
    let mut message = take_request(inbox);
    let route = SourceRoute::read(message.route()).unwrap();
    reply(there, peers, &message, &route, &ReplyOutcome::Done);
    message.take_tensors().pop().unwrap()
}

fn take_request(inbox: &mut Inbox) -> Message {
    match inbox.receive(Wait::at_most(Duration::from_secs(10))) {
        Some(Received::Message(message)) => message,
        _ => panic!("no request came"),
    }
}

fn reply(
    there: &Endpoint,
    peers: &Peers,
    request: &Message,
    route: &SourceRoute,
    outcome: &ReplyOutcome,
) {
    let zeros = Tensor::from_f32(&[2], &[0.0, 0.0]).unwrap();
    let reply = request.with_route(route.with_outcome(outcome).as_bytes()).unwrap();
    let reply = reply.with_tensors(vec![zeros]);
    let replies =
        peers.addresses().into_iter().find(|(name, _)| name == route.reply_inbox()).unwrap().1;
    there.connect(&replies).unwrap().send(reply, Wait::No).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_on_a_gpu_is_brought_to_another_process() {
    let (here, there) = (endpoint(), endpoint());
    let devices: Arc<Mutex<Vec<Option<Device>>>> = Arc::default();
    let seen = Arc::clone(&devices);
    let export_input: ExportInput = Arc::new(move |tensor, device| {
        assert_eq!(tensor.location(), MemoryLocation::Cuda(7));
        seen.lock().unwrap().push(device);
        Tensor::from_f32(tensor.shape(), &[3.0, 4.0])
    });
    let (dispatcher, peers, mut inbox) = start(&here, &there, export_input);
    let other = there.clone();
    let instance = tokio::task::spawn_blocking(move || serve(&other, &peers, &mut inbox).to_f64());
    dispatcher.infer(asked(on_gpu())).await.unwrap();
    assert_eq!(instance.await.unwrap().unwrap(), [3.0, 4.0]);
    assert_eq!(*devices.lock().unwrap(), [Some(Device::Cuda(7))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_on_a_gpu_is_handed_over_within_a_process() {
    let here = endpoint();
    let export_input: ExportInput = Arc::new(|_, _| Err(Error::engine("nothing is to be brought")));
    let (dispatcher, peers, mut inbox) = start(&here, &here, export_input);
    let input = on_gpu();
    let other = here.clone();
    let instance = tokio::task::spawn_blocking(move || serve(&other, &peers, &mut inbox));
    dispatcher.infer(asked(input.clone())).await.unwrap();
    let got = instance.await.unwrap();
    assert_eq!((got.location(), got.address()), (MemoryLocation::Cuda(7), input.address()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_can_not_be_brought_fails_and_holds_up_nobody() -> Result<()> {
    let (here, there) = (endpoint(), endpoint());
    let export_input: ExportInput = Arc::new(|_, _| Err(Error::full("no memory")));
    let (dispatcher, peers, mut inbox) = start(&here, &there, export_input);
    let refused = dispatcher.infer(asked(on_gpu())).await.unwrap_err().error;
    assert_eq!(refused.kind(), ErrorKind::Full);
    assert_eq!(refused.to_string(), "task \"t\": no memory");
    assert_eq!(dispatcher.instance_in_flight("instance"), 0);
    let other = there.clone();
    let instance = tokio::task::spawn_blocking(move || serve(&other, &peers, &mut inbox).to_f64());
    dispatcher.infer(asked(Tensor::from_f32(&[2], &[1.0, 2.0])?)).await.unwrap();
    assert_eq!(instance.await.unwrap().unwrap(), [1.0, 2.0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_a_unit_that_is_gone_passes_the_one_that_took_its_place() {
    let here = endpoint();
    let unused: ExportInput = Arc::new(|_, _| Err(Error::lost("it is not needed")));
    let (dispatcher, peers, mut first) = start(&here, &here, unused);
    let (old, new) = (UnitId("u".into()), UnitId("v".into()));
    let asking = {
        let dispatcher = dispatcher.clone();
        let input = Tensor::from_f32(&[2], &[1.0, 2.0]).unwrap();
        tokio::spawn(async move { dispatcher.infer(asked(input)).await })
    };
    // It is on its way, and its instance is gone with it.
    let received = first.receive(Wait::at_most(Duration::from_secs(10)));
    assert!(matches!(received, Some(Received::Message(_))));
    dispatcher.instance_down(&old, "instance", "it was killed", true);
    let mut second = here.create_inbox("second", &InboxOptions::default()).unwrap();
    peers.add_peer("second", second.address().clone());
    let before = dispatcher.find_task("t", "").unwrap();
    let mut route = TaskRoute::clone(&before.route);
    route.steps[0].unit = new.clone();
    let entry = UnitEntry { window: 1, time: Duration::ZERO };
    let change = RouteChange {
        routes: vec![Arc::new(route)],
        removed: Vec::new(),
        units: vec![(new.clone(), entry)],
    };
    let generation = dispatcher.change_routes(change);
    // Nothing is left that could pass the unit of before.
    let drained = dispatcher.wait_until_drained(generation);
    tokio::time::timeout(Duration::from_secs(5), drained).await.unwrap();
    dispatcher.instance_up(&new, "second");
    serve(&here, &peers, &mut second);
    asking.await.unwrap().map_err(|refusal| refusal.error).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_find_together_that_an_instance_is_gone_are_all_sent_again() {
    let here = endpoint();
    let unused: ExportInput = Arc::new(|_, _| Err(Error::lost("it is not needed")));
    let (dispatcher, peers, mut inbox) = start(&here, &here, unused);
    let next = UnitId("v".into());
    let mut route = TaskRoute::clone(&dispatcher.find_task("t", "").unwrap().route);
    let step = RouteStep { unit: next.clone(), inputs: vec![0], keep: vec![1], exit: None };
    route.steps.push(step);
    let entry = || UnitEntry { window: 8, time: Duration::ZERO };
    let units = vec![(UnitId("u".into()), entry()), (next.clone(), entry())];
    let routes = vec![Arc::new(route)];
    dispatcher.change_routes(RouteChange { routes, removed: Vec::new(), units });
    dispatcher.add_instance(&next, "next.0");
    let asking: Vec<_> = (0..3)
        .map(|_| {
            let dispatcher = dispatcher.clone();
            let input = Tensor::from_f32(&[2], &[1.0, 2.0]).unwrap();
            tokio::spawn(async move { dispatcher.infer(asked(input)).await })
        })
        .collect();
    // Each of them comes to the first unit, which can't send it on, three times.
    for number in 0..3 {
        let requests: Vec<Message> = (0..3).map(|_| take_request(&mut inbox)).collect();
        let gone = format!("next.{number}");
        for request in &requests {
            let mut route = SourceRoute::read(request.route()).unwrap();
            route.complete_hop(&HopTiming::default());
            let outcome = ReplyOutcome::Lost(gone.clone());
            reply(&here, &peers, request, &route, &outcome);
        }
        dispatcher.add_instance(&next, &format!("next.{}", number + 1));
    }
    for _ in 0..3 {
        let request = take_request(&mut inbox);
        let mut route = SourceRoute::read(request.route()).unwrap();
        route.complete_hop(&HopTiming::default());
        route.complete_hop(&HopTiming::default());
        reply(&here, &peers, &request, &route, &ReplyOutcome::Done);
    }
    for answer in asking {
        answer.await.unwrap().map_err(|refusal| refusal.error).unwrap();
    }
}
