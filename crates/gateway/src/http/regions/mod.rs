//! Regions of shared memory: registered, forgotten and listed.

mod cuda_regions;
mod system_regions;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::front_end::FrontEnd;

/// The routes of both kinds of shared memory.
pub(super) fn region_routes() -> Router<Arc<FrontEnd>> {
    Router::new()
        .route("/v2/systemsharedmemory/status", get(system_regions::system_region_status))
        .route(
            "/v2/systemsharedmemory/region/{name}/status",
            get(system_regions::system_region_status),
        )
        .route(
            "/v2/systemsharedmemory/region/{name}/register",
            post(system_regions::register_system_region),
        )
        .route(
            "/v2/systemsharedmemory/region/{name}/unregister",
            post(system_regions::unregister_system_region),
        )
        .route("/v2/systemsharedmemory/unregister", post(system_regions::unregister_system_region))
        .route("/v2/cudasharedmemory/status", get(cuda_regions::cuda_region_status))
        .route("/v2/cudasharedmemory/region/{name}/status", get(cuda_regions::cuda_region_status))
        .route(
            "/v2/cudasharedmemory/region/{name}/register",
            post(cuda_regions::register_cuda_region),
        )
        .route(
            "/v2/cudasharedmemory/region/{name}/unregister",
            post(cuda_regions::unregister_cuda_region),
        )
        .route("/v2/cudasharedmemory/unregister", post(cuda_regions::unregister_cuda_region))
}
