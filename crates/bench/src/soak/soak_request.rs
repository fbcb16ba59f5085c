//! Requests of mixed sizes whose answers the client knows.

use serde_json::json;
use tessera_core::Random;
use tessera_zoo::{LINEAR_WIDTH, TinyModel, linear_weight};

use crate::test_client::{HttpAnswer, TestInferRequest};

/// One request in so many is of megabytes.
const LARGE_EVERY: u64 = 500;

/// A request, and what its answer must be.
pub(crate) struct SoakRequest {
    pub(crate) infer: TestInferRequest,
    id: String,
    expected: Vec<f32>,
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AnswerVerdict {
    /// The answer is the right one.
    Right,
    /// The server said that it can't now, and why.
    Refused(String),
    /// The answer is another one.
    Wrong(String),
}

impl SoakRequest {
    /// The request of this number: its size, its task and its elements follow from that.
    pub(crate) fn draw_request(number: u64) -> Self {
        let mut random = Random::new(number);
        let any = |random: &mut Random, most: u64| 1 + random.next_below(most) as usize;
        let (model, rows, columns) = match random.next_below(LARGE_EVERY) {
            0 => (TinyModel::Absolute, 1, 250_000 + any(&mut random, 750_000)),
            1..=20 => (TinyModel::Linear, 20 + any(&mut random, 100), LINEAR_WIDTH),
            21..=250 => (TinyModel::Absolute, 1, any(&mut random, 8_000)),
            _ => (TinyModel::Linear, any(&mut random, 8), LINEAR_WIDTH),
        };
        Self::with_shape(model, model.task_name(), number, rows, columns)
    }

    /// A few rows for a task of the linear model that may be called anything.
    pub(crate) fn linear_request(task: &str, number: u64) -> Self {
        Self::with_shape(TinyModel::Linear, task, number, 3, LINEAR_WIDTH)
    }

    fn with_shape(model: TinyModel, task: &str, number: u64, rows: usize, columns: usize) -> Self {
        let elements = draw_elements(number, rows * columns);
        let tensor: Vec<u8> = elements.iter().flat_map(|value| value.to_le_bytes()).collect();
        let id = format!("request-{number}");
        let json = json!({
            "id": id,
            "inputs": [{
                "name": "x", "shape": [rows, columns], "datatype": "FP32",
                "parameters": { "binary_data_size": tensor.len() },
            }],
            "parameters": { "binary_data_output": true },
        });
        let expected = expected_elements(model, &elements);
        Self { infer: TestInferRequest::with_json(task, &json, tensor), id, expected }
    }

    /// Whether an answer is this request's, and right.
    pub(crate) fn judge_answer(&self, answer: &HttpAnswer) -> AnswerVerdict {
        let (json, tensor) = answer.json_and_tensors();
        let json = json.unwrap_or_default();
        match answer.status {
            200 => {}
            status => {
                let reason = json["error"].as_str().unwrap_or("no reason");
                let reason = format!("{status} {}", without_numbers(reason));
                let is_refusal = matches!(status, 429 | 503 | 504);
                return if is_refusal {
                    AnswerVerdict::Refused(reason)
                } else {
                    AnswerVerdict::Wrong(reason)
                };
            }
        }
        if json["id"] != self.id.as_str() {
            return AnswerVerdict::Wrong("the answer of another request".to_owned());
        }
        let found = tensor.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        if tensor.len() == self.expected.len() * 4 && found.eq(self.expected.iter().copied()) {
            return AnswerVerdict::Right;
        }
        AnswerVerdict::Wrong("other numbers than expected".to_owned())
    }
}

/// Whole numbers that differ from request to request, small enough for exact sums.
fn draw_elements(number: u64, count: usize) -> Vec<f32> {
    let element = |index: u64| ((number.wrapping_mul(31) + index * 7_919) % 2_001) as f32 - 1_000.0;
    (0..count as u64).map(element).collect()
}

fn expected_elements(model: TinyModel, elements: &[f32]) -> Vec<f32> {
    match model {
        TinyModel::Linear => elements.chunks(LINEAR_WIDTH).flat_map(linear_row).collect(),
        _ => elements.iter().map(|value| value.abs()).collect(),
    }
}

fn linear_row(row: &[f32]) -> Vec<f32> {
    let product = |column| {
        let products = row.iter().enumerate().map(|(at, value)| value * linear_weight(at, column));
        products.sum()
    };
    (0..LINEAR_WIDTH).map(product).collect()
}

/// A message without its numbers, so that those of a kind count as one.
fn without_numbers(message: &str) -> String {
    let mut shortened = String::new();
    for letter in message.chars().take(160) {
        let letter = if letter.is_ascii_digit() { '#' } else { letter };
        if letter != '#' || !shortened.ends_with('#') {
            shortened.push(letter);
        }
    }
    shortened
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: Vec<u8>) -> HttpAnswer {
        HttpAnswer { status, body, is_last: false }
    }

    fn answer_of(request: &SoakRequest, id: &str) -> HttpAnswer {
        let mut body = json!({ "id": id, "outputs": [] }).to_string().into_bytes();
        body.extend(request.expected.iter().flat_map(|value| value.to_le_bytes()));
        answer(200, body)
    }

    #[test]
    fn an_answer_is_right_only_for_its_own_request() {
        for number in 0..50 {
            let request = SoakRequest::draw_request(number);
            let right = answer_of(&request, &request.id);
            assert_eq!(request.judge_answer(&right), AnswerVerdict::Right);
            let mut cut = answer_of(&request, &request.id);
            cut.body.truncate(cut.body.len() - 4);
            assert!(matches!(request.judge_answer(&cut), AnswerVerdict::Wrong(_)));
            let other = answer_of(&request, "request-x");
            assert!(matches!(request.judge_answer(&other), AnswerVerdict::Wrong(_)));
        }
    }

    #[test]
    fn refusals_of_a_kind_have_one_reason() {
        let request = SoakRequest::draw_request(1);
        let refused = answer(503, br#"{"error": "unit 12ab: lost after 345 ms"}"#.to_vec());
        let reason = "503 unit #ab: lost after # ms".to_owned();
        assert_eq!(request.judge_answer(&refused), AnswerVerdict::Refused(reason));
        let failed = answer(500, b"{}".to_vec());
        let reason = "500 no reason".to_owned();
        assert_eq!(request.judge_answer(&failed), AnswerVerdict::Wrong(reason));
    }

    #[test]
    fn requests_are_small_and_large() {
        let sizes: Vec<usize> =
            (0..3_000).map(|number| SoakRequest::draw_request(number).expected.len()).collect();
        assert!(sizes.iter().any(|&size| size <= 32) && sizes.iter().any(|&size| size > 250_000));
    }
}
