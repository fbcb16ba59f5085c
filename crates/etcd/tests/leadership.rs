//! One of several candidates leads, and the next one as soon as it is gone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{client_of, start_members, wait_until_ready};
use rustix::process::{Pid, Signal, kill_process};
use tessera_core::ErrorKind;
use tessera_etcd::{Candidate, EtcdClient, EtcdConfig, Leadership, Transaction};

const TTL: Duration = Duration::from_secs(2);
/// For what must not happen, and would otherwise hang.
const LONG: Duration = Duration::from_secs(30);
const PREFIX: &str = "/tessera/test/leader";

fn candidate(name: &str) -> Candidate {
    Candidate { ttl: TTL, ..Candidate::new(PREFIX, name) }
}

/// What comes within the time.
async fn within<T>(time: Duration, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, work).await.expect("it takes too long")
}

/// Somebody who waits to lead, and has entered already as the last of `count`.
async fn enter(
    client: &EtcdClient,
    name: &str,
    count: usize,
) -> tokio::task::JoinHandle<Leadership> {
    let (own, candidate) = (client.clone(), candidate(name));
    let waiting =
        tokio::spawn(async move { Leadership::campaign(&own, &candidate).await.unwrap() });
    within(LONG, async {
        while candidates(client).await != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    waiting
}

async fn candidates(client: &EtcdClient) -> usize {
    let now = client.commit(Transaction::new().read_prefix(PREFIX, 10)).await.unwrap();
    now.reads[0].records.len()
}

async fn leader_name(client: &EtcdClient) -> Option<String> {
    let leader = client.current_leader(PREFIX).await.unwrap();
    leader.map(|leader| String::from_utf8(leader.value.to_vec()).unwrap())
}

#[tokio::test]
async fn the_next_one_leads_as_soon_as_the_leader_resigns() {
    let Some(members) = start_members(3) else { return };
    let client = client_of(&members);
    wait_until_ready(&client).await;
    assert_eq!(leader_name(&client).await, None);
    let first = enter(&client, "a", 1).await;
    let first = within(LONG, first).await.unwrap();
    let second = enter(&client, "b", 2).await;
    let third = enter(&client, "c", 3).await;
    assert!(first.is_held() && !second.is_finished() && !third.is_finished());
    assert_eq!(leader_name(&client).await.as_deref(), Some("a"));
    let (guard, epoch) = (first.guard(), first.epoch());
    first.resign().await.unwrap();
    assert!(!guard.is_held());
    let second = within(Duration::from_secs(1), second).await.unwrap();
    assert_eq!(leader_name(&client).await.as_deref(), Some("b"));
    assert!(second.epoch() > epoch && second.is_held() && !third.is_finished());
    second.resign().await.unwrap();
    let third = within(Duration::from_secs(1), third).await.unwrap();
    // It leads on for as long as it is there.
    tokio::time::sleep(2 * TTL).await;
    assert!(third.is_held());
    assert_eq!(leader_name(&client).await.as_deref(), Some("c"));
}

#[tokio::test]
async fn the_next_one_leads_once_the_lease_of_one_that_is_gone_runs_out() {
    let Some(members) = start_members(1) else { return };
    let client = client_of(&members);
    wait_until_ready(&client).await;
    let first = enter(&client, "a", 1).await.await.unwrap();
    let second = enter(&client, "b", 2).await;
    let guard = first.guard();
    drop(first);
    assert!(!guard.is_held());
    within(TTL + Duration::from_secs(1), second).await.unwrap();
    assert_eq!(leader_name(&client).await.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_candidate_that_goes_away_lets_those_behind_it_wait_on() {
    let Some(members) = start_members(1) else { return };
    let client = client_of(&members);
    wait_until_ready(&client).await;
    let first = enter(&client, "a", 1).await.await.unwrap();
    let second = enter(&client, "b", 2).await;
    let third = enter(&client, "c", 3).await;
    second.abort();
    within(LONG, async {
        while candidates(&client).await != 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(first.is_held() && !third.is_finished());
    first.resign().await.unwrap();
    within(Duration::from_secs(2), third).await.unwrap();
}

#[tokio::test]
async fn a_leader_that_was_deposed_changes_nothing() {
    let Some(members) = start_members(1) else { return };
    let client = client_of(&members);
    wait_until_ready(&client).await;
    let leader = Leadership::campaign(&client, &candidate("a")).await.unwrap();
    let mut write = Transaction::guarded_by(&leader.guard());
    write.put("/tessera/test/row", "of a");
    assert!(client.commit(&write).await.unwrap().is_done);
    // Behind its back, so that its own clock says that it leads.
    client.commit(Transaction::new().remove(leader.key())).await.unwrap();
    assert!(leader.is_held());
    let mut late = Transaction::guarded_by(&leader.guard());
    late.put("/tessera/test/row", "late");
    let error = client.commit(&late).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("is not the leader any more"), "{error}");
    assert!(!leader.is_held());
    within(Duration::from_millis(100), leader.lost()).await;
    let row = client.read_key("/tessera/test/row").await.unwrap().unwrap();
    assert_eq!(row.value, "of a");
}

#[tokio::test]
async fn without_a_majority_the_leader_loses_its_place_and_gets_one_again_later() {
    let Some(mut members) = start_members(3) else { return };
    let client = client_of(&members);
    wait_until_ready(&client).await;
    // Long enough for members to elect a leader of theirs meanwhile.
    let candidate = Candidate::new(PREFIX, "a");
    let leader = Leadership::campaign(&client, &candidate).await.unwrap();
    members.kill_member(0).unwrap();
    // One of three may go; their next leader comes before the lease is lost.
    wait_until_ready(&client).await;
    assert!(leader.is_held());
    members.kill_member(1).unwrap();
    let killed = Instant::now();
    within(candidate.ttl + Duration::from_millis(500), leader.lost()).await;
    assert!(!leader.is_held() && killed.elapsed() > candidate.ttl / 3);
    let asked = Instant::now();
    let error = client.commit(Transaction::new().put("row", "")).await.unwrap_err();
    assert!(asked.elapsed() < Duration::from_secs(7), "{:?}", asked.elapsed());
    assert!(error.to_string().contains("etcd at http://127.0.0.1:"), "{error}");
    assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::TimedOut), "{error}");
    for place in [0, 1] {
        members.restart_member(place).unwrap();
    }
    wait_until_ready(&client).await;
    let again = within(LONG, Leadership::campaign(&client, &candidate)).await.unwrap();
    assert!(again.is_held() && again.epoch() > leader.epoch());
}

/// Has the URLs of etcd in the process that the next test stops.
const CHILD_URLS: &str = "TESSERA_TEST_ETCD_URLS";

/// Ends with the test.
struct OtherProcess(Child);

impl Drop for OtherProcess {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

#[tokio::test]
async fn a_leader_that_was_stopped_finds_that_it_leads_no_more_at_once() {
    let Some(members) = start_members(1) else { return };
    let client = client_of(&members);
    wait_until_ready(&client).await;
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leader_in_a_process_of_its_own", "--nocapture"])
        .env(CHILD_URLS, members.urls().join(","))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = OtherProcess(child.unwrap());
    let mut said = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut hear = |what: &str| said.by_ref().map(Result::unwrap).find(|line| line.contains(what));
    assert!(hear("leads: true").is_some());
    let process = Pid::from_child(&child.0);
    kill_process(process, Signal::STOP).unwrap();
    let next = within(LONG, Leadership::campaign(&client, &candidate("b"))).await.unwrap();
    // Asked before anything else of it can run on.
    child.0.stdin.take().unwrap().write_all(b"?\n").unwrap();
    kill_process(process, Signal::CONT).unwrap();
    assert!(hear("now leads: ").unwrap().ends_with("now leads: false"));
    assert!(child.0.wait().unwrap().success() && next.is_held());
}

/// Nothing, but in the process that the test above starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_in_a_process_of_its_own() {
    let Ok(urls) = std::env::var(CHILD_URLS) else { return };
    let endpoints = urls.split(',').map(str::to_owned).collect();
    let client = EtcdClient::new(&EtcdConfig { endpoints, tls: None }).unwrap();
    let leader = Leadership::campaign(&client, &candidate("a")).await.unwrap();
    println!("\nleads: {}", leader.is_held());
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    println!("\nnow leads: {}", leader.is_held());
    leader.lost().await;
}
