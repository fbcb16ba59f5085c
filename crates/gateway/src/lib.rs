//! What clients talk to: the Open Inference Protocol over HTTP and gRPC.

#![forbid(unsafe_code)]

mod byte_budget;
mod encoding;
mod front_end;
mod grpc;
mod http;
mod long_work;
mod protocol;
mod regions;
mod service;
mod settings;
mod upload_pace;

pub use byte_budget::{AnswerLease, ByteBudget, ConnectionBytes};
pub use front_end::FrontEndOptions;
pub use grpc::{IsReady, generated as inference, grpc_router, health_router};
pub use http::http_router;
pub use protocol::config_type_name;
pub use regions::{RegionRules, SharedRegions};
pub use service::{
    InferenceService, LoadOverrides, OutputLabels, ServiceFuture, TaskDescription, TaskInfo,
    TaskState,
};
pub use settings::{LogControl, ServerSettings};
pub use upload_pace::UploadPace;
