//! What the ends of a channel over the network say to each other, beside messages.
//!
//! | from | what | when |
//! |---|---|---|
//! | sender | [`ControlFrame::Hello`] | first on every connection, also when it comes back |
//! | receiver | [`ControlFrame::Welcome`] | in answer: how far it is; the rest is sent again |
//! | receiver | [`ControlFrame::Refused`] | in answer, or when inbox or channel end |
//! | receiver | [`ControlFrame::Progress`] | when messages were taken, and when they were dropped |
//! | sender | [`ControlFrame::Heartbeat`] | now and then while it has nothing to send |
//! | sender | [`ControlFrame::Bye`] | when it will send nothing more |
//! | receiver | [`ControlFrame::Over`] | when it is done with everything up to that |

use tessera_core::{Error, ErrorKind, Result};

use crate::error_code::{error_kind_code, error_kind_from_code};
use crate::layout::{VERSION, check_version};

const CONTROL_MAGIC: [u8; 4] = *b"TsMC";
/// Most numbers in a list: what can be unfinished, twice over.
const MAX_NUMBERS: usize = 2 * crate::in_flight::MAX_UNFINISHED;

/// Most connections of a sender.
pub(in crate::transport) const MAX_LANES: u16 = 16;

/// A frame that is not part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::transport) enum ControlFrame {
    Hello(Hello),
    Welcome {
        depth: u32,
        lease_ms: u32,
        largest_tensor_bytes: u64,
        progress: ReceiverProgress,
    },
    /// With how far it was, where it knows the channel.
    Refused {
        kind: ErrorKind,
        progress: Option<ReceiverProgress>,
        reason: String,
    },
    /// Also said when there is nothing new, as a sign of life.
    Progress(ReceiverProgress),
    /// A sign of life of the sender.
    Heartbeat,
    Bye {
        last: u64,
    },
    /// The receiver heard that, and is done with all.
    Over,
}

/// Who wants a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Hello {
    /// The channel, unique.
    pub(in crate::transport) session: u128,
    /// Number of the sender's endpoint.
    pub(in crate::transport) endpoint_id: u64,
    pub(in crate::transport) lane: u16,
    pub(in crate::transport) lanes: u16,
    /// Whether it had a welcome before: then the receiver must know the channel.
    pub(in crate::transport) resume: bool,
    pub(in crate::transport) inbox: String,
}

/// How far the receiver is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::transport) struct ReceiverProgress {
    /// It has all messages up to this one.
    pub(in crate::transport) accepted: u64,
    /// Its unit took all messages up to this one.
    pub(in crate::transport) taken: u64,
    /// Of those, the ones that were dropped since the last time; in a welcome or a refusal, the
    /// ones that were not dropped yet.
    pub(in crate::transport) numbers: Vec<u64>,
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const PROGRESS: u8 = 4;
const BYE: u8 = 5;
const HEARTBEAT: u8 = 6;
const OVER: u8 = 7;

impl ControlFrame {
    pub(in crate::transport) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(CONTROL_MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        match self {
            Self::Hello(hello) => {
                bytes.push(HELLO);
                bytes.push(hello.resume.into());
                bytes.extend(hello.session.to_le_bytes());
                bytes.extend(hello.endpoint_id.to_le_bytes());
                bytes.extend(hello.lane.to_le_bytes());
                bytes.extend(hello.lanes.to_le_bytes());
                bytes.extend(hello.inbox.as_bytes());
            }
            Self::Welcome { depth, lease_ms, largest_tensor_bytes, progress } => {
                bytes.push(WELCOME);
                bytes.extend(depth.to_le_bytes());
                bytes.extend(lease_ms.to_le_bytes());
                bytes.extend(largest_tensor_bytes.to_le_bytes());
                progress.encode_into(&mut bytes);
            }
            Self::Refused { kind, progress, reason } => {
                bytes.push(REFUSED);
                bytes.push(error_kind_code(*kind));
                bytes.push(progress.is_some().into());
                if let Some(progress) = progress {
                    progress.encode_into(&mut bytes);
                }
                bytes.extend(reason.as_bytes());
            }
            Self::Progress(progress) => {
                bytes.push(PROGRESS);
                progress.encode_into(&mut bytes);
            }
            Self::Heartbeat => bytes.push(HEARTBEAT),
            Self::Over => bytes.push(OVER),
            Self::Bye { last } => {
                bytes.push(BYE);
                bytes.extend(last.to_le_bytes());
            }
        }
        bytes
    }

    /// Whether a frame is one of these, and not the header of a message.
    pub(in crate::transport) fn is_control(frame: &[u8]) -> bool {
        frame.starts_with(&CONTROL_MAGIC)
    }

