//! The methods of the protocol's service.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, future::ready};
use prost::Message;
use tonic::{Request, Response, Status, Streaming};

use super::call::{GrpcCall, refusal_status};
use super::convert;
use super::generated as message;
use super::generated::grpc_inference_service_server::GrpcInferenceService;
use super::infer::{infer_in_stream, run_inference};
use super::settings::{change_log_settings, change_trace_settings};
use crate::byte_budget::{AnswerLease, ConnectionBytes};
use crate::front_end::FrontEnd;
use crate::protocol::{
    SERVER_VERSION, collect_statistics, is_task_ready, list_repository, protocol_extensions,
};
use crate::regions::{CudaRegionStatus, CudaRegistration, SystemRegionStatus};

/// Requests of one stream that are answered at the same time. Their responses wait for each
/// other, so that more would only hold memory.
const STREAM_IN_FLIGHT: usize = 64;

/// Answers gRPC calls with a service.
pub(super) struct GrpcFrontEnd {
    front: Arc<FrontEnd>,
}

impl GrpcFrontEnd {
    pub(super) fn new(front: Arc<FrontEnd>) -> Self {
        Self { front }
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for GrpcFrontEnd {
    async fn server_live(
        &self,
        _: Request<message::ServerLiveRequest>,
    ) -> Result<Response<message::ServerLiveResponse>, Status> {
        Ok(Response::new(message::ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<message::ServerReadyRequest>,
    ) -> Result<Response<message::ServerReadyResponse>, Status> {
        let ready = self.front.service.is_ready();
        Ok(Response::new(message::ServerReadyResponse { ready }))
    }

    async fn model_ready(
        &self,
        request: Request<message::ModelReadyRequest>,
    ) -> Result<Response<message::ModelReadyResponse>, Status> {
        let message::ModelReadyRequest { name, version } = request.into_inner();
        let ready = is_task_ready(self.front.service.as_ref(), &name, &version);
        Ok(Response::new(message::ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<message::ServerMetadataRequest>,
    ) -> Result<Response<message::ServerMetadataResponse>, Status> {
        Ok(Response::new(message::ServerMetadataResponse {
            name: self.front.server_name().to_owned(),
            version: SERVER_VERSION.to_owned(),
            extensions: protocol_extensions().into_iter().map(str::to_owned).collect(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<message::ModelMetadataRequest>,
    ) -> Result<Response<message::ModelMetadataResponse>, Status> {
        let message::ModelMetadataRequest { name, version } = request.into_inner();
        let task = self.front.find_task(&name, &version).map_err(refusal_status)?;
        Ok(Response::new(convert::metadata_message(task).map_err(refusal_status)?))
    }

    async fn model_infer(
        &self,
        request: Request<message::ModelInferRequest>,
    ) -> Result<Response<message::ModelInferResponse>, Status> {
        let call = GrpcCall::new(request.metadata());
        let connection = request.extensions().get::<ConnectionBytes>().cloned();
        let lease = |message: &dyn Fn() -> usize| {
            let mut lease = self.front.options.budget.lease(connection.as_ref());
            lease.grow(message()).map_err(refusal_status)?;
            Ok::<_, Status>(lease)
        };
        let request = request.into_inner();
        let mut asked = lease(&|| request.encoded_len())?;
        let answered = run_inference(&self.front, request, call, &mut asked).await;
        let answer = answered.map_err(refusal_status)?;
        let sent = lease(&|| answer.encoded_len())?;
        let mut response = Response::new(answer);
        response.extensions_mut().insert(AnswerLease::new(sent));
        Ok(response)
    }

    type ModelStreamInferStream =
        Pin<Box<dyn Stream<Item = Result<message::ModelStreamInferResponse, Status>> + Send>>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<message::ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        // A timeout of the call is one of the stream, and the transport sees to it.
        let call = GrpcCall { timeout: None, ..GrpcCall::new(request.metadata()) };
        let front = Arc::clone(&self.front);
        let connection = request.extensions().get::<ConnectionBytes>().cloned();
        let answers = request.into_inner().map(move |asked| {
            let (front, connection) = (Arc::clone(&front), connection.clone());
            async move {
                let asked: message::ModelInferRequest = asked?;
                let mut lease = front.options.budget.lease(connection.as_ref());
                lease.grow(asked.encoded_len()).map_err(refusal_status)?;
                let answer = infer_in_stream(&front, asked, call, &mut lease).await;
                let mut lease = front.options.budget.lease(connection.as_ref());
                lease.grow(answer.encoded_len()).map_err(refusal_status)?;
                Ok::<_, Status>((answer, lease))
            }
        });
        // An answer counts until the next is asked for: then it is written.
        let answers = answers.buffered(STREAM_IN_FLIGHT).scan(None, |last, answered| {
            let answer = answered.map(|(answer, lease)| {
                *last = Some(lease);
                answer
            });
            ready(Some(answer))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn model_config(
        &self,
        request: Request<message::ModelConfigRequest>,
    ) -> Result<Response<message::ModelConfigResponse>, Status> {
        let message::ModelConfigRequest { name, version } = request.into_inner();
        let task = self.front.find_task(&name, &version).map_err(refusal_status)?;
        let config = Some(convert::config_message(task).map_err(refusal_status)?);
        Ok(Response::new(message::ModelConfigResponse { config }))
    }

    async fn model_statistics(
        &self,
        request: Request<message::ModelStatisticsRequest>,
    ) -> Result<Response<message::ModelStatisticsResponse>, Status> {
        let message::ModelStatisticsRequest { name, version } = request.into_inner();
        if !name.is_empty() {
            self.front.find_task(&name, &version).map_err(refusal_status)?;
        }
        let done = collect_statistics(self.front.service.as_ref(), &name, &version)
            .map_err(refusal_status)?;
        let model_stats =
            done.into_iter().map(|(task, done)| convert::statistics_message(task, &done)).collect();
        Ok(Response::new(message::ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<message::RepositoryIndexRequest>,
    ) -> Result<Response<message::RepositoryIndexResponse>, Status> {
        let entries = list_repository(self.front.service.as_ref(), request.into_inner().ready);
        let models = entries
            .into_iter()
            .map(|entry| message::repository_index_response::ModelIndex {
                name: entry.name,
                version: entry.version,
                state: entry.state.to_owned(),
                reason: entry.reason,
            })
            .collect();
        Ok(Response::new(message::RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<message::RepositoryModelLoadRequest>,
    ) -> Result<Response<message::RepositoryModelLoadResponse>, Status> {
        let connection = request.extensions().get::<ConnectionBytes>().cloned();
        let request = request.into_inner();
        let mut lease = self.front.options.budget.lease(connection.as_ref());
        lease.grow(request.encoded_len()).map_err(refusal_status)?;
        let message::RepositoryModelLoadRequest { model_name, parameters, .. } = request;
        let overrides = convert::read_overrides(parameters)
            .map_err(|error| error.with_context(format_args!("model \"{model_name}\"")))
            .map_err(refusal_status)?;
        self.front.load_task(&model_name, overrides).await.map_err(refusal_status)?;
        Ok(Response::new(message::RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<message::RepositoryModelUnloadRequest>,
    ) -> Result<Response<message::RepositoryModelUnloadResponse>, Status> {
        let name = request.into_inner().model_name;
        self.front.service.unload_task(&name).await.map_err(refusal_status)?;
        Ok(Response::new(message::RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<message::SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<message::SystemSharedMemoryStatusResponse>, Status> {
        use message::system_shared_memory_status_response::RegionStatus;

        let name = request.into_inner().name;
        let regions =
            self.front.options.shared_memory.system_status(&name).map_err(refusal_status)?;
        let regions = regions
            .into_iter()
            .map(|SystemRegionStatus { name, key, offset, byte_size }| {
                (name.clone(), RegionStatus { name, key, offset, byte_size })
            })
            .collect();
        Ok(Response::new(message::SystemSharedMemoryStatusResponse { regions }))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<message::SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<message::SystemSharedMemoryRegisterResponse>, Status> {
        let message::SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } =
            request.into_inner();
        let region = SystemRegionStatus { name, key, offset, byte_size };
        self.front.options.shared_memory.register_system(region).map_err(refusal_status)?;
        Ok(Response::new(message::SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<message::SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<message::SystemSharedMemoryUnregisterResponse>, Status> {
        let name = request.into_inner().name;
        self.front.options.shared_memory.unregister_system(&name);
        Ok(Response::new(message::SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        request: Request<message::CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<message::CudaSharedMemoryStatusResponse>, Status> {
        use message::cuda_shared_memory_status_response::RegionStatus;

        let name = request.into_inner().name;
        let regions =
            self.front.options.shared_memory.cuda_status(&name).map_err(refusal_status)?;
        let regions = regions
            .into_iter()
            .map(|CudaRegionStatus { name, device_id, byte_size }| {
                let device_id = device_id.into();
                (name.clone(), RegionStatus { name, device_id, byte_size })
            })
            .collect();
        Ok(Response::new(message::CudaSharedMemoryStatusResponse { regions }))
    }

    async fn cuda_shared_memory_register(
        &self,
        request: Request<message::CudaSharedMemoryRegisterRequest>,
    ) -> Result<Response<message::CudaSharedMemoryRegisterResponse>, Status> {
        let message::CudaSharedMemoryRegisterRequest { name, raw_handle, device_id, byte_size } =
            request.into_inner();
        let registration =
            CudaRegistration { name, handle: raw_handle.into(), device_id, byte_size };
        self.front
            .options
            .shared_memory
            .register_cuda_blocking(registration)
            .await
            .map_err(refusal_status)?;
        Ok(Response::new(message::CudaSharedMemoryRegisterResponse {}))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        request: Request<message::CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<message::CudaSharedMemoryUnregisterResponse>, Status> {
        let name = request.into_inner().name;
        let regions = &self.front.options.shared_memory;
        regions.unregister_cuda_blocking(name).await.map_err(refusal_status)?;
        Ok(Response::new(message::CudaSharedMemoryUnregisterResponse {}))
    }

    async fn trace_setting(
        &self,
        request: Request<message::TraceSettingRequest>,
    ) -> Result<Response<message::TraceSettingResponse>, Status> {
        let changed = change_trace_settings(&self.front, request.into_inner());
        Ok(Response::new(changed.map_err(refusal_status)?))
    }

    async fn log_settings(
        &self,
        request: Request<message::LogSettingsRequest>,
    ) -> Result<Response<message::LogSettingsResponse>, Status> {
        let changed = change_log_settings(&self.front, request.into_inner());
        Ok(Response::new(changed.map_err(refusal_status)?))
    }
}
