//! Parameters of requests, inputs and outputs, wherever they came from.

use std::collections::HashMap;
use std::time::Duration;

use tessera_core::{Error, Result};

use super::region_range::RegionRange;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ParameterValue {
    Bool(bool),
    /// Wide enough for the signed and the unsigned integers of both front ends.
    Integer(i128),
    Float(f64),
    String(String),
    /// A list or an object, which no parameter that we know is.
    Other,
}

/// Parameters by name. Those that nobody knows are left alone: they are between clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProtocolParameters(HashMap<String, ParameterValue>);

impl FromIterator<(String, ParameterValue)> for ProtocolParameters {
    fn from_iter<T: IntoIterator<Item = (String, ParameterValue)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl ProtocolParameters {
    /// A number of bytes or of things; `None` where it is not there.
    pub(crate) fn get_size(&self, name: &str) -> Result<Option<u64>> {
        let number = match self.0.get(name) {
            None => return Ok(None),
            Some(ParameterValue::Integer(number)) => u64::try_from(*number).ok(),
            Some(_) => None,
        };
        number.map(Some).ok_or_else(|| wrong_parameter(name, "an integer of 0 or more"))
    }

    /// A switch; `None` where it is not there.
    pub(crate) fn get_flag(&self, name: &str) -> Result<Option<bool>> {
        match self.0.get(name) {
            None => Ok(None),
            Some(ParameterValue::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(wrong_parameter(name, "true or false")),
        }
    }

    /// A text; `None` where it is not there.
    pub(crate) fn get_text(&self, name: &str) -> Result<Option<&str>> {
        match self.0.get(name) {
            None => Ok(None),
            Some(ParameterValue::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong_parameter(name, "a string")),
        }
    }

    /// How long the client waits: `timeout` in microseconds, where 0 is for as long as it takes.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>> {
        let microseconds = match self.0.get("timeout") {
            Some(ParameterValue::String(digits)) => Some(digits.parse::<u64>().map_err(|_| {
                wrong_parameter("timeout", "an integer of microseconds, 0 or more")
            })?),
            _ => self.get_size("timeout")?,
        };
        Ok(microseconds.filter(|&us| us > 0).map(Duration::from_micros))
    }

    /// Where in shared memory a tensor is; `None` where it is not there.
    pub(crate) fn region_range(&self) -> Result<Option<RegionRange>> {
        let Some(region) = self.get_text("shared_memory_region")? else {
            return Ok(None);
        };
        let byte_size = self.get_size("shared_memory_byte_size")?.ok_or_else(|| {
            Error::invalid("shared_memory_region is given without shared_memory_byte_size")
        })?;
        let offset = self.get_size("shared_memory_offset")?.unwrap_or(0);
        Ok(Some(RegionRange { region: region.to_owned(), offset, byte_size }))
    }

    /// Refuses sequences, which would need tasks that remember the request before.
    pub(crate) fn refuse_sequences(&self) -> Result<()> {
        for name in ["sequence_id", "sequence_start", "sequence_end"] {
            let asked = match self.0.get(name) {
                None | Some(ParameterValue::Bool(false) | ParameterValue::Integer(0)) => false,
                Some(ParameterValue::String(id)) => !id.is_empty(),
                Some(_) => true,
            };
            if asked {
                return Err(Error::invalid(format!(
                    "parameter \"{name}\" is not supported: no task keeps state between requests"
                )));
            }
        }
        Ok(())
    }
}

fn wrong_parameter(name: &str, expected: &str) -> Error {
    Error::invalid(format!("parameter \"{name}\" must be {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, parameter: ParameterValue) -> ProtocolParameters {
        [(name.to_owned(), parameter)].into_iter().collect()
    }

    #[test]
    fn a_timeout_is_microseconds_as_a_number_or_digits() {
        let timeout = |parameter| one("timeout", parameter).timeout();
        let wait = Some(Duration::from_micros(1500));
        assert_eq!(timeout(ParameterValue::Integer(1500)).unwrap(), wait);
        assert_eq!(timeout(ParameterValue::String("1500".into())).unwrap(), wait);
        assert_eq!(timeout(ParameterValue::Integer(0)).unwrap(), None);
        assert!(timeout(ParameterValue::Integer(-1)).is_err());
        assert!(timeout(ParameterValue::Float(1.5)).is_err());
        assert!(timeout(ParameterValue::String("soon".into())).is_err());
        assert_eq!(ProtocolParameters::default().timeout().unwrap(), None);
    }

    #[test]
    fn sequences_are_refused_and_their_absence_is_not() {
        one("sequence_id", ParameterValue::Integer(0)).refuse_sequences().unwrap();
        one("sequence_id", ParameterValue::String(String::new())).refuse_sequences().unwrap();
        one("sequence_end", ParameterValue::Bool(false)).refuse_sequences().unwrap();
        for parameter in [ParameterValue::Integer(3), ParameterValue::String("a".into())] {
            assert!(one("sequence_id", parameter).refuse_sequences().is_err());
        }
        assert!(one("sequence_start", ParameterValue::Bool(true)).refuse_sequences().is_err());
    }

    #[test]
    fn a_range_needs_its_size() {
        let region = ("shared_memory_region".to_owned(), ParameterValue::String("r".into()));
        assert!(
            [region.clone()].into_iter().collect::<ProtocolParameters>().region_range().is_err()
        );
        let size = ("shared_memory_byte_size".to_owned(), ParameterValue::Integer(8));
        let range =
            [region, size].into_iter().collect::<ProtocolParameters>().region_range().unwrap();
        assert_eq!(range, Some(RegionRange { region: "r".into(), offset: 0, byte_size: 8 }));
        assert_eq!(ProtocolParameters::default().region_range().unwrap(), None);
    }
}
