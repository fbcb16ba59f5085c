//! Parameters of requests, inputs and outputs, wherever they came from.

use std::collections::HashMap;
use std::time::Duration;

use tessera_core::{Error, Result};

use crate::shared_regions::Place;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Parameter {
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
pub(crate) struct Parameters(HashMap<String, Parameter>);

impl FromIterator<(String, Parameter)> for Parameters {
    fn from_iter<T: IntoIterator<Item = (String, Parameter)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl Parameters {
    /// A number of bytes or of things; `None` where it is not there.
    pub(crate) fn size(&self, name: &str) -> Result<Option<u64>> {
        let number = match self.0.get(name) {
            None => return Ok(None),
            Some(Parameter::Integer(number)) => u64::try_from(*number).ok(),
            Some(_) => None,
        };
        number.map(Some).ok_or_else(|| wrong(name, "an integer of 0 or more"))
    }

    /// A switch; `None` where it is not there.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Parameter::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(wrong(name, "true or false")),
        }
    }

    /// A text; `None` where it is not there.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Parameter::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong(name, "a string")),
        }
    }

    /// How long the client waits: `timeout` in microseconds, where 0 is for as long as it takes.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>> {
        let microseconds = match self.0.get("timeout") {
            Some(Parameter::String(digits)) => Some(
                digits
                    .parse::<u64>()
                    .map_err(|_| wrong("timeout", "an integer of microseconds, 0 or more"))?,
            ),
            _ => self.size("timeout")?,
        };
        Ok(microseconds.filter(|&us| us > 0).map(Duration::from_micros))
    }

    /// Where in shared memory a tensor is; `None` where it is not there.
    pub(crate) fn place(&self) -> Result<Option<Place>> {
        let Some(region) = self.text("shared_memory_region")? else {
            return Ok(None);
        };
        let byte_size = self.size("shared_memory_byte_size")?.ok_or_else(|| {
            Error::invalid("shared_memory_region is given without shared_memory_byte_size")
        })?;
        let offset = self.size("shared_memory_offset")?.unwrap_or(0);
        Ok(Some(Place { region: region.to_owned(), offset, byte_size }))
    }

    /// Refuses sequences, which would need tasks that remember the request before.
    pub(crate) fn refuse_sequences(&self) -> Result<()> {
        for name in ["sequence_id", "sequence_start", "sequence_end"] {
            let asked = match self.0.get(name) {
                None | Some(Parameter::Bool(false) | Parameter::Integer(0)) => false,
                Some(Parameter::String(id)) => !id.is_empty(),
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

fn wrong(name: &str, expected: &str) -> Error {
    Error::invalid(format!("parameter \"{name}\" must be {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, parameter: Parameter) -> Parameters {
        [(name.to_owned(), parameter)].into_iter().collect()
    }

    #[test]
    fn a_timeout_is_microseconds_as_a_number_or_digits() {
        let timeout = |parameter| one("timeout", parameter).timeout();
        let wait = Some(Duration::from_micros(1500));
        assert_eq!(timeout(Parameter::Integer(1500)).unwrap(), wait);
        assert_eq!(timeout(Parameter::String("1500".into())).unwrap(), wait);
        assert_eq!(timeout(Parameter::Integer(0)).unwrap(), None);
        assert!(timeout(Parameter::Integer(-1)).is_err());
        assert!(timeout(Parameter::Float(1.5)).is_err());
        assert!(timeout(Parameter::String("soon".into())).is_err());
        assert_eq!(Parameters::default().timeout().unwrap(), None);
    }

    #[test]
    fn sequences_are_refused_and_their_absence_is_not() {
        one("sequence_id", Parameter::Integer(0)).refuse_sequences().unwrap();
        one("sequence_id", Parameter::String(String::new())).refuse_sequences().unwrap();
        one("sequence_end", Parameter::Bool(false)).refuse_sequences().unwrap();
        for parameter in [Parameter::Integer(3), Parameter::String("a".into())] {
            assert!(one("sequence_id", parameter).refuse_sequences().is_err());
        }
        assert!(one("sequence_start", Parameter::Bool(true)).refuse_sequences().is_err());
    }

    #[test]
    fn a_place_needs_its_size() {
        let region = ("shared_memory_region".to_owned(), Parameter::String("r".into()));
        assert!([region.clone()].into_iter().collect::<Parameters>().place().is_err());
        let size = ("shared_memory_byte_size".to_owned(), Parameter::Integer(8));
        let place = [region, size].into_iter().collect::<Parameters>().place().unwrap();
        assert_eq!(place, Some(Place { region: "r".into(), offset: 0, byte_size: 8 }));
        assert_eq!(Parameters::default().place().unwrap(), None);
    }
}
