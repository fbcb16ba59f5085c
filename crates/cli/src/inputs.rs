//! The inputs of a run: from files, images or at random.

use std::collections::HashMap;
use std::path::Path;

use tessera_core::{
    DType, Dim, Error, Random, Result, Tensor, TensorType, display_shape, element_count,
};
use tessera_graph::Port;

use crate::npy;

/// The most elements of a random input; a model that declares more is not one to try out.
const MOST_RANDOM: usize = 1 << 28;

/// The mean and deviation that ImageNet models expect to be taken out of an image.
const IMAGENET: [(f32, f32); 3] = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)];

/// Ranges of integer inputs, from `NAME=lo,hi`.
pub(crate) fn parse_ranges(
    texts: &[String],
    inputs: &[Port],
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

fn unknown_input(option: &str, name: &str, inputs: &[Port]) -> Error {
    Error::usage(format!("{option}: no input \"{name}\", expected one of: {}", list(inputs)))
}

fn list(inputs: &[Port]) -> String {
    let shown = inputs.iter().map(|port| format!("\"{}\" {}", port.name, port.tensor_type));
    shown.collect::<Vec<_>>().join(", ")
}

/// Inputs from `[NAME=]FILE` arguments; those that no argument names are random.
pub(crate) fn from_arguments(
    arguments: &[String],
    inputs: &[Port],
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
                        list(inputs)
                    )));
                }
            },
        };
        let expected = &port.tensor_type;
        let tensor = read(Path::new(file), expected).map_err(|error| error.within(file))?;
        if !expected.accepts(tensor.dtype(), tensor.shape()) {
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
            None => tensor(&mut random, port, ranges.get(&port.name).copied()),
        })
        .collect()
}

/// Random inputs for a model.
pub(crate) fn random(
    inputs: &[Port],
    ranges: &HashMap<String, (i64, i64)>,
    seed: u64,
) -> Result<Vec<Tensor>> {
    from_arguments(&[], inputs, ranges, seed)
}

