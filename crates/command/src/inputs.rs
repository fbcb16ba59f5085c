//! The inputs of a run: from files and images; those that nobody gives are random.

use std::collections::HashMap;
use std::path::Path;

use tessera_core::{DType, Dim, Error, Random, Result, Tensor, TensorType, display_shape};
use tessera_graph::TensorPort;
use tessera_zoo::random_input;

use crate::image_file::RgbImage;
use crate::npy;

/// The mean and deviation that ImageNet models expect to be taken out of an image.
const IMAGENET: [(f32, f32); 3] = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)];

/// Ranges of integer inputs, from `NAME=lo,hi`.
pub fn parse_ranges(
    texts: &[String],
    inputs: &[TensorPort],
) -> Result<HashMap<String, (i64, i64)>> {
    texts
        .iter()
        .map(|text| {
            let wrong =
                || Error::usage(format!("--range \"{text}\", expected NAME=lo,hi with lo < hi"));
            let (name, range) = text.rsplit_once('=').ok_or_else(wrong)?;
            let (low, high) = range.split_once(',').ok_or_else(wrong)?;
            let number = |text: &str| text.trim().parse::<i64>().map_err(|_| wrong());
            let (low, high) = (number(low)?, number(high)?);
            if low >= high {
                return Err(wrong());
            }
            if !inputs.iter().any(|input| input.name == name) {
                return Err(unknown_input("--range", name, inputs));
            }
            Ok((name.to_owned(), (low, high)))
        })
        .collect()
}

fn unknown_input(option: &str, name: &str, inputs: &[TensorPort]) -> Error {
    Error::usage(format!("{option}: no input \"{name}\", expected one of: {}", list_inputs(inputs)))
}

fn list_inputs(inputs: &[TensorPort]) -> String {
    let shown = inputs.iter().map(|port| format!("\"{}\" {}", port.name, port.tensor_type));
    shown.collect::<Vec<_>>().join(", ")
}

/// Inputs from `[NAME=]FILE` arguments; those that no argument names are random.
pub fn from_arguments(
    arguments: &[String],
    inputs: &[TensorPort],
    ranges: &HashMap<String, (i64, i64)>,
    seed: u64,
) -> Result<Vec<Tensor>> {
    let mut given: HashMap<&str, Tensor> = HashMap::new();
    for argument in arguments {
        let named = argument
            .split_once('=')
            .and_then(|(name, file)| Some((inputs.iter().find(|port| port.name == name)?, file)));
        let (port, file) = match (named, inputs) {
            (Some(named), _) => named,
            (None, [port]) if Path::new(argument).exists() || !argument.contains('=') => {
                (port, argument.as_str())
            }
            (None, _) => match argument.split_once('=') {
                Some((name, _)) => return Err(unknown_input("--input", name, inputs)),
                None => {
                    return Err(Error::usage(format!(
                        "--input {argument}: expected NAME=FILE with one of: {}",
                        list_inputs(inputs)
                    )));
                }
            },
        };
        let expected = &port.tensor_type;
        let tensor =
            read_input(Path::new(file), expected).map_err(|error| error.with_context(file))?;
        if !expected.can_accept(tensor.dtype(), tensor.shape()) {
            return Err(Error::invalid(format!(
                "{file}: input \"{}\" expects {expected}, got {}",
                port.name,
                display_shape(tensor.dtype(), tensor.shape())
            )));
        }
        given.insert(&port.name, tensor);
    }
    let mut random = Random::new(seed);
    inputs
        .iter()
        .map(|port| match given.remove(port.name.as_str()) {
            Some(tensor) => Ok(tensor),
            None => random_input(&mut random, port, ranges.get(&port.name).copied()),
        })
        .collect()
}

fn read_input(path: &Path, expected: &TensorType) -> Result<Tensor> {
    let bytes = std::fs::read(path).map_err(|error| Error::from_io("read", &error))?;
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    match ending.to_ascii_lowercase().as_str() {
        "npy" => npy::read_npy(&bytes),
        "png" | "jpg" | "jpeg" => image_tensor(&bytes, expected),
        _ => raw_tensor(&bytes, expected),
    }
}

/// Raw elements: the shape is the input's, with one unknown dimension following from the length.
fn raw_tensor(bytes: &[u8], expected: &TensorType) -> Result<Tensor> {
    let wrong = || {
        Error::invalid(format!(
            "{} bytes are no {expected} (use --shape for its size)",
            bytes.len()
        ))
    };
    let dims = expected.dims.as_ref().ok_or_else(wrong)?;
    let known = dims.iter().filter_map(Dim::fixed_size).try_fold(1usize, usize::checked_mul);
    let known = known.and_then(|count| expected.dtype.byte_len(count)).ok_or_else(wrong)?;
    let unknown = dims.iter().filter(|dim| dim.fixed_size().is_none()).count();
    let size = match unknown {
        0 => 1,
        1 if known > 0 && bytes.len().is_multiple_of(known) => bytes.len() / known,
        _ => return Err(wrong()),
    };
    let shape: Vec<usize> = dims.iter().map(|dim| dim.fixed_size().unwrap_or(size)).collect();
    Tensor::copy_from_bytes(expected.dtype, &shape, bytes).map_err(|_| wrong())
}

/// An image as ImageNet models expect it: the shorter side resized, the middle cut out, normalised.
fn image_tensor(bytes: &[u8], expected: &TensorType) -> Result<Tensor> {
    let wrong = || {
        Error::invalid(format!("an image can't become {expected}, expected f32 with 3 channels"))
    };
    if expected.dtype != DType::F32 {
        return Err(wrong());
    }
    let fixed = |dim: &Dim| dim.fixed_size().unwrap_or(224);
    let (height, width, channels_last) = match expected.dims.as_deref() {
        Some([_, Dim::Fixed(3), height, width]) => (fixed(height), fixed(width), false),
        Some([_, height, width, Dim::Fixed(3)]) => (fixed(height), fixed(width), true),
        _ => return Err(wrong()),
    };
    let image = RgbImage::decode(bytes)?;
    // 256 for 224, as the usual evaluation does; the same ratio for other sizes.
    let margin = |size: usize| (size as f64 * 256.0 / 224.0).round();
    let scale = (margin(height) / image.height as f64).max(margin(width) / image.width as f64);
    let scaled = |size: usize, least: usize| ((size as f64 * scale).round() as usize).max(least);
    let (wide, high) = (scaled(image.width, width), scaled(image.height, height));
    let resized = image.resize(wide, high);
    let (left, top) = ((wide - width) / 2, (high - height) / 2);
    let mut values = vec![0f32; 3 * height * width];
    for y in 0..height {
        for x in 0..width {
            let pixel = resized.pixel(left + x, top + y);
            for (channel, (mean, deviation)) in IMAGENET.iter().enumerate() {
                let value = (f32::from(pixel[channel]) / 255.0 - mean) / deviation;
                let index = if channels_last {
                    (y * width + x) * 3 + channel
                } else {
                    (channel * height + y) * width + x
                };
                values[index] = value;
            }
        }
    }
    let shape = if channels_last { [1, height, width, 3] } else { [1, 3, height, width] };
    Tensor::from_f32(&shape, &values)
}
