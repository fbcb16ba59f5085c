//! What a message says of its way: the legs that remain, and what happened on those behind.
//!
//! A block decides nothing about routing: everything it must know comes with the message, as the steps
//! of its path. The last step is the log, which every block adds a line to, so that whoever gets the
//! answer knows how long it waited and was computed where. Times are of the host's monotonic clock, in
//! nanoseconds.

use std::fmt::Write;

use tessera_core::{Error, Result};
use tessera_graph::ScoreKind;

/// What stands between the parts of a step.
const BETWEEN: char = '\u{1f}';

/// One leg: an instance of a unit, and what it does with the tensors that a message carries.
#[derive(Clone, Debug, PartialEq)]
pub struct Leg {
    /// The instance that runs it.
    pub instance: String,
    /// Which tensors of the message are the inputs.
    pub inputs: Vec<usize>,
    /// Which tensors are carried on: those before, then the outputs, by number.
    pub keep: Vec<usize>,
    /// Where this is the head of an exit: when to leave.
    pub exit: Option<ExitLeg>,
}

/// When to leave at an exit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExitLeg {
    /// Number of the exit.
    pub number: usize,
    /// Leave where the normalised entropy is at most this.
    pub threshold: f32,
    /// What the scores are.
    pub scores: ScoreKind,
    /// Tell the scores to whoever waits for the answer, also where the request goes on.
    pub standby: bool,
}

impl Leg {
    /// The leg as a step of a path.
    pub fn encode(&self) -> String {
        let mut text = self.instance.clone();
        let list = |text: &mut String, numbers: &[usize]| {
            text.push(BETWEEN);
            for (index, number) in numbers.iter().enumerate() {
                let comma = if index > 0 { "," } else { "" };
                // Writing to a string can't fail.
                write!(text, "{comma}{number}").ok();
            }
        };
        list(&mut text, &self.inputs);
        list(&mut text, &self.keep);
        if let Some(exit) = &self.exit {
            let kind = match exit.scores {
                ScoreKind::Logits => 'l',
                ScoreKind::Probabilities => 'p',
            };
            let standby = if exit.standby { "s" } else { "" };
            write!(text, "{BETWEEN}{},{},{kind}{standby}", exit.number, exit.threshold).ok();
        }
        text
    }

    /// Reads a step of a path.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("\"{text}\" is no step of a path"));
        let numbers = |text: &str| {
            let parts = text.split(',').filter(|part| !part.is_empty());
            parts.map(|part| part.parse().ok()).collect::<Option<Vec<usize>>>().ok_or_else(wrong)
        };
        let mut parts = text.split(BETWEEN);
        let instance = parts.next().filter(|name| !name.is_empty()).ok_or_else(wrong)?.to_owned();
        let inputs = numbers(parts.next().ok_or_else(wrong)?)?;
        let keep = numbers(parts.next().ok_or_else(wrong)?)?;
        let exit = parts.next().map(|exit| Self::parse_exit(exit).ok_or_else(wrong)).transpose()?;
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self { instance, inputs, keep, exit })
    }

    fn parse_exit(text: &str) -> Option<ExitLeg> {
        let mut parts = text.split(',');
        let number = parts.next()?.parse().ok()?;
        let threshold = parts.next()?.parse().ok()?;
        let flags = parts.next()?;
        let scores = match flags.chars().next()? {
            'l' => ScoreKind::Logits,
            'p' => ScoreKind::Probabilities,
            _ => return None,
        };
        Some(ExitLeg { number, threshold, scores, standby: flags.ends_with('s') })
    }
}

/// What happened on one leg.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The instance that ran it.
    pub instance: String,
    /// When it was there, by the host's clock.
    pub started: u64,
    /// How long the request waited before: on its way, in the queue, and for a core.
    pub waited: u64,
    /// How long it was computed.
    pub computed: u64,
    /// What the rest took: putting a batch together, deciding on an exit, sending on.
    pub overhead: u64,
    /// Rows of the batch that it was computed in.
    pub batch: u64,
    /// Rows of it that were the request's.
    pub rows: u64,
}

/// Who waits for the answer, and what happened so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The inbox that answers go to.
    pub home: String,
    /// When the request was accepted, by the host's clock.
    pub accepted: u64,
    /// When it was last sent, by the host's clock.
    pub sent: u64,
    /// Which try this is, and which part of the request.
    pub part: u32,
    /// What happened.
    pub records: Vec<Record>,
}

impl Log {
    /// The log as the last step of a path.
    pub fn encode(&self) -> String {
        let mut text =
            format!("{}{BETWEEN}{},{},{}", self.home, self.accepted, self.sent, self.part);
        for record in &self.records {
            let Record { instance, started, waited, computed, overhead, batch, rows } = record;
            write!(
                text,
                "{BETWEEN}{instance},{started},{waited},{computed},{overhead},{batch},{rows}"
            )
            .ok();
        }
        text
    }

