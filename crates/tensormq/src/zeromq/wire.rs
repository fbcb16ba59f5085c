//! What the ends of a channel over the network say to each other, beside messages.
//!
//! | from | what | when |
//! |---|---|---|
//! | sender | [`Control::Hello`] | first on every connection, also when it comes back |
//! | receiver | [`Control::Welcome`] | in answer: how far it is, so that the rest is sent again |
//! | receiver | [`Control::Refused`] | in answer, or when the inbox closes or the channel is over |
//! | receiver | [`Control::Progress`] | when messages were taken, and when they were dropped |
//! | sender | [`Control::Alive`] | now and then while it has nothing to send |
//! | sender | [`Control::Bye`] | when it will send nothing more |
//! | receiver | [`Control::Over`] | when it is done with everything up to that |

use tessera_core::{Error, ErrorKind, Result};

use crate::layout::{VERSION, check_version};
use crate::protocol::{kind_code, kind_of};

const MAGIC: [u8; 4] = *b"TsMC";
/// Most numbers in a list: what can be unfinished, twice over.
const MOST_NUMBERS: usize = 2 * crate::flight::MOST_UNFINISHED;

/// A frame that is not part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Hello(Hello),
    Welcome {
        depth: u32,
        lease_ms: u32,
        largest: u64,
        progress: Progress,
    },
    /// With how far it was, where it knows the channel.
    Refused {
        kind: ErrorKind,
        progress: Option<Progress>,
        why: String,
    },
    /// Also said when there is nothing new, as a sign of life.
    Progress(Progress),
    /// A sign of life of the sender.
    Alive,
    Bye {
        last: u64,
    },
    /// The receiver heard that, and is done with all.
    Over,
}

/// Who wants a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The channel, unique.
    pub(super) session: u128,
    /// Number of the sender's transport.
    pub(super) courier: u64,
    pub(super) lane: u16,
    pub(super) lanes: u16,
    /// Whether it had a welcome before: then the receiver must know the channel.
    pub(super) resume: bool,
    pub(super) inbox: String,
}

/// How far the receiver is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// It has all messages up to this one.
    pub(super) accepted: u64,
    /// Its block took all messages up to this one.
    pub(super) taken: u64,
    /// Of those, the ones that were dropped since the last time; in a welcome or a refusal, the ones
    /// that were not dropped yet.
    pub(super) numbers: Vec<u64>,
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const PROGRESS: u8 = 4;
const BYE: u8 = 5;
const ALIVE: u8 = 6;
const OVER: u8 = 7;

