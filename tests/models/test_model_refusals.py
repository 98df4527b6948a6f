"""Arguments that models refuse, in one line that names argument and value."""

import pytest
from reference.small import refused

from fedjax_srp.models import CNN, GPT, LSTM, MLP, LeNet5, ResNet18

RIGHT = {
    LeNet5: {
        "input_shape": (16, 16, 3),
        "num_classes": 4,
        "channels": (3, 8),
        "hidden": (6, 5),
    },
    CNN: {
        "input_shape": (8, 8),
        "num_classes": 4,
        "channels": (2, 8, 9, 3, 8, 2),
        "hidden": (6, 5),
    },
    ResNet18: {"input_shape": (8, 8, 3), "num_classes": 4, "channels": (4, 4, 8, 8)},
    LSTM: {"input_shape": (7,), "num_classes": 2},
    GPT: {"input_shape": (6,), "num_classes": 9, "embedding": 8},
    MLP: {"input_shape": (6,), "num_classes": 4},
}
IMAGES = r"cnn takes images \(h, w\) or \(h, w, c\) of at least 8 x 8"


@pytest.mark.parametrize(
    ("model", "wrong", "message"),
    [
        (
            LeNet5,
            {"input_shape": (15, 16, 3)},
            r"input_shape=\(15, 16, 3\): lenet5 takes images",
        ),
        (LeNet5, {"channels": (3,)}, r"channels=\(3,\) must be 2 values, not 1"),
        (LeNet5, {"hidden": (3, 0)}, r"hidden\[1\]=0 must be at least 1"),
        (
            LeNet5,
            {"dropout_rate": 1.0},
            r"dropout_rate=1.0 must be below 1; give a probability",
        ),
        (
            LeNet5,
            {"convolution": "fft"},
            r"convolution='fft' is unknown; choose from auto",
        ),
        (LeNet5, {"cut": "fc3"}, r"cut='fc3' is no layer of model 'lenet5'"),
        (CNN, {"input_shape": (7, 8, 1)}, rf"input_shape=\(7, 8, 1\): {IMAGES}"),
        (CNN, {"input_shape": (64,)}, r"input_shape=\(64,\): cnn takes images"),
        (CNN, {"channels": (1, 2)}, r"channels=\(1, 2\) must be 6 values, not 2"),
        (CNN, {"hidden": (3,)}, r"hidden=\(3,\) must be 2 values, not 1"),
        (ResNet18, {"input_shape": (7, 8, 3)}, "resnet18 takes images"),
        (
            ResNet18,
            {"norm": "group", "groups": 3},
            r"groups=3 does not divide channels=\(4, 4, 8, 8\); choose one that",
        ),
        (ResNet18, {"norm": "layer"}, "norm='layer'"),
        (ResNet18, {"channels": (4, 4)}, r"channels=\(4, 4\)"),
        (
            LSTM,
            {"input_shape": (28, 28)},
            r"input_shape=\(28, 28\): lstm takes token sequences",
        ),
        (LSTM, {"vocabulary": 1}, "vocabulary=1 must be at least 2"),
        (GPT, {"input_shape": (3, 3)}, "gpt takes token sequences"),
        (GPT, {"heads": 3}, "heads=3 does not"),
        (
            MLP,
            {"output": "probabilities"},
            "output='probabilities' is unknown; choose from logits, softmax",
        ),
    ],
)
def test_bad_arguments(model, wrong, message):
    model(**RIGHT[model])
    with refused(message):
        model(**RIGHT[model] | wrong)
