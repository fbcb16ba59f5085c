//! What processes of a host say to each other before messages flow: a channel, please; a pool, please.
//!
//! Every packet starts with the magic, the version and a kind, so that a peer of another version is
//! told so whatever it wants.

use tessera_core::{Error, ErrorKind, PoolId, Result};

use crate::layout::{MAGIC, check_version};
use crate::pool::{Buffers, Plan};

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const ATTACH: u8 = 3;
const ATTACHED: u8 = 4;
const SETTLE: u8 = 5;
const REFUSED: u8 = 255;

/// A packet of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// A sender wants a channel to an inbox; with its bell.
    Open { inbox: String, courier: u64 },
    /// Here it is: the length of its memory and its depth; with the memory and the inbox's bell.
    Opened { len: u64, depth: u32 },
    /// A receiver wants to open a pool.
    Attach { pool: PoolId },
    /// Here it is; with control, payload and bell.
    Attached(Plan),
    /// The owner of a pool is short of buffers: let go of what you can.
    Settle,
    /// No, and why.
    Refused { kind: ErrorKind, why: String },
}

pub(crate) fn settle() -> Vec<u8> {
    Packet::Settle.encode()
}

impl Packet {
    pub(crate) fn refused(error: &Error) -> Self {
        Self::Refused { kind: error.kind(), why: error.to_string() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(MAGIC);
        bytes.extend(crate::layout::VERSION.to_le_bytes());
        match self {
            Self::Open { inbox, courier } => {
                bytes.push(OPEN);
                bytes.extend(courier.to_le_bytes());
                bytes.extend(inbox.as_bytes());
            }
            Self::Opened { len, depth } => {
                bytes.push(OPENED);
                bytes.extend(len.to_le_bytes());
                bytes.extend(depth.to_le_bytes());
            }
            Self::Attach { pool } => {
                bytes.push(ATTACH);
                bytes.extend(pool.owner.to_le_bytes());
                bytes.extend(pool.number.to_le_bytes());
            }
            Self::Attached(plan) => {
                bytes.push(ATTACHED);
                bytes.extend(plan.id.owner.to_le_bytes());
                bytes.extend(plan.id.number.to_le_bytes());
                bytes.extend(plan.holder.to_le_bytes());
                // 0 is the host, others are GPUs.
                bytes.extend(plan.gpu.map_or(0, |number| number + 1).to_le_bytes());
                bytes.push(plan.is_flagged.into());
                for buffers in &plan.buffers {
                    bytes.extend((buffers.bytes as u64).to_le_bytes());
                    bytes.extend((buffers.count as u64).to_le_bytes());
                }
            }
            Self::Settle => bytes.push(SETTLE),
            Self::Refused { kind, why } => {
                bytes.push(REFUSED);
                bytes.push(kind_code(*kind));
                bytes.extend(why.as_bytes().iter().take(1024));
            }
        }
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::invalid("a packet that is not one of TensorMQ");
        let rest = bytes.strip_prefix(&MAGIC).ok_or_else(wrong)?;
        let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(wrong)?;
        check_version(u16::from_le_bytes(*version))?;
        let (kind, rest) = rest.split_first().ok_or_else(wrong)?;
        let mut rest = rest;
        let packet = match *kind {
            OPEN => {
                let courier = number(&mut rest)?;
                let inbox = std::str::from_utf8(std::mem::take(&mut rest)).map_err(|_| wrong())?;
                Self::Open { inbox: inbox.to_owned(), courier }
            }
            OPENED => Self::Opened { len: number(&mut rest)?, depth: short(&mut rest)? },
            ATTACH => Self::Attach {
                pool: PoolId { owner: number(&mut rest)?, number: number(&mut rest)? },
            },
            ATTACHED => {
                let id = PoolId { owner: number(&mut rest)?, number: number(&mut rest)? };
                let holder = short(&mut rest)?;
                let gpu = short(&mut rest)?.checked_sub(1);
                let (flagged, buffers) = rest.split_first().ok_or_else(wrong)?;
                rest = buffers;
                let is_flagged = *flagged != 0;
                let mut buffers = Vec::new();
                while !rest.is_empty() {
                    let size = |value: u64| usize::try_from(value).map_err(|_| wrong());
                    let bytes = size(number(&mut rest)?)?;
                    buffers.push(Buffers { bytes, count: size(number(&mut rest)?)? });
                }
                Self::Attached(Plan { id, holder, gpu, is_flagged, buffers })
            }
            SETTLE => Self::Settle,
            REFUSED => {
                let (code, why) = rest.split_first().ok_or_else(wrong)?;
                rest = &[];
                let kind = kind_of(*code);
                Self::Refused { kind, why: String::from_utf8_lossy(why).into_owned() }
            }
            _ => return Err(wrong()),
        };
        if rest.is_empty() { Ok(packet) } else { Err(wrong()) }
    }
}

/// Kinds of refusal that the other side tells apart.
const KINDS: [ErrorKind; 6] = [
    ErrorKind::Invalid,
    ErrorKind::NotFound,
    ErrorKind::Unsupported,
    ErrorKind::Full,
    ErrorKind::Lost,
    ErrorKind::Usage,
];

pub(crate) fn kind_code(kind: ErrorKind) -> u8 {
    KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u8
}

pub(crate) fn kind_of(code: u8) -> ErrorKind {
    KINDS.get(usize::from(code)).copied().unwrap_or(ErrorKind::Invalid)
}

fn number(rest: &mut &[u8]) -> Result<u64> {
    let (bytes, after) = rest
        .split_first_chunk::<8>()
        .ok_or_else(|| Error::invalid("a packet that is cut short"))?;
    *rest = after;
    Ok(u64::from_le_bytes(*bytes))
}

fn short(rest: &mut &[u8]) -> Result<u32> {
    let (bytes, after) = rest
        .split_first_chunk::<4>()
        .ok_or_else(|| Error::invalid("a packet that is cut short"))?;
    *rest = after;
    Ok(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_as_they_went() {
        let id = PoolId { owner: 7, number: u64::MAX };
        let buffers = vec![Buffers { bytes: 1 << 40, count: 3 }, Buffers { bytes: 1, count: 1 }];
        for packet in [
            Packet::Open { inbox: "a block".to_owned(), courier: 5 },
            Packet::Opened { len: 1 << 33, depth: 16 },
            Packet::Attach { pool: id },
            Packet::Attached(Plan {
                id,
                holder: 3,
                gpu: None,
                is_flagged: false,
                buffers: buffers.clone(),
            }),
            Packet::Attached(Plan { id, holder: 3, gpu: Some(2), is_flagged: true, buffers }),
            Packet::Settle,
            Packet::Refused { kind: ErrorKind::NotFound, why: "no".to_owned() },
        ] {
            let bytes = packet.encode();
            assert_eq!(Packet::parse(&bytes).unwrap(), packet);
            for len in 0..bytes.len() {
                // Cut short it is refused, or a shorter text; never a panic.
                drop(Packet::parse(&bytes[..len]));
            }
        }
    }

    #[test]
    fn another_version_is_refused_and_both_are_named() {
        let mut bytes = Packet::Settle.encode();
        bytes[4] = 9;
        let error = Packet::parse(&bytes).unwrap_err().to_string();
        assert_eq!(error, "the peer speaks version 9 of TensorMQ, this process version 1");
    }
}
