//! Sizes in bytes, as people write them.

use tessera_core::{Error, Result};

/// Units, longest names first.
const UNITS: [(&str, u64); 10] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
    ("", 1),
];

/// Parses a size in bytes: 4096, 512MB, 1.5GiB.
pub fn parse_byte_size(text: &str) -> Result<u64> {
    let wrong = || {
        Error::usage(format!(
            "\"{text}\" is no size, expected a number and B, KB, MB, GB or MiB, GiB"
        ))
    };
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((lower.strip_suffix(name)?, *unit)))
        .ok_or_else(wrong)?;
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let bytes = number * unit as f64;
    if !(1.0..=u64::MAX as f64).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let sizes =
            [("1", 1), ("4096", 4096), ("2GB", 2_000_000_000), ("1.5 GiB", 3 << 29), ("7kb", 7000)];
        for (text, bytes) in sizes {
            assert_eq!(parse_byte_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "GB", "0", "-1MB", "1e99", "NaN", "2 apples", "inf"] {
            let error = parse_byte_size(text).unwrap_err().to_string();
            assert!(error.contains("is no size"), "{error}");
        }
    }
}
