//! Which transports there are, the fastest first: a line for each folder. To add a transport: its
//! folder, and a line here.

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, de};
use tessera_core::{Error, Result};

use super::driver::{TransportContext, TransportDriver, TransportEntry};
use super::id::Transport;
use super::{shared_memory, tcp, thread, zeromq};
use crate::address::Address;

/// All of them. An inbox is reached by the first that leads there.
const TRANSPORTS: &[TransportEntry] =
    &[thread::ENTRY, shared_memory::ENTRY, tcp::ENTRY, zeromq::ENTRY];

impl Transport {
    /// Those that this build has, the fastest first.
    pub fn built_in() -> impl Iterator<Item = Self> {
        let entries = TRANSPORTS.iter().filter(|entry| entry.start.is_ok());
        entries.flat_map(|entry| entry.transports.iter().copied())
    }

    /// Fails where this build is without it.
    pub fn check_built_in(self) -> Result<()> {
        let entry = TRANSPORTS.iter().find(|entry| entry.transports.contains(&self));
        match entry.map(|entry| entry.start) {
            Some(Ok(_)) => Ok(()),
            Some(Err(feature)) => Err(Error::unsupported(format!(
                "transport {self} is not in this build: it needs the cargo feature \"{feature}\""
            ))),
            None => Err(unknown_transport(self.name())),
        }
    }
}

impl FromStr for Transport {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut known = TRANSPORTS.iter().flat_map(|entry| entry.transports.iter().copied());
        let transport = known.find(|transport| transport.name() == text);
        let transport = transport.ok_or_else(|| unknown_transport(text))?;
        transport.check_built_in().map(|()| transport)
    }
}

fn unknown_transport(text: &str) -> Error {
    let all = Transport::built_in().map(Transport::name).collect::<Vec<_>>().join(", ");
    Error::usage(format!("unknown transport \"{text}\", expected one of {all}"))
}

impl<'de> Deserialize<'de> for Transport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// The transports of an endpoint.
pub(crate) struct StartedTransports(Vec<Box<dyn TransportDriver>>);

impl StartedTransports {
    /// Starts all that this build has.
    pub(crate) fn start_all(context: &Arc<TransportContext>) -> Result<Self> {
        let mut started = Vec::new();
        for start in TRANSPORTS.iter().filter_map(|entry| entry.start.ok()) {
            started.extend(start(context)?);
        }
        Ok(Self(started))
    }

    /// One of them.
    pub(crate) fn driver_of(&self, transport: Transport) -> Result<&dyn TransportDriver> {
        transport.check_built_in()?;
        let driver = self.0.iter().find(|driver| driver.id() == transport);
        driver.map(|driver| &**driver).ok_or_else(|| unknown_transport(transport.name()))
    }

    /// The fastest that leads to an inbox.
    pub(crate) fn fastest_to(&self, address: &Address) -> Result<Transport> {
        let driver = self.0.iter().find(|driver| driver.is_preferred_for(address));
        driver.map(|driver| driver.id()).ok_or_else(|| {
            Error::usage(format!(
                "inbox \"{}\" is on another host, and does not listen for other hosts",
                address.inbox
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_is_found_by_its_name_and_written_as_it() {
        for transport in Transport::built_in() {
            assert_eq!(transport.name().parse::<Transport>().unwrap(), transport);
            let json = serde_json::to_string(&transport).unwrap();
            assert_eq!(json, format!("\"{transport}\""));
            assert_eq!(serde_json::from_str::<Transport>(&json).unwrap(), transport);
        }
        let error = "pigeon".parse::<Transport>().unwrap_err().to_string();
        assert!(error.contains("\"pigeon\", expected one of thread, shm"), "{error}");
    }

    #[test]
    fn names_are_unique_and_what_is_not_built_in_says_which_feature_it_needs() {
        let all: Vec<_> = TRANSPORTS.iter().flat_map(|entry| entry.transports).collect();
        let unique: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(unique.len(), all.len());
        for entry in TRANSPORTS {
            let Err(feature) = entry.start else { continue };
            for transport in entry.transports {
                let error = transport.name().parse::<Transport>().unwrap_err().to_string();
                assert!(error.contains(&format!("cargo feature \"{feature}\"")), "{error}");
            }
        }
    }
}
