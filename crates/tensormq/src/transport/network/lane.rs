//! A connection of a channel, and what goes through it: a header, and a frame for each tensor.

use tessera_core::{Error, MemoryLocation, Result, Tensor};

use super::control_frame::ControlFrame;
use super::link::{DialledLink, LinkFrame};
use crate::layout::{Envelope, TensorDescriptor, TensorPlace, TimeEncoding};
use crate::payload;
use crate::wait::Deadline;

/// A connection of a channel.
pub(super) struct ChannelLane {
    pub(super) link: Box<dyn DialledLink>,
    pub(super) welcomed: bool,
    /// When something was last sent on it.
    pub(super) sent_at: Deadline,
}

impl ChannelLane {
    /// Says something. Where that fails the connection is broken, which an event says.
    pub(super) fn say(&mut self, control: &ControlFrame) {
        self.link.send_frames(vec![LinkFrame::Bytes(control.to_bytes())]).ok();
    }
}

/// Sends a message on the lane whose turn it is.
pub(super) fn send_on_lane(
    lanes: &mut [ChannelLane],
    sequence: u64,
    envelope: &Envelope,
    tensors: &[Tensor],
) -> Result<()> {
    let packed: Vec<Option<Vec<u8>>> =
        tensors.iter().map(|tensor| tensor.strings().map(payload::pack_strings)).collect();
    let describe = |(index, (tensor, packed)): (usize, (&Tensor, &Option<Vec<u8>>))| {
        let bytes = packed.as_ref().map_or(tensor.byte_len(), Vec::len);
        let place = TensorPlace::Frame(index as u32);
        TensorDescriptor::contiguous(tensor.dtype(), tensor.shape(), bytes, place)
    };
    let descriptors: Vec<_> = tensors.iter().zip(&packed).enumerate().map(describe).collect();
    let header = envelope.encode_header(sequence, TimeEncoding::Relative, &descriptors)?;
    let count = lanes.len().max(1) as u64;
    let Some(lane) = lanes.get_mut((sequence % count) as usize) else {
        return Err(Error::lost("there is no connection"));
    };
    lane.sent_at = Deadline::now();
    let tensors = tensors.iter().zip(packed).map(|(tensor, packed)| match packed {
        Some(packed) => LinkFrame::Bytes(packed),
        None => LinkFrame::Tensor(tensor.clone()),
    });
    let header = std::iter::once(LinkFrame::Bytes(header));
    lane.link.send_frames(header.chain(tensors).collect())
}

/// A tensor whose bytes can be sent as they are.
pub(super) fn sendable_tensor(tensor: &Tensor, largest: usize) -> Result<Tensor> {
    let tensor = tensor.clone().wait_fence_on_host()?;
    if tensor.location() != MemoryLocation::Host {
        return Err(Error::unsupported(
            "a tensor that is not in host memory can't go over the network",
        ));
    }
    // Strings go with their lengths.
    let lengths = tensor.strings().map_or(0, |strings| strings.len().saturating_mul(8));
    let bytes = tensor.byte_len().saturating_add(lengths);
    if bytes > largest {
        return Err(Error::usage(format!(
            "a tensor of {bytes} bytes, and the receiver takes {largest} at most"
        )));
    }
    Ok(tensor)
}
