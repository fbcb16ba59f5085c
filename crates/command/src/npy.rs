//! NumPy's `.npy` files.

use std::path::Path;

use tessera_core::{DType, Error, Result, Tensor};
use tessera_repository::unfinished_files::write_whole;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Names of dtypes in the header, little-endian.
const DTYPE_DESCRIPTIONS: &[(DType, &str)] = &[
    (DType::F32, "<f4"),
    (DType::F64, "<f8"),
    (DType::F16, "<f2"),
    (DType::I8, "|i1"),
    (DType::I16, "<i2"),
    (DType::I32, "<i4"),
    (DType::I64, "<i8"),
    (DType::U8, "|u1"),
    (DType::U16, "<u2"),
    (DType::U32, "<u4"),
    (DType::U64, "<u8"),
    (DType::Bool, "|b1"),
];

/// Reads a tensor.
pub fn read_npy(bytes: &[u8]) -> Result<Tensor> {
    let wrong = |what: &str| Error::invalid(format!("not a .npy file: {what}"));
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("no NUMPY at the start"))?;
    let (&[major, _minor], rest) = rest.split_first_chunk().ok_or_else(|| wrong("cut short"))?;
    let (length, rest) = match major {
        1 => {
            let (length, rest) = rest.split_first_chunk().ok_or_else(|| wrong("cut short"))?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk().ok_or_else(|| wrong("cut short"))?;
            (u32::from_le_bytes(*length) as usize, rest)
        }
        _ => return Err(wrong("an unknown version")),
    };
    let (header, data) = rest.split_at_checked(length).ok_or_else(|| wrong("cut short"))?;
    let header = std::str::from_utf8(header).map_err(|_| wrong("a garbled header"))?;
    let description = quoted_value(header, "descr").ok_or_else(|| wrong("no dtype"))?;
    let known = DTYPE_DESCRIPTIONS.iter().find(|(_, name)| name[1..] == description[1..]);
    let dtype = known.filter(|_| !description.starts_with('>')).map(|(dtype, _)| *dtype);
    let dtype = dtype.ok_or_else(|| {
        Error::unsupported(format!(
            ".npy file with dtype \"{description}\", expected a plain number"
        ))
    })?;
    if header.split("'fortran_order':").nth(1).is_some_and(|rest| rest.trim().starts_with("True")) {
        return Err(Error::unsupported(".npy file in Fortran order, expected C order"));
    }
    let shape = header.split("'shape':").nth(1).and_then(|rest| {
        let inside = rest.trim().strip_prefix('(')?.split(')').next()?;
        let sizes = inside.split(',').map(str::trim).filter(|size| !size.is_empty());
        sizes.map(|size| size.parse::<usize>().ok()).collect::<Option<Vec<_>>>()
    });
    Tensor::copy_from_bytes(dtype, &shape.ok_or_else(|| wrong("no shape"))?, data)
}

fn quoted_value<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let rest = header.split(&format!("'{key}':")).nth(1)?.trim().strip_prefix('\'')?;
    rest.split('\'').next().filter(|text| text.len() >= 2 && text.is_ascii())
}

/// Writes a tensor.
pub fn write_npy(path: &Path, tensor: &Tensor) -> Result<()> {
    let description = DTYPE_DESCRIPTIONS.iter().find(|(dtype, _)| *dtype == tensor.dtype());
    let (_, description) = description.ok_or_else(|| {
        Error::unsupported(format!("{}: .npy has no {}", path.display(), tensor.dtype()))
    })?;
    let shape: String = tensor.shape().iter().map(|size| format!("{size},")).collect();
    let mut header =
        format!("{{'descr': '{description}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The data starts at a multiple of 64 bytes.
    let length = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64) - MAGIC.len() - 4;
    header = format!("{header:<width$}\n", width = length - 1);
    let mut file = Vec::with_capacity(header.len() + tensor.byte_len() + 16);
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&[1, 0]);
    file.extend_from_slice(&u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(tensor.bytes().unwrap_or_default());
    write_whole(path, &file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_reads_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        for shape in [vec![], vec![6], vec![2, 3]] {
            let values: Vec<f32> = (0..shape.iter().product()).map(|v| v as f32).collect();
            let tensor = Tensor::from_f32(&shape, &values).unwrap();
            let path = folder.path().join("x.npy");
            write_npy(&path, &tensor).unwrap();
            let back = read_npy(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!((back.shape(), back.bytes()), (tensor.shape(), tensor.bytes()));
        }
    }

    #[test]
    fn what_is_no_npy_file_is_refused() {
        for bytes in [&b""[..], b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{}", b"PK\x03\x04"] {
            assert!(read_npy(bytes).is_err());
        }
    }
}
