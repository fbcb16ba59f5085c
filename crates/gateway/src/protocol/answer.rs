//! What an answer says beside its outputs: the exits that were taken, and whether it is degraded.

use super::parameters::Parameter;
use crate::service::Answer;

/// The parameters of a response.
pub(crate) fn answer_parameters(answer: &Answer) -> Vec<(&'static str, Parameter)> {
    let mut parameters = Vec::new();
    if let Some(first) = answer.exits.iter().flatten().next() {
        let same = answer.exits.iter().all(|exit| exit.as_ref() == Some(first));
        parameters.push(if same {
            ("exit", Parameter::String(first.clone()))
        } else {
            let rows: Vec<&str> =
                answer.exits.iter().map(|exit| exit.as_deref().unwrap_or_default()).collect();
            ("exits", Parameter::String(rows.join(",")))
        });
    }
    if let Some(reason) = &answer.degraded {
        parameters.push(("degraded", Parameter::Bool(true)));
        parameters.push(("degraded_reason", Parameter::String(reason.clone())));
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(exits: &[Option<&str>]) -> Vec<(&'static str, Parameter)> {
        let exits = exits.iter().map(|exit| exit.map(str::to_owned)).collect();
        answer_parameters(&Answer { outputs: Vec::new(), exits, degraded: None })
    }

    #[test]
    fn one_exit_for_all_rows_is_named_once() {
        let named = |text: &str| Parameter::String(text.to_owned());
        assert_eq!(parameters(&[Some("early"), Some("early")]), [("exit", named("early"))]);
        assert_eq!(
            parameters(&[Some("early"), None, Some("late")]),
            [("exits", named("early,,late"))]
        );
        assert!(parameters(&[None, None]).is_empty());
        assert!(parameters(&[]).is_empty());
    }

    #[test]
    fn a_degraded_answer_says_why() {
        let answer =
            Answer { outputs: Vec::new(), exits: Vec::new(), degraded: Some("late".into()) };
        assert_eq!(
            answer_parameters(&answer),
            [
                ("degraded", Parameter::Bool(true)),
                ("degraded_reason", Parameter::String("late".into()))
            ]
        );
    }
}