fn read(path: &Path, expected: &TensorType) -> Result<Tensor> {
    let bytes = std::fs::read(path).map_err(|error| Error::io("read", &error))?;
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    match ending.to_ascii_lowercase().as_str() {
        "npy" => npy::read(&bytes),
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
    let known = dims.iter().filter_map(Dim::fixed).try_fold(1usize, usize::checked_mul);
    let known = known.and_then(|count| expected.dtype.bytes(count)).ok_or_else(wrong)?;
    let unknown = dims.iter().filter(|dim| dim.fixed().is_none()).count();
    let size = match unknown {
        0 => 1,
        1 if known > 0 && bytes.len().is_multiple_of(known) => bytes.len() / known,
        _ => return Err(wrong()),
    };
    let shape: Vec<usize> = dims.iter().map(|dim| dim.fixed().unwrap_or(size)).collect();
    Tensor::copied(expected.dtype, &shape, bytes).map_err(|_| wrong())
}

/// An image as ImageNet models expect it: the shorter side resized, the middle cut out, normalised.
fn image_tensor(bytes: &[u8], expected: &TensorType) -> Result<Tensor> {
    let wrong = || {
        Error::invalid(format!("an image can't become {expected}, expected f32 with 3 channels"))
    };
    if expected.dtype != DType::F32 {
        return Err(wrong());
    }
    let fixed = |dim: &Dim| dim.fixed().unwrap_or(224);
    let (height, width, channels_last) = match expected.dims.as_deref() {
        Some([_, Dim::Fixed(3), height, width]) => (fixed(height), fixed(width), false),
        Some([_, height, width, Dim::Fixed(3)]) => (fixed(height), fixed(width), true),
        _ => return Err(wrong()),
    };
    let image = image::load_from_memory(bytes)
        .map_err(|error| Error::invalid(format!("not an image: {error}")))?
        .to_rgb8();
    // 256 for 224, as the usual evaluation does; the same ratio for other sizes.
    let margin = |size: usize| (size as f64 * 256.0 / 224.0).round();
    let scale =
        (margin(height) / f64::from(image.height())).max(margin(width) / f64::from(image.width()));
    let scaled = |size: u32, least: usize| {
        ((f64::from(size) * scale).round() as u32).max(u32::try_from(least).unwrap_or(u32::MAX))
    };
    let (wide, high) = (scaled(image.width(), width), scaled(image.height(), height));
    let resized =
        image::imageops::resize(&image, wide, high, image::imageops::FilterType::Triangle);
    let (left, top) = ((wide as usize - width) / 2, (high as usize - height) / 2);
    let mut values = vec![0f32; 3 * height * width];
    for y in 0..height {
        for x in 0..width {
            let pixel = resized.get_pixel((left + x) as u32, (top + y) as u32);
            for (channel, (mean, deviation)) in IMAGENET.iter().enumerate() {
                let value = (f32::from(pixel.0[channel]) / 255.0 - mean) / deviation;
                let index = match channels_last {
                    true => (y * width + x) * 3 + channel,
                    false => (channel * height + y) * width + x,
                };
                values[index] = value;
            }
        }
    }
    let shape = if channels_last { [1, height, width, 3] } else { [1, 3, height, width] };
    Tensor::from_f32(&shape, &values)
}

/// A random tensor; the same seed gives the same one.
fn tensor(random: &mut Random, port: &Port, range: Option<(i64, i64)>) -> Result<Tensor> {
    let TensorType { dtype, dims } = &port.tensor_type;
    let dims = dims.as_ref().ok_or_else(|| {
        Error::usage(format!("input \"{}\" has no shape, use --shape {0}=…", port.name))
    })?;
    // A dimension that is open is one: one sample, one step.
    let shape: Vec<usize> = dims.iter().map(|dim| dim.fixed().unwrap_or(1)).collect();
    let shown = display_shape(*dtype, &shape);
    let too_large = || Error::usage(format!("input \"{}\": {shown} is too large", port.name));
    let count =
        element_count(&shape).filter(|&count| count <= MOST_RANDOM).ok_or_else(too_large)?;
    // Zero and one are valid nearly everywhere: as indices, masks and flags.
    let (low, high) = range.unwrap_or((0, 2));
    let span = high.wrapping_sub(low) as u64;
    let mut integer = || low.wrapping_add((random.next() % span) as i64);
    let mut bytes = Vec::with_capacity(dtype.bytes(count).unwrap_or(0));
    match dtype {
        DType::I8 | DType::U8 | DType::Bool => {
            bytes.extend((0..count).map(|_| integer() as u8));
        }
        DType::I16 | DType::U16 => {
            (0..count).for_each(|_| bytes.extend((integer() as u16).to_le_bytes()));
        }
        DType::I32 | DType::U32 => {
            (0..count).for_each(|_| bytes.extend((integer() as u32).to_le_bytes()));
        }
        DType::I64 | DType::U64 => {
            (0..count).for_each(|_| bytes.extend(integer().to_le_bytes()));
        }
        DType::F32 => {
            (0..count).for_each(|_| bytes.extend((random.normal() as f32).to_le_bytes()));
        }
        DType::F64 => (0..count).for_each(|_| bytes.extend(random.normal().to_le_bytes())),
        DType::F16 => (0..count)
            .for_each(|_| bytes.extend(half::f16::from_f64(random.normal()).to_le_bytes())),
        DType::BF16 => (0..count)
            .for_each(|_| bytes.extend(half::bf16::from_f64(random.normal()).to_le_bytes())),
        DType::String => {
            let strings = (0..count).map(|_| format!("s{}", integer()).into_bytes()).collect();
            return Tensor::from_strings(&shape, strings);
        }
        // Small numbers in every 8-bit format, and anything at all in the smaller ones.
        small => {
            let length = small.bytes(count).unwrap_or(0);
            bytes.extend((0..length).map(|_| (random.next() & 0x3f) as u8));
        }
    }
    Tensor::copied(*dtype, &shape, &bytes)
}
