//! The model that comes of a recipe.

use tessera_core::{Error, Result};

use crate::network::{AssembledNetwork, NetworkBuilder, WeightData};
use crate::{
    Architecture, BatchSize, Recipe, ZooModel, bert, detector, gpt2, mobilenet, resnet,
    transformer, vgg,
};

impl Recipe {
    /// Makes the model.
    pub fn build_model(&self) -> Result<ZooModel> {
        let assembly = self.assemble_network(WeightData::Generated)?;
        Ok(ZooModel {
            model: assembly.model,
            exits: assembly.exits,
            stages: self.architecture.stage_count(),
        })
    }

    /// How many parameters the model has, counted without making them.
    ///
    /// Parameters are what training would change: running means and variances are none.
    pub fn count_parameters(&self) -> Result<u64> {
        Ok(self.assemble_network(WeightData::Omitted)?.parameters)
    }

    /// Puts the graph together, with or without the weights' data.
    pub(crate) fn assemble_network(&self, data: WeightData) -> Result<AssembledNetwork> {
        self.validate()?;
        let mut network = NetworkBuilder::new(self, data);
        match self.architecture {
            Architecture::Resnet18 => resnet::assemble_resnet(&mut network, &resnet::RESNET18),
            Architecture::Resnet50 => resnet::assemble_resnet(&mut network, &resnet::RESNET50),
            Architecture::Resnet101 => resnet::assemble_resnet(&mut network, &resnet::RESNET101),
            Architecture::Resnet152 => resnet::assemble_resnet(&mut network, &resnet::RESNET152),
            Architecture::Vgg13 => vgg::assemble_vgg(&mut network),
            Architecture::MobilenetV2 => mobilenet::assemble_mobilenet(&mut network),
            Architecture::BertBase => bert::assemble_bert(&mut network, &bert::BERT_BASE),
            Architecture::BertLarge => bert::assemble_bert(&mut network, &bert::BERT_LARGE),
            Architecture::RobertaBase => bert::assemble_bert(&mut network, &bert::ROBERTA_BASE),
            Architecture::RobertaLarge => bert::assemble_bert(&mut network, &bert::ROBERTA_LARGE),
            Architecture::Gpt2 => gpt2::assemble_gpt2(&mut network, &transformer::BASE_LAYOUT),
            Architecture::Gpt2Medium => {
                gpt2::assemble_gpt2(&mut network, &transformer::LARGE_LAYOUT);
            }
            Architecture::SplitResnet50 => resnet::assemble_split_resnet(&mut network),
            Architecture::Detector => detector::assemble_detector(&mut network),
        }
        Ok(network.finish_network())
    }

    fn validate(&self) -> Result<()> {
        let architecture = self.architecture;
        if let Some(shared) = self.shared_stages
            && shared.stages > architecture.stage_count()
        {
            return Err(Error::usage(format!(
                "{architecture} has {} stages, {} cannot be shared",
                architecture.stage_count(),
                shared.stages
            )));
        }
        if self.exits && architecture.exit_output().is_none() {
            return Err(Error::usage(format!("{architecture} has no side exits")));
        }
        if self.batch_norm && !architecture.has_batch_norm() {
            return Err(Error::usage(format!("{architecture} has no batch normalisation")));
        }
        if self.batch == BatchSize::Fixed(0) {
            return Err(Error::usage(format!("{architecture}: batch must be 1 or more, not 0")));
        }
        self.sequence.map_or(Ok(()), |length| self.validate_sequence(length))
    }

