//! An honest sender among others that make noise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tessera_tensormq::{Endpoint, Inbox, Message, Received, RequestId, Sender, Wait};

use super::{check_payload, payload, soon};

/// Raises a flag when it is dropped, also by a panic.
struct Raise(Arc<AtomicBool>);

impl Drop for Raise {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Makes noise while an honest sender sends, of which everything must arrive.
pub(crate) fn undisturbed(
    inbox: &mut Inbox,
    mut sender: Sender,
    honest: &Endpoint,
    noise: impl FnOnce() + Send + 'static,
) {
    let quiet = Arc::new(AtomicBool::new(false));
    let raise = Raise(Arc::clone(&quiet));
    let noise = thread::spawn(move || {
        let _raise = raise;
        noise();
    });
    let sending = thread::spawn(move || {
        let mut count = 0;
        while count < 100 || !quiet.load(Ordering::SeqCst) {
            let message = Message::new(RequestId(count), "honest", b"unit").unwrap();
            let message = message.with_tensors(vec![payload(count, 100)]);
            sender.send(message, soon()).unwrap();
            count += 1;
        }
        sender.wait_until_finished(soon()).unwrap();
        assert!(sender.take_failed_messages().is_empty());
        (sender, count)
    });
    let mut next = 0;
    while !sending.is_finished() {
        match inbox.receive(Wait::at_most(Duration::from_millis(20))) {
            Some(Received::Message(message)) if message.task() == "honest" => {
                assert_eq!(message.request(), RequestId(next));
                check_payload(&message, 100);
                next += 1;
            }
            // By chance some nonsense is a message.
            Some(Received::Message(_)) | None => {}
            Some(
                Received::Failed { peer, .. }
                | Received::Closed(peer)
                | Received::Lost(peer, _)
                | Received::Interrupted(peer)
                | Received::Resumed(peer),
            ) => assert_ne!(peer.endpoint_id, honest.id()),
        }
    }
    let (sender, count) = sending.join().unwrap();
    assert_eq!(next, count);
    noise.join().unwrap();
    drop(sender);
}
