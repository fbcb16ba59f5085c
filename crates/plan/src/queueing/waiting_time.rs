//! How long a request waits for a replica.

/// The probability that all replicas are busy (Erlang's C), where `load` is arrivals times mean
/// service time. 1 where the load is more than they can do.
pub fn erlang_c(replicas: u32, load: f64) -> f64 {
    let count = f64::from(replicas);
    if load >= count {
        return 1.0;
    }
    // Erlang's B, one replica after the other: no factorial, so nothing overflows.
    let blocked = (1..=replicas)
        .fold(1.0, |blocked: f64, number| load * blocked / (f64::from(number) + load * blocked));
    count * blocked / (count - load * (1.0 - blocked))
}

/// The mean time that a request waits, in the unit of `service`; none where the queue never ends.
/// `variation` is the coefficient of variation of the service time: 0 where it is always the same,
/// 1 where it is exponential.
pub fn mean_waiting_time(
    replicas: u32,
    arrivals: f64,
    service: f64,
    variation: f64,
) -> Option<f64> {
    let load = arrivals * service;
    let free = f64::from(replicas) - load;
    let exponential = erlang_c(replicas, load) * service / free;
    (free > 0.0).then_some(exponential * (1.0 + variation * variation) / 2.0)
}

/// The mean time that a request waits, and runs longer than alone, where a replica takes up to
/// `size` of the requests that wait and runs them together. `one` and `full` are the times of a
/// batch of one and of `size`; in between it is taken to grow evenly. None where the queue never
/// ends.
///
/// For batches of any size it is the smaller of two bounds (Inoue, "Queueing analysis of GPU-based
/// inference servers with dynamic batching", 2021), both close. What the limit adds near full load
/// is a guess: simulated, all of it came to 0.95 to 1.25 of the truth up to a utilisation of 0.8,
/// and to 1.45 above. Several replicas are taken for as many queues: on the safe side.
pub fn mean_waiting_time_batched(
    replicas: u32,
    arrivals: f64,
    one: f64,
    full: f64,
    size: u32,
) -> Option<f64> {
    let (count, arrivals) = (f64::from(size), arrivals / f64::from(replicas));
    let utilisation = arrivals * full / count;
    if utilisation >= 1.0 {
        return None;
    }
    let each = (full - one) / (count - 1.0).max(1.0);
    let start = one - each;
    // Shares of the time that requests, and starts of batches, would keep it busy.
    let (per_request, per_start) = (arrivals * each, arrivals * start);
    let light = one / (2.0 * (1.0 - per_request))
        * (1.0 + 2.0 * per_start + (1.0 - per_start) / (1.0 + per_request));
    let heavy = 1.5 * start / (1.0 - per_request)
        + each / 2.0 * (2.0 + per_request) / (1.0 - per_request * per_request);
    let queue = full / count * utilisation / (2.0 * (1.0 - utilisation));
    Some((light.min(heavy) - one).max(0.0) + queue * utilisation.powf(count))
}
