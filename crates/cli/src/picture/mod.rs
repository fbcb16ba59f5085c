//! Pictures of plans and of measurements, as SVG text.
//!
//! They are for a browser or a document: light or dark as the reader has it, with colours that colour-blind
//! people can tell apart, and with the exact figures where the pointer is.

mod axis;
pub(crate) mod bars;
pub(crate) mod front;
pub(crate) mod gantt;
pub(crate) mod lines;
pub(crate) mod placement;
mod svg;

pub(crate) use svg::escape;
