//! The control plane: which tasks there should be, how they are kept and carried out, and the REST
//! interface to them. It neither runs units nor answers requests: a [`Site`] does.

#![forbid(unsafe_code)]

mod api;
mod brought_models;
mod change;
mod cluster;
mod history;
mod intent;
mod intent_reader;
mod json;
mod located_value;
mod manager;
mod members;
mod model_store;
mod model_upload;
mod names;
mod openapi;
mod plugin;
mod requester;
mod resolve;
mod run_apart;
mod site;
mod state;
mod store;
mod task_defaults;
#[cfg(test)]
mod tests;

pub use api::{control_router, control_routes, controller_router};
pub use change::{Changed, Fused};
pub use cluster::{
    ClusterAdmin, ClusterPlanStatus, ClusterSite, ClusterSiteParts, ContentReader, ContentSlice,
    ExitPlanStatus, LinkStatus, MoveStatus, NodeStatus, NodeTable, PlacementChoice, ServedContent,
    TaskPlanStatus, ThresholdChangeStatus, TokenStatus, cluster_services, content_router,
};
pub use history::{HistoryEntry, TaskDifference};
pub use intent::{
    BlockChoice, DeviceChoice, NodeChoice, PathStep, StepInput, System, SystemSettings,
    TaskDefinition, TaskPath,
};
pub use intent_reader::{REPLICAS, ROWS, WAIT_MS};
pub use json::read_json;
pub use manager::{Manager, Restored};
pub use members::{
    AdmittedNode, MemberRecord, MemberRegistry, NewToken, RegistryConfig, TokenRecord, TokenState,
};
pub use model_store::{BroughtModel, ModelBlock, ModelStatus, ModelStore, StoredModel};
pub use names::check_task_name;
pub use openapi::openapi_document;
pub use plugin::PlacementPlugin;
pub use requester::on_behalf_of;
pub use site::{
    AppliedUnits, Catalogue, ContentHold, ExitStatus, InstanceReport, PingAnswer, Site, SiteFuture,
    TaskStatus, UnitStatus, UsedUnit, used_units,
};
pub use store::{
    EtcdRows, IntentChange, IntentRows, IntentStore, MemoryRows, MemoryStore, RedbRows, RowChange,
    RowMap, RowSpace, RowStore, StoredIntent, StoredTask, TaskVersion,
};
pub use task_defaults::TaskDefaults;
