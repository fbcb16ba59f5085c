//! Strings as the bytes that the protocol sends, each after its length.

use bytes::Bytes;
use tessera_core::{Error, Result};

/// Bytes before each string that say how long it is.
const LENGTH_PREFIX: usize = 4;

/// Strings, each after its length.
pub(super) fn encode_strings(strings: &[Vec<u8>]) -> Result<Bytes> {
    let len = strings.iter().map(|string| string.len() + LENGTH_PREFIX).sum();
    let mut bytes = Vec::with_capacity(len);
    for string in strings {
        let len = u32::try_from(string.len()).map_err(|_| {
            Error::unsupported(format!(
                "a string of {} bytes is longer than the protocol can send",
                string.len()
            ))
        })?;
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(string);
    }
    Ok(bytes.into())
}

/// `count` strings, each after its length.
pub(crate) fn decode_strings(mut bytes: &[u8], count: usize) -> Result<Vec<Vec<u8>>> {
    // Not more than the bytes can hold: the count is the client's word.
    let mut strings = Vec::with_capacity(count.min(bytes.len() / LENGTH_PREFIX));
    while !bytes.is_empty() {
        let cut = || {
            Error::invalid(format!(
                "string {} is cut off: each needs its length in {LENGTH_PREFIX} bytes, and then \
                 as many",
                strings.len()
            ))
        };
        let (prefix, rest) = bytes.split_first_chunk::<LENGTH_PREFIX>().ok_or_else(cut)?;
        let len = usize::try_from(u32::from_le_bytes(*prefix)).unwrap_or(usize::MAX);
        let (string, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
        strings.push(string.to_vec());
        bytes = rest;
    }
    if strings.len() != count {
        return Err(Error::invalid(format!(
            "the shape holds {count} strings, got {}",
            strings.len()
        )));
    }
    Ok(strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_as_they_were() {
        for strings in [vec![], vec![vec![]], vec![b"ab".to_vec(), vec![], vec![0, 255]]] {
            let bytes = encode_strings(&strings).unwrap();
            assert_eq!(decode_strings(&bytes, strings.len()).unwrap(), strings);
        }
    }

    #[test]
    fn strings_that_are_cut_off_are_refused_by_their_number() {
        let bytes = encode_strings(&[b"ab".to_vec(), b"cd".to_vec()]).unwrap();
        for len in [1, 3, 4, 5, 7, 9, 11] {
            let error = decode_strings(&bytes[..len], 2).unwrap_err().to_string();
            let number = len / 6;
            assert!(error.contains(&format!("string {number} is cut off")), "{len}: {error}");
        }
        assert!(decode_strings(&[255; 8], 1).is_err());
    }

    #[test]
    fn the_number_of_strings_must_be_that_of_the_shape() {
        let bytes = encode_strings(&[b"ab".to_vec()]).unwrap();
        let error = decode_strings(&bytes, usize::MAX).unwrap_err().to_string();
        assert!(error.ends_with("strings, got 1"), "{error}");
        assert!(decode_strings(&bytes, 0).is_err());
    }
}
