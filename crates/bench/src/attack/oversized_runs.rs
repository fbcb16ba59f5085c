//! Inputs that nothing is left of, or that make more of themselves than there is memory.

use std::time::Duration;

use serde_json::{Value, json};
use tessera_core::Result;
use tessera_deploy::Isolation;
use tessera_zoo::TinyModel;

use super::Attack;
use super::victim::{Victim, ask_with_json};
use crate::finding::Finding;

pub(crate) const POOLED_AWAY: Attack = Attack {
    name: "pooled-away",
    about: "images of which pooling leaves nothing",
    isolations: super::ON_BOTH,
    carry_out: pool_away,
};

pub(crate) const HUGE_RUNS: Attack = Attack {
    name: "huge-runs",
    about: "small requests whose runs want 20 to 80 GB",
    isolations: super::ON_BOTH,
    carry_out: run_hugely,
};

/// How long a server may take to answer again.
const RECOVERY: Duration = Duration::from_secs(10);

fn pool_away(isolation: Isolation) -> Result<Vec<Finding>> {
    let mut victim = Victim::start_victim(isolation, &[TinyModel::Pooled, TinyModel::Linear], &[])?;
    let ask = |victim: &Victim, shape: &[usize]| {
        ask_with_json(victim.address(), TinyModel::Pooled, shape, &json!(0.5), None)
    };
    ask(&victim, &[1, 3, 8, 8])?.1.require_ok("an image that is large enough")?;
    let mut findings = Vec::new();
    for shape in [[1, 3, 1, 1], [1, 3, 1, 8], [4, 3, 2, 1], [2, 3, 0, 4]] {
        let status = ask(&victim, &shape)?.1.status;
        let refused = usize::from((400..500).contains(&status));
        let what = format!("{shape:?} refused (4xx)");
        findings.push(Finding::exactly(what, refused, 1).with_detail(status.to_string()));
    }
    findings.extend(still_there(&mut victim));
    Ok(findings)
}

fn run_hugely(isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::OuterSum, TinyModel::Expanded, TinyModel::Linear];
    let mut victim = Victim::start_victim(isolation, &models, &[])?;
    let (outer, expanded) = (TinyModel::OuterSum, TinyModel::Expanded);
    let huge: [(&str, TinyModel, usize, Value); 3] = [
        ("80,000 × 80,000 products", outer, 80_000, json!(1.0)),
        ("20,000,000,000 ones", expanded, 1, json!(20_000_000_000_i64)),
        ("5,000,000,000 ones", expanded, 1, json!(5_000_000_000_i64)),
    ];
    let mut findings = Vec::new();
    for (what, model, count, value) in huge {
        let answer = ask_with_json(victim.address(), model, &[count], &value, None)?.1;
        let failed = usize::from((400..600).contains(&answer.status));
        let text = String::from_utf8_lossy(&answer.body);
        let detail: String = format!("{} {text}", answer.status).chars().take(120).collect();
        findings.push(Finding::exactly(format!("{what} failed"), failed, 1).with_detail(detail));
    }
    findings.extend(still_there(&mut victim));
    Ok(findings)
}

/// That the server lives and answers.
fn still_there(victim: &mut Victim) -> [Finding; 2] {
    let answers = victim.answers_within(RECOVERY);
    [
        Finding::exactly("server alive", usize::from(victim.server.is_running()), 1),
        Finding::exactly("small request answered after", usize::from(answers), 1),
    ]
}
