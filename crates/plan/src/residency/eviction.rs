//! Eviction