    pub(in crate::transport) fn from_bytes(frame: &[u8]) -> Result<Self> {
        let mut reader = ControlReader(frame);
        if reader.read_array::<4>()? != CONTROL_MAGIC {
            return Err(invalid_frame_error());
        }
        check_version(u16::from_le_bytes(reader.read_array()?))?;
        let control = match reader.read_array::<1>()?[0] {
            HELLO => {
                let hello = Hello {
                    resume: reader.read_flag()?,
                    session: u128::from_le_bytes(reader.read_array()?),
                    endpoint_id: reader.read_u64()?,
                    lane: u16::from_le_bytes(reader.read_array()?),
                    lanes: u16::from_le_bytes(reader.read_array()?),
                    inbox: reader.read_text()?,
                };
                if hello.lane >= hello.lanes {
                    return Err(invalid_frame_error());
                }
                Self::Hello(hello)
            }
            WELCOME => Self::Welcome {
                depth: u32::from_le_bytes(reader.read_array()?),
                lease_ms: u32::from_le_bytes(reader.read_array()?),
                largest_tensor_bytes: reader.read_u64()?,
                progress: reader.read_progress()?,
            },
            REFUSED => Self::Refused {
                kind: error_kind_from_code(reader.read_array::<1>()?[0]),
                progress: if reader.read_flag()? { Some(reader.read_progress()?) } else { None },
                reason: reader.read_text()?,
            },
            PROGRESS => Self::Progress(reader.read_progress()?),
            BYE => Self::Bye { last: reader.read_u64()? },
            HEARTBEAT => Self::Heartbeat,
            OVER => Self::Over,
            _ => return Err(invalid_frame_error()),
        };
        if reader.0.is_empty() { Ok(control) } else { Err(invalid_frame_error()) }
    }
}

impl ReceiverProgress {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.accepted.to_le_bytes());
        bytes.extend(self.taken.to_le_bytes());
        bytes.extend((self.numbers.len() as u32).to_le_bytes());
        for number in &self.numbers {
            bytes.extend(number.to_le_bytes());
        }
    }
}

fn invalid_frame_error() -> Error {
    Error::invalid("a frame that is not one of TensorMQ")
}

struct ControlReader<'a>(&'a [u8]);

impl ControlReader<'_> {
    fn read_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or_else(invalid_frame_error)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn read_u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.read_array()?))
    }

    fn read_flag(&mut self) -> Result<bool> {
        match self.read_array::<1>()?[0] {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(invalid_frame_error()),
        }
    }

    fn read_text(&mut self) -> Result<String> {
        let text =
            std::str::from_utf8(std::mem::take(&mut self.0)).map_err(|_| invalid_frame_error())?;
        Ok(text.to_owned())
    }

    fn read_progress(&mut self) -> Result<ReceiverProgress> {
        let (accepted, taken) = (self.read_u64()?, self.read_u64()?);
        let count = u32::from_le_bytes(self.read_array()?) as usize;
        if taken > accepted || count > MAX_NUMBERS || count * 8 > self.0.len() {
            return Err(invalid_frame_error());
        }
        let numbers = (0..count).map(|_| self.read_u64()).collect::<Result<_>>()?;
        Ok(ReceiverProgress { accepted, taken, numbers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_frames_come_back_as_they_went() {
        let progress = ReceiverProgress { accepted: 9, taken: 7, numbers: vec![1, 5] };
        let hello = Hello {
            session: 1 << 100,
            endpoint_id: 3,
            lane: 1,
            lanes: 2,
            resume: true,
            inbox: "unit".to_owned(),
        };
        let reason = "gone".to_owned();
        for control in [
            ControlFrame::Hello(hello),
            ControlFrame::Welcome {
                depth: 8,
                lease_ms: 10,
                largest_tensor_bytes: 9,
                progress: progress.clone(),
            },
            ControlFrame::Refused { kind: ErrorKind::Lost, progress: None, reason: reason.clone() },
            ControlFrame::Refused {
                kind: ErrorKind::Lost,
                progress: Some(progress.clone()),
                reason,
            },
            ControlFrame::Heartbeat,
            ControlFrame::Over,
            ControlFrame::Progress(progress),
            ControlFrame::Bye { last: 77 },
        ] {
            let bytes = control.to_bytes();
            assert_eq!(ControlFrame::from_bytes(&bytes).unwrap(), control);
            for len in 0..bytes.len() {
                drop(ControlFrame::from_bytes(&bytes[..len]));
            }
            let mut longer = bytes.clone();
            longer.push(0xff);
            assert!(ControlFrame::from_bytes(&longer).is_err());
            let mut other = bytes;
            other[4] = 9;
            assert_eq!(
                ControlFrame::from_bytes(&other).unwrap_err().kind(),
                ErrorKind::Unsupported
            );
        }
    }
}
