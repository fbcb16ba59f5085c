//! What processes of a host say to each other before messages flow: a channel, please; a pool,
//! please.
//!
//! Every packet starts with the magic, the version and a kind, so that a peer of another version is
//! told so whatever it wants.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tessera_core::{Error, ErrorKind, PoolId, Result};

use super::unix_socket::{ReceivedPacket, UnixConnection};
use crate::error_code::{error_kind_code, error_kind_from_code};
use crate::layout::{MAGIC, check_version};
use crate::pool::{Buffers, PoolDescription};
use crate::wait::Wait;

/// How long a process of this host may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const ATTACH: u8 = 3;
const ATTACHED: u8 = 4;
const RECLAIM_BUFFERS: u8 = 5;
const REFUSED: u8 = 255;

/// A packet of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandshakePacket {
    /// A sender wants a channel to an inbox; with its notifier.
    Open { inbox: String, endpoint_id: u64 },
    /// Here it is: the length of its memory and its depth; with the memory and the inbox's
    /// notifier.
    Opened { len: u64, depth: u32 },
    /// A receiver wants to open a pool.
    Attach { pool: PoolId },
    /// Here it is; with control, payload and notifier.
    Attached(PoolDescription),
    /// The owner of a pool is short of buffers: let go of what you can.
    ReclaimBuffers,
    /// No, and why.
    Refused { kind: ErrorKind, reason: String },
}

