//! Rows in etcd: what was written is there, as a whole, and by nobody but the leader.

use std::ops::Deref;
use std::time::Duration;

use tessera_core::ErrorKind;
use tessera_etcd::{Candidate, Leadership, Transaction};
use tessera_lab::EtcdMembers;
use tokio::runtime::Runtime;

use super::super::etcd_space::{NetChange, Written};
use super::*;
use crate::store::{IntentRows, IntentStore, StoredIntent};

const PREFIX: &str = "/tessera/test";
const SPACES: [RowSpace; 3] = [RowSpace::Intent, RowSpace::Members, RowSpace::Placement];

/// etcd, and rows in it in the name of its leader.
struct Store {
    rows: EtcdRows,
    leader: Option<Leadership>,
    // What it takes goes last.
    runtime: Runtime,
    config: EtcdConfig,
    members: EtcdMembers,
}

impl Store {
    /// `None`, said out loud, where etcd is not installed.
    fn start() -> Option<Self> {
        let members = match EtcdMembers::start(1) {
            Ok(members) => members,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                eprintln!("SKIPPED: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let runtime = Runtime::new().unwrap();
        let config = EtcdConfig { endpoints: members.urls(), tls: None };
        let leader = runtime.block_on(campaign(&config));
        let rows = EtcdRows::new(&config, PREFIX, &leader.guard()).unwrap();
        Some(Self { rows, leader: Some(leader), runtime, config, members })
    }

    /// As the next leader sees it, after this one has gone.
    fn next_leader(&mut self) {
        if let Some(leader) = self.leader.take() {
            self.runtime.block_on(leader.resign()).unwrap();
        }
        let leader = self.runtime.block_on(campaign(&self.config));
        self.rows = EtcdRows::new(&self.config, PREFIX, &leader.guard()).unwrap();
        self.leader = Some(leader);
    }

    /// Keys in etcd that are not rows, heads, or the leader's.
    fn journal(&self) -> usize {
        let read = async |client: EtcdClient| {
            client.commit(Transaction::new().read_prefix(&format!("{PREFIX}/journal"), 0)).await
        };
        self.ask(read).reads[0].records.len()
    }

    fn ask<T>(&self, call: impl AsyncFnOnce(EtcdClient) -> Result<T>) -> T {
        self.runtime.block_on(async { call(EtcdClient::new(&self.config).unwrap()).await.unwrap() })
    }
}

impl Deref for Store {
    type Target = EtcdRows;

    fn deref(&self) -> &EtcdRows {
        &self.rows
    }
}

async fn campaign(config: &EtcdConfig) -> Leadership {
    let client = EtcdClient::new(config).unwrap();
    let candidate = Candidate::new(format!("{PREFIX}/leader"), "a controller");
    loop {
        match Leadership::campaign(&client, &candidate).await {
            Ok(leader) => return leader,
            Err(error) => eprintln!("not the leader yet: {error}"),
        }
    }
}

fn put(key: &str, value: &str) -> RowChange {
    RowChange::Put(key.to_owned(), value.into())
}

fn remove(key: &str) -> RowChange {
    RowChange::Remove(key.to_owned())
}

fn rows(rows: &[(&str, &str)]) -> Option<RowMap> {
    Some(rows.iter().map(|&(key, value)| (key.to_owned(), value.into())).collect())
}

/// So many rows, of which none is like another.
fn many_rows(count: usize, about: &str) -> Vec<RowChange> {
    (0..count).map(|number| put(&format!("row{number:04}"), &format!("{about} {number}"))).collect()
}

#[test]
fn what_was_saved_last_is_loaded() {
    let Some(mut store) = Store::start() else { return };
    for space in SPACES {
        assert_eq!(store.load_rows(space).unwrap(), None);
        store.save_rows(space, &[]).unwrap();
        assert_eq!(store.load_rows(space).unwrap(), rows(&[]));
        let name = space.name();
        store.save_rows(space, &[put("a", name), put("b/c", "2"), put("", "3")]).unwrap();
        store.save_rows(space, &[put("a", "gone"), put("a", name), remove("d")]).unwrap();
        store.save_rows(space, &[remove("")]).unwrap();
        assert_eq!(store.load_rows(space).unwrap(), rows(&[("a", name), ("b/c", "2")]));
    }
    store.next_leader();
    for space in SPACES {
        assert_eq!(store.load_rows(space).unwrap(), rows(&[("a", space.name()), ("b/c", "2")]));
    }
    let all = [put("e", "0"), RowChange::RemoveAll, put("a", "new"), put("f", "1")];
    store.save_rows(RowSpace::Members, &all).unwrap();
    assert_eq!(store.load_rows(RowSpace::Members).unwrap(), rows(&[("a", "new"), ("f", "1")]));
    store.save_rows(RowSpace::Members, &[RowChange::RemoveAll]).unwrap();
    assert_eq!(store.load_rows(RowSpace::Members).unwrap(), rows(&[]));
    assert_eq!(store.load_rows(RowSpace::Intent).unwrap().unwrap().len(), 2);
}

#[test]
fn intent_is_kept() {
    let Some(store) = Store::start() else { return };
    let intent = IntentRows::new(Arc::new(store.rows));
    assert_eq!(intent.load_intent().unwrap(), None);
    intent.save_change(&StoredIntent::default().into_change()).unwrap();
    assert_eq!(intent.load_intent().unwrap(), Some(StoredIntent::default()));
}

#[test]
fn large_changes_are_made_as_a_whole() {
    let Some(mut store) = Store::start() else { return };
    let space = RowSpace::Intent;
    store.save_rows(space, &many_rows(1000, "first")).unwrap();
    let loaded = store.load_rows(space).unwrap().unwrap();
    assert_eq!((loaded.len(), &loaded["row0999"][..]), (1000, &b"first 999"[..]));
    // Others remain, and go.
    let mut change = vec![put("other", "stays")];
    change.extend((0..500).map(|number| remove(&format!("row{number:04}"))));
    store.save_rows(space, &change).unwrap();
    assert_eq!(store.load_rows(space).unwrap().unwrap().len(), 501);
    change = vec![RowChange::RemoveAll];
    change.extend(many_rows(300, "second"));
    store.save_rows(space, &change).unwrap();
    store.save_rows(space, &[put("row0000", "third")]).unwrap();
    store.next_leader();
    let loaded = store.load_rows(space).unwrap().unwrap();
    assert_eq!((loaded.len(), &loaded["row0299"][..]), (300, &b"second 299"[..]));
    assert_eq!((&loaded["row0000"][..], store.journal()), (&b"third"[..], 0));
}

#[test]
fn rows_may_have_a_mebibyte_each() {
    let Some(store) = Store::start() else { return };
    let large = |number: u8| RowChange::Put(format!("row{number}"), vec![number; 1_100_000]);
    let changes: Vec<_> = (0..5).map(large).collect();
    store.save_rows(RowSpace::Placement, &changes).unwrap();
    store.save_rows(RowSpace::Placement, &changes[..1]).unwrap();
    let loaded = store.load_rows(RowSpace::Placement).unwrap().unwrap();
    assert_eq!(loaded.len(), 5);
    assert!(loaded["row3"].iter().all(|byte| *byte == 3));
    // The largest that there may be, and one that is too large.
    let of_size = |size: usize| [RowChange::Put("row4".to_owned(), vec![4; size - 4])];
    store.save_rows(RowSpace::Placement, &of_size(5 << 18)).unwrap();
    let error = store.save_rows(RowSpace::Placement, &of_size((5 << 18) + 1)).unwrap_err();
    assert!(error.to_string().contains("row \"row4\" has 1310717 bytes"), "{error}");
    assert_eq!(store.load_rows(RowSpace::Placement).unwrap().unwrap().len(), 5);
    assert_eq!(store.journal(), 0);
}

/// A large change by a leader that is gone before it has finished.
fn leave_journal(store: &Store, is_committed: bool) {
    let space = store.space(RowSpace::Intent);
    let work = async move {
        let mut space = space.lock().await;
        space.load().await?;
        let mut change = many_rows(400, "new");
        change.push(remove("old"));
        let (change, write) = (NetChange::of_changes(&change), space.name_write());
        assert!(matches!(space.write_entries(&change, &write).await?, Written::Done));
        if is_committed {
            assert!(matches!(space.commit_entries(&write).await?, Written::Done));
        }
        Ok(())
    };
    store.thread.wait_for(work).unwrap();
}

#[test]
fn a_large_change_that_was_interrupted_is_made_or_never_was() {
    let Some(mut store) = Store::start() else { return };
    store.save_rows(RowSpace::Intent, &[put("old", "1"), put("row0001", "old")]).unwrap();
    let before = rows(&[("old", "1"), ("row0001", "old")]);
    leave_journal(&store, false);
    assert_eq!(store.journal(), 401);
    store.next_leader();
    assert_eq!(store.load_rows(RowSpace::Intent).unwrap(), before);
    assert_eq!(store.journal(), 0);
    // The same leader drops it as well, when it writes next.
    leave_journal(&store, false);
    store.rows =
        EtcdRows::new(&store.config, PREFIX, &store.leader.as_ref().unwrap().guard()).unwrap();
    store.save_rows(RowSpace::Intent, &[put("old", "1")]).unwrap();
    assert_eq!((store.load_rows(RowSpace::Intent).unwrap(), store.journal()), (before, 0));
    leave_journal(&store, true);
    assert_eq!(store.journal(), 402);
    store.next_leader();
    // Whoever writes before it has loaded finishes it, too.
    store.save_rows(RowSpace::Intent, &[put("row0002", "newer")]).unwrap();
    let loaded = store.load_rows(RowSpace::Intent).unwrap().unwrap();
    assert_eq!((loaded.len(), store.journal()), (400, 0));
    assert_eq!(loaded["row0001"], b"new 1");
    assert_eq!(loaded["row0002"], b"newer");
}

#[test]
fn a_leader_that_was_deposed_writes_nothing() {
    let Some(mut store) = Store::start() else { return };
    store.save_rows(RowSpace::Members, &[put("a", "1")]).unwrap();
    // Behind its back, so that its own clock says that it leads.
    let old = store.leader.take().unwrap();
    let key = old.key().to_owned();
    store.ask(async |client| client.commit(Transaction::new().remove(&key)).await);
    assert!(old.is_held());
    for changes in [vec![put("a", "late")], many_rows(400, "late")] {
        let error = store.save_rows(RowSpace::Members, &changes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("is not the leader any more"), "{error}");
    }
    assert!(!old.is_held());
    store.next_leader();
    assert_eq!(store.load_rows(RowSpace::Members).unwrap(), rows(&[("a", "1")]));
}

#[test]
fn a_write_that_is_not_answered_is_never_made_after_the_next() {
    let Some(mut store) = Store::start() else { return };
    store.save_rows(RowSpace::Members, &[put("a", "1")]).unwrap();
    // What the leader would send now, and etcd is late with.
    let space = store.space(RowSpace::Members);
    let late = async move {
        let mut late = space.lock().await.guarded_write();
        late.put(&format!("{PREFIX}/rows/members/a"), "late");
        Ok(late)
    };
    let late = store.thread.wait_for(late).unwrap();
    store.save_rows(RowSpace::Members, &[put("a", "2")]).unwrap();
    assert!(!store.ask(async |client| client.commit(&late).await).is_done);
    assert_eq!(store.load_rows(RowSpace::Members).unwrap(), rows(&[("a", "2")]));
    // And etcd that is away is said to be.
    store.members.kill_member(0).unwrap();
    let asked = std::time::Instant::now();
    let error = store.save_rows(RowSpace::Members, &[put("a", "3")]).unwrap_err().to_string();
    assert!(error.starts_with("store /tessera/test in etcd, members: "), "{error}");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    store.members.restart_member(0).unwrap();
    store.leader = None;
    store.next_leader();
    assert_eq!(store.load_rows(RowSpace::Members).unwrap(), rows(&[("a", "2")]));
}

#[tokio::test]
async fn it_may_be_used_and_dropped_within_a_runtime() {
    let Some(members) = tokio::task::spawn_blocking(Store::start).await.unwrap() else { return };
    assert_eq!(members.load_rows(RowSpace::Intent).unwrap(), None);
    tokio::task::spawn_blocking(move || drop(members)).await.unwrap();
}

#[test]
fn a_cluster_has_a_prefix() {
    let Some(store) = Store::start() else { return };
    let guard = store.leader.as_ref().unwrap().guard();
    for prefix in ["", "/"] {
        let error = EtcdRows::new(&store.config, prefix, &guard).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
