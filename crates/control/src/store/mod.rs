//! What a control plane keeps: rows under keys, and intent and members in them.

mod etcd_journal;
mod etcd_rows;
mod etcd_space;
mod intent_copy;
mod intent_rows;
mod intent_store;
mod redb_rows;
mod row_store;
mod runtime_thread;

pub use etcd_rows::EtcdRows;
pub use intent_rows::IntentRows;
pub use intent_store::{
    IntentChange, IntentStore, MemoryStore, StoredIntent, StoredTask, TaskVersion,
};
pub use redb_rows::RedbRows;
pub use row_store::{MemoryRows, RowChange, RowMap, RowSpace, RowStore};
