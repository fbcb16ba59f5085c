//! `tessera bench attack`: what hostile clients and models do to a server, and the bounds that it
//! must hold meanwhile.
//!
//! Each attack has a server of its own, with units on threads and then in processes, and a row for
//! each bound. They are in files by what they abuse.

mod cross_site;
mod endless_runs;
mod idle_connections;
mod kill_starting;
mod large_bodies;
mod memory_returns;
mod oversized_runs;
mod region_flood;
mod slow_clients;
mod small_request_watch;
mod unfair_load;
mod victim;
mod wire;

use clap::Args;
use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_report::{Table, output};

use super::isolation_choice::IsolationChoice;
use crate::finding::Finding;
pub(crate) use memory_returns::leftover_findings;
use small_request_watch::WatchedAnswers;
pub(crate) use victim::{Victim, matrix_request};

/// Options of `tessera bench attack`.
#[derive(Args)]
pub struct BenchAttack {
    /// Attacks to carry out; all of them if none is named
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Where units run
    #[arg(long, default_value = "both", value_enum)]
    pub(crate) isolation: IsolationChoice,
    /// Name the attacks that there are
    #[arg(long)]
    pub(crate) list: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// One way to harm a server.
pub(crate) struct Attack {
    /// What it is called on the command line.
    name: &'static str,
    /// What is done, in a line.
    about: &'static str,
    /// Where units are that it makes sense for.
    isolations: &'static [Isolation],
    /// Carries it out against a server of its own.
    carry_out: fn(Isolation) -> Result<Vec<Finding>>,
}

/// For attacks that make sense wherever units are.
const ON_BOTH: &[Isolation] = &[Isolation::Thread, Isolation::Process];

const ATTACKS: [Attack; 23] = [
    endless_runs::ENDLESS_RUNS,
    endless_runs::PATIENT_RUNS,
    oversized_runs::POOLED_AWAY,
    oversized_runs::HUGE_RUNS,
    memory_returns::MEMORY_RETURNS,
    slow_clients::SLOW_HEADS,
    slow_clients::STALLED_UPLOADS,
    slow_clients::STALLED_GIGABYTES,
    wire::GRPC_STALLED_UPLOADS,
    wire::TLS_STALLED_UPLOADS,
    wire::TLS_HALF_HANDSHAKES,
    idle_connections::IDLE_CONNECTIONS,
    slow_clients::UNREAD_ANSWERS,
    large_bodies::GZIP_BOMBS,
    wire::GRPC_BOMBS,
    wire::TLS_BOMBS,
    large_bodies::LARGE_JSON,
    wire::GRPC_LARGE_MESSAGES,
    wire::TLS_LARGE_JSON,
    unfair_load::UNFAIR_LOAD,
    region_flood::REGION_FLOOD,
    cross_site::CROSS_SITE,
    kill_starting::KILL_STARTING,
];

#[derive(Serialize)]
struct AttackReport {
    rows: Vec<AttackRow>,
}

#[derive(Serialize)]
struct AttackRow {
    attack: &'static str,
    isolation: Isolation,
    #[serde(flatten)]
    finding: Finding,
}

/// Carries attacks out, and fails where a bound did not hold.
pub(crate) fn bench_attack(arguments: &BenchAttack) -> Result<()> {
    if arguments.list {
        return list_attacks(arguments.json);
    }
    let attacks = chosen_attacks(&arguments.names)?;
    let mut report = AttackReport { rows: Vec::new() };
    for attack in attacks {
        for &isolation in arguments.isolation.isolations() {
            if attack.isolations.contains(&isolation) {
                report.rows.extend(carry_out_attack(attack, isolation));
            }
        }
    }
    if arguments.json {
        output::print_json(&report)?;
    } else {
        print_attacks(&report)?;
    }
    check_attacks(&report)
}

/// Those of these names; all without any.
fn chosen_attacks(names: &[String]) -> Result<Vec<&'static Attack>> {
    if names.is_empty() {
        return Ok(ATTACKS.iter().collect());
    }
    let find = |name: &String| {
        let found = ATTACKS.iter().find(|attack| attack.name == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
            Error::usage(format!("attack \"{name}\", expected one of {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

fn list_attacks(json: bool) -> Result<()> {
    if json {
        let entry =
            |attack: &Attack| serde_json::json!({ "name": attack.name, "about": attack.about });
        return output::print_json(&ATTACKS.iter().map(entry).collect::<Vec<_>>());
    }
    let mut table = Table::new(&["attack", "what is done"]);
    for attack in &ATTACKS {
        table.add_row([attack.name.to_owned(), attack.about.to_owned()]);
    }
    table.print_table()
}

fn carry_out_attack(attack: &Attack, isolation: Isolation) -> Vec<AttackRow> {
    let working = output::spinner(format!("{}, units on {isolation}", attack.name));
    let findings =
        (attack.carry_out)(isolation).unwrap_or_else(|error| vec![Finding::cut_short(&error)]);
    working.finish_and_clear();
    let row = |finding| AttackRow { attack: attack.name, isolation, finding };
    findings.into_iter().map(row).collect()
}

fn print_attacks(report: &AttackReport) -> Result<()> {
    let mut table = Table::new(&["attack", "units on", "measured", ">found", "bound", "held", ""]);
    for AttackRow { attack, isolation, finding } in &report.rows {
        let named = [(*attack).to_owned(), isolation.to_string()];
        table.add_row(named.into_iter().chain(finding.cells()));
    }
    table.print_table()
}

fn check_attacks(report: &AttackReport) -> Result<()> {
    let broken = report.rows.iter().filter(|row| !row.finding.held);
    let broken: Vec<String> = broken
        .map(|row| format!("{} ({}): {}", row.attack, row.isolation, row.finding.what))
        .collect();
    if broken.is_empty() {
        return Ok(());
    }
    Err(Error::engine(format!("bounds that did not hold: {}", broken.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_are_chosen_by_name_and_all_without_one() {
        assert_eq!(chosen_attacks(&[]).unwrap().len(), ATTACKS.len());
        let chosen = chosen_attacks(&["cross-site".to_owned()]).unwrap();
        assert_eq!(chosen.iter().map(|attack| attack.name).collect::<Vec<_>>(), ["cross-site"]);
        let error = chosen_attacks(&["cross".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("attack \"cross\", expected one of endless-runs"), "{error}");
    }

    #[test]
    fn a_bound_that_does_not_hold_is_an_error_that_names_it() {
        let row = |found| AttackRow {
            attack: "slow-heads",
            isolation: Isolation::Thread,
            finding: Finding::exactly("connections closed", found, 200),
        };
        assert!(check_attacks(&AttackReport { rows: vec![row(200)] }).is_ok());
        let error = check_attacks(&AttackReport { rows: vec![row(200), row(1)] }).unwrap_err();
        assert!(error.to_string().ends_with("slow-heads (thread): connections closed"), "{error}");
    }
}
