//! The fields of a protobuf message, as far as it goes: of a large one only the beginning is kept.

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireValue<'a> {
    /// A number or a flag.
    Number(u64),
    /// Text, bytes or a message, of which the end may be missing.
    Bytes(&'a [u8]),
}

/// A field by its number.
pub(super) type WireField<'a> = (u64, WireValue<'a>);

impl<'a> WireValue<'a> {
    /// Its text; none where it is none.
    pub(super) fn text(self) -> Option<&'a str> {
        match self {
            Self::Bytes(bytes) => str::from_utf8(bytes).ok(),
            Self::Number(_) => None,
        }
    }

    /// Its fields; none where it is no message.
    pub(super) fn fields(self) -> Vec<WireField<'a>> {
        match self {
            Self::Bytes(bytes) => wire_fields(bytes),
            Self::Number(_) => Vec::new(),
        }
    }
}

/// The fields of a message by their numbers, up to where it ends or makes no sense.
pub(super) fn wire_fields(mut message: &[u8]) -> Vec<WireField<'_>> {
    let mut fields = Vec::new();
    while let Some((field, rest)) = next_field(message) {
        fields.extend(field);
        message = rest;
    }
    fields
}

/// A field, or nothing where its kind does not matter here, and what follows it.
fn next_field(message: &[u8]) -> Option<(Option<WireField<'_>>, &[u8])> {
    let (key, rest) = read_varint(message)?;
    let number = key >> 3;
    match key & 7 {
        0 => {
            let (value, rest) = read_varint(rest)?;
            Some((Some((number, WireValue::Number(value))), rest))
        }
        1 => Some((None, rest.get(8..)?)),
        2 => {
            let (len, rest) = read_varint(rest)?;
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
            let (bytes, rest) = rest.split_at(len);
            Some((Some((number, WireValue::Bytes(bytes))), rest))
        }
        5 => Some((None, rest.get(4..)?)),
        _ => None,
    }
}

fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(7 * at as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_up_to_where_the_message_is_cut() {
        // 1: 300, 2: "cats", 3: a fixed number, 4: "dogs" of which two letters are there.
        let message = b"\x08\xac\x02\x12\x04cats\x1d\x01\x02\x03\x04\x22\x04do";
        let fields = wire_fields(message);
        assert_eq!(fields[0], (1, WireValue::Number(300)));
        assert_eq!(fields[1].1.text(), Some("cats"));
        assert_eq!((fields[2].0, fields[2].1.text()), (4, Some("do")));
        for len in 0..message.len() {
            assert!(wire_fields(&message[..len]).len() <= 3);
        }
        assert!(wire_fields(&[0xff; 40]).is_empty());
    }
}
