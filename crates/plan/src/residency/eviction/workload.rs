//! Requests drawn at random, and made-up problems.

use tessera_core::{Error, Random, Result};

use super::problem::{EvictionInstance, EvictionProblem, EvictionRequest};

/// Requests drawn from the rates of a problem's instances: each comes at random times (Poisson).
pub fn draw_requests(
    problem: &EvictionProblem,
    count: usize,
    seed: u64,
) -> Result<Vec<EvictionRequest>> {
    let rates: Vec<f64> =
        problem.instances.iter().map(|instance| instance.rate_per_second).collect();
    if rates.iter().sum::<f64>() <= 0.0 {
        return Err(Error::invalid(
            "instances: no rate_per_second above 0, and no requests are given",
        ));
    }
    let mut random = Random::new(seed);
    let mut at_ms = 0.0;
    Ok(poisson_requests(&mut random, &problem.instances, &rates, count, &mut at_ms))
}

fn poisson_requests(
    random: &mut Random,
    instances: &[EvictionInstance],
    rates: &[f64],
    count: usize,
    at_ms: &mut f64,
) -> Vec<EvictionRequest> {
    let total: f64 = rates.iter().sum();
    let one = |_| {
        *at_ms -= random.next_fraction().ln() / total * 1e3;
        let mut left = random.next_fraction() * total;
        let chosen = rates.iter().position(|rate| {
            left -= rate;
            left <= 0.0
        });
        let instance = instances[chosen.unwrap_or(rates.len() - 1)].name.clone();
        EvictionRequest { at_ms: *at_ms, instance }
    };
    (0..count).map(one).collect()
}

/// A made-up problem with its requests: 4 to 60 instances of 50 MB to 3 GB, whose reload times
/// differ by up to nine times per byte (by their plans, and by what else has to be done), memory
/// for a sixth to five sixths of them, and popularity by Zipf's law with an exponent from 0 to 1.6.
/// In three of four, who is popular changes once, three or seven times.
pub fn random_eviction_problem(requests_count: usize, seed: u64) -> EvictionProblem {
    let mut random = Random::new(seed);
    let count = 4 + random.next_below(57) as usize;
    let skew = 1.6 * random.next_fraction();
    let phases = [1, 2, 4, 8][random.next_below(4) as usize];
    let mut instances = Vec::with_capacity(count);
    for number in 0..count {
        let bytes = (50e6 * 60f64.powf(random.next_fraction())).round();
        // 11 GB/s over PCIe.
        let reload_ms = bytes / 11e6 * (0.33 * 9f64.powf(random.next_fraction()));
        instances.push(EvictionInstance {
            name: format!("instance{number}"),
            bytes,
            reload_ms,
            rate_per_second: 0.0,
            resident: false,
            pinned: false,
        });
    }
    let all: f64 = instances.iter().map(|instance| instance.bytes).sum();
    let largest = instances.iter().map(|instance| instance.bytes).fold(0.0, f64::max);
    let memory_bytes = (all * (1.0 + 4.0 * random.next_fraction()) / 6.0).max(largest).round();
    let mut made = EvictionProblem { memory_bytes, instances, requests: Vec::new() };
    let mut rates: Vec<f64> = (1..=count).map(|rank| (rank as f64).powf(-skew)).collect();
    let mut at_ms = 0.0;
    for phase in 0..phases {
        for place in (1..count).rev() {
            rates.swap(place, random.next_below(place as u64 + 1) as usize);
        }
        if phase == 0 {
            for (instance, rate) in made.instances.iter_mut().zip(&rates) {
                instance.rate_per_second = *rate;
            }
        }
        let part = requests_count * (phase + 1) / phases - requests_count * phase / phases;
        made.requests.extend(poisson_requests(
            &mut random,
            &made.instances,
            &rates,
            part,
            &mut at_ms,
        ));
    }
    made
}
