//! How long the sequences of architectures are.

use crate::{Architecture, bert, gpt2};

impl Architecture {
    /// How long its sequences can be, which is how many positions it has; `None` where its inputs
    /// are no sequences.
    pub fn longest_sequence(self) -> Option<usize> {
        match self {
            Self::BertBase => Some(bert::BERT_BASE.positions),
            Self::BertLarge => Some(bert::BERT_LARGE.positions),
            Self::RobertaBase => Some(bert::ROBERTA_BASE.positions),
            Self::RobertaLarge => Some(bert::ROBERTA_LARGE.positions),
            Self::Gpt2 | Self::Gpt2Medium => Some(gpt2::POSITIONS),
            Self::Resnet18
            | Self::Resnet50
            | Self::Resnet101
            | Self::Resnet152
            | Self::Vgg13
            | Self::MobilenetV2
            | Self::SplitResnet50
            | Self::Detector => None,
        }
    }
}
