//! The clients of a soak whose requests must be answered: quick ones, and a slow one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tessera_core::{Error, Result};
use tessera_report::output::ProgressBar;

use super::soak_request::SoakRequest;
use super::soak_tally::SoakTally;
use crate::test_client::{HttpAnswer, TestClient};

/// A connection is used for so many requests, then another.
const REQUESTS_PER_CONNECTION: u64 = 300;

/// Parts that a slow client sends a request in.
const SLOW_PARTS: usize = 8;

/// How long a slow client waits before each part, and before it reads.
const SLOW_PAUSE: Duration = Duration::from_millis(60);

/// Requests that are handed out one after the other, up to a number.
#[derive(Clone)]
pub(crate) struct RequestNumbers {
    next: Arc<AtomicU64>,
    most: u64,
    bar: ProgressBar,
}

impl RequestNumbers {
    /// Numbers from `first` on, so many of them.
    pub(crate) fn new(first: u64, count: u64, bar: ProgressBar) -> Self {
        Self { next: Arc::new(AtomicU64::new(first)), most: first + count, bar }
    }

    fn take_number(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let is_left = number < self.most;
        self.bar.inc(u64::from(is_left));
        is_left.then_some(number)
    }
}

/// Has clients ask until all numbers are taken; the last one is slow.
pub(crate) fn ask_all(
    address: SocketAddr,
    clients: usize,
    numbers: &RequestNumbers,
) -> Result<SoakTally> {
    let quick = (0..clients).map(|_| start_client(address, numbers.clone(), send_at_once));
    let slow = start_client(address, numbers.clone(), send_slowly);
    let mut tally = SoakTally::default();
    for client in quick.collect::<Vec<_>>().into_iter().chain([slow]) {
        tally.add_tally(client.join().map_err(|_| Error::lost("a client ended early"))?);
    }
    Ok(tally)
}

type SendRequest = fn(&mut TestClient, &SoakRequest) -> Result<HttpAnswer>;

fn start_client(
    address: SocketAddr,
    numbers: RequestNumbers,
    send: SendRequest,
) -> JoinHandle<SoakTally> {
    std::thread::spawn(move || {
        let (mut tally, mut client) = (SoakTally::default(), None);
        while let Some(number) = numbers.take_number() {
            let request = SoakRequest::draw_request(number);
            client = ask_request(address, client, &request, send, &mut tally);
        }
        tally
    })
}

/// Asks one request and counts it; the connection, where it can be used again.
pub(crate) fn ask_request(
    address: SocketAddr,
    client: Option<TestClient>,
    request: &SoakRequest,
    send: SendRequest,
    tally: &mut SoakTally,
) -> Option<TestClient> {
    let start = Instant::now();
    let connected = client.map_or_else(|| TestClient::connect(address), Ok);
    let (client, answer) = match connected {
        Ok(mut client) => {
            let answer = send(&mut client, request);
            (Some(client), answer)
        }
        Err(error) => (None, Err(error)),
    };
    tally.count_request(request, &answer, start.elapsed());
    let client = client?;
    tally.answered_twice += u64::from(client.has_unread());
    let is_worn = tally.asked.is_multiple_of(REQUESTS_PER_CONNECTION);
    let is_usable = answer.is_ok_and(|answer| !answer.is_last) && !is_worn;
    is_usable.then_some(client)
}

/// Sends a request as quickly as it goes.
pub(crate) fn send_at_once(client: &mut TestClient, request: &SoakRequest) -> Result<HttpAnswer> {
    Ok(request.infer.send_to(client)?.1)
}

/// Sends a request in parts with pauses, and takes its time to read the answer.
fn send_slowly(client: &mut TestClient, request: &SoakRequest) -> Result<HttpAnswer> {
    let bytes: Vec<u8> = [request.infer.head.as_slice(), &request.infer.tensor].concat();
    for part in bytes.chunks(bytes.len().div_ceil(SLOW_PARTS).max(1)) {
        std::thread::sleep(SLOW_PAUSE);
        client.send_part(part)?;
    }
    std::thread::sleep(SLOW_PAUSE);
    client.read_answer()
}
