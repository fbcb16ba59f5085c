//! Whether a problem makes sense: its figures, its names, and that it is not absurdly large.

use std::collections::HashSet;

use tessera_core::{Error, Result};

use super::load::block_loads;
use super::problem::QueueingProblem;
use crate::validation::{require_figure, require_fraction, require_positive, require_unique_names};

/// Most replicas of all blocks together: above it, somebody slipped.
const MOST_REPLICAS: f64 = 1e5;

impl QueueingProblem {
    /// Whether it makes sense; the error names the field.
    pub fn check_consistency(&self) -> Result<()> {
        if !(self.utilisation > 0.0 && self.utilisation < 1.0) {
            return Err(Error::invalid(format!(
                "utilisation: {}, expected a number above 0 and below 1",
                self.utilisation
            )));
        }
        require_fraction("hysteresis", self.hysteresis)?;
        self.check_blocks()?;
        self.check_tasks()?;
        self.check_budget()?;
        let loads = block_loads(self);
        let needed: f64 = loads.iter().map(|load| load / self.utilisation).sum();
        if needed > MOST_REPLICAS {
            return Err(Error::invalid(format!(
                "tasks: they keep {needed:.0} replicas busy, expected at most {MOST_REPLICAS}"
            )));
        }
        Ok(())
    }

    fn check_blocks(&self) -> Result<()> {
        if self.blocks.is_empty() {
            return Err(Error::invalid("blocks: none, expected at least one"));
        }
        require_unique_names("blocks", self.blocks.iter().map(|block| block.name.as_str()))?;
        for (number, block) in self.blocks.iter().enumerate() {
            let field = |name: &str| format!("blocks[{number}].{name}");
            require_positive(&field("time_us"), block.time_us)?;
            require_figure(&field("overhead_us"), block.overhead_us)?;
            if !(0.0..=100.0).contains(&block.variation) {
                return Err(Error::invalid(format!(
                    "{}: {}, expected a number from 0 to 100",
                    field("variation"),
                    block.variation
                )));
            }
            if let Some(batch) = block.batch {
                require_count(&field("batch.size"), batch.size)?;
                require_positive(&field("batch.time_us"), batch.time_us)?;
            }
            require_count(&field("replicas"), block.replicas)?;
            require_figure(&field("cores"), block.cores)?;
            require_figure(&field("bytes"), block.bytes)?;
        }
        Ok(())
    }

    fn check_tasks(&self) -> Result<()> {
        if self.tasks.is_empty() {
            return Err(Error::invalid("tasks: none, expected at least one"));
        }
        require_unique_names("tasks", self.tasks.iter().map(|task| task.name.as_str()))?;
        let blocks = self.block_numbers();
        for (number, task) in self.tasks.iter().enumerate() {
            let field = |name: &str| format!("tasks[{number}].{name}");
            require_figure(&field("rate_per_second"), task.rate_per_second)?;
            require_figure(&field("transfer_us"), task.transfer_us)?;
            if let Some(latency) = task.latency_us {
                require_positive(&field("latency_us"), latency)?;
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
                require_fraction(&field(&format!("exits.{block}")), share)?;
            }
        }
        Ok(())
    }

    fn check_budget(&self) -> Result<()> {
        let Some(budget) = self.budget else {
            return Ok(());
        };
        let least = self.resources_taken(&vec![1; self.blocks.len()]);
        let limits = [
            ("replicas", budget.replicas.map(f64::from), f64::from(least.replicas.unwrap_or(0))),
            ("cores", budget.cores, least.cores.unwrap_or(0.0)),
            ("bytes", budget.bytes, least.bytes.unwrap_or(0.0)),
        ];
        for (name, limit, least) in limits {
            let Some(limit) = limit else { continue };
            let limit = require_figure(&format!("budget.{name}"), limit)?;
            if limit < least {
                return Err(Error::invalid(format!(
                    "budget.{name}: {limit}, expected at least {least}: one replica of each block"
                )));
            }
        }
        Ok(())
    }
}

/// A whole number above 0.
pub(super) fn require_count(field: &str, value: u32) -> Result<u32> {
    if (1..=MOST_REPLICAS as u32).contains(&value) {
        Ok(value)
    } else {
        Err(Error::invalid(format!(
            "{field}: {value}, expected a whole number from 1 to {MOST_REPLICAS}"
        )))
    }
}
