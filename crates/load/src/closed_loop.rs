//! The closed loop: clients that each wait for an answer before they send again.
//!
//! What the server says of when to try again is not heeded: it is put under load on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result};
use tokio::task::JoinSet;

use crate::client::LoadClient;
use crate::exchange::ExchangeOutcome;
use crate::session::LoadSession;

/// A client whose connection failed waits this long: without it, clients of a server that is not
/// there would only keep this machine busy.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// The clients at work; they end when this is dropped.
pub(crate) struct ClosedLoop {
    clients: JoinSet<()>,
}

impl ClosedLoop {
    /// Sets `clients` to work until the window ends or `requests` are sent.
    pub(crate) fn start_clients(
        session: &Arc<LoadSession>,
        clients: usize,
        requests: Option<u64>,
    ) -> Self {
        let tickets = Arc::new(AtomicU64::new(requests.unwrap_or(u64::MAX)));
        let mut set = JoinSet::new();
        for index in 0..clients {
            set.spawn(run_client(Arc::clone(session), Arc::clone(&tickets), index));
        }
        Self { clients: set }
    }

    /// Whether every client is done.
    pub(crate) fn is_over(&mut self) -> Result<bool> {
        while let Some(ended) = self.clients.try_join_next() {
            ended.map_err(|error| Error::lost(format!("a client of the load: {error}")))?;
        }
        Ok(self.clients.is_empty())
    }

    /// Ends all clients, in the middle of a request too.
    pub(crate) async fn cancel_clients(&mut self) {
        self.clients.shutdown().await;
    }
}

async fn run_client(session: Arc<LoadSession>, tickets: Arc<AtomicU64>, index: usize) {
    let mut client = LoadClient::new(Arc::clone(&session));
    client.connect_early().await;
    // Clients start with different requests.
    for turn in index.. {
        let due = Instant::now();
        if session.is_closing() || session.window.end.is_some_and(|end| due >= end) {
            return;
        }
        if session.window.contains(due) && !take_ticket(&tickets) {
            return;
        }
        session.count_issued(due);
        let exchange = client.send_request(turn, due + session.timeout).await;
        let failed = exchange.outcome == ExchangeOutcome::Connection;
        session.record_exchange(due, due, exchange);
        if failed {
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }
}

/// Takes one of the requests that are left to send.
fn take_ticket(tickets: &AtomicU64) -> bool {
    let less_one = |left: u64| left.checked_sub(1);
    tickets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less_one).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_tickets_as_requests() {
        let tickets = AtomicU64::new(2);
        assert_eq!(
            [take_ticket(&tickets), take_ticket(&tickets), take_ticket(&tickets)],
            [true, true, false]
        );
    }
}
