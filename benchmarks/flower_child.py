"""Rounds of Flower on given images: the child process of `blazefl_rival.py`, in an environment with Flower.

    PYTHON benchmarks/flower_child.py IMAGES.npz FOLDER WORKERS MODEL EPOCHS ROUNDS

It needs flwr (`flwr[simulation]`) and torchvision, and nothing of this package. The apps are those of the Flower case
in the benchmark of BlazeFL's authors, with Ray and one core for each client; images come from NumPy's files instead of
`flwr_datasets`, one for each client, and are turned into tensors one by one in every epoch, as there. The server tests
after every round, and there the process waits for a line of its input before it goes on.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

from blazefl_child import BATCH, RATE, SEED, network

TEST = "test"  # name of the test images among the clients'


class Tensors:
    """Images of a file, one tensor each, as torchvision makes them."""

    def __init__(self, file: Path):
        numpy = importlib.import_module("numpy")
        transforms = importlib.import_module("torchvision.transforms")
        with numpy.load(file) as found:
            self.x = found["x"]
            self.y = found["y"].tolist()
        self.as_tensor = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
        )

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.as_tensor(self.x[row]), self.y[row]


def loader(folder: str, name: str, shuffle: bool) -> Any:
    """A loader of the images of a client, or of the test images."""
    data = importlib.import_module("torch.utils.data")
    return data.DataLoader(Tensors(Path(folder) / f"{name}.npz"), BATCH, shuffle)


def write_images(file: Path, folder: Path) -> int:
    """Write the images of each client, and the test images; return the number of clients."""
    numpy = importlib.import_module("numpy")
    folder.mkdir(parents=True)
    with numpy.load(file) as found:
        x, y, clients = found["x"], found["y"], found["clients"]
        numpy.savez(folder / f"{TEST}.npz", x=found["x_test"], y=found["y_test"])
    for client, rows in enumerate(clients):
        numpy.savez(folder / f"{client}.npz", x=x[rows], y=y[rows])
    return len(clients)


def client_app(folder: str, model_name: str, epochs: int) -> Any:
    """Flower's app of a client: local SGD from the server's arrays."""
    app = importlib.import_module("flwr.clientapp").ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        flwr = importlib.import_module("flwr.app")
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        model = network(model_name)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.train()
        images = loader(folder, str(context.node_config["partition-id"]), shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        criterion = torch.nn.CrossEntropyLoss()
        for _ in range(epochs):
            for x, y in images:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
        metrics = flwr.MetricRecord({"num-examples": len(images.dataset)})
        arrays = flwr.ArrayRecord(model.state_dict())
        content = flwr.RecordDict({"arrays": arrays, "metrics": metrics})
        return flwr.Message(content=content, reply_to=message)

    return app


def server_app(folder: str, model_name: str, rounds: int) -> Any:
    """Flower's app of the server: FedAvg of all clients, a test and a stop after every round."""
    flwr = importlib.import_module("flwr.app")
    torch = importlib.import_module("torch")
    serverapp = importlib.import_module("flwr.serverapp")
    strategies = importlib.import_module("flwr.serverapp.strategy")
    torch.manual_seed(SEED)
    model = network(model_name)
    begin = [0.0]

    def accuracy(number: int, arrays: Any) -> Any:
        right = 0
        if number:
            model.load_state_dict(arrays.to_torch_state_dict())
            model.eval()
            images = loader(folder, TEST, shuffle=False)
            with torch.no_grad():
                for x, y in images:
                    right += int((model(x).argmax(1) == y).sum())
            found = right / len(images.dataset)
            print("turn", time.perf_counter() - begin[0], found, flush=True)
        else:
            print("ready", flush=True)
        sys.stdin.readline()
        begin[0] = time.perf_counter()
        return flwr.MetricRecord({"right": right})

    app = serverapp.ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        strategies.FedAvg(fraction_evaluate=0.0, min_evaluate_nodes=0).start(
            grid=grid,
            initial_arrays=flwr.ArrayRecord(model.state_dict()),
            num_rounds=rounds,
            evaluate_fn=accuracy,
        )

    return app


def main() -> None:
    file, folder, model_name = Path(sys.argv[1]), sys.argv[2], sys.argv[4]
    workers, epochs, rounds = (int(sys.argv[place]) for place in (3, 5, 6))
    clients = write_images(file, Path(folder))
    importlib.import_module("flwr.simulation").run_simulation(
        server_app=server_app(folder, model_name, rounds),
        client_app=client_app(folder, model_name, epochs),
        num_supernodes=clients,
        backend_config={
            "init_args": {"num_cpus": workers},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