impl HandshakePacket {
    pub(crate) fn refusal_for(error: &Error) -> Self {
        Self::Refused { kind: error.kind(), reason: error.to_string() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(MAGIC);
        bytes.extend(crate::layout::VERSION.to_le_bytes());
        match self {
            Self::Open { inbox, endpoint_id } => {
                bytes.push(OPEN);
                bytes.extend(endpoint_id.to_le_bytes());
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
            Self::Attached(description) => {
                bytes.push(ATTACHED);
                bytes.extend(description.id.owner.to_le_bytes());
                bytes.extend(description.id.number.to_le_bytes());
                bytes.extend(description.holder.to_le_bytes());
                bytes.extend(description.device_code.to_le_bytes());
                bytes.push(description.is_flagged.into());
                for buffers in &description.buffers {
                    bytes.extend((buffers.bytes as u64).to_le_bytes());
                    bytes.extend((buffers.count as u64).to_le_bytes());
                }
            }
            Self::ReclaimBuffers => bytes.push(RECLAIM_BUFFERS),
            Self::Refused { kind, reason } => {
                bytes.push(REFUSED);
                bytes.push(error_kind_code(*kind));
                bytes.extend(reason.as_bytes().iter().take(1024));
            }
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::invalid("a packet that is not one of TensorMQ");
        let rest = bytes.strip_prefix(&MAGIC).ok_or_else(wrong)?;
        let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(wrong)?;
        check_version(u16::from_le_bytes(*version))?;
        let (kind, rest) = rest.split_first().ok_or_else(wrong)?;
        let mut rest = rest;
        let packet = match *kind {
            OPEN => {
                let endpoint_id = read_u64(&mut rest)?;
                let inbox = std::str::from_utf8(std::mem::take(&mut rest)).map_err(|_| wrong())?;
                Self::Open { inbox: inbox.to_owned(), endpoint_id }
            }
            OPENED => Self::Opened { len: read_u64(&mut rest)?, depth: read_u32(&mut rest)? },
            ATTACH => Self::Attach {
                pool: PoolId { owner: read_u64(&mut rest)?, number: read_u64(&mut rest)? },
            },
            ATTACHED => {
                let id = PoolId { owner: read_u64(&mut rest)?, number: read_u64(&mut rest)? };
                let holder = read_u32(&mut rest)?;
                let device_code = read_u32(&mut rest)?;
                let (flagged, buffers) = rest.split_first().ok_or_else(wrong)?;
                rest = buffers;
                let is_flagged = *flagged != 0;
                let mut buffers = Vec::new();
                while !rest.is_empty() {
                    let size = |value: u64| usize::try_from(value).map_err(|_| wrong());
                    let bytes = size(read_u64(&mut rest)?)?;
                    buffers.push(Buffers { bytes, count: size(read_u64(&mut rest)?)? });
                }
                Self::Attached(PoolDescription { id, holder, device_code, is_flagged, buffers })
            }
            RECLAIM_BUFFERS => Self::ReclaimBuffers,
            REFUSED => {
                let (code, reason) = rest.split_first().ok_or_else(wrong)?;
                rest = &[];
                let kind = error_kind_from_code(*code);
                Self::Refused { kind, reason: String::from_utf8_lossy(reason).into_owned() }
            }
            _ => return Err(wrong()),
        };
        if rest.is_empty() { Ok(packet) } else { Err(wrong()) }
    }
}

/// The name of an endpoint's socket.
pub(super) fn endpoint_socket_name(id: u64) -> String {
    format!("{id:016x}")
}

/// A connection to the process of an endpoint.
pub(super) fn connect_to_endpoint(id: u64) -> Result<UnixConnection> {
    UnixConnection::connect(&endpoint_socket_name(id))
}

/// The answer of another process; its refusal is an error.
pub(super) fn receive_answer(
    connection: &UnixConnection,
) -> Result<(HandshakePacket, Vec<OwnedFd>)> {
    match connection.receive_packet(Wait::at_most(ANSWER_TIMEOUT))? {
        ReceivedPacket::Data(bytes, fds) => match HandshakePacket::from_bytes(&bytes)? {
            HandshakePacket::Refused { kind, reason } => Err(Error::new(kind, reason)),
            packet => Ok((packet, fds)),
        },
        ReceivedPacket::Nothing => Err(Error::timed_out(format!(
            "process {} did not answer within {} s",
            connection.peer_process(),
            ANSWER_TIMEOUT.as_secs()
        ))),
        ReceivedPacket::End => Err(Error::lost("the other process went away")),
    }
}

fn read_u64(rest: &mut &[u8]) -> Result<u64> {
    let (bytes, after) = rest
        .split_first_chunk::<8>()
        .ok_or_else(|| Error::invalid("a packet that is cut short"))?;
    *rest = after;
    Ok(u64::from_le_bytes(*bytes))
}

fn read_u32(rest: &mut &[u8]) -> Result<u32> {
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
            HandshakePacket::Open { inbox: "a unit".to_owned(), endpoint_id: 5 },
            HandshakePacket::Opened { len: 1 << 33, depth: 16 },
            HandshakePacket::Attach { pool: id },
            HandshakePacket::Attached(PoolDescription {
                id,
                holder: 3,
                device_code: 0,
                is_flagged: false,
                buffers: buffers.clone(),
            }),
            HandshakePacket::Attached(PoolDescription {
                id,
                holder: 3,
                device_code: 3,
                is_flagged: true,
                buffers,
            }),
            HandshakePacket::ReclaimBuffers,
            HandshakePacket::Refused { kind: ErrorKind::NotFound, reason: "no".to_owned() },
        ] {
            let bytes = packet.to_bytes();
            assert_eq!(HandshakePacket::from_bytes(&bytes).unwrap(), packet);
            for len in 0..bytes.len() {
                // Cut short it is refused, or a shorter text; never a panic.
                drop(HandshakePacket::from_bytes(&bytes[..len]));
            }
        }
    }

    #[test]
    fn another_version_is_refused_and_both_are_named() {
        let mut bytes = HandshakePacket::ReclaimBuffers.to_bytes();
        bytes[4] = 9;
        let error = HandshakePacket::from_bytes(&bytes).unwrap_err().to_string();
        assert_eq!(error, "the peer speaks version 9 of TensorMQ, this process version 2");
    }
}
