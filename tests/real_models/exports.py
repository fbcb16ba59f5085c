"""Models that PyTorch exports, with weights from a fixed seed, by its old exporter and its new one.

Where a configuration allows it they are small: 384 wide, six layers, a vocabulary of 3000.
"""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

from files import Model

OPSET = 17
VOCABULARY = 3000


def export(path: Path, module, arguments: tuple, names: list[str], axes: dict | None, dynamo: bool):
    """Exports a module; `axes` names the open dimensions of each input, by their number."""
    import torch

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    module = module.eval()
    options = {"input_names": names, "dynamo": dynamo}
    if dynamo:
        options["verbose"] = False
        if axes:
            options["dynamic_shapes"] = tuple(axes[name] for name in names)
    else:
        options["opset_version"] = OPSET
        options["dynamic_axes"] = axes
    torch.onnx.export(module, arguments, path, **options)


def enliven(module, x):
    """Sees to it that answers depend on the input: without training, many architectures give zeros.

    Weights that begin as zeros get values, and batch normalisation gets the statistics of `x`.
    """
    import torch

    module.eval()
    for weight in module.parameters():
        if weight.dim() > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    normalisations = [part for part in module.modules() if hasattr(part, "running_mean")]
    for part in normalisations:
        part.momentum = None
        part.train()
    with torch.no_grad():
        module(x)
    module.eval()


def one_input(module, call: Callable):
    """A module whose answer to one tensor is what `call` makes of it."""
    import torch

    class OneInput(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return call(self.inner, x)

    return OneInput()


def two_inputs(module, call: Callable):
    """The same for token numbers and their mask."""
    import torch

    class TwoInputs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, ids, mask):
            return call(self.inner, ids, mask)

    return TwoInputs()


def picture_model(
    name: str,
    build: Callable,
    size: tuple[int, int] = (224, 224),
    axes: str = "batch",
    dynamo: bool = False,
) -> Model:
    """A model of pictures, `x`, of which no dimension is open, or `batch`, or `all` that can be."""

    def make(path: Path):
        import torch

        torch.manual_seed(0)
        module = build()
        enliven(module, torch.randn(2, 3, *size))
        x = torch.randn(1 if axes == "none" else 2, 3, *size)
        opened = {"batch": {0: "batch"}, "all": {0: "batch", 2: "height", 3: "width"}}.get(axes)
        export(path, module, (x,), ["x"], {"x": opened} if opened else None, dynamo)

    shapes = {
        "none": ({},),
        "batch": ({"x": (1, 3, *size)}, {"x": (2, 3, *size)}),
        "all": ({"x": (1, 3, *size)}, {"x": (2, 3, 160, 192)}),
    }
    return Model(name, make, shapes[axes])


def text_model(name: str, build: Callable, dynamo: bool = False, fixed: bool = False) -> Model:
    """A model of token numbers and their mask, `ids` and `mask`, both [batch,length]."""

    def make(path: Path):
        import torch

        torch.manual_seed(0)
        module = two_inputs(build(), last)
        rows = 1 if fixed else 2
        ids = torch.randint(0, VOCABULARY, (rows, 16))
        mask = torch.ones(rows, 16, dtype=torch.long)
        opened = {0: "batch", 1: "length"}
        axes = None if fixed else {"ids": opened, "mask": opened}
        export(path, module, (ids, mask), ["ids", "mask"], axes, dynamo)

    ranges = {"ids": (0, VOCABULARY), "mask": (1, 2)}
    if fixed:
        return Model(name, make, ranges=ranges)
    sizes = ((1, 16), (3, 24))
    return Model(name, make, tuple({"ids": size, "mask": size} for size in sizes), ranges)


def last(inner, ids, mask):
    """The last hidden state."""
    return inner(input_ids=ids, attention_mask=mask).last_hidden_state


def sound_model(name: str, build: Callable, shape: tuple[int, ...]) -> Model:
    """A model of sound, `x`, of which the batch is open."""

    def make(path: Path):
        import torch

        torch.manual_seed(0)
        module = one_input(build(), lambda inner, x: inner(x).last_hidden_state)
        x = torch.randn(2, *shape)
        export(path, module, (x,), ["x"], {"x": {0: "batch"}}, False)

    return Model(name, make, ({"x": (1, *shape)}, {"x": (2, *shape)}))


def models() -> list[Model]:
    return [*torchvision_models(), *timm_models(), *transformers_models()]


