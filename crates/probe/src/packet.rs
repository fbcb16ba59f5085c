//! What is in a packet.
//!
//! | bytes | |
//! |---|---|
//! | 16 | a code over the rest, made with the key of the host that was asked |
//! | 4 | `TsPb` |
//! | 1 | what it is |
//! | 8 | the number of the question |
//! | | what belongs to that |
//!
//! All numbers are little-endian.

use crate::key::ProbeKey;

const MAGIC: [u8; 4] = *b"TsPb";
const CODE_BYTES: usize = 16;
const HEAD_BYTES: usize = CODE_BYTES + 4 + 1 + 8;

/// Bytes of a packet of a train: with its headers it fits through what links usually carry.
pub(crate) const TRAIN_PACKET_BYTES: usize = 1400;
/// Bytes that IP and UDP add.
pub(crate) const HEADER_BYTES: usize = 28;

/// A packet, for the host with a key or from it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packet {
    /// Of the question that it is, or answers.
    pub(crate) number: u64,
    pub(crate) content: PacketContent,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PacketContent {
    /// Asks for an answer at once.
    Echo,
    EchoReply,
    /// One of a train.
    Train {
        index: u32,
        count: u32,
    },
    /// How a train came.
    TrainReply(TrainArrival),
}

/// How a train came: figures of its two halves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TrainArrival {
    /// Packets that came.
    pub(crate) received: u32,
    /// Bits per second of each half, headers included; zero where it has too few packets.
    pub(crate) halves: [f64; 2],
    /// Nanoseconds from the first to the last.
    pub(crate) span: u64,
}

impl Packet {
    /// As it is sent.
    pub(crate) fn to_bytes(&self, key: &ProbeKey) -> Vec<u8> {
        let mut bytes = vec![0; CODE_BYTES];
        bytes.extend(MAGIC);
        bytes.push(match self.content {
            PacketContent::Echo => 1,
            PacketContent::EchoReply => 2,
            PacketContent::Train { .. } => 3,
            PacketContent::TrainReply(_) => 4,
        });
        bytes.extend(self.number.to_le_bytes());
        match &self.content {
            PacketContent::Echo | PacketContent::EchoReply => {}
            PacketContent::Train { index, count } => {
                bytes.extend(index.to_le_bytes());
                bytes.extend(count.to_le_bytes());
                bytes.resize(TRAIN_PACKET_BYTES, 0);
            }
            PacketContent::TrainReply(arrival) => {
                bytes.extend(arrival.received.to_le_bytes());
                arrival.halves.iter().for_each(|half| bytes.extend(half.to_le_bytes()));
                bytes.extend(arrival.span.to_le_bytes());
            }
        }
        let code = code_of(&bytes[CODE_BYTES..], key);
        bytes[..CODE_BYTES].copy_from_slice(&code);
        bytes
    }

    /// The number of the question that bytes belong to, where they may be a packet.
    pub(crate) fn peek_number(bytes: &[u8]) -> Option<(u8, u64)> {
        let rest = bytes.get(CODE_BYTES..HEAD_BYTES)?;
        let (magic, rest) = rest.split_first_chunk::<4>()?;
        let (kind, number) = rest.split_first()?;
        (*magic == MAGIC).then_some((*kind, u64::from_le_bytes(*number.first_chunk()?)))
    }

    /// From what came; `None` where whoever sent it does not know the key.
    pub(crate) fn from_bytes(bytes: &[u8], key: &ProbeKey) -> Option<Self> {
        let (kind, number) = Self::peek_number(bytes)?;
        let (code, rest) = bytes.split_first_chunk::<CODE_BYTES>()?;
        // Not the same time for every code, which helps nobody to guess sixteen bytes of one hash.
        if code_of(rest, key) != *code {
            return None;
        }
        let mut body = &bytes[HEAD_BYTES..];
        let content = match kind {
            1 => PacketContent::Echo,
            2 => PacketContent::EchoReply,
            3 => PacketContent::Train { index: take_u32(&mut body)?, count: take_u32(&mut body)? },
            4 => PacketContent::TrainReply(TrainArrival {
                received: take_u32(&mut body)?,
                halves: [take_f64(&mut body)?, take_f64(&mut body)?],
                span: u64::from_le_bytes(take_array(&mut body)?),
            }),
            _ => return None,
        };
        Some(Self { number, content })
    }
}

fn code_of(bytes: &[u8], key: &ProbeKey) -> [u8; CODE_BYTES] {
    let mut code = [0; CODE_BYTES];
    code.copy_from_slice(&blake3::keyed_hash(key.bytes(), bytes).as_bytes()[..CODE_BYTES]);
    code
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take_array(bytes).map(u32::from_le_bytes)
}

fn take_f64(bytes: &mut &[u8]) -> Option<f64> {
    take_array(bytes).map(f64::from_le_bytes).filter(|figure| figure.is_finite() && *figure >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_as_they_went_and_no_others_are_believed() {
        let (key, other) = (ProbeKey::random().unwrap(), ProbeKey::random().unwrap());
        let arrival = TrainArrival { received: 9, halves: [1.5, 2.5], span: 77 };
        for content in [
            PacketContent::Echo,
            PacketContent::EchoReply,
            PacketContent::Train { index: 3, count: 64 },
            PacketContent::TrainReply(arrival),
        ] {
            let packet = Packet { number: 1 << 40, content };
            let bytes = packet.to_bytes(&key);
            assert_eq!(Packet::from_bytes(&bytes, &key), Some(packet));
            assert_eq!(Packet::from_bytes(&bytes, &other), None);
            for len in 0..bytes.len() {
                assert_eq!(Packet::from_bytes(&bytes[..len], &key), None);
            }
            for place in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[place] ^= 1;
                assert_eq!(Packet::from_bytes(&changed, &key), None);
            }
        }
    }
}
