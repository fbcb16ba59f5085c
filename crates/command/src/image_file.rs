//! Images as inputs: PNG and JPEG, decoded to 8-bit RGB and resized.
//!
//! The two decoders are used as they are: the `image` crate around them brings colour management
//! that takes as long to compile as the rest of the command line.

use std::io::Cursor;

use tessera_core::{Error, Result};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// An image with three bytes per pixel, row by row.
pub(crate) struct RgbImage {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pixels: Vec<u8>,
}

impl RgbImage {
    /// Decodes a PNG or JPEG file.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
        const JPEG: &[u8] = b"\xff\xd8\xff";
        let image = if bytes.starts_with(PNG) {
            decode_png(bytes)
        } else if bytes.starts_with(JPEG) {
            decode_jpeg(bytes)
        } else {
            Err("neither a PNG nor a JPEG file".to_owned())
        };
        image.map_err(|problem| Error::invalid(format!("not an image: {problem}")))
    }

    /// Red, green and blue of a pixel.
    pub(crate) fn pixel(&self, x: usize, y: usize) -> [u8; 3] {
        let first = (y * self.width + x) * 3;
        std::array::from_fn(|channel| self.pixels[first + channel])
    }

    /// The same image in another size, by a triangle filter that is as wide as a pixel of the
    /// coarser of the two.
    pub(crate) fn resize(&self, width: usize, height: usize) -> Self {
        let rows = filter_weights(self.height, height);
        let columns = filter_weights(self.width, width);
        let mut tall = vec![0f32; self.width * height * 3];
        for (y, (first, weights)) in rows.iter().enumerate() {
            let target = &mut tall[y * self.width * 3..(y + 1) * self.width * 3];
            for (row, weight) in weights.iter().enumerate() {
                let start = (first + row) * self.width * 3;
                let source = &self.pixels[start..start + self.width * 3];
                for (sum, value) in target.iter_mut().zip(source) {
                    *sum += f32::from(*value) * weight;
                }
            }
        }
        let mut pixels = Vec::with_capacity(width * height * 3);
        for line in tall.chunks_exact(self.width * 3) {
            for (first, weights) in &columns {
                for channel in 0..3 {
                    let taken = line[first * 3..].iter().skip(channel).step_by(3);
                    let sum: f32 = taken.zip(weights).map(|(value, weight)| value * weight).sum();
                    pixels.push(sum.round().clamp(0.0, 255.0) as u8);
                }
            }
        }
        Self { width, height, pixels }
    }
}

/// For each position of a line of `target` pixels, the first of `source` pixels that counts and how
/// much it and those after it do.
fn filter_weights(source: usize, target: usize) -> Vec<(usize, Vec<f32>)> {
    let ratio = source as f32 / target as f32;
    let reach = ratio.max(1.0);
    (0..target)
        .map(|position| {
            let centre = (position as f32 + 0.5) * ratio;
            let first = ((centre - reach).floor().max(0.0) as usize).min(source - 1);
            let last = ((centre + reach).ceil() as usize).clamp(first + 1, source);
            let weight = |pixel: usize| {
                let distance = (pixel as f32 - (centre - 0.5)) / reach;
                (1.0 - distance.abs()).max(0.0)
            };
            let weights: Vec<f32> = (first..last).map(weight).collect();
            let sum: f32 = weights.iter().sum();
            (first, weights.into_iter().map(|weight| weight / sum).collect())
        })
        .collect()
}

fn decode_png(bytes: &[u8]) -> Result<RgbImage, String> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
    let size = reader.output_buffer_size().ok_or("it is too large")?;
    let mut samples = vec![0; size];
    let frame = reader.next_frame(&mut samples).map_err(|error| error.to_string())?;
    samples.truncate(frame.buffer_size());
    let pixels = match frame.color_type {
        png::ColorType::Rgb => samples,
        png::ColorType::Rgba => {
            samples.as_chunks::<4>().0.iter().flat_map(|p| [p[0], p[1], p[2]]).collect()
        }
        png::ColorType::Grayscale => samples.iter().flat_map(|&grey| [grey; 3]).collect(),
        png::ColorType::GrayscaleAlpha => {
            samples.as_chunks::<2>().0.iter().flat_map(|p| [p[0]; 3]).collect()
        }
        png::ColorType::Indexed => return Err("its palette was not resolved".to_owned()),
    };
    checked_image(frame.width as usize, frame.height as usize, pixels)
}

fn decode_jpeg(bytes: &[u8]) -> Result<RgbImage, String> {
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options);
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    let (width, height) = decoder.dimensions().ok_or("it has no size")?;
    checked_image(width, height, pixels)
}

fn checked_image(width: usize, height: usize, pixels: Vec<u8>) -> Result<RgbImage, String> {
    let expected = width.checked_mul(height).and_then(|count| count.checked_mul(3));
    if width == 0 || height == 0 || expected != Some(pixels.len()) {
        return Err(format!("{} bytes for {width} x {height} pixels", pixels.len()));
    }
    Ok(RgbImage { width, height, pixels })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(width: usize, height: usize) -> RgbImage {
        let pixel = |index: usize| {
            let (x, y) = (index % width, index / width);
            [(x * 200 / width) as u8, (y * 200 / height) as u8, 77]
        };
        RgbImage { width, height, pixels: (0..width * height).flat_map(pixel).collect() }
    }

    #[test]
    fn an_image_of_the_same_size_stays_as_it_is() {
        let image = gradient(7, 5);
        assert_eq!(image.resize(7, 5).pixels, image.pixels);
    }

    #[test]
    fn a_gradient_stays_one_in_any_size() {
        let image = gradient(64, 48);
        for (width, height) in [(128, 96), (32, 24), (50, 20), (1, 1)] {
            let resized = image.resize(width, height);
            assert_eq!((resized.width, resized.height), (width, height));
            for (x, y) in [(0, 0), (width - 1, 0), (width / 2, height / 2), (width - 1, height - 1)]
            {
                let [red, green, blue] = resized.pixel(x, y);
                let expected = |at: usize, size: usize| (at as f32 + 0.5) / size as f32 * 200.0;
                // The middle of a pixel that covers several is half a step further.
                assert!((f32::from(red) - expected(x, width)).abs() <= 4.0, "{red} at {x}/{width}");
                assert!((f32::from(green) - expected(y, height)).abs() <= 5.0, "{green} at {y}");
                assert_eq!(blue, 77);
            }
        }
    }

    #[test]
    fn what_is_no_image_is_refused() {
        for bytes in [&b""[..], b"text", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"] {
            assert!(RgbImage::decode(bytes).is_err());
        }
    }
}
