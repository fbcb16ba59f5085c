//! What all planners are: pure functions from a problem, and the plan that there is, to a solution.
//!
//! Who only lists strategies, chooses one by name or prints what there is needs [`Strategy`] and
//! [`StrategyRegistry`](crate::StrategyRegistry); who plans needs [`Planner`]. Each family says in
//! the head of its module where its needs differ.

use tessera_core::Result;

use crate::SearchLimit;

/// One of several ways to decide something, which users choose by name.
pub trait Strategy: Send + Sync {
    /// What users call it.
    fn name(&self) -> &str;

    /// What it does, in one line.
    fn one_line_summary(&self) -> &str;
}

impl<S: Strategy + ?Sized> Strategy for &S {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn one_line_summary(&self) -> &str {
        (**self).one_line_summary()
    }
}

/// A strategy that makes plans.
///
/// It has no clock, no files and no state: the same problem, previous plan and limit give the same
/// solution. And it is calm: with its own plan as the previous one, it gives that plan again.
pub trait Planner: Strategy {
    /// What is to be planned. It has passed its `check_consistency`.
    type Problem: ?Sized;

    /// What the runtime, or a simulator, can carry out.
    type Plan;

    /// A plan, and what is known about it: its cost, a bound, whether it is proved.
    type Solution;

    /// Plans. A previous plan that still fits is kept unless another one is better, so that nothing
    /// moves without a gain. A planner that searches stops soon after `limit` says so, with the
    /// best plan that it has.
    fn find_plan(
        &self,
        problem: &Self::Problem,
        previous: Option<&Self::Plan>,
        limit: &SearchLimit<'_>,
    ) -> Result<Self::Solution>;
}
