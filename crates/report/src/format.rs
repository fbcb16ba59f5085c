//! Figures as people write them: sizes, counts, times, rates, energies and shares.
//!
//! Every table, picture and page writes them by these, so that the same figure looks the same
//! wherever it is read.

use std::time::Duration;

/// A size as people write it: `12.80 MB`.
pub fn format_bytes(count: u64) -> String {
    format_scaled(count, &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")], "B")
}

/// A size that was computed, to the next whole byte.
pub fn format_bytes_f64(count: f64) -> String {
    format_bytes(count.round() as u64)
}

/// A size in megabytes, for columns of sizes that are compared; it may be below zero.
pub fn format_megabytes(bytes: f64, decimals: usize) -> String {
    format!("{:.decimals$} MB", bytes / 1e6)
}

/// A count as people write it: `25.60 M`.
pub fn format_count(count: u64) -> String {
    format_scaled(count, &[(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")], "")
}

fn format_scaled(value: u64, units: &[(u64, &str)], one: &str) -> String {
    match units.iter().find(|(size, _)| value >= *size) {
        Some((size, unit)) => format!("{:.2} {unit}", value as f64 / *size as f64),
        None => format!("{value} {one}").trim_end().to_owned(),
    }
}

/// A time as people write it.
pub fn format_duration(duration: Duration) -> String {
    format_milliseconds(duration.as_secs_f64() * 1e3)
}

/// Seconds as people write them; no time at all is in milliseconds, as those around it are.
pub fn format_seconds(value: f64) -> String {
    if value == 0.0 { "0 ms".to_owned() } else { format_milliseconds(value * 1e3) }
}

/// Milliseconds as people write them.
pub fn format_milliseconds(value: f64) -> String {
    match value {
        value if value >= 10_000.0 => format!("{:.1} s", value / 1e3),
        value if value >= 100.0 => format!("{value:.0} ms"),
        value if value >= 1.0 => format!("{value:.2} ms"),
        value => format!("{:.1} µs", value * 1e3),
    }
}

/// Microseconds as people write them.
pub fn format_microseconds(value: f64) -> String {
    format_milliseconds(value / 1e3)
}

/// How many there are per second, without a unit.
pub fn format_rate(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Energy as people write it.
pub fn format_joules(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} MJ", value / 1e6),
        value if value >= 1e4 => format!("{:.2} kJ", value / 1e3),
        value if value >= 1.0 => format!("{value:.2} J"),
        value if value >= 1e-3 => format!("{:.2} mJ", value * 1e3),
        value => format!("{:.2} µJ", value * 1e6),
    }
}

/// A share in percent, with so many decimals. What rounds to nothing has no sign.
pub fn format_percent(share: f64, decimals: usize) -> String {
    let percent = share * 100.0;
    let least = 0.5 / 10_f64.powi(decimals as i32);
    let percent = if percent.abs() < least { 0.0 } else { percent };
    format!("{percent:.decimals$}%")
}

/// A share in percent, with two decimals at most and none that say nothing: `12.5%`.
pub fn format_short_percent(share: f64) -> String {
    format!("{}%", trim_zeros(&format!("{:.2}", share * 100.0)))
}

/// A figure as short as it says what it is.
pub fn format_figure(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        let text = format!("{value:.2e}");
        // Only the digits before the exponent have zeros too many.
        return match text.split_once('e') {
            Some((digits, exponent)) => format!("{}e{exponent}", trim_zeros(digits)),
            None => text,
        };
    }
    let decimals = match size {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 1.0 => 2,
        _ => 4,
    };
    trim_zeros(&format!("{value:.decimals$}")).to_owned()
}

/// Without the zeros at the end of its decimals.
pub(crate) fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// One time by another; nothing by nothing is the same.
pub fn time_ratio(time: f64, by: f64) -> f64 {
    if time == by { 1.0 } else { time / by }
}

/// A ratio as what it adds, in percent with so many decimals.
pub fn format_change(ratio: f64, decimals: usize) -> String {
    let percent = (ratio - 1.0) * 100.0;
    // A tiny gain is no gain of minus nothing.
    let least = 0.5 / 10_f64.powi(decimals as i32);
    let percent = if percent.abs() < least { 0.0 } else { percent };
    format!("{percent:+.decimals$}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.0, "1"),
            (12.345, "12.35"),
            (150.0, "150"),
            (1234.56, "1235"),
            (1e6, "1e6"),
            (2.5e-5, "2.5e-5"),
            (-3.0, "-3"),
        ];
        for (value, expected) in cases {
            assert_eq!(format_figure(value), expected, "{value}");
        }
        assert_eq!(format_figure(f64::NAN), "–");
    }

    #[test]
    fn sizes_and_counts_have_the_unit_that_fits() {
        assert_eq!(format_bytes(12), "12 B");
        assert_eq!(format_bytes(12_800_000), "12.80 MB");
        assert_eq!(format_bytes_f64(1_499.6), "1.50 kB");
        assert_eq!(format_count(999), "999");
        assert_eq!(format_count(25_600_000), "25.60 M");
        assert_eq!(format_megabytes(-1_500_000.0, 1), "-1.5 MB");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!(format_duration(Duration::from_micros(1500)), "1.50 ms");
        let shown = [0.0123, 2.0, 123.4, 12_345.0].map(format_milliseconds);
        assert_eq!(shown, ["12.3 µs", "2.00 ms", "123 ms", "12.3 s"]);
        assert_eq!(format_microseconds(2000.0), "2.00 ms");
        assert_eq!([0.0, 0.5].map(format_seconds), ["0 ms", "500 ms"]);
    }

    #[test]
    fn rates_have_three_digits_or_so() {
        assert_eq!([1234.5, 12.34, 0.5].map(format_rate), ["1234", "12.3", "0.50"]);
    }

    #[test]
    fn energies_are_short() {
        let shown = [2.5e6, 12_345.0, 9.0, 0.0123, 4.5e-6].map(format_joules);
        assert_eq!(shown, ["2.50 MJ", "12.35 kJ", "9.00 J", "12.30 mJ", "4.50 µJ"]);
    }

    #[test]
    fn shares_are_percentages_and_nothing_has_no_sign() {
        assert_eq!(format_percent(0.1234, 1), "12.3%");
        assert_eq!(format_percent(-1e-9, 2), "0.00%");
        assert_eq!(format_percent(-0.5, 0), "-50%");
        assert_eq!([0.125, 0.5, 0.0].map(format_short_percent), ["12.5%", "50%", "0%"]);
    }
}
