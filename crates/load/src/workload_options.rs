//! How requests are made, as whoever starts a load decides it.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tessera_core::{Error, Result};

/// How requests are made of a model's description.
#[derive(Clone, Debug)]
pub struct WorkloadOptions {
    /// Shapes by input; they win over the batch.
    pub shapes: HashMap<String, Vec<usize>>,
    /// Ranges of random elements by input; the upper end is not in it.
    pub ranges: HashMap<String, (i64, i64)>,
    /// Contents by input, as the protocol lays them out in binary; the others are random.
    pub given: HashMap<String, Bytes>,
    /// The size of a first dimension that the model leaves open.
    pub batch: Option<usize>,
    /// Seed of random contents.
    pub seed: u64,
    /// How many different requests take turns.
    pub variants: usize,
    /// JSON alone, for servers without the extension for binary tensors.
    pub json: bool,
    /// A deadline that the server is told of, as `parameters.timeout` in microseconds.
    pub send_deadline: Option<Duration>,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self {
            shapes: HashMap::new(),
            ranges: HashMap::new(),
            given: HashMap::new(),
            batch: None,
            seed: 0,
            // Enough that a server which caches answers is seen to.
            variants: 4,
            json: false,
            send_deadline: None,
        }
    }
}

/// Reads `NAME=d,d,…`, the shape of an input.
pub fn parse_shape(text: &str) -> Result<(String, Vec<usize>)> {
    let wrong = || Error::usage(format!("shape \"{text}\", expected NAME=d,d,…"));
    let (name, dims) = text.rsplit_once('=').ok_or_else(wrong)?;
    let dims = dims.split(',').filter(|dim| !dim.trim().is_empty());
    let dims = dims.map(|dim| dim.trim().parse::<usize>().map_err(|_| wrong()));
    Ok((name.to_owned(), dims.collect::<Result<_>>()?))
}

/// Reads `NAME=lo,hi`, the range of an input's elements; `hi` is not in it.
pub fn parse_range(text: &str) -> Result<(String, (i64, i64))> {
    let wrong = || Error::usage(format!("range \"{text}\", expected NAME=lo,hi with lo < hi"));
    let (name, range) = text.rsplit_once('=').ok_or_else(wrong)?;
    let (low, high) = range.split_once(',').ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse::<i64>().map_err(|_| wrong());
    let (low, high) = (number(low)?, number(high)?);
    if low >= high {
        return Err(wrong());
    }
    Ok((name.to_owned(), (low, high)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_ranges_are_read_from_text() {
        assert_eq!(parse_shape("a=b=1, 3").unwrap(), ("a=b".to_owned(), vec![1, 3]));
        assert_eq!(parse_shape("x=").unwrap(), ("x".to_owned(), vec![]));
        assert!(parse_shape("x=1,-1").is_err());
        assert_eq!(parse_range("ids=0,30522").unwrap(), ("ids".to_owned(), (0, 30522)));
        assert!(parse_range("ids=3,3").is_err());
    }
}
