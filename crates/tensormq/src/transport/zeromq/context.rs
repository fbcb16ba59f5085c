//! ZeroMQ in an endpoint: its threads, and who may connect.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tessera_core::{Result, lock};

use super::frame;
use super::socket::zmq_error;
use super::zap::ZapAuthenticator;
use crate::reactor::ReactorHandle;

/// ZeroMQ in this endpoint.
pub(super) struct ZeroMqContext {
    pub(super) context: zmq::Context,
    authenticator: Mutex<Option<Arc<ZapAuthenticator>>>,
}

impl ZeroMqContext {
    pub(super) fn new() -> Result<Self> {
        frame::keep_memory();
        let context = zmq::Context::new();
        // More than one thread, so that several lanes can move at once.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        context
            .set_io_threads(cores.clamp(1, 4) as i32)
            .map_err(|error| zmq_error("ZeroMQ's threads", error))?;
        Ok(Self { context, authenticator: Mutex::default() })
    }

    /// Has connections to `domain` checked: only these keys, where there are any.
    pub(super) fn restrict_domain(
        &self,
        reactor: &ReactorHandle,
        domain: &str,
        allowed: HashSet<[u8; 32]>,
    ) -> Result<()> {
        let mut current = lock(&self.authenticator);
        let authenticator = match &*current {
            Some(authenticator) => Arc::clone(authenticator),
            None => {
                let authenticator = ZapAuthenticator::bind_and_watch(&self.context, reactor)?;
                *current = Some(Arc::clone(&authenticator));
                authenticator
            }
        };
        authenticator.allow_keys(domain, allowed);
        Ok(())
    }

    pub(super) fn unrestrict_domain(&self, domain: &str) {
        if let Some(authenticator) = &*lock(&self.authenticator) {
            authenticator.forget_domain(domain);
        }
    }
}
