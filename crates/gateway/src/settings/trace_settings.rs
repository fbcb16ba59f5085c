//! Triton's settings of traces. They are kept and given back, for clients that set what they find:
//! which spans there are is the collector's choice (`--traces`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use tessera_core::{Error, Result, lock};

/// The settings, with what they are at the start, and whether a client may set them.
const SETTINGS: &[(&str, &str, bool)] = &[
    ("trace_file", "", false),
    ("trace_level", "OFF", true),
    ("trace_rate", "1000", true),
    ("trace_count", "-1", true),
    ("log_frequency", "0", true),
    ("trace_mode", "triton", false),
];

/// Settings that differ from those at the start, by name.
type ChangedSettings = BTreeMap<&'static str, Vec<String>>;

/// What is traced, of all tasks and of one.
#[derive(Debug, Default)]
pub(crate) struct TraceSettings {
    /// By task; the empty name stands for all that say nothing of their own.
    changed: Mutex<BTreeMap<String, ChangedSettings>>,
}

impl TraceSettings {
    /// Every setting of a task, or of all for the empty name.
    pub(crate) fn current_values(&self, task: &str) -> Vec<(&'static str, Vec<String>)> {
        let changed = lock(&self.changed);
        let own = |of: &str, name: &str| changed.get(of)?.get(name).cloned();
        let values = SETTINGS.iter().map(|&(name, usual, _)| {
            let value = own(task, name).or_else(|| own("", name));
            (name, value.unwrap_or_else(|| vec![usual.to_owned()]))
        });
        values.collect()
    }

    /// Changes all of these settings, or none where one of them is wrong. Without a value, a
    /// setting is again what it is without a change.
    pub(crate) fn change_values(
        &self,
        task: &str,
        changes: impl IntoIterator<Item = (String, Option<Vec<String>>)>,
    ) -> Result<()> {
        let mut all = lock(&self.changed);
        let mut changed = all.get(task).cloned().unwrap_or_default();
        for (name, value) in changes {
            let known = SETTINGS.iter().find(|(known, ..)| *known == name);
            let Some(&(name, _, may_set)) = known else {
                return Err(Error::invalid(format!("there is no trace setting \"{name}\"")));
            };
            if !may_set {
                let message = format!("\"{name}\" can't be set while the server runs");
                return Err(Error::unsupported(message));
            }
            match value {
                Some(value) => {
                    check_value(name, &value)?;
                    changed.insert(name, value);
                }
                None => {
                    changed.remove(name);
                }
            }
        }
        all.insert(task.to_owned(), changed);
        Ok(())
    }
}

/// Refuses what a setting can't be.
fn check_value(name: &str, value: &[String]) -> Result<()> {
    let wrong = |expected: &str| {
        let got = value.join(", ");
        Err(Error::invalid(format!("trace setting \"{name}\" is \"{got}\", expected {expected}")))
    };
    if name == "trace_level" {
        let is_level = |level: &String| ["OFF", "TIMESTAMPS", "TENSORS"].contains(&level.as_str());
        return match value {
            [] => wrong("OFF, or some of TIMESTAMPS and TENSORS"),
            levels if levels.iter().all(is_level) => Ok(()),
            _ => wrong("OFF, or some of TIMESTAMPS and TENSORS"),
        };
    }
    let least = if name == "trace_count" { -1 } else { 0 };
    match value {
        [number] if number.parse::<i64>().is_ok_and(|number| number >= least) => Ok(()),
        _ => wrong(&format!("an integer of {least} or more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, values: &[&str]) -> (String, Option<Vec<String>>) {
        (name.to_owned(), Some(values.iter().map(|&value| value.to_owned()).collect()))
    }

    fn value(settings: &TraceSettings, task: &str, name: &str) -> Vec<String> {
        let values = settings.current_values(task);
        values.into_iter().find(|(known, _)| *known == name).unwrap().1
    }

    #[test]
    fn a_task_has_its_own_or_those_of_all() {
        let settings = TraceSettings::default();
        settings.change_values("", [set("trace_rate", &["7"])]).unwrap();
        settings.change_values("cats", [set("trace_level", &["TIMESTAMPS", "TENSORS"])]).unwrap();
        assert_eq!(value(&settings, "cats", "trace_rate"), ["7"]);
        assert_eq!(value(&settings, "cats", "trace_level"), ["TIMESTAMPS", "TENSORS"]);
        assert_eq!(value(&settings, "dogs", "trace_level"), ["OFF"]);
        settings.change_values("cats", [("trace_level".to_owned(), None)]).unwrap();
        assert_eq!(value(&settings, "cats", "trace_level"), ["OFF"]);
    }

    #[test]
    fn what_a_setting_can_not_be_is_refused() {
        let settings = TraceSettings::default();
        for (wrong, expected) in [
            (set("trace_level", &["LOUD"]), "\"LOUD\", expected OFF"),
            (set("trace_rate", &["-1"]), "an integer of 0 or more"),
            (set("trace_count", &["-2"]), "an integer of -1 or more"),
            (set("log_frequency", &["1", "2"]), "\"1, 2\""),
            (set("trace_file", &["/tmp/trace"]), "can't be set"),
            (set("nothing", &["1"]), "no trace setting \"nothing\""),
        ] {
            let changes = [set("trace_rate", &["1"]), wrong];
            let error = settings.change_values("", changes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(value(&settings, "", "trace_rate"), ["1000"]);
    }
}
