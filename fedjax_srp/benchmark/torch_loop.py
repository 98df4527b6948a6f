"""The rival: a lean PyTorch loop over clients. No data loader; features recomputed in each head epoch, as people do."""

# pyright: reportMissingImports=false

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch
from torch import nn


class TorchLoop:
    """FedAvg and FedRep rounds and FedRep's evaluation, one client after the other.

    Args:
        x: (clients, examples, features) float32 training inputs.
        y: (clients, examples) int labels.
        x_test: (clients, test examples, features).
        y_test: (clients, test examples).
        hidden: widths of the hidden layers.
        batch_size: examples a step.
    """

    def __init__(self, x, y, x_test, y_test, hidden, batch_size=10, num_classes=10):
        self.x, self.y = torch.tensor(x), torch.tensor(y, dtype=torch.long)
        self.x_test, self.y_test = torch.tensor(x_test), torch.tensor(y_test, dtype=torch.long)
        self.batch_size, self.num_clients = batch_size, len(x)
        widths = [x.shape[-1], *hidden]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.model = nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
        self.head = self.model[-1]
        self.body = [p for p in self.model.parameters() if all(p is not q for q in self.head.parameters())]
        self.heads = [copy.deepcopy(self.head.state_dict()) for _ in range(self.num_clients)]
        self.loss = nn.CrossEntropyLoss()

    def _epochs(self, client, parameters, epochs, momentum=0.0):
        parameters = list(parameters)
        for p in self.model.parameters():
            p.requires_grad_(any(p is q for q in parameters))
        optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=momentum)
        x, y = self.x[client], self.y[client]
        for _ in range(epochs):
            order = torch.randperm(len(y))
            for begin in range(0, len(y), self.batch_size):
                rows = order[begin : begin + self.batch_size]
                optimizer.zero_grad()
                self.loss(self.model(x[rows]), y[rows]).backward()
                optimizer.step()

    def fedavg_round(self):
        """One epoch at every client, and the mean."""
        start = [p.detach().clone() for p in self.model.parameters()]
        total = [torch.zeros_like(p) for p in start]
        for client in range(self.num_clients):
            self._load(self.model.parameters(), start)
            self._epochs(client, self.model.parameters(), 1)
            for t, p in zip(total, self.model.parameters(), strict=True):
                t += p.detach()
        self._load(self.model.parameters(), [t / self.num_clients for t in total])

    def fedrep_round(self, head_epochs=10):
        """Epochs of the head, one of the rest at every client, and the mean of the rest."""
        start = [p.detach().clone() for p in self.body]
        total = [torch.zeros_like(p) for p in start]
        for client in range(self.num_clients):
            self._load(self.body, start)
            self.head.load_state_dict(self.heads[client])
            self._epochs(client, self.head.parameters(), head_epochs, 0.5)
            self._epochs(client, self.body, 1, 0.5)
            self.heads[client] = copy.deepcopy(self.head.state_dict())
            for t, p in zip(total, self.body, strict=True):
                t += p.detach()
        self._load(self.body, [t / self.num_clients for t in total])

    def fine_tuned_evaluation(self, epochs=10):
        """Mean accuracy after epochs of the head at every client."""
        start = copy.deepcopy(self.head.state_dict())
        correct = []
        for client in range(self.num_clients):
            self.head.load_state_dict(start)
            self._epochs(client, self.head.parameters(), epochs, 0.5)
            with torch.no_grad():
                guess = self.model(self.x_test[client]).argmax(1)
            correct.append((guess == self.y_test[client]).float().mean().item())
        self.head.load_state_dict(start)
        return float(np.mean(correct))

    @staticmethod
    @torch.no_grad()
    def _load(parameters, values):
        for p, v in zip(parameters, values, strict=True):
            p.copy_(v)