def torchvision_models() -> list[Model]:
    def vision(name: str, export_name: str = "", **options) -> Model:
        def build():
            import torchvision

            return torchvision.models.get_model(name, weights=None)

        return picture_model(f"torchvision/{export_name or name}", build, **options)

    return [
        vision("resnet18"),
        vision("resnet18", "resnet18-any-size", axes="all"),
        vision("resnet18", "resnet18-dynamo", dynamo=True),
        vision("mobilenet_v2"),
        vision("mobilenet_v3_small"),
        vision("efficientnet_b0"),
        vision("convnext_tiny"),
        vision("swin_t"),
        vision("swin_t", "swin_t-dynamo", dynamo=True),
        picture_model("torchvision/vit", vision_transformer),
        vision("densenet121"),
        vision("squeezenet1_1", axes="all"),
        vision("shufflenet_v2_x0_5"),
        picture_model("torchvision/googlenet", googlenet),
        vision("regnet_y_400mf", "regnet_y_400mf-dynamo-fixed", axes="none", dynamo=True),
        segmentation("deeplabv3_mobilenet_v3_large"),
        segmentation("lraspp_mobilenet_v3_large"),
    ]


def vision_transformer():
    from torchvision.models import VisionTransformer

    return VisionTransformer(224, 16, num_layers=6, num_heads=6, hidden_dim=384, mlp_dim=1536)


def googlenet():
    from torchvision.models import googlenet

    return googlenet(weights=None, aux_logits=False, init_weights=False)


def segmentation(name: str) -> Model:
    def build():
        import torchvision

        found = torchvision.models.get_model(name, weights=None, weights_backbone=None)
        return one_input(found, lambda inner, x: inner(x)["out"])

    return picture_model(f"torchvision/{name}", build, axes="all")


def timm_models() -> list[Model]:
    def from_timm(name: str, size: tuple[int, int] = (224, 224), **options) -> Model:
        def build():
            import timm

            # Without this, timm uses operators that only run, and are not exported.
            return timm.create_model(name, pretrained=False, exportable=True)

        return picture_model(f"timm/{name}", build, size, **options)

    return [
        from_timm("mobilevit_xxs", (256, 256)),
        from_timm("efficientformer_l1"),
        from_timm("mixer_s32_224"),
        from_timm("ghostnet_100"),
        from_timm("levit_128s"),
        from_timm("poolformer_s12"),
        from_timm("convmixer_768_32", (128, 128), dynamo=True),
    ]


def transformers_models() -> list[Model]:
    return [
        text_model("transformers/minilm", minilm),
        text_model("transformers/minilm-dynamo", minilm, dynamo=True),
        text_model("transformers/minilm-fixed", minilm, fixed=True),
        text_model("transformers/distilbert", distilbert),
        text_model("transformers/gpt2", gpt2),
        text_model("transformers/gpt2-dynamo", gpt2, dynamo=True),
        text_model("transformers/albert", lambda: encoder("Albert", embedding_size=128)),
        text_model("transformers/t5-encoder", t5_encoder),
        text_model("transformers/clip-text", clip_text),
        picture_model("transformers/clip-vision", clip_vision),
        picture_model("transformers/vit", lambda: hidden("ViT", **sizes())),
        picture_model("transformers/deit", lambda: hidden("DeiT", **sizes())),
        picture_model("transformers/segformer", segformer),
        sound_model("transformers/whisper-encoder", whisper_encoder, (80, 3000)),
        sound_model("transformers/wav2vec2", wav2vec2, (16000,)),
    ]


def sizes() -> dict:
    """What most of them call the same."""
    return {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "intermediate_size": 1536,
    }


def build(name: str, **settings):
    """NAMEModel of NAMEConfig."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}Model")(config)


def hidden(name: str, **settings):
    """A model of pictures that gives its last hidden state."""
    return one_input(build(name, **settings), lambda inner, x: inner(x).last_hidden_state)


def encoder(name: str, **settings):
    return build(name, vocab_size=VOCABULARY, **sizes(), **settings)


def minilm():
    return encoder("Bert")


def distilbert():
    return build("DistilBert", n_layers=6, dim=384, hidden_dim=1536, vocab_size=VOCABULARY)


def gpt2():
    return build("GPT2", n_layer=6, n_embd=384, vocab_size=VOCABULARY, use_cache=False)


def t5_encoder():
    import transformers

    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=384, d_kv=64, d_ff=1536, num_layers=6, num_heads=6
    )
    return transformers.T5EncoderModel(config)


def clip_text():
    return build("CLIPText", vocab_size=VOCABULARY, eos_token_id=VOCABULARY - 1, **sizes())


def clip_vision():
    inner = build("CLIPVision", image_size=224, patch_size=32, **sizes())
    return one_input(inner, lambda inner, x: inner(x).pooler_output)


def segformer():
    return hidden("Segformer", depths=[1, 1, 1, 1])


def whisper_encoder():
    model = build(
        "Whisper",
        vocab_size=VOCABULARY,
        d_model=384,
        encoder_layers=4,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_layers=1,
        decoder_attention_heads=6,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return model.get_encoder()


def wav2vec2():
    return build("Wav2Vec2", vocab_size=32, **sizes())
