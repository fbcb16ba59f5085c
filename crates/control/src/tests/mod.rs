//! Tests of the control plane as a whole, with a site and a catalogue that only pretend.

mod api;
pub(crate) mod fakes;
mod intent;
mod manager;
mod openapi;
mod schema;
