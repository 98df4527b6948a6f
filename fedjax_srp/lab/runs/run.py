"""Run: one value with all options of a run, built by the command line and by grids."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax

from fedjax_srp import data, methods, models
from fedjax_srp._version import __version__
from fedjax_srp.base import (
    Clock,
    FederatedAlgorithm,
    FederatedSource,
    Method,
    ParticipationPolicy,
)
from fedjax_srp.clocks.by_name import CLOCKS, read_clock
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.record import ROUNDS, UNKNOWN, data_checksum, program_of
from fedjax_srp.driver.settings import Settings
from fedjax_srp.lab.report import table
from fedjax_srp.lab.runs import options as run_options
from fedjax_srp.lab.runs import shared_training as judged
from fedjax_srp.models import SplitModel
from fedjax_srp.participation import Full
from fedjax_srp.parts.checks import as_annotated, check_known, short
from fedjax_srp.parts.description import describe, describe_data, is_own, own_code
from fedjax_srp.parts.options import REQUIRED, build, without_partial
from fedjax_srp.parts.part import values_of
from fedjax_srp.results.json_files import jsonable

SUMMARY_OPTION = "communication"  # of the summary alone, which a finished run recomputes for another value
JAX_SETTINGS = {  # name -> default, change results
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
}
VERSION = "version"  # of the package and of jax, in the record of a run
PROGRAM = "program"  # hashes of own code, in the record of a run
NOT_SIMULATED = (
    SUMMARY_OPTION,
    "data_dir",
    VERSION,
)  # change no simulation; the same data may be elsewhere on other machines
OPTIONS_OF_DATA_OBJECTS = (
    "validation",
    "partition_seed",
)  # options that also apply to data given as an object
_SEEDS = 2**32  # JAX keeps 32 bits of a seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run: method, data, policy, model, clock and simulation options.

    Method, policy, model, clock and data are names with options, or objects; they are loaded and built on first use.

    Attributes:
        method: name of a method or of an algorithm, or an object.
        data: options of the data, or {"data": an object, "validation": ..., "partition_seed": ...}, see `load_data`.
        participation: name of a policy, or an object; None for the method's own.
        model: name of a model, or an object.
        options: the given ones of method, policy and model, as for `srp.methods.get`.
        clock: text, see `fedjax_srp.clocks.by_name.read_clock`, or an object.
        settings: rounds, evaluations, limits and devices.
        names: option -> name of its object, for objects without a description.

    The others are options of `fedjax-srp run`, see `options`.
    """

    method: str | FederatedAlgorithm | Method
    data: Mapping[str, Any]
    participation: str | ParticipationPolicy | None = None
    model: str | SplitModel = "mlp"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    clock: str | Clock = "fixed"
    seed: int = 0
    communication: float = 0.0
    settings: Settings = dataclasses.field(default_factory=Settings)
    checkpoint: bool = True
    models: bool = False
    tensorboard: str | None = None
    wandb: str | None = None
    load: tuple[str, ...] = ()
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < _SEEDS:
            raise ValueError(f"seed={self.seed}: must lie between 0 and {_SEEDS - 1}")

    def __getstate__(
        self,
    ) -> dict[
        str, Any
    ]:  # without cached values, which may hold functions of loaded files
        fields = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        return fields | {
            "record": self.record
        }  # made here: workers may know its classes under other names

    @functools.cached_property
    def choice(self) -> methods.Choice | None:
        """The named method with its options; None for an object."""
        if not isinstance(self.method, str):
            return None
        return methods.choose(self.method, self.model, self.participation, **self.options)

    @functools.cached_property
    def method_object(self) -> Method:
        """The method given as an object, with its policy."""
        policy = Full() if self.participation is None else self.participation
        if isinstance(self.method, Method):
            if self.participation is not None:
                raise ValueError(
                    f"participation={short(policy)}: a Method has its own; give its algorithm as method"
                )
            return self.method
        if isinstance(policy, str):
            read = methods.routes("fedavg", policy).policy
            if (
                missing := {
                    name for name, each in read.items() if each.default is REQUIRED
                }
                - self.options.keys()
            ):
                raise ValueError(f"{min(missing)} is missing: {policy!r} needs it")
            policy = build(methods.POLICIES[policy], self.options)
        algorithm = as_annotated("method", self.method, FederatedAlgorithm)
        name = (
            algorithm.name
            if policy.name == "full"
            else f"{algorithm.name} + {policy.name}"
        )
        return Method(name, algorithm, policy)

    @property
    def name(self) -> str:
        """Name of the method, with its policy if that differs from the method's own."""
        return self.method_object.name if self.choice is None else self.choice.name

    @functools.cached_property
    def floats(self) -> dict[str, float]:
        """Options of the method that are arguments of its program, so that other values need no recompilation."""
        if self.choice is None:
            return {
                name: leaf
                for name, leaf in self.leaves.items()
                if isinstance(leaf, float)
            }
        names = self._command_line_names()
        return {names[name]: value for name, value in self.choice.floats().items()}

    @functools.cached_property
    def leaves(self) -> dict[str, Any]:
        """Leaves of the algorithm by dotted names, without those of its model."""
        if self.choice is not None:
            return self.choice.leaves()
        return {
            n: leaf
            for n, leaf in values_of(self.method_object.algorithm).items()
            if not n.startswith("model.")
        }

    @functools.cached_property
    def record(self) -> dict[str, Any]:
        """Record for the folder of the run: every option with its value as JSON, objects described.

        With a user's own code it has the hash of the program too, for which the data are loaded and the run is traced.
        """
        described = {
            "participation": self.participation,
            "model": self.model,
            "clock": self.clock,
        }
        if self.choice is None:
            method = self.method_object
            described["participation"] = method.participation
            described |= {"method": method.algorithm, "model": None}
            of_method: dict[str, Any] = {
                "algorithm": describe(method.algorithm),
                "participation": describe(method.participation),
            }
        else:
            names = self._command_line_names()
            of_method = {
                names.get(name, name): value
                for name, value in self.choice.record().items()
            }
            for part in ("participation", "model"):
                if not isinstance(described[part], str | None):
                    of_method[part] = describe(described[part])
        asked = {"command": "run", "method": self.name} | of_method
        asked |= self._record_of_data() | self._simulation_options()
        asked |= {
            "clock": describe(self.clock),
            "seed": self.seed,
            "communication": self.communication,
            VERSION: {"fedjax_srp": __version__, "jax": jax.__version__},
        }
        asked |= _jax_settings()
        own = {name: value for name, value in described.items() if _has_own_code(value)}
        if "data" in self.data and any(own_code(asked["dataset"])):
            own["data"] = self.data["data"]
        if own or self._is_made_by_own_code():
            asked[PROGRAM] = self._program(own)
        return jsonable(asked)

    def _is_made_by_own_code(self) -> bool:
        """Return True if a user registered the method, the policy, the model or the clock."""
        makers: list[Any] = []
        if isinstance(self.clock, str):
            own = CLOCKS.own()
            makers += [own.get(word) for word in re.findall(r"\w+", self.clock)]
        if self.choice is not None:
            makers.append(self.choice.route.factory)
            makers.append(methods.POLICIES.get(self.choice.route.participation))
        if isinstance(self.model, str):
            makers.append(models.FACTORIES.get(self.model))
        return any(maker is not None and is_own(maker) for maker in makers)

    def _program(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hashes of the program; of one without a hash, the reason and the user's names of its objects.

        Args:
            own: option -> object with a user's own code.
        """
        given = self.simulation(load_data(self.data))
        request = Request(
            given["algorithm"],
            given["data"],
            clock=given["clock"],
            settings=Settings(evaluations=given["evaluations"], devices=1),
        )
        program: dict[str, Any] = {**program_of(prepare(request))}
        if UNKNOWN not in program:
            return program
        for option, value in own.items():
            if option not in self.names:
                raise ValueError(
                    f"{option}={short(value)}: its program has no hash, since {program[UNKNOWN]}; name it, "
                    f"axes={{{option!r}: {{name: object}}}}, and change the name with the object"
                )
        return program | {"called": {option: self.names[option] for option in own}}

    def _command_line_names(self) -> dict[str, str]:
        """Option of method, policy or model -> its name on the command line."""
        chosen = {
            "method": self.method,
            "participation": self.participation,
            "model": self.model,
        }
        return {
            name: written for written, name in run_options.options_read(chosen).items()
        }

    def _record_of_data(self) -> dict[str, Any]:
        found = dict(self.data)
        if (own := found.pop("data", None)) is not None:
            name, settings = getattr(own, "name", type(own).__name__), describe_data(own)
            found["dataset"] = {"name": name, "checksum": data_checksum(own)} | settings
        return found

    def _simulation_options(self) -> dict[str, Any]:
        return {
            name: getattr(self.settings, name)
            for name in run_options.SIMULATION
            if name != "progress"
        }

    @functools.cached_property
    def training(self) -> Hashable:
        """Key that is equal for runs that share one training and differ only in their evaluation."""
        return self.program(), self.seed, *self.floats.items()

    def program(self, *left_out: str) -> Hashable:
        """Return a key that is equal for runs of one program: they differ in seed, `floats` and evaluation.

        It includes the evaluation if that also decides when the run ends, or what is logged.

        Args:
            *left_out: other options that may differ.
        """
        decides = (
            self.settings.target is not None
            or self.settings.evaluations == ()
            or self.tensorboard
            or self.wandb
        )
        left_out = (
            *self.floats,
            "seed",
            *(() if decides else ("method", "evaluations")),
            *left_out,
        )
        rest = {
            name: value for name, value in self.record.items() if name not in left_out
        }
        if not decides and ROUNDS in rest.get(PROGRAM, {}):
            rest[PROGRAM] = rest[PROGRAM][ROUNDS]
        if self.choice is not None:
            structure: Any = self.choice.route.factory
            if not decides and judged.chooses_evaluation(without_partial(structure)):
                rest.pop(judged.EVALUATION, None)
                if getattr(structure, "keywords", {}).keys() == {judged.EVALUATION}:
                    structure = structure.func
        else:
            algorithm = self.method_object.algorithm
            structure = jax.tree.structure(
                algorithm if decides else judged.with_default_evaluation(algorithm)
            )
            rest["algorithm"] = describe(getattr(algorithm, "model", None))
            rest["arrays"] = {
                name: describe(leaf)
                for name, leaf in self.leaves.items()
                if name not in self.floats
            }
        rest |= {
            "floats": [*self.floats],
            "models": self.models,
            "checkpoint": self.checkpoint,
        }
        return json.dumps(jsonable(rest), sort_keys=True), structure

    def simulation(self, dataset: FederatedSource) -> dict[str, Any]:
        """Return the arguments of `simulate`, except for the folder of checkpoints."""
        as_annotated("communication", self.communication, table.Cost)
        if self.choice is None:
            method = self.method_object
        else:
            given = {
                "model": self.model,
                "participation": self.participation,
                **self.options,
            }
            method = methods.get(str(self.method), dataset=dataset, **given)
        if self.communication and method.participation.asynchronous:
            raise ValueError(
                f"communication={self.communication:g}: rounds of {self.name!r} overlap, so a cost changes the order "
                "of arrivals; give it to the clock, e.g. --clock 'fixed:exponential(1) + 10'"
            )
        clock = (
            self.clock if isinstance(self.clock, Clock) else self._parsed_clock(dataset)
        )
        found = self._simulation_options() | {
            "algorithm": method,
            "data": dataset,
            "clock": clock,
        }
        if self.settings.evaluations == ("all",):
            found["evaluations"] = "all"
        return found | {"key": jax.random.key(self.seed)}

    def _parsed_clock(self, dataset: FederatedSource) -> Clock:
        """Return the clock of a text for the clients of a data set, by name where a trace has names."""
        names = getattr(dataset, "client_names", None)
        return read_clock(str(self.clock), dataset.num_clients, names)


def _jax_settings() -> dict[str, Any]:
    """Return the settings of JAX that change results and differ from their defaults."""
    return {
        name: now
        for name, default in JAX_SETTINGS.items()
        if (now := getattr(jax.config, name)) != default
    }


@contextlib.contextmanager
def recorded_jax_settings(record: Mapping[str, Any]) -> Iterator[None]:
    """Set JAX as it was in the process that made the record."""
    with contextlib.ExitStack() as stack:
        for name, default in JAX_SETTINGS.items():
            now, wanted = getattr(jax.config, name), record.get(name, default)
            if (context := getattr(jax, name.removeprefix("jax_"), None)) is not None:
                stack.enter_context(context(wanted))
            elif now != wanted:
                stack.callback(jax.config.update, name, now)
                jax.config.update(name, wanted)
        yield


def differing(known: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Return the options in which two records differ: those that decide what is simulated.

    Programs are compared under one version alone, since another one may trace equal code to another text.
    """
    left_out = [*NOT_SIMULATED]
    if known.get(VERSION) != record.get(VERSION):
        left_out.append(PROGRAM)
    return [
        name
        for name in {**record, **known}
        if name not in left_out and known.get(name) != record.get(name)
    ]


def _has_own_code(value: Any) -> bool:
    return any(own_code(describe(value)))


class DatasetCache:
    """Loader of the data of runs that keeps the last ones, since neighbours in a grid share them."""

    def __init__(self) -> None:
        self._options: Mapping[str, Any] = {}
        self._dataset: FederatedSource | None = None

    def __call__(self, options: Mapping[str, Any]) -> FederatedSource:
        """Load the data of a run; a data object has a share held out if `validation` is given."""
        if self._dataset is None or not self._are_last(options):
            self._dataset = None  # frees its memory first
            self._dataset = _load_data(options)
            self._options = options
        return self._dataset

    def _are_last(self, options: Mapping[str, Any]) -> bool:
        # an object with arrays may not be compared by value
        if options.get("data") is not self._options.get("data"):
            return False
        return {**options, "data": None} == {**self._options, "data": None}


load_data = DatasetCache()


def _load_data(given: Mapping[str, Any]) -> FederatedSource:
    try:
        if "data" not in given:
            return data.load(
                **{
                    {"dataset": "name", "partition_seed": "seed"}.get(o, o): v
                    for o, v in given.items()
                }
            )
        own, share = given["data"], given["validation"]
        return own if share is None else data.holdout(own, share, given["partition_seed"])
    except ValueError as error:  # these functions have other names for some options
        written = {"name": "dataset", "seed": "partition_seed", "fraction": "validation"}
        name, equals, rest = str(error).partition("=")
        raise ValueError(f"{written.get(name, name)}{equals}{rest}") from None


def from_options(given: Mapping[str, Any], names: Mapping[str, str] | None = None) -> Run:
    """Build a run from the options of the command line or of a grid.

    Args:
        given: option of `fedjax-srp run`, with underscores -> value; None means not given. In Python "data" may replace
            "dataset", and method, participation, model, clock and data may be objects.
        names: option -> name of its object.
    """
    given = {name: value for name, value in given.items() if value is not None}
    given = run_options.with_policy_read(given)
    if ("method" in given) == ("algorithm" in given):
        raise ValueError(
            "give either --method or --algorithm; fedjax-srp list shows both"
        )
    if "algorithm" in given:
        check_known("algorithm", [given["algorithm"]], methods.algorithm_names())
    method: Any = given.get("method", given.get("algorithm"))
    read = run_options.options_read(given)
    options = {}
    for word in sorted(given.keys() - run_options.FIXED - {"data"}):
        is_known_by_name = (
            isinstance(method, str) and word.partition(".")[0] not in run_options.OWNERS
        )
        if (
            word not in read and not is_known_by_name
        ):  # else `methods.choose` names the methods that read it
            raise ValueError(f"{word}: has no effect on this run; leave it out")
        options[read.get(word, word)] = given[word]
    fields = {field.name for field in dataclasses.fields(Run)}
    fields -= {"method", "data", "options", "settings", "names"}
    of_run = {name: value for name, value in given.items() if name in fields}
    of_settings = {n: value for n, value in given.items() if n in run_options.SIMULATION}
    made = Run(
        method=method,
        data=_data(given),
        options=options,
        settings=Settings(**of_settings),
        names=names or {},
        **of_run,
    )
    _ = made.choice or made.method_object  # refuses unread options
    if "redraw" in given and "pool" not in given:
        raise ValueError(
            "redraw: has no effect without a pool; leave it out, or give a pool"
        )
    return made


def _data(given: Mapping[str, Any]) -> dict[str, Any]:
    if ("data" in given) == ("dataset" in given):
        missing = "dataset is missing; fedjax-srp list shows the data sets"
        raise ValueError(
            "data and dataset: give only one of the two" if "data" in given else missing
        )
    known = OPTIONS_OF_DATA_OBJECTS if "data" in given else run_options.DATA
    if unread := [
        name for name in run_options.DATA if name in given and name not in known
    ]:
        raise ValueError(
            f"{unread[0]}: has no effect on data given as an object; leave it out"
        )
    found = {name: given.get(name, run_options.DATA[name].default) for name in known}
    return {"data": given["data"], **found} if "data" in given else found
