//! Pictures of plans and of measurements, as SVG text.
//!
//! They are for a browser or a document: light or dark as the reader has it, with colours that
//! colour-blind people can tell apart, and with the exact figures where the pointer is.

mod axis;
pub mod bars;
pub mod gantt;
pub mod histogram;
pub mod lines;
pub mod pareto_plot;
pub mod placement;
mod svg;

pub use axis::{AxisKind, ChartAxis};
pub use svg::InlineSvg;