    /// Reads the last step of a path.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("\"{text}\" is no log of a message"));
        let mut parts = text.split(BETWEEN);
        let home = parts.next().filter(|name| !name.is_empty()).ok_or_else(wrong)?.to_owned();
        let mut times = parts.next().ok_or_else(wrong)?.split(',').map(str::parse::<u64>);
        let mut time = || times.next().and_then(std::result::Result::ok).ok_or_else(wrong);
        let (accepted, sent, part) = (time()?, time()?, time()?);
        let part = u32::try_from(part).map_err(|_| wrong())?;
        let record = |text: &str| {
            let mut parts = text.split(',');
            let instance = parts.next()?.to_owned();
            let mut number = || parts.next()?.parse().ok();
            Some(Record {
                instance,
                started: number()?,
                waited: number()?,
                computed: number()?,
                overhead: number()?,
                batch: number()?,
                rows: number()?,
            })
        };
        let records = parts.map(|text| record(text).ok_or_else(wrong)).collect::<Result<_>>()?;
        Ok(Self { home, accepted, sent, part, records })
    }
}

/// How a request came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// At the end of its route, with its outputs.
    Done,
    /// At an exit, with its scores.
    Exit(usize),
    /// It went on; the scores of an exit, should nothing better come.
    Standby(usize),
    /// Its deadline passed before the block of this leg.
    Late,
    /// It was not answered because an instance was out of reach; another try may help.
    Lost(String),
    /// It can't be answered.
    Failed(String),
}

impl Outcome {
    /// The outcome as the first step of a message that goes home.
    pub fn encode(&self) -> String {
        let told = |text: &str| -> String {
            // A header has room for a line, not for a story.
            text.chars().filter(|&c| c != BETWEEN).take(500).collect()
        };
        match self {
            Self::Done => "done".to_owned(),
            Self::Exit(number) => format!("exit{BETWEEN}{number}"),
            Self::Standby(number) => format!("standby{BETWEEN}{number}"),
            Self::Late => "late".to_owned(),
            Self::Lost(why) => format!("lost{BETWEEN}{}", told(why)),
            Self::Failed(why) => format!("failed{BETWEEN}{}", told(why)),
        }
    }

    /// Reads the first step of a message that came home.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("\"{text}\" is no outcome of a request"));
        let (kind, rest) = text.split_once(BETWEEN).unwrap_or((text, ""));
        let number = || rest.parse().map_err(|_| wrong());
        match kind {
            "done" => Ok(Self::Done),
            "exit" => Ok(Self::Exit(number()?)),
            "standby" => Ok(Self::Standby(number()?)),
            "late" => Ok(Self::Late),
            "lost" => Ok(Self::Lost(rest.to_owned())),
            "failed" => Ok(Self::Failed(rest.to_owned())),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let exit =
            ExitLeg { number: 2, threshold: 0.35, scores: ScoreKind::Probabilities, standby: true };
        for exit in [None, Some(exit), Some(ExitLeg { standby: false, ..exit })] {
            for numbers in [vec![], vec![0], vec![3, 1, 4]] {
                let leg = Leg {
                    instance: "ab12.0".to_owned(),
                    inputs: numbers.clone(),
                    keep: numbers,
                    exit,
                };
                assert_eq!(Leg::parse(&leg.encode()).unwrap(), leg);
            }
        }
        let record = Record {
            instance: "ab12.0".to_owned(),
            started: 1,
            waited: 2,
            computed: 3,
            overhead: 4,
            batch: 5,
            rows: 1,
        };
        for records in [vec![], vec![record.clone()], vec![record.clone(), record]] {
            let log = Log { home: "home".to_owned(), accepted: 7, sent: 9, part: 3, records };
            assert_eq!(Log::parse(&log.encode()).unwrap(), log);
        }
        let outcomes = [
            Outcome::Done,
            Outcome::Exit(1),
            Outcome::Standby(0),
            Outcome::Late,
            Outcome::Lost("a, b".to_owned()),
            Outcome::Failed(String::new()),
        ];
        for outcome in outcomes {
            assert_eq!(Outcome::parse(&outcome.encode()).unwrap(), outcome);
        }
    }

    #[test]
    fn garbage_is_refused() {
        for text in
            ["", "\u{1f}", "a", "a\u{1f}x\u{1f}", "a\u{1f}1\u{1f}2\u{1f}3", "a\u{1f}-1\u{1f}"]
        {
            assert!(Leg::parse(text).is_err(), "{text:?}");
            assert!(Log::parse(text).is_err(), "{text:?}");
            assert!(Outcome::parse(text).is_err(), "{text:?}");
        }
    }
}
