//! Models of tasks in the cluster's object store: put there in the background, so that nodes and
//! other controllers find them, and taken from there where this controller lacks them.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_control::{Catalogue, ContentHold};
use tessera_core::{Error, ErrorKind, Result, lock};
use tessera_graph::BlockGraph;
use tessera_object_store::{ObjectStore, StoreAddress};
use tessera_repository::{ContentFetcher, Repository};

use crate::catalogue::RepositoryCatalogue;

/// How long to wait before what could not be done is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// The models of tasks in an object store.
pub(super) struct StoredModels {
    repository: PathBuf,
    store: Arc<ObjectStore>,
    fetcher: ContentFetcher,
    wishes: Mutex<Sender<StoreWish>>,
}

/// What is done in the background.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum StoreWish {
    /// To have a model there.
    Keep(String),
    /// To have the weights of a model here, which was taken without.
    Complete(String),
}

impl StoredModels {
    /// Works in the background for as long as it is there.
    pub(super) fn start(repository: PathBuf, address: &StoreAddress) -> Result<Arc<Self>> {
        let store = Arc::new(ObjectStore::open(address)?);
        let (wishes, waiting) = channel();
        let worker = StoreWorker { repository: repository.clone(), store: Arc::clone(&store) };
        std::thread::Builder::new()
            .name("object-store".to_owned())
            .spawn(move || worker.work(&waiting))
            .map_err(|error| Error::from_io("a thread for the object store", &error))?;
        let (fetcher, wishes) = (ContentFetcher::default(), Mutex::new(wishes));
        Ok(Arc::new(Self { repository, store, fetcher, wishes }))
    }

    /// Where the store is.
    pub(super) fn address(&self) -> String {
        self.store.address().to_string()
    }

    /// Takes a model from there; its weights follow in the background.
    fn take_model(&self, model: &str) -> Result<()> {
        let repository = Repository::open(&self.repository)?;
        self.store.pull_graph(&repository, &self.fetcher, model)?;
        tracing::info!(model, store = self.address(), "a model that was not here is taken");
        self.wish(StoreWish::Complete(model.to_owned()));
        Ok(())
    }

    fn wish(&self, wish: StoreWish) {
        if lock(&self.wishes).send(wish).is_err() {
            tracing::error!("nothing is put into the object store any more");
        }
    }
}

/// Does what is wished for, one after the other, until nobody wishes any more.
struct StoreWorker {
    repository: PathBuf,
    store: Arc<ObjectStore>,
}

impl StoreWorker {
    fn work(&self, waiting: &Receiver<StoreWish>) {
        let mut wishes: VecDeque<StoreWish> = VecDeque::new();
        let mut failed = HashSet::new();
        loop {
            let next = match wishes.pop_front() {
                Some(wish) => wish,
                None => match waiting.recv() {
                    Ok(wish) => wish,
                    Err(_) => return,
                },
            };
            let done = self.fulfil(&next);
            match done {
                Ok(()) => drop(failed.remove(&next)),
                Err(error) => {
                    if failed.insert(next.clone()) {
                        tracing::warn!(%error, "the object store is behind: it is tried again");
                    }
                    wishes.push_back(next);
                    match waiting.recv_timeout(RETRY_PAUSE) {
                        Ok(wish) => wishes.push_front(wish),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            }
        }
    }

    fn fulfil(&self, wish: &StoreWish) -> Result<()> {
        let repository = Repository::open(&self.repository)?;
        match wish {
            StoreWish::Keep(model) => {
                if self.store.has_model(&repository, model)? {
                    return Ok(());
                }
                let pushed = match self.store.push_model(&repository, model, &|_| ()) {
                    // It was removed meanwhile, and nobody needs it.
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                    pushed => pushed?,
                };
                let (files, bytes) = (pushed.files, pushed.bytes);
                let store = self.store.address();
                tracing::info!(model, %store, files, bytes, "a model is in the object store");
            }
            StoreWish::Complete(model) => {
                let fetcher = ContentFetcher::default();
                let pulled = self.store.pull_model(&repository, &fetcher, model, &|_| ())?;
                tracing::info!(model, bytes = pulled.bytes, "a model's weights are here, too");
            }
        }
        Ok(())
    }
}

/// A repository as the catalogue of what paths may name, with an object store behind it.
pub(super) struct StoredCatalogue {
    pub(super) inner: RepositoryCatalogue,
    pub(super) models: Arc<StoredModels>,
}

impl Catalogue for StoredCatalogue {
    fn find_graph(&self, name: &str) -> Result<BlockGraph> {
        let error = match self.inner.find_graph(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => error,
            found => return found,
        };
        let model = name.split_once('/').map_or(name, |(model, _)| model);
        match self.models.take_model(model) {
            Ok(()) => self.inner.find_graph(name),
            Err(taking) => Err(Error::new(error.kind(), format!("{error}; {taking}"))),
        }
    }

    fn hold_content(&self, task: &str, names: &[&str], graph: &BlockGraph) -> Result<ContentHold> {
        let held = self.inner.hold_content(task, names, graph)?;
        for name in names {
            let model = name.split_once('/').map_or(*name, |(model, _)| model);
            self.models.wish(StoreWish::Keep(model.to_owned()));
        }
        Ok(held)
    }
}
