//! One budget for the bytes of requests and answers under way, so that no client's can take the
//! memory that all others need.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tessera_core::{Error, Result};

/// What all requests and answers under way may have, where nobody says more.
const DEFAULT_LIMIT: usize = 4 << 30;

/// The bytes of all requests and answers under way.
#[derive(Debug)]
pub struct ByteBudget {
    limit: usize,
    used: AtomicUsize,
}

impl Default for ByteBudget {
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT)
    }
}

impl ByteBudget {
    /// So many bytes for all.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    /// Bytes that are under way.
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// A lease of nothing yet, for a request of this connection.
    pub(crate) fn lease(self: &Arc<Self>, connection: Option<&ConnectionBytes>) -> ByteLease {
        ByteLease { budget: Arc::clone(self), connection: connection.cloned(), bytes: 0 }
    }
}

/// The bytes of one connection; of its requests' extensions, where whoever accepts connections puts
/// one.
#[derive(Clone, Debug, Default)]
pub struct ConnectionBytes(Arc<AtomicUsize>);

/// Bytes of a request or an answer; they are given back when this is dropped.
#[derive(Debug)]
pub(crate) struct ByteLease {
    budget: Arc<ByteBudget>,
    connection: Option<ConnectionBytes>,
    bytes: usize,
}

impl ByteLease {
    /// Whose connection it counts for.
    pub(crate) fn connection(&self) -> Option<&ConnectionBytes> {
        self.connection.as_ref()
    }

    /// Takes as many more. Fails where all together, or those of one connection, are too many: half
    /// of the budget is for others.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        let limit = self.budget.limit;
        if !add_within(&self.budget.used, bytes, limit) {
            return Err(Error::full(format!(
                "requests and answers under way have {} MB already",
                limit / 1_000_000
            )));
        }
        if let Some(connection) = &self.connection
            && !add_within(&connection.0, bytes, limit / 2)
        {
            self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Error::full(format!(
                "requests and answers of one connection may have {} MB at a time",
                limit / 2_000_000
            )));
        }
        self.bytes += bytes;
        Ok(())
    }
}

/// Adds where the sum stays within the limit.
fn add_within(used: &AtomicUsize, bytes: usize, limit: usize) -> bool {
    let add = |now: usize| now.checked_add(bytes).filter(|&sum| sum <= limit);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

impl Drop for ByteLease {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(connection) = &self.connection {
            connection.0.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// The bytes of an answer, in its extensions: whoever sends it keeps this until all of it is gone.
#[derive(Clone, Debug)]
pub struct AnswerLease(#[allow(dead_code, reason = "held, not used")] Arc<ByteLease>);

impl AnswerLease {
    pub(crate) fn new(lease: ByteLease) -> Self {
        Self(Arc::new(lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded_in_all_and_for_each_connection() {
        let budget = Arc::new(ByteBudget::new(1000));
        let (first, second) = (ConnectionBytes::default(), ConnectionBytes::default());
        let mut one = budget.lease(Some(&first));
        one.grow(400).unwrap();
        let mut other = budget.lease(Some(&first));
        assert!(other.grow(200).unwrap_err().to_string().contains("of one connection"));
        assert_eq!(budget.used_bytes(), 400);
        let mut another = budget.lease(Some(&second));
        another.grow(500).unwrap();
        let mut last = budget.lease(None);
        assert!(last.grow(101).unwrap_err().to_string().contains("under way"));
        last.grow(100).unwrap();
        assert!(last.grow(usize::MAX).is_err());
        drop((one, other));
        assert_eq!(budget.used_bytes(), 600);
        drop((another, last));
        assert_eq!(budget.used_bytes(), 0);
    }
}
