"""Models of scikit-learn, LightGBM and XGBoost, as their converters write them.

A classifier gives labels and probabilities. By default the latter are a ZipMap: for each row a
dictionary from class to probability.
"""

from collections.abc import Callable
from pathlib import Path

import numpy

from files import Model

FEATURES = 8
ROWS = 200
WORDS = ("ant", "bee", "cat")
OPSET = 17
# What onnxmltools knows.
OPSET_OF_TREES = 15


def data(names: tuple = (0, 1, 2)) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Rows of features, and one of three classes for each."""
    random = numpy.random.default_rng(0)
    features = random.standard_normal((ROWS, FEATURES)).astype(numpy.float32)
    scores = features[:, :3] + 0.3 * random.standard_normal((ROWS, 3))
    return features, numpy.array(names)[scores.argmax(axis=1)]


def numbers() -> numpy.ndarray:
    """A number for each row."""
    features, _ = data()
    return features @ numpy.arange(FEATURES, dtype=numpy.float32)


def shapes(name: str = "X") -> tuple[dict, ...]:
    return {name: (1, FEATURES)}, {name: (5, FEATURES)}


def from_sklearn(name: str, train: Callable, zipmap: bool = True) -> Model:
    """An estimator that `train` gives, already trained."""

    def make(path: Path):
        from skl2onnx import to_onnx
        from sklearn.base import is_classifier

        features, _ = data()
        estimator = train()
        options = {id(estimator): {"zipmap": zipmap}} if is_classifier(estimator) else None
        model = to_onnx(estimator, features[:1], options=options, target_opset=OPSET)
        path.write_bytes(model.SerializeToString())

    return Model(f"classic/{name}", make, shapes())


def from_trees(name: str, train: Callable, convert: str, **options) -> Model:
    """A booster that `train` gives, converted by onnxmltools."""

    def make(path: Path):
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        types = [("X", FloatTensorType([None, FEATURES]))]
        converter = getattr(onnxmltools, convert)
        model = converter(train(), initial_types=types, target_opset=OPSET_OF_TREES, **options)
        path.write_bytes(model.SerializeToString())

    return Model(f"classic/{name}", make, shapes())


def models() -> list[Model]:
    return [
        from_sklearn("logistic", logistic),
        from_sklearn("logistic-no-zipmap", logistic, zipmap=False),
        from_sklearn("logistic-words", logistic_of_words),
        from_sklearn("forest", forest),
        from_sklearn("svc-words", svc_of_words, zipmap=False),
        from_sklearn("mlp", mlp, zipmap=False),
        from_sklearn("gradient-regressor", gradient_regressor),
        from_trees("lightgbm", lightgbm, "convert_lightgbm", zipmap=False),
        from_trees("lightgbm-zipmap", lightgbm, "convert_lightgbm"),
        from_trees("xgboost", xgboost, "convert_xgboost"),
    ]


def scaled(estimator, names: tuple = (0, 1, 2)):
    """A pipeline with a scaler before the estimator, trained."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), estimator).fit(*data(names))


def logistic():
    from sklearn.linear_model import LogisticRegression

    return scaled(LogisticRegression())


def logistic_of_words():
    from sklearn.linear_model import LogisticRegression

    return scaled(LogisticRegression(), WORDS)


def forest():
    from sklearn.ensemble import RandomForestClassifier

    return scaled(RandomForestClassifier(n_estimators=20, random_state=0))


def svc_of_words():
    from sklearn.svm import SVC

    return scaled(SVC(probability=True, random_state=0), WORDS)


def mlp():
    from sklearn.neural_network import MLPClassifier

    return scaled(MLPClassifier(hidden_layer_sizes=(32, 16), max_iter=300, random_state=0))


def gradient_regressor():
    from sklearn.ensemble import GradientBoostingRegressor

    features, _ = data()
    return GradientBoostingRegressor(n_estimators=30, random_state=0).fit(features, numbers())


def lightgbm():
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=20, random_state=0, n_jobs=1, verbose=-1).fit(*data())


def xgboost():
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=20, random_state=0, n_jobs=1).fit(*data())
