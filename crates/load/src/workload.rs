//! What is sent: a few different requests, made once and sent over and over.

use tessera_core::{Error, Random, Result};

use crate::body::{self, InferenceBody};
use crate::description::ModelDescription;
use crate::inputs;
use crate::workload_options::WorkloadOptions;

/// The requests of a run, ready to be sent.
#[derive(Clone, Debug)]
pub struct Workload {
    pub(crate) bodies: Vec<InferenceBody>,
    pub(crate) inputs: Vec<String>,
    pub(crate) server: Option<String>,
    /// Rows of each request, where a batch was asked for.
    pub(crate) rows: Option<usize>,
}

impl Workload {
    /// Makes the requests for a model.
    pub fn new(description: &ModelDescription, options: &WorkloadOptions) -> Result<Self> {
        if options.variants == 0 {
            return Err(Error::usage("0 variants of a request, expected 1 or more"));
        }
        let mut random = Random::new(options.seed);
        // Where nothing is random, all would be the same.
        let all_given =
            description.inputs.iter().all(|port| options.given.contains_key(&port.name));
        let variants = if all_given { 1 } else { options.variants };
        let mut bodies = Vec::with_capacity(variants);
        let mut shown = Vec::new();
        let mut rows = None;
        for _ in 0..variants {
            let inputs = inputs::make_inputs(description, options, &mut random)?;
            // Shapes win over the batch: it may be that no input has it.
            let has = |&batch: &usize| inputs.iter().any(|one| one.shape.first() == Some(&batch));
            rows = options.batch.filter(has);
            if shown.is_empty() {
                shown = inputs.iter().map(inputs::describe_input).collect::<Result<_>>()?;
            }
            bodies.push(if options.json {
                body::json_body(&inputs, options.send_deadline)?
            } else {
                body::binary_body(&inputs, options.send_deadline)?
            });
        }
        Ok(Self { bodies, inputs: shown, server: description.server.clone(), rows })
    }

    /// The inputs as people write them: `x FP32[1,3,224,224]`.
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// The bytes of a request's body, on average.
    pub fn body_bytes(&self) -> usize {
        let total: usize = self.bodies.iter().map(|body| body.bytes.len()).sum();
        total / self.bodies.len().max(1)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tessera_core::{DType, Dim, TensorType};

    use super::*;
    use crate::description::ModelPort;

    fn described() -> ModelDescription {
        let tensor_type = TensorType::new(DType::F32, vec![Dim::Unknown, Dim::Fixed(2)]);
        let inputs = vec![ModelPort { name: "x".to_owned(), tensor_type, optional: false }];
        ModelDescription { inputs, ..ModelDescription::default() }
    }

    #[test]
    fn variants_differ_and_the_same_seed_makes_them_again() {
        let make = |seed| {
            let options = WorkloadOptions { seed, ..WorkloadOptions::default() };
            Workload::new(&described(), &options).unwrap()
        };
        let workload = make(1);
        assert_eq!(workload.inputs(), ["x FP32[1,2]"]);
        assert_eq!(workload.bodies.len(), 4);
        assert_ne!(workload.bodies[0], workload.bodies[1]);
        assert_eq!(make(1).bodies, workload.bodies);
        assert_ne!(make(2).bodies, workload.bodies);
    }

    #[test]
    fn contents_that_are_given_make_one_request() {
        let mut options = WorkloadOptions::default();
        options.given.insert("x".to_owned(), Bytes::from_static(&[0; 8]));
        let workload = Workload::new(&described(), &options).unwrap();
        assert_eq!(workload.bodies.len(), 1);
        assert!(workload.bodies[0].bytes.ends_with(&[0; 8]));
    }
}
