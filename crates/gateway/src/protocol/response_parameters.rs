//! What an answer says beside its outputs: the exits that were taken, and whether it is degraded.

use super::parameters::ParameterValue;
use tessera_dispatch::InferenceResponse;

/// The parameters of a response.
pub(crate) fn response_parameters(
    answer: &InferenceResponse,
) -> Vec<(&'static str, ParameterValue)> {
    let mut parameters = Vec::new();
    if let Some(first) = answer.exits.iter().flatten().next() {
        let same = answer.exits.iter().all(|exit| exit.as_ref() == Some(first));
        parameters.push(if same {
            ("exit", ParameterValue::String(first.clone()))
        } else {
            let rows: Vec<&str> =
                answer.exits.iter().map(|exit| exit.as_deref().unwrap_or_default()).collect();
            ("exits", ParameterValue::String(rows.join(",")))
        });
    }
    if let Some(reason) = &answer.degraded {
        parameters.push(("degraded", ParameterValue::Bool(true)));
        parameters.push(("degraded_reason", ParameterValue::String(reason.clone())));
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(exits: &[Option<&str>]) -> Vec<(&'static str, ParameterValue)> {
        let exits = exits.iter().map(|exit| exit.map(str::to_owned)).collect();
        response_parameters(&InferenceResponse { outputs: Vec::new(), exits, degraded: None })
    }

    #[test]
    fn one_exit_for_all_rows_is_named_once() {
        let named = |text: &str| ParameterValue::String(text.to_owned());
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
        let answer = InferenceResponse {
            outputs: Vec::new(),
            exits: Vec::new(),
            degraded: Some("late".into()),
        };
        assert_eq!(
            response_parameters(&answer),
            [
                ("degraded", ParameterValue::Bool(true)),
                ("degraded_reason", ParameterValue::String("late".into()))
            ]
        );
    }
}
