//! Blocks, how long they take, and the tasks that go through them.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use super::waiting::{waiting, waiting_for_batch};
use crate::check::{figure, fraction, names, positive};

/// Most replicas of all blocks together: above it, somebody slipped.
const MOST_REPLICAS: f64 = 1e5;

/// Tasks that share blocks, and how often they are called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The tasks.
    pub tasks: Vec<Task>,
    /// How busy a block may be.
    #[serde(default = "default_utilisation")]
    pub utilisation: f64,
    /// How much more all tasks may send before a plan is too small that was just large enough: as long
    /// as fewer replicas would not do for this, none are taken away.
    #[serde(default = "default_hysteresis")]
    pub hysteresis: f64,
    /// What all replicas together may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

fn default_utilisation() -> f64 {
    0.7
}

fn default_hysteresis() -> f64 {
    0.1
}

/// A block, and what it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Its name.
    pub name: String,
    /// How long it runs for a request, in the mean.
    pub time_us: f64,
    /// What it is busy with besides for each request: receiving and sending, say.
    #[serde(default)]
    pub overhead_us: f64,
    /// Coefficient of variation of its time: deviation over mean. A network takes about the same
    /// time for each request (the thesis measured 0.06), so it is 0 where nothing is said.
    #[serde(default)]
    pub variation: f64,
    /// A batch that it can run, where that is quicker than one request after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// How many of it there are.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Cores that each takes.
    #[serde(default)]
    pub cores: f64,
    /// Memory that each takes.
    #[serde(default)]
    pub bytes: f64,
}

fn one() -> u32 {
    1
}

/// Requests that run together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// How many at most.
    pub size: u32,
    /// How long that many run.
    pub time_us: f64,
}

/// What clients call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Requests to it.
    pub rate_per_second: f64,
    /// Its blocks in order.
    pub path: Vec<String>,
    /// By block, the share of the requests which get there that leave behind it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub exits: BTreeMap<String, f64>,
    /// What a request takes besides: to the first block, and back from the last.
    #[serde(default)]
    pub transfer_us: f64,
    /// How long a request may take in the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
}

/// What all replicas together may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// How many there may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Their cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<f64>,
    /// Their memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
}

impl Block {
    /// The batch, if it is worth it.
    fn used_batch(&self) -> Option<Batch> {
        let is_worth = |batch: &Batch| batch.time_us < self.time_us * f64::from(batch.size);
        self.batch.filter(is_worth)
    }

    /// How long a request that comes alone is in it.
    pub(super) fn alone_us(&self) -> f64 {
        self.time_us + self.overhead_us
    }

    /// How long it is busy per request at its best.
    pub(super) fn busy_us(&self) -> f64 {
        let time = self.used_batch().map(|batch| batch.time_us / f64::from(batch.size));
        time.unwrap_or(self.time_us) + self.overhead_us
    }

    /// How much longer requests are in it than alone, where so many replicas are busy in the mean.
    pub(super) fn wait_us(&self, load: f64, replicas: u32) -> Option<f64> {
        let (busy, alone) = (self.busy_us(), self.alone_us());
        let arrivals = load / busy;
        match self.used_batch() {
            Some(Batch { size, .. }) => {
                waiting_for_batch(replicas, arrivals, alone, busy * f64::from(size), size)
            }
            None => waiting(replicas, arrivals, busy, self.variation),
        }
    }

    /// Whether each further replica saves less waiting than the one before for sure.
    pub(super) fn is_simple(&self) -> bool {
        self.used_batch().is_none()
    }
}

impl Task {
    /// Per step of its path, the share of its requests that get there.
    pub(super) fn reach(&self) -> Vec<f64> {
        let shares = self.path.iter().scan(1.0, |share, block| {
            let here = *share;
            *share *= 1.0 - self.exits.get(block).copied().unwrap_or(0.0);
            Some(here)
        });
        shares.collect()
    }
}

impl Problem {
    /// Whether it makes sense; the error names the field.
    pub fn check(&self) -> Result<()> {
        if !(self.utilisation > 0.0 && self.utilisation < 1.0) {
            return Err(Error::invalid(format!(
                "utilisation: {}, expected a number above 0 and below 1",
                self.utilisation
            )));
        }
        fraction("hysteresis", self.hysteresis)?;
        self.check_blocks()?;
        self.check_tasks()?;
        self.check_budget()?;
        let loads = super::load::loads(self);
        let needed: f64 = loads.iter().map(|load| load / self.utilisation).sum();
        match needed > MOST_REPLICAS {
            true => Err(Error::invalid(format!(
                "tasks: they keep {needed:.0} replicas busy, expected at most {MOST_REPLICAS}"
            ))),
            false => Ok(()),
        }
    }

