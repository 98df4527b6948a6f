"""Rounds of BlazeFL 2 on given images: the child process of `blazefl_rival.py`, in an environment with BlazeFL.

    PYTHON benchmarks/blazefl_child.py IMAGES.npz FOLDER WORKERS MODEL EPOCHS

It needs Python 3.12 or newer with blazefl 2 (`blazefl[contrib,reproducibility]`) and torchvision, and nothing of this
package. The federation is that of BlazeFL's own benchmark: the images of a client in a file of their own, read in every
round and turned into tensors one by one by torchvision's ToTensor and Normalize; a pool of spawned processes.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

CLASSES = 10
BATCH = 50
RATE = 0.1
SEED = 42


def cnn() -> Any:
    """The network of PyTorch's tutorial on CIFAR-10, 62,006 parameters."""
    nn = importlib.import_module("torch.nn")
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, CLASSES),
    )


def network(name: str) -> Any:
    """The network of that name: cnn, or torchvision's resnet18."""
    if name == "cnn":
        return cnn()
    return importlib.import_module("torchvision.models").resnet18(num_classes=CLASSES)


class Models:
    """BlazeFL's selector of models: one network, from the same parameters every time."""

    def select_model(self, model_name: str) -> Any:
        """The network."""
        torch = importlib.import_module("torch")
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            return network(model_name)


class Images:
    """The clients' images, in files as BlazeFL's benchmark has them."""

    def __init__(self, folder: Path):
        self.folder = folder

    def write(self, file: Path) -> int:
        """Write the files of all clients, and of the test images; return the number of clients."""
        numpy = importlib.import_module("numpy")
        transforms = importlib.import_module("torchvision.transforms")
        filtered = importlib.import_module("blazefl.core").FilteredDataset
        as_tensor = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
        )
        self.folder.mkdir(parents=True)
        with numpy.load(file) as found:
            x, y, clients = found["x"], found["y"].tolist(), found["clients"]
            x_test, y_test = found["x_test"], found["y_test"].tolist()
        for client, rows in enumerate(clients):
            images = filtered(rows.tolist(), x, y, transform=as_tensor)
            self.set_dataset("train", client, images)
        everything = list(range(len(x_test)))
        tests = filtered(everything, x_test, y_test, transform=as_tensor)
        self.set_dataset("test", None, tests)
        return len(clients)

    def _file(self, type_: str, cid: int | None) -> Path:
        return self.folder / f"{type_}-{cid}.pkl"

    def get_dataset(self, type_: str, cid: int | None) -> Any:
        """The images of a client."""
        torch = importlib.import_module("torch")
        return torch.load(self._file(type_, cid), weights_only=False)

    def set_dataset(self, type_: str, cid: int | None, dataset: Any) -> None:
        """Write the images of a client."""
        torch = importlib.import_module("torch")
        torch.save(dataset, self._file(type_, cid))

    def get_dataloader(
        self,
        type_: str,
        cid: int | None,
        batch_size: int | None = None,
        generator: Any = None,
    ) -> Any:
        """A loader of the images of a client, in another order every time."""
        data = importlib.import_module("torch.utils.data")
        dataset = self.get_dataset(type_, cid)
        return data.DataLoader(dataset, batch_size, shuffle=True, generator=generator)


def main() -> None:
    file, folder, model_name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[4]
    workers, epochs = (int(sys.argv[place]) for place in (3, 5))
    contrib = importlib.import_module("blazefl.contrib")
    core = importlib.import_module("blazefl.core")
    importlib.import_module("blazefl.reproducibility").setup_reproducibility(SEED)
    images = Images(folder / "images")
    clients = images.write(file)
    common: dict[str, Any] = {
        "model_selector": Models(),
        "model_name": model_name,
        "dataset": images,
        "num_clients": clients,
        "device": "cpu",
        "batch_size": BATCH,
        "seed": SEED,
    }
    # stops are ours: a round for each line of input
    handler = contrib.FedAvgBaseServerHandler(
        **common, global_round=sys.maxsize, sample_ratio=1.0
    )
    trainer = contrib.FedAvgProcessPoolClientTrainer(
        **common,
        share_dir=folder / "share",
        state_dir=folder / "state",
        epochs=epochs,
        lr=RATE,
        num_parallels=workers,
        ipc_mode=core.IPCMode.SHARED_MEMORY,
    )
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        sampled = handler.sample_clients()
        trainer.local_process(handler.downlink_package(), sampled)
        for package in trainer.uplink_package():
            handler.load(package)
        accuracy = handler.get_summary()["server_acc"]
        print("turn", time.perf_counter() - begin, accuracy, flush=True)


if __name__ == "__main__":
    importlib.import_module("torch.multiprocessing").set_start_method("spawn")
    main()