impl Control {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        match self {
            Self::Hello(hello) => {
                bytes.push(HELLO);
                bytes.push(hello.resume.into());
                bytes.extend(hello.session.to_le_bytes());
                bytes.extend(hello.courier.to_le_bytes());
                bytes.extend(hello.lane.to_le_bytes());
                bytes.extend(hello.lanes.to_le_bytes());
                bytes.extend(hello.inbox.as_bytes());
            }
            Self::Welcome { depth, lease_ms, largest, progress } => {
                bytes.push(WELCOME);
                bytes.extend(depth.to_le_bytes());
                bytes.extend(lease_ms.to_le_bytes());
                bytes.extend(largest.to_le_bytes());
                progress.encode(&mut bytes);
            }
            Self::Refused { kind, progress, why } => {
                bytes.push(REFUSED);
                bytes.push(kind_code(*kind));
                bytes.push(progress.is_some().into());
                if let Some(progress) = progress {
                    progress.encode(&mut bytes);
                }
                bytes.extend(why.as_bytes());
            }
            Self::Progress(progress) => {
                bytes.push(PROGRESS);
                progress.encode(&mut bytes);
            }
            Self::Alive => bytes.push(ALIVE),
            Self::Over => bytes.push(OVER),
            Self::Bye { last } => {
                bytes.push(BYE);
                bytes.extend(last.to_le_bytes());
            }
        }
        bytes
    }

    /// Whether a frame is one of these, and not the header of a message.
    pub(super) fn is_control(frame: &[u8]) -> bool {
        frame.starts_with(&MAGIC)
    }

    pub(super) fn parse(frame: &[u8]) -> Result<Self> {
        let mut reader = Reader(frame);
        if reader.array::<4>()? != MAGIC {
            return Err(wrong());
        }
        check_version(u16::from_le_bytes(reader.array()?))?;
        let control = match reader.array::<1>()?[0] {
            HELLO => {
                let hello = Hello {
                    resume: reader.flag()?,
                    session: u128::from_le_bytes(reader.array()?),
                    courier: reader.u64()?,
                    lane: u16::from_le_bytes(reader.array()?),
                    lanes: u16::from_le_bytes(reader.array()?),
                    inbox: reader.text()?,
                };
                if hello.lane >= hello.lanes {
                    return Err(wrong());
                }
                Self::Hello(hello)
            }
            WELCOME => Self::Welcome {
                depth: u32::from_le_bytes(reader.array()?),
                lease_ms: u32::from_le_bytes(reader.array()?),
                largest: reader.u64()?,
                progress: reader.progress()?,
            },
            REFUSED => Self::Refused {
                kind: kind_of(reader.array::<1>()?[0]),
                progress: match reader.flag()? {
                    true => Some(reader.progress()?),
                    false => None,
                },
                why: reader.text()?,
            },
            PROGRESS => Self::Progress(reader.progress()?),
            BYE => Self::Bye { last: reader.u64()? },
            ALIVE => Self::Alive,
            OVER => Self::Over,
            _ => return Err(wrong()),
        };
        if reader.0.is_empty() { Ok(control) } else { Err(wrong()) }
    }
}

impl Progress {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.accepted.to_le_bytes());
        bytes.extend(self.taken.to_le_bytes());
        bytes.extend((self.numbers.len() as u32).to_le_bytes());
        for number in &self.numbers {
            bytes.extend(number.to_le_bytes());
        }
    }
}

fn wrong() -> Error {
    Error::invalid("a frame that is not one of TensorMQ")
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or_else(wrong)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> Result<bool> {
        match self.array::<1>()?[0] {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(wrong()),
        }
    }

    fn text(&mut self) -> Result<String> {
        let text = std::str::from_utf8(std::mem::take(&mut self.0)).map_err(|_| wrong())?;
        Ok(text.to_owned())
    }

    fn progress(&mut self) -> Result<Progress> {
        let (accepted, taken) = (self.u64()?, self.u64()?);
        let count = u32::from_le_bytes(self.array()?) as usize;
        if taken > accepted || count > MOST_NUMBERS || count * 8 > self.0.len() {
            return Err(wrong());
        }
        let numbers = (0..count).map(|_| self.u64()).collect::<Result<_>>()?;
        Ok(Progress { accepted, taken, numbers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_frames_come_back_as_they_went() {
        let progress = Progress { accepted: 9, taken: 7, numbers: vec![1, 5] };
        let hello = Hello {
            session: 1 << 100,
            courier: 3,
            lane: 1,
            lanes: 2,
            resume: true,
            inbox: "block".to_owned(),
        };
        let why = "gone".to_owned();
        for control in [
            Control::Hello(hello),
            Control::Welcome { depth: 8, lease_ms: 10, largest: 9, progress: progress.clone() },
            Control::Refused { kind: ErrorKind::Lost, progress: None, why: why.clone() },
            Control::Refused { kind: ErrorKind::Lost, progress: Some(progress.clone()), why },
            Control::Alive,
            Control::Over,
            Control::Progress(progress),
            Control::Bye { last: 77 },
        ] {
            let bytes = control.encode();
            assert_eq!(Control::parse(&bytes).unwrap(), control);
            for len in 0..bytes.len() {
                drop(Control::parse(&bytes[..len]));
            }
            let mut longer = bytes.clone();
            longer.push(0xff);
            assert!(Control::parse(&longer).is_err());
            let mut other = bytes;
            other[4] = 2;
            assert_eq!(Control::parse(&other).unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }
}