    fn check_blocks(&self) -> Result<()> {
        if self.blocks.is_empty() {
            return Err(Error::invalid("blocks: none, expected at least one"));
        }
        names("blocks", self.blocks.iter().map(|block| block.name.as_str()))?;
        for (number, block) in self.blocks.iter().enumerate() {
            let field = |name: &str| format!("blocks[{number}].{name}");
            positive(&field("time_us"), block.time_us)?;
            figure(&field("overhead_us"), block.overhead_us)?;
            if !(0.0..=100.0).contains(&block.variation) {
                return Err(Error::invalid(format!(
                    "{}: {}, expected a number from 0 to 100",
                    field("variation"),
                    block.variation
                )));
            }
            if let Some(batch) = block.batch {
                count(&field("batch.size"), batch.size)?;
                positive(&field("batch.time_us"), batch.time_us)?;
            }
            count(&field("replicas"), block.replicas)?;
            figure(&field("cores"), block.cores)?;
            figure(&field("bytes"), block.bytes)?;
        }
        Ok(())
    }

    fn check_tasks(&self) -> Result<()> {
        if self.tasks.is_empty() {
            return Err(Error::invalid("tasks: none, expected at least one"));
        }
        names("tasks", self.tasks.iter().map(|task| task.name.as_str()))?;
        let blocks = self.numbers();
        for (number, task) in self.tasks.iter().enumerate() {
            let field = |name: &str| format!("tasks[{number}].{name}");
            figure(&field("rate_per_second"), task.rate_per_second)?;
            figure(&field("transfer_us"), task.transfer_us)?;
            if let Some(latency) = task.latency_us {
                positive(&field("latency_us"), latency)?;
            }
            if task.path.is_empty() {
                return Err(Error::invalid(format!(
                    "{}: no blocks, expected at least one",
                    field("path")
                )));
            }
            let mut seen = HashSet::new();
            for (at, block) in task.path.iter().enumerate() {
                let field = field(&format!("path[{at}]"));
                if !blocks.contains_key(block.as_str()) {
                    return Err(Error::invalid(format!("{field}: there is no block \"{block}\"")));
                }
                if !seen.insert(block) {
                    return Err(Error::invalid(format!("{field}: \"{block}\" is there twice")));
                }
            }
            for (block, &share) in &task.exits {
                if !seen.contains(block) {
                    let field = field("exits");
                    return Err(Error::invalid(format!("{field}: \"{block}\" is not on its path")));
                }
                fraction(&field(&format!("exits.{block}")), share)?;
            }
        }
        Ok(())
    }

    fn check_budget(&self) -> Result<()> {
        let Some(budget) = self.budget else {
            return Ok(());
        };
        let least = self.taken(&vec![1; self.blocks.len()]);
        let limits = [
            ("replicas", budget.replicas.map(f64::from), f64::from(least.replicas.unwrap_or(0))),
            ("cores", budget.cores, least.cores.unwrap_or(0.0)),
            ("bytes", budget.bytes, least.bytes.unwrap_or(0.0)),
        ];
        for (name, limit, least) in limits {
            let Some(limit) = limit else { continue };
            let limit = figure(&format!("budget.{name}"), limit)?;
            if limit < least {
                return Err(Error::invalid(format!(
                    "budget.{name}: {limit}, expected at least {least}: one replica of each block"
                )));
            }
        }
        Ok(())
    }

    /// What these replicas take.
    pub(super) fn taken(&self, replicas: &[u32]) -> Budget {
        let sum = |of: fn(&Block) -> f64| -> f64 {
            let pairs = self.blocks.iter().zip(replicas);
            pairs.map(|(block, &count)| of(block) * f64::from(count)).sum()
        };
        let all = replicas.iter().fold(0_u32, |all, &count| all.saturating_add(count));
        Budget {
            replicas: Some(all),
            cores: Some(sum(|block| block.cores)),
            bytes: Some(sum(|block| block.bytes)),
        }
    }

    /// Blocks by name.
    pub(super) fn numbers(&self) -> HashMap<&str, usize> {
        let names = self.blocks.iter().map(|block| block.name.as_str());
        names.enumerate().map(|(number, name)| (name, number)).collect()
    }
}

/// A whole number above 0.
pub(super) fn count(field: &str, value: u32) -> Result<u32> {
    match (1..=MOST_REPLICAS as u32).contains(&value) {
        true => Ok(value),
        false => Err(Error::invalid(format!(
            "{field}: {value}, expected a whole number from 1 to {MOST_REPLICAS}"
        ))),
    }
}
