//! Units' processes that are killed while they start, and a server that is killed with them.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tessera_core::{Error, Random, Result};
use tessera_deploy::Isolation;
use tessera_zoo::TinyModel;

use super::Attack;
use super::victim::{VictimPlace, ask_small};
use crate::finding::Finding;
use crate::server_files::working_folders;
use crate::server_footprint::{child_processes, is_process_there};
use crate::test_client::TestClient;
use crate::test_server::TestServer;
use crate::unit_processes::kill_process;

pub(crate) const KILL_STARTING: Attack = Attack {
    name: "kill-starting",
    about: "units' processes that are killed while they start, and the server with them",
    isolations: &[Isolation::Process],
    carry_out: kill_while_starting,
};

/// How often a unit is started and killed.
const ROUNDS: usize = 30;

/// How often the server is killed while a unit starts.
const SERVER_ROUNDS: usize = 6;

/// A unit that starts is killed within this time, in milliseconds.
const KILLED_WITHIN: u64 = 150;

/// How long a unit may take until it has a working folder.
const FOLDER_PATIENCE: Duration = Duration::from_secs(1);

/// How long a unit may take to appear, and what is left to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// Folders are of a process that is gone if they have not changed for longer than the server asks.
const AGE: Duration = Duration::from_secs(120);

fn kill_while_starting(isolation: Isolation) -> Result<Vec<Finding>> {
    let place = VictimPlace::prepare_place(isolation, &[TinyModel::Linear, TinyModel::Pooled])?;
    let mut random = Random::new(1);
    let mut server = start_without_visitors(&place)?;
    let mut amid = 0;
    for round in 0..ROUNDS {
        let moment =
            if round.is_multiple_of(2) { KillMoment::AmidFolder } else { KillMoment::AnyTime };
        amid += usize::from(kill_one_start(&server, &place, moment, &mut random)?);
    }
    let answers = ask_small(server.announced.http).is_ok_and(|answer| answer.status == 200);
    let left = wait_for_none(|| working_folders(&folders_of(&place)));
    let mut findings = vec![
        Finding::exactly("server alive", usize::from(server.is_running()), 1)
            .with_detail(format!("{ROUNDS} kills, {amid} of them amid a working folder")),
        Finding::exactly("small request answered after", usize::from(answers), 1),
        Finding::exactly("folders left by units", left.len(), 0).with_detail(left.join(", ")),
    ];
    drop(server);
    findings.extend(kill_servers(&place, &mut random)?);
    Ok(findings)
}

fn folders_of(place: &VictimPlace) -> [std::path::PathBuf; 2] {
    [place.temporary_folder(), place.repository()]
}

/// Starts a server that has the model of visitors in its repository, and no unit for it.
fn start_without_visitors(place: &VictimPlace) -> Result<TestServer> {
    let server = place.start_server(&[])?;
    let path = format!("/v1/tasks/{}", TinyModel::Pooled.task_name());
    server.call_control("DELETE", &path, None)?;
    wait_for_none(|| child_processes(server.announced.process).into_iter().skip(1).collect());
    Ok(server)
}

/// Has a unit started, and kills its process; whether that had a working folder just then.
fn kill_one_start(
    server: &TestServer,
    place: &VictimPlace,
    moment: KillMoment,
    random: &mut Random,
) -> Result<bool> {
    let before: BTreeSet<u32> = child_processes(server.announced.process).into_iter().collect();
    let adding = add_visitor(server, Isolation::Process);
    let Some(unit) = wait_for_child(server, &before) else {
        return Err(Error::engine("no process was started for a task that was added"));
    };
    let amid = wait_for_moment(place, unit, moment, random);
    kill_process(unit);
    // Whether it comes up in the end does not matter here; where it does not, there is no task.
    adding.join().ok();
    server.call_control("DELETE", "/v1/tasks/visitor", None).ok();
    Ok(amid)
}

/// Adds a task, without waiting for it to be there.
fn add_visitor(server: &TestServer, isolation: Isolation) -> std::thread::JoinHandle<()> {
    let control = server.announced.control;
    let model = TinyModel::Pooled.task_name();
    let body = json!({ "model": model, "isolation": isolation.to_string() }).to_string();
    std::thread::spawn(move || {
        let headers = ["Host: tessera", "Content-Type: application/json"];
        let sent = TestClient::connect(control).and_then(|mut client| {
            client.send_body("PUT", "/v1/tasks/visitor", &headers, body.as_bytes())
        });
        drop(sent);
    })
}