    fn validate_sequence(&self, length: usize) -> Result<()> {
        let architecture = self.architecture;
        let Some(longest) = architecture.longest_sequence() else {
            return Err(Error::usage(format!(
                "{architecture} has no sequences, their length cannot be {length}"
            )));
        };
        if !(1..=longest).contains(&length) {
            return Err(Error::usage(format!(
                "{architecture}: sequences have a length from 1 to {longest}, not {length}"
            )));
        }
        if self.batch == BatchSize::Symbolic {
            return Err(Error::usage(format!(
                "{architecture}: sequences of length {length} need a fixed batch, with a symbolic \
                 one they have any length"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tessera_core::ErrorKind;
    use tessera_graph::onnx::tensor_shape_proto::dimension;
    use tessera_graph::onnx::type_proto;

    use super::*;
    use crate::SharedStages;

    #[test]
    fn every_value_of_every_architecture_is_made_once_before_it_is_used() {
        for architecture in Architecture::ALL {
            for batch in [BatchSize::Fixed(1), BatchSize::Symbolic] {
                for batch_norm in [false, architecture.has_batch_norm()] {
                    let exits = architecture.exit_output().is_some();
                    let recipe = Recipe { batch, batch_norm, exits, ..Recipe::new(architecture) };
                    assert_well_formed(&recipe);
                }
            }
        }
    }

    fn assert_well_formed(recipe: &Recipe) {
        let assembly = recipe.assemble_network(WeightData::Omitted).unwrap();
        let graph = assembly.model.graph.unwrap();
        let mut known: HashSet<&str> = HashSet::new();
        let inputs = graph.input.iter().map(|input| input.name.as_deref().unwrap());
        let weights = graph.initializer.iter().map(|weight| weight.name.as_deref().unwrap());
        for name in inputs.chain(weights) {
            assert!(known.insert(name), "{}: {name} twice", recipe.architecture);
        }
        for node in &graph.node {
            for input in &node.input {
                assert!(known.contains(input.as_str()), "{}: {input}", recipe.architecture);
            }
            for output in &node.output {
                assert!(known.insert(output), "{}: {output} twice", recipe.architecture);
            }
        }
        for output in &graph.output {
            assert!(known.contains(output.name.as_deref().unwrap()));
        }
        for (exit, _) in &assembly.exits {
            assert!(graph.output.iter().any(|output| output.name.as_ref() == Some(exit)));
        }
        let expected = recipe.architecture.exit_output().filter(|_| recipe.exits);
        assert_eq!(assembly.exits.first().map(|exit| exit.0.as_str()), expected);
    }

    #[test]
    fn sequences_are_as_long_as_the_recipe_says() {
        for (architecture, usual, longest) in [
            (Architecture::BertBase, 128, 512),
            (Architecture::RobertaLarge, 128, 514),
            (Architecture::Gpt2Medium, 64, 1024),
        ] {
            let plain = Recipe::new(architecture);
            assert_eq!(input_dims(&plain), [1, usual], "{architecture}");
            let recipe = Recipe { sequence: Some(longest), ..plain };
            assert_eq!(input_dims(&recipe), [1, longest as i64], "{architecture}");
        }
    }

    #[test]
    fn a_length_changes_the_declared_shapes_and_nothing_else() {
        let plain = Recipe::new(Architecture::Gpt2);
        let longer = Recipe { sequence: Some(96), ..plain };
        let [plain, longer] = [plain, longer].map(|recipe| {
            recipe.assemble_network(WeightData::Omitted).unwrap().model.graph.unwrap()
        });
        assert_ne!(plain.input, longer.input);
        assert_ne!(plain.output, longer.output);
        assert_eq!(plain.node, longer.node);
        assert_eq!(plain.initializer, longer.initializer);
    }

    /// The dimensions of the first input.
    fn input_dims(recipe: &Recipe) -> Vec<i64> {
        let assembly = recipe.assemble_network(WeightData::Omitted).unwrap();
        let graph = assembly.model.graph.unwrap();
        let Some(type_proto::Value::TensorType(tensor)) =
            graph.input[0].r#type.as_ref().unwrap().value.as_ref()
        else {
            panic!("{} has an input that is no tensor", recipe.architecture);
        };
        let dims = tensor.shape.as_ref().unwrap().dim.iter();
        dims.map(|dim| match dim.value {
            Some(dimension::Value::DimValue(size)) => size,
            _ => panic!("{} has an open dimension", recipe.architecture),
        })
        .collect()
    }

    #[test]
    fn the_same_recipe_twice_is_the_same_model() {
        let recipe = Recipe { seed: 7, ..Recipe::new(Architecture::MobilenetV2) };
        assert_eq!(recipe.build_model().unwrap(), recipe.build_model().unwrap());
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let resnet = Recipe::new(Architecture::Resnet18);
        let bert = Recipe::new(Architecture::BertBase);
        let cases = [
            (
                Recipe {
                    shared_stages: Some(SharedStages { seed: 1, stages: 5 }),
                    ..resnet.clone()
                },
                "4 stages",
            ),
            (Recipe { batch: BatchSize::Fixed(0), ..resnet.clone() }, "batch"),
            (Recipe { exits: true, ..bert.clone() }, "bert-base has no side exits"),
            (Recipe { batch_norm: true, ..bert.clone() }, "batch normalisation"),
            (Recipe { sequence: Some(128), ..resnet }, "resnet18 has no sequences"),
            (Recipe { sequence: Some(0), ..bert.clone() }, "from 1 to 512, not 0"),
            (Recipe { sequence: Some(513), ..bert.clone() }, "from 1 to 512, not 513"),
            (
                Recipe { sequence: Some(128), batch: BatchSize::Symbolic, ..bert },
                "need a fixed batch",
            ),
        ];
        for (recipe, message) in cases {
            let error = recipe.count_parameters().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
