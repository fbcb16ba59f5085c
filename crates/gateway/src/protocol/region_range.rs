//! Where in shared memory an input or an output is.

use tessera_core::{Error, Result};

/// Where a tensor is in a registered region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionRange {
    pub(crate) region: String,
    pub(crate) offset: u64,
    pub(crate) byte_size: u64,
}

impl RegionRange {
    /// Refuses a range that is not inside its region of so many bytes.
    pub(crate) fn check_inside(&self, byte_size: u64) -> Result<()> {
        let end = self.offset.checked_add(self.byte_size);
        if end.is_some_and(|end| end <= byte_size) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "shared memory region '{}' has {byte_size} bytes, asked for {} at offset {}",
            self.region, self.byte_size, self.offset
        )))
    }

    /// Refuses a tensor of so many bytes where the range has fewer.
    pub(crate) fn check_room(&self, len: usize) -> Result<()> {
        if self.byte_size >= len as u64 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "shared memory region '{}': {} bytes were set aside, the tensor has {len}",
            self.region, self.byte_size
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, byte_size: u64) -> RegionRange {
        RegionRange { region: "r".into(), offset, byte_size }
    }

    #[test]
    fn a_range_is_inside_its_region_and_has_room() {
        range(2, 6).check_inside(8).unwrap();
        for (offset, byte_size) in [(0, 9), (8, 1), (u64::MAX, 1)] {
            let error = range(offset, byte_size).check_inside(8).unwrap_err().to_string();
            assert!(error.contains("has 8 bytes, asked for"), "{error}");
        }
        range(0, 3).check_room(3).unwrap();
        let error = range(0, 2).check_room(3).unwrap_err().to_string();
        assert!(error.contains("2 bytes were set aside, the tensor has 3"), "{error}");
    }
}