/// The process that a server starts next.
fn wait_for_child(server: &TestServer, before: &BTreeSet<u32>) -> Option<u32> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let children = child_processes(server.announced.process);
        if let Some(unit) = children.into_iter().find(|child| !before.contains(child)) {
            return Some(unit);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// When a process is to be killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KillMoment {
    /// When it has a working folder.
    AmidFolder,
    /// At any time while it starts.
    AnyTime,
}

/// Waits for a moment to kill a process; whether it has a working folder then.
fn wait_for_moment(
    place: &VictimPlace,
    process: u32,
    moment: KillMoment,
    random: &mut Random,
) -> bool {
    let limit = match moment {
        KillMoment::AmidFolder => FOLDER_PATIENCE,
        KillMoment::AnyTime => Duration::from_millis(random.next_below(KILLED_WITHIN)),
    };
    let mark = format!("tessera-{process}-");
    let has_folder = || working_folders(&folders_of(place)).iter().any(|name| name.contains(&mark));
    let start = Instant::now();
    // Without a pause: it has its folder for milliseconds.
    while start.elapsed() < limit {
        if moment == KillMoment::AmidFolder && has_folder() {
            return true;
        }
    }
    has_folder()
}

/// Kills servers while a unit of theirs starts; a last one finds what they left.
fn kill_servers(place: &VictimPlace, random: &mut Random) -> Result<Vec<Finding>> {
    let mut orphans = BTreeSet::new();
    for round in 0..SERVER_ROUNDS {
        let isolation =
            if round.is_multiple_of(2) { Isolation::Process } else { Isolation::Thread };
        orphans.extend(kill_one_server(place, isolation, random)?);
    }
    let running = wait_for_none(|| {
        orphans.iter().filter(|&&process| is_process_there(process)).copied().collect()
    });
    let left = working_folders(&folders_of(place));
    left.iter().try_for_each(|folder| make_old(Path::new(folder)))?;
    drop(place.start_server(&[])?);
    let after = working_folders(&folders_of(place));
    Ok(vec![
        Finding::exactly("units that outlived a killed server", running.len(), 0)
            .with_detail(format!("of {} after {SERVER_ROUNDS} kills", orphans.len())),
        Finding::exactly("folders left after the next start", after.len(), 0)
            .with_detail(format!("{} before it", left.len())),
    ])
}

/// Kills a server while a unit starts, on its threads or in a process that is killed as well. The
/// processes of its units.
fn kill_one_server(
    place: &VictimPlace,
    isolation: Isolation,
    random: &mut Random,
) -> Result<Vec<u32>> {
    let mut server = start_without_visitors(place)?;
    let process = server.announced.process;
    let before: BTreeSet<u32> = child_processes(process).into_iter().collect();
    let adding = add_visitor(&server, isolation);
    let unit = match isolation {
        Isolation::Process => wait_for_child(&server, &before),
        Isolation::Thread => None,
    };
    let units: Vec<u32> = before.into_iter().chain(unit).collect();
    wait_for_moment(place, unit.unwrap_or(process), KillMoment::AmidFolder, random);
    // First, so that it can't finish, and the server has no time to see it.
    unit.into_iter().for_each(kill_process);
    server.kill_server();
    adding.join().ok();
    Ok(units)
}

/// Makes a folder look as if nobody had used it for a while.
fn make_old(folder: &Path) -> Result<()> {
    let long_ago = SystemTime::now() - AGE;
    let opened = std::fs::File::open(folder).and_then(|folder| folder.set_modified(long_ago));
    opened.map_err(|error| Error::from_io(folder.display(), &error))
}

/// Waits until nothing is left; what is left in the end.
fn wait_for_none<T>(find: impl Fn() -> Vec<T>) -> Vec<T> {
    let start = Instant::now();
    loop {
        let left = find();
        if left.is_empty() || start.elapsed() > PATIENCE {
            return left;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
