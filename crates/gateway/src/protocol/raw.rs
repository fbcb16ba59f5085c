//! Tensors as the bytes that the protocol sends: little-endian, and strings with their lengths.

use bytes::Bytes;
use tessera_core::{DType, Error, Result, Tensor};

/// Bytes before each string that say how long it is.
const PREFIX: usize = 4;

/// The bytes of a tensor, shared with it where they are as the protocol wants them.
pub(crate) fn raw_bytes(tensor: &Tensor) -> Result<Bytes> {
    if let Some(strings) = tensor.strings() {
        return encode_strings(strings);
    }
    if tensor.bytes().is_none() {
        return Err(Error::engine(format!("{tensor:?} is not in memory that the CPU reads")));
    }
    Ok(Bytes::from_owner(Shared(tensor.clone())))
}

/// A tensor that lends its bytes for as long as they are on their way to the client.
struct Shared(Tensor);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes().unwrap_or_default()
    }
}

/// Strings, each after its length.
fn encode_strings(strings: &[Vec<u8>]) -> Result<Bytes> {
    let len = strings.iter().map(|string| string.len() + PREFIX).sum();
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
    let mut strings = Vec::with_capacity(count.min(bytes.len() / PREFIX));
    while !bytes.is_empty() {
        let cut = || {
            Error::invalid(format!(
                "string {} is cut off: each needs its length in {PREFIX} bytes, and then as many",
                strings.len()
            ))
        };
        let (prefix, rest) = bytes.split_first_chunk::<PREFIX>().ok_or_else(cut)?;
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

/// Whether elements of this dtype can be sent as JSON, which has no half-precision numbers.
pub(crate) fn is_json(dtype: DType) -> bool {
    !matches!(dtype, DType::F16 | DType::BF16)
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

    #[test]
    fn raw_bytes_share_the_memory_of_the_tensor() {
        let tensor = Tensor::from_i64(&[2], &[1, -1]).unwrap();
        let bytes = raw_bytes(&tensor).unwrap();
        assert_eq!(bytes.as_ptr().addr(), tensor.address().unwrap());
        assert_eq!(bytes[..8], 1i64.to_le_bytes());
    }
}
