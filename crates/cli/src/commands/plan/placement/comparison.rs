//! Strategies of placement side by side.

use crate::commands::plan::outline::PlanView;
use serde::Serialize;
use tessera_core::Result;
use tessera_plan::placement::PlacementProblem;
use tessera_report::{Table, format_seconds, format_short_percent, output};

use super::drawing;
use super::report::{PlacementReport, short_figure};

/// What came of each strategy.
#[derive(Serialize)]
pub(crate) struct PlacementComparison {
    strategies: Vec<ComparedPlacement>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ComparedPlacement {
    Planned {
        #[serde(flatten)]
        report: Box<PlacementReport>,
        /// How much longer than with `exact` a request takes, as a share.
        loss: Option<f64>,
    },
    Failed {
        strategy: String,
        error: String,
    },
}

impl PlacementComparison {
    /// Compares with `exact`, where that has a plan.
    pub(super) fn from_rows(rows: Vec<(String, Result<PlacementReport>)>) -> Self {
        let exact = rows.iter().find(|(name, _)| name == "exact");
        let least = exact.and_then(|(_, report)| Some(report.as_ref().ok()?.latency_seconds));
        let least = least.filter(|least| *least > 0.0);
        let compared = rows.into_iter().map(|(strategy, report)| match report {
            Ok(report) => ComparedPlacement::Planned {
                loss: least.map(|least| report.latency_seconds / least - 1.0),
                report: Box::new(report),
            },
            Err(error) => ComparedPlacement::Failed { strategy, error: error.to_string() },
        });
        Self { strategies: compared.collect() }
    }
}

impl ComparedPlacement {
    fn table_cells(&self) -> [String; 6] {
        match self {
            Self::Planned { report, loss } => [
                report.strategy.clone(),
                format_seconds(report.latency_seconds),
                loss.map_or("-".to_owned(), format_short_percent),
                report.outcome.splits.to_string(),
                report.outcome.throughput_per_second.map_or("-".to_owned(), short_figure),
                if report.proved { "yes" } else { "no" }.to_owned(),
            ],
            Self::Failed { strategy, .. } => {
                [strategy, "-", "-", "-", "-", "no plan"].map(str::to_owned)
            }
        }
    }
}

impl PlanView<PlacementProblem> for PlacementComparison {
    fn draw_svg(&self, _problem: &PlacementProblem) -> String {
        let planned = self.strategies.iter().filter_map(|compared| match compared {
            ComparedPlacement::Planned { report, .. } => Some(report.as_ref()),
            ComparedPlacement::Failed { .. } => None,
        });
        drawing::draw_comparison(planned)
    }

    fn print_view(&self, _problem: &PlacementProblem) -> Result<()> {
        let heads = ["strategy", ">latency", ">loss", ">splits", ">requests/s", "proved"];
        let mut table = Table::new(&heads);
        self.strategies.iter().for_each(|compared| table.add_row(compared.table_cells()));
        table.print_table()?;
        for compared in &self.strategies {
            if let ComparedPlacement::Failed { strategy, error } = compared {
                // Most strategies name themselves.
                let named = format!("{strategy}: ");
                let error = error.strip_prefix(&named).unwrap_or(error);
                output::print_line(&format!("{named}{error}"))?;
            }
        }
        Ok(())
    }
}
