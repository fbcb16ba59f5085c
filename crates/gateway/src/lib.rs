//! What clients talk to: the Open Inference Protocol over HTTP and gRPC, and the dispatcher that takes
//! requests to blocks.

#![forbid(unsafe_code)]

mod cuda_memory;
mod dispatcher;
mod front_end;
mod grpc;
mod http;
mod monitor;
mod protocol;
mod service;
mod shared_memory;
mod shared_regions;
mod status;

pub use dispatcher::{
    Dispatcher, DispatcherOptions, Ended, EndedAs, MakeMemory, Observer, ShareInput, TaskEntry,
    UnitEntry,
};
pub use front_end::FrontEndOptions;
pub use grpc::{GrpcFrontEnd, generated as inference, grpc_service};
pub use http::router as http_router;
pub use monitor::{
    GpuProcessSample, GpuSample, InstanceGpu, InstanceSample, Monitor, MonitorOptions, Sample,
    TakeSample, TaskSample, TraceOptions,
};
pub use service::{
    Answer, Answering, Refusal, Request, Service, Spent, TaskInfo, TaskState, TaskStatistics,
};
pub use shared_regions::SharedRegions;
