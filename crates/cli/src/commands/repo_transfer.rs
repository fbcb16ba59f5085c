//! `tessera repo push` and `tessera repo pull`: models to an object store, and from there.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde_json::json;
use tessera_core::{Error, Result};
use tessera_object_store::{ObjectStore, StoreAddress};
use tessera_report::{Table, format_bytes, output};
use tessera_repository::{ContentFetcher, Repository};

use crate::arguments::{RepoPull, RepoPush};

/// A model that was put there or fetched, as it is shown.
#[derive(Serialize)]
struct TransferredModel {
    model: String,
    /// Files that were missing, and their bytes.
    files: usize,
    bytes: u64,
}

pub(super) fn push_models(arguments: &RepoPush) -> Result<()> {
    let repository = Repository::open(&arguments.repository.repo)?;
    let store = ObjectStore::open(&arguments.to)?;
    let known = || Ok(repository.list_models()?.into_iter().map(|model| model.name).collect());
    let models = chosen_models(&arguments.names, known)?;
    transfer_models(&models, &arguments.to, arguments.json, ">files put", |model, progress| {
        let pushed = store.push_model(&repository, model, progress)?;
        Ok(TransferredModel { model: pushed.model, files: pushed.files, bytes: pushed.bytes })
    })
}

pub(super) fn pull_models(arguments: &RepoPull) -> Result<()> {
    let store = Arc::new(ObjectStore::open(&arguments.from)?);
    let models = chosen_models(&arguments.names, || store.list_models())?;
    let repository = Repository::open_or_create(&arguments.repository.repo)?;
    let fetcher = ContentFetcher::default();
    transfer_models(
        &models,
        &arguments.from,
        arguments.json,
        ">files fetched",
        |model, progress| {
            let pulled = store.pull_model(&repository, &fetcher, model, progress)?;
            Ok(TransferredModel { model: pulled.model, files: pulled.files, bytes: pulled.bytes })
        },
    )
}

/// Those that were named, or all that there are.
fn chosen_models(
    names: &[String],
    known: impl FnOnce() -> Result<Vec<String>>,
) -> Result<Vec<String>> {
    if !names.is_empty() {
        return Ok(names.to_vec());
    }
    let known = known()?;
    if known.is_empty() {
        return Err(Error::not_found("there is no model"));
    }
    Ok(known)
}

/// Transfers one after the other, and shows what came of it.
fn transfer_models(
    models: &[String],
    address: &StoreAddress,
    json: bool,
    files_head: &'static str,
    transfer: impl Fn(&str, &(dyn Fn(u64) + Sync)) -> Result<TransferredModel>,
) -> Result<()> {
    let (start, bar) = (Instant::now(), output::spinner(""));
    let mut transferred = Vec::new();
    for model in models {
        bar.set_message(model.clone());
        let progress = |bytes: u64| {
            bar.inc(bytes);
            bar.set_message(format!("{model}: {}", format_bytes(bar.position())));
        };
        transferred.push(transfer(model, &progress)?);
    }
    bar.finish_and_clear();
    if json {
        return output::print_json(&json!({
            "store": address.to_string(), "models": transferred,
            "seconds": start.elapsed().as_secs_f64(),
        }));
    }
    let mut table = Table::new(&["model", files_head, ">bytes"]);
    for TransferredModel { model, files, bytes } in &transferred {
        table.add_row([model.clone(), files.to_string(), format_bytes(*bytes)]);
    }
    table.print_table()
}
