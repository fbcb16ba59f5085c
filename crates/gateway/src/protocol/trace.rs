//! The W3C's `traceparent`, which says what trace a request is part of.

use tessera_tensormq::TraceContext;

/// The trace that a `traceparent` names. One that is not well formed is as good as none: a trace
/// is never a reason to refuse a request.
pub(crate) fn parse_traceparent(header: &str) -> Option<TraceContext> {
    let mut fields = header.trim().split('-');
    let version = parse_hex::<1>(fields.next()?)?[0];
    let trace = parse_hex::<16>(fields.next()?)?;
    let span = parse_hex::<8>(fields.next()?)?;
    let [flags] = parse_hex::<1>(fields.next()?)?;
    // Version 0 ends here; later ones may add fields, and 255 is none.
    let ends = version != 0 || fields.next().is_none();
    let sound = ends && version != 0xff && trace != [0; 16] && span != [0; 8];
    sound.then_some(TraceContext { trace, span, flags })
}

/// Exactly `N` bytes in lower-case hexadecimal digits.
fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4) | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_names_trace_span_and_flags() {
        let context = parse_traceparent(GOOD).unwrap();
        assert_eq!(context.trace[..2], [0x0a, 0xf7]);
        assert_eq!(context.span[7], 0x31);
        assert_eq!(context.flags, 1);
        assert_eq!(parse_traceparent(&GOOD.replacen("00", "01", 1)), Some(context));
        assert!(parse_traceparent(&format!("01{}-more", &GOOD[2..])).is_some());
    }

    #[test]
    fn what_is_not_well_formed_is_no_trace() {
        for header in [
            "",
            "00-00",
            &format!("{GOOD}-more"),
            &GOOD.to_uppercase(),
            &GOOD.replacen("00", "ff", 1),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        ] {
            assert_eq!(parse_traceparent(header), None, "{header}");
        }
    }
}
