//! Requests simulated under a policy.

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use super::problem::EvictionProblem;
use super::rates::RequestRates;
use super::strategies::EvictionPolicy;
use super::victims::ResidentInstance;
use crate::residency::problem::exceeds_memory;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvictionOutcome {
    /// Requests in all.
    pub requests: usize,
    /// Requests whose instance was not on the GPU.
    pub cold_starts: usize,
    /// Share of the requests whose instance was on the GPU.
    pub hit_rate: f64,
    /// Time lost by loading, in all.
    pub reload_ms: f64,
    /// The same per request.
    pub mean_added_ms: f64,
    /// How many instances were evicted.
    pub evictions: usize,
    /// Per instance, how often it was loaded.
    pub loads: Vec<usize>,
    /// Names of the instances on the GPU at the end.
    pub resident: Vec<String>,
}

/// Simulates the requests. The problem has passed its check, and has requests. Every request finds
/// either its instance on the GPU, or loads it and evicts others for it.
pub fn simulate_eviction(
    problem: &EvictionProblem,
    policy: EvictionPolicy,
) -> Result<EvictionOutcome> {
    let requests = problem.numbered_requests()?;
    let instances = &problem.instances;
    let mut there: Vec<bool> = instances.iter().map(|instance| instance.resident).collect();
    let mut last_used = vec![0.0; instances.len()];
    let mut rates = RequestRates::new(instances.len());
    let next = (policy == EvictionPolicy::Offline).then(|| next_uses(&requests, instances.len()));
    let mut free = problem.memory_bytes;
    free -= instances.iter().filter(|one| one.resident).map(|one| one.bytes).sum::<f64>();
    let mut loads = vec![0; instances.len()];
    let (mut reload_ms, mut evictions) = (0.0, 0);
    for (number, &(now, wanted)) in requests.iter().enumerate() {
        rates.count_request(wanted);
        if !there[wanted] {
            let needed = instances[wanted].bytes - free;
            if exceeds_memory(instances[wanted].bytes, free) {
                let held: Vec<usize> = (0..there.len()).filter(|&one| there[one]).collect();
                let resident = |&one: &usize| ResidentInstance {
                    bytes: instances[one].bytes,
                    reload_ms: instances[one].reload_ms,
                    rate: match &next {
                        Some(next) => next.next_use_rate(one, number, now),
                        None => rates.rate_of(one),
                    },
                    last_used_ms: last_used[one],
                    pinned: instances[one].pinned,
                };
                let resident: Vec<ResidentInstance> = held.iter().map(resident).collect();
                let chosen = policy.choose_victims(&resident, needed).ok_or_else(|| {
                    let name = &instances[wanted].name;
                    Error::invalid(format!("instances: no room for \"{name}\" beside pinned ones"))
                })?;
                for one in chosen {
                    there[held[one]] = false;
                    free += instances[held[one]].bytes;
                    evictions += 1;
                }
            }
            there[wanted] = true;
            free -= instances[wanted].bytes;
            loads[wanted] += 1;
            reload_ms += instances[wanted].reload_ms;
        }
        last_used[wanted] = now;
    }
    let cold_starts: usize = loads.iter().sum();
    let count = requests.len().max(1) as f64;
    let held = instances.iter().zip(&there).filter(|(_, there)| **there);
    Ok(EvictionOutcome {
        requests: requests.len(),
        cold_starts,
        hit_rate: 1.0 - cold_starts as f64 / count,
        reload_ms,
        mean_added_ms: reload_ms / count,
        evictions,
        loads,
        resident: held.map(|(instance, _)| instance.name.clone()).collect(),
    })
}

/// When each instance is used, to look ahead.
struct NextUses {
    /// Per instance, its requests by number and time.
    uses: Vec<Vec<(usize, f64)>>,
}

impl NextUses {
    /// One over the time until the next request for an instance after that of this number; zero
    /// without.
    fn next_use_rate(&self, instance: usize, number: usize, now: f64) -> f64 {
        let uses = &self.uses[instance];
        let next = uses.partition_point(|&(other, _)| other <= number);
        uses.get(next).map_or(0.0, |&(_, at)| 1.0 / (at - now).max(1e-6))
    }
}

fn next_uses(requests: &[(f64, usize)], instances: usize) -> NextUses {
    let mut uses = vec![Vec::new(); instances];
    for (number, &(at, instance)) in requests.iter().enumerate() {
        uses[instance].push((number, at));
    }
    NextUses { uses }
}
