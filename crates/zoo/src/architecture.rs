//! The architectures that the zoo can make, by name.

use std::fmt;
use std::str::FromStr;

use tessera_core::Error;

/// An architecture of the zoo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Architecture {
    /// ResNet-18: basic blocks, 11.7 M parameters.
    Resnet18,
    /// ResNet-50: bottlenecks, 25.6 M parameters.
    Resnet50,
    /// ResNet-101: bottlenecks, 44.5 M parameters.
    Resnet101,
    /// ResNet-152: bottlenecks, 60.2 M parameters.
    Resnet152,
    /// VGG-13: plain convolutions and a classifier that holds most of its 133 M parameters.
    Vgg13,
    /// MobileNetV2: inverted residuals, 3.5 M parameters.
    MobilenetV2,
    /// BERT base: an encoder of 12 layers, 109 M parameters.
    BertBase,
    /// BERT large: an encoder of 24 layers, 335 M parameters.
    BertLarge,
    /// RoBERTa base: BERT base with more tokens and a single type of them, 125 M parameters.
    RobertaBase,
    /// RoBERTa large: BERT large with more tokens and a single type of them, 355 M parameters.
    RobertaLarge,
    /// GPT-2 small: a decoder of 12 layers, 124 M parameters.
    Gpt2,
    /// GPT-2 medium: a decoder of 24 layers, 355 M parameters.
    Gpt2Medium,
    /// ResNet-50 for split computing: its first half is a small head, whose 37 KB are all that a
    /// device sends on.
    SplitResnet50,
    /// A detector in the manner of SSD: a light backbone, 6 scales, 2 heads each.
    Detector,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Resnet18,
        Self::Resnet50,
        Self::Resnet101,
        Self::Resnet152,
        Self::Vgg13,
        Self::MobilenetV2,
        Self::BertBase,
        Self::BertLarge,
        Self::RobertaBase,
        Self::RobertaLarge,
        Self::Gpt2,
        Self::Gpt2Medium,
        Self::SplitResnet50,
        Self::Detector,
    ];

    /// The name that users see and write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resnet18 => "resnet18",
            Self::Resnet50 => "resnet50",
            Self::Resnet101 => "resnet101",
            Self::Resnet152 => "resnet152",
            Self::Vgg13 => "vgg13",
            Self::MobilenetV2 => "mobilenet-v2",
            Self::BertBase => "bert-base",
            Self::BertLarge => "bert-large",
            Self::RobertaBase => "roberta-base",
            Self::RobertaLarge => "roberta-large",
            Self::Gpt2 => "gpt2",
            Self::Gpt2Medium => "gpt2-medium",
            Self::SplitResnet50 => "split-resnet50",
            Self::Detector => "detector",
        }
    }

    /// How many stages two models of this architecture can share; heads are no part of them.
    pub fn stage_count(self) -> usize {
        match self {
            Self::Resnet18
            | Self::Resnet50
            | Self::Resnet101
            | Self::Resnet152
            | Self::SplitResnet50
            | Self::Detector => 4,
            Self::Vgg13 => 5,
            Self::MobilenetV2 => 7,
            Self::BertBase | Self::RobertaBase | Self::Gpt2 => 12,
            Self::BertLarge | Self::RobertaLarge | Self::Gpt2Medium => 24,
        }
    }

    /// The output of its side exit; `None` where it has none.
    ///
    /// ResNet-152 and VGG-13 exit where addnn's thesis does (table 7.3), with the exit counted as
    /// a layer of its own. The others exit after their middle stage.
    pub fn exit_output(self) -> Option<&'static str> {
        match self {
            Self::Resnet18 | Self::Resnet50 | Self::Resnet101 => Some("exit_stage2"),
            Self::Resnet152 => Some("exit_15"),
            Self::Vgg13 => Some("exit_20"),
            Self::MobilenetV2 => Some("exit_stage4"),
            Self::BertBase
            | Self::BertLarge
            | Self::RobertaBase
            | Self::RobertaLarge
            | Self::Gpt2
            | Self::Gpt2Medium
            | Self::SplitResnet50
            | Self::Detector => None,
        }
    }

    /// Whether its convolutions are followed by batch normalisation, if not folded.
    pub fn has_batch_norm(self) -> bool {
        // Transformers normalise layers instead.
        self.longest_sequence().is_none()
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Architecture {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|architecture| architecture.name() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::usage(format!("unknown architecture \"{text}\"; known are {known}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_architecture() {
        for architecture in Architecture::ALL {
            assert_eq!(architecture.to_string().parse::<Architecture>().unwrap(), architecture);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = "resnet51".parse::<Architecture>().unwrap_err().to_string();
        assert!(error.contains("\"resnet51\""), "{error}");
        for architecture in Architecture::ALL {
            assert!(error.contains(architecture.name()), "{error}");
        }
    }
}
