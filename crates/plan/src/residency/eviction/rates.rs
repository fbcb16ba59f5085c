//! How often each instance is asked for, going by the requests so far.

/// How many requests per instance it takes until one counts half. Of 2 to 24, 4 gave the shortest
/// reload times over 1,000 to 4,000 requests whose popularity changes, and lost 1.6% to 12 over
/// 16,000.
const HALF_LIFE_REQUESTS: f64 = 4.0;

/// Counts requests per instance, of which older ones count less, so that the counts follow a
/// change. Age is counted in requests, not in time: what is busy learns faster.
#[derive(Clone, Debug)]
pub struct RequestRates {
    counts: Vec<f64>,
    /// What the next request counts. It grows, which is as good as all counts shrinking.
    next: f64,
    growth: f64,
}

impl RequestRates {
    /// Nothing counted yet.
    pub fn new(instances: usize) -> Self {
        Self { counts: vec![0.0; instances], next: 1.0, growth: growth_among(instances) }
    }

    /// Counts a request; also for an instance that is new.
    pub fn count_request(&mut self, instance: usize) {
        if instance >= self.counts.len() {
            self.counts.resize(instance + 1, 0.0);
            self.growth = growth_among(self.counts.len());
        }
        if let Some(count) = self.counts.get_mut(instance) {
            *count += self.next;
        }
        self.next *= self.growth;
        if self.next > 1e100 {
            self.counts.iter_mut().for_each(|count| *count /= self.next);
            self.next = 1.0;
        }
    }

    /// Forgets what was counted for an instance: it is another one from now on.
    pub fn forget_instance(&mut self, instance: usize) {
        if let Some(count) = self.counts.get_mut(instance) {
            *count = 0.0;
        }
    }

    /// How often an instance is asked for, to compare with the others'.
    pub fn rate_of(&self, instance: usize) -> f64 {
        self.counts.get(instance).map_or(0.0, |count| count / self.next)
    }
}

fn growth_among(instances: usize) -> f64 {
    (2f64.ln() / (HALF_LIFE_REQUESTS * instances.max(1) as f64)).exp()
}
