"""Run: one value with all options of a run, built by the command line and by grids."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax

from fedjax_srp import data, methods, models
from fedjax_srp.base import (
    Clock,
    FederatedAlgorithm,
    FederatedSource,
    Method,
    ParticipationPolicy,
)
from fedjax_srp.clocks.by_name import read_clock
from fedjax_srp.driver.given import SEEDS
from fedjax_srp.driver.prepare import Request, check_evaluations, prepare
from fedjax_srp.driver.record import (
    JAX_SETTINGS,
    ROUNDS,
    asked,
    of_data,
    program_of_request,
    with_names,
    words_of,
)
from fedjax_srp.driver.settings import Settings
from fedjax_srp.lab.report import table
from fedjax_srp.lab.runs import options as run_options
from fedjax_srp.lab.runs import shared_training as judged
from fedjax_srp.models import SplitModel
from fedjax_srp.parts.checks import ArgumentError, as_annotated, check_known, short
from fedjax_srp.parts.description import describe, describe_data, is_own, own_code
from fedjax_srp.parts.options import REQUIRED, build
from fedjax_srp.parts.part import values_of
from fedjax_srp.results.json_files import jsonable
from fedjax_srp.results.records import (
    LIMITS,
    MODEL,
    PROGRAM,
    UNKNOWN,
    WORDS,
    contradictions,
    without,
)

# options that also apply to data given as an object
OPTIONS_OF_DATA_OBJECTS = ("validation", "partition_seed")
_OF_LOAD = {"dataset": "name", "partition_seed": "seed"}  # option -> argument of `load`
_OF_MACHINE = ("chunk_size", "devices", "shard_data")
_NAMED = ("method", "participation", "clock")
# fields of algorithms, whose sizes have to be those of data
_FITS_DATA = ("model", "task")
_PLAIN = (bool, int, float, str, tuple)  # words and numbers of a command


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
        names: option -> name of its object, for objects whose program is unknown.

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
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"seed={self.seed}: must lie between 0 and {SEEDS - 1}")

    def __getstate__(self) -> dict[str, Any]:
        # without cached values, which may hold functions of loaded files
        fields = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        # made here: workers may know its classes under other names
        return fields | {"record": self.record}

    def with_seed(self, seed: int) -> Run:
        """Return the run with another seed, which shares all that does not depend on it."""
        other = dataclasses.replace(self, seed=seed)
        _ = self.program  # which is shared
        record = self.record | {"key": words_of(jax.random.key(seed))}
        shared = vars(self) | vars(other) | {"record": record}
        shared.pop("training", None)
        vars(other).update(shared)
        return other

    @functools.cached_property
    def choice(self) -> methods.Choice | None:
        """The named method with its options; None for an object."""
        if not isinstance(self.method, str):
            return None
        return methods.choose(self.method, self.model, self.participation, **self.options)

    @functools.cached_property
    def _object(self) -> Method:
        """The method given as an object, with its policy."""
        policy = self.participation
        if policy is None:
            policy = methods.POLICIES["full"]()
        if isinstance(self.method, Method):
            if self.participation is not None:
                raise ValueError(
                    f"participation={short(policy)}: a Method has its own; give its algorithm as method"
                )
            return self.method
        if isinstance(policy, str):
            read = methods.routes("fedavg", policy).policy
            required = {n for n, each in read.items() if each.default is REQUIRED}
            if missing := required - self.options.keys():
                raise ValueError(f"{min(missing)} is missing: {policy!r} needs it")
            policy = build(methods.POLICIES[policy], self.options)
        algorithm = as_annotated("method", self.method, FederatedAlgorithm)
        name = algorithm.name
        if policy.name != "full":
            name = f"{algorithm.name} + {policy.name}"
        return Method(name, algorithm, policy)

    @property
    def name(self) -> str:
        """Name of the method, with its policy if that differs from the method's own."""
        return self._object.name if self.choice is None else self.choice.name

    @functools.cached_property
    def parts(self) -> Method:
        """The method; one by name is made without data, on a placeholder of its model.

        A user's makers may look at the model, so they get it.
        """
        if self.choice is None:
            return self._object
        if self._has_own_maker:
            return self._made_for_data
        return self.choice.on_placeholder()

    @functools.cached_property
    def _has_own_maker(self) -> bool:
        """True if a user registered the maker of the algorithm or of the model."""
        makers: list[Any] = []
        if self.choice is not None:
            makers.append(self.choice.route.factory)
        if isinstance(self.model, str):
            makers.append(models.FACTORIES.get(self.model))
        return any(maker is not None and is_own(maker) for maker in makers)

    @property
    def dataset(self) -> FederatedSource:
        """Its data; the last ones of all runs are kept."""
        return load_data(self.data)

    @property
    def _made_for_data(self) -> Method:
        """The method, with the model for its data."""
        if self.choice is None:
            return self._object
        given = {"model": self.model, "participation": self.participation}
        return methods.get(
            str(self.method), dataset=self.dataset, **given, **self.options
        )

    @functools.cached_property
    def clock_object(self) -> Clock:
        """The clock; of a text that needs an unknown number of clients, or their names, for loaded data."""
        if isinstance(self.clock, Clock):
            return self.clock
        own = self.data.get("data")
        num_clients = self.data["num_clients"] if own is None else own.num_clients
        if "trace" not in self.clock:
            if num_clients is not None:
                return read_clock(self.clock, num_clients)
            with contextlib.suppress(ValueError):
                return read_clock(self.clock)
        names = getattr(self.dataset, "client_names", None)
        return read_clock(self.clock, self.dataset.num_clients, names)

    @functools.cached_property
    def leaves(self) -> dict[str, Any]:
        """Leaves of the algorithm by dotted names, without those of its model."""
        found = values_of(self.parts.algorithm)
        return {
            name: leaf
            for name, leaf in found.items()
            if not name.removeprefix("algorithm.").startswith("model.")
        }

    @functools.cached_property
    def floats(self) -> dict[str, float]:
        """Leaves that are arguments of the program, so that other values need no recompilation."""
        leaves = self.leaves.items()
        return {name: leaf for name, leaf in leaves if isinstance(leaf, float)}

    @functools.cached_property
    def record(self) -> dict[str, Any]:
        """The record of the run, in the form of `History.config`: all facts that are known without data by name.

        These lack their checksum, and a model by name is described by its options. With a user's own code it has the
        hash of the program, for which data are loaded, and the first run of these parts is traced.
        """
        method = self.parts
        clock = self.clock_object
        evaluations = check_evaluations(method.algorithm, self.settings.evaluations)
        key = jax.random.key(self.seed)
        found = asked(method, clock, evaluations, self.settings, key)
        given = {name: getattr(self, name) for name in _NAMED} | dict(self.options)
        found[WORDS] = describe({n: v for n, v in given.items() if isinstance(v, _PLAIN)})
        policy = describe(method.participation)
        described: dict[str, Any] = {
            "method": describe(method.algorithm),
            "clock": describe(clock),
            "model": None,
        }
        if self.choice is not None:
            found[MODEL] = describe(self.choice.model_options())
            described["model"] = found[MODEL]
            if not self._has_own_maker:
                _within_codes(found["method"]["algorithm"]).pop("model", None)
        if isinstance(self.method, Method):
            described["method"] = [described["method"], policy]
        else:
            described["participation"] = policy
        if "data" in self.data:
            found["data"] = of_data(self.dataset)
            described["data"] = describe_data(self.dataset)
        else:
            found["data"] = {"options": describe(_arguments_of_load(self.data))}
        own = {option: [*own_code(each)] for option, each in described.items()}
        if any(own.values()):
            found[PROGRAM] = self._program(evaluations, own)
        return jsonable(found)

    def _program(
        self, evaluations: Sequence[str], own: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """Return the hashes of the program; of one without a hash, the reason and the user's names of its objects.

        Args:
            evaluations: their names.
            own: option -> names of its own code.
        """
        settings = Settings(evaluations=evaluations, devices=1)
        request = Request(
            self._made_for_data,
            self.dataset,
            clock=self.clock_object,
            settings=settings,
        )
        program = program_of_request(request)
        found = with_names(program, itertools.chain(*own.values()))
        if UNKNOWN not in program:
            return found
        called = {}
        for option in own:
            value = getattr(self, option)
            if option == "data":
                value = value.get("data", "")
            if not own[option] or isinstance(value, str):
                continue
            if option not in self.names:
                raise ValueError(
                    f"{option}={short(value)}: its program has no hash, since {program[UNKNOWN]}; name it, "
                    f"axes={{{option!r}: {{name: object}}}}, and change the name with the object"
                )
            called[option] = self.names[option]
        if called:
            found["called"] = called
        return found

    def differing(self, known: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the facts in which the run of a folder is another one: dotted name -> (asked for, known).

        Args:
            known: its record, or what was asked for there.
        """
        ours = self.record
        unasked = []
        if "checksum" not in ours["data"]:
            facts = ("checksum", "name", "num_clients", "class_names")
            unasked += [f"data.{fact}" for fact in facts]
        if "model" not in _within_codes(ours["method"]["algorithm"]):
            if known.get(MODEL) is not None:
                unasked += ["method.algorithm.model", "method.algorithm.algorithm.model"]
            else:  # saved from Python: its model is known by constructor alone
                algorithm = self._made_for_data.algorithm
                of_method = ours["method"] | {"algorithm": jsonable(describe(algorithm))}
                ours = ours | {"method": of_method}
        found = contradictions(ours, without(known, *unasked))
        return {name: (asked, had) for name, asked, had in found}

    def other_limits(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits of the run of a folder that are not those asked for."""
        wanted = self.record["schedule"]
        had = known.get("schedule") or {}
        return {n: had.get(n) for n in LIMITS if had.get(n) != wanted[n]}

    @functools.cached_property
    def training(self) -> Hashable:
        """Key that is equal for runs that share one training and differ only in their evaluation."""
        return self.program, self.seed, *self.floats.items()

    @functools.cached_property
    def program(self) -> Hashable:
        """Key that is equal for runs of one program and length: they differ in seed, `floats` and evaluation.

        It includes the evaluation if that also decides when the run ends, or what is logged.
        """
        limits = self.record["schedule"]
        return self.program_of_any_length, *(limits[name] for name in LIMITS)

    @functools.cached_property
    def program_of_any_length(self) -> Hashable:
        """Key as `program`, but for the limits."""
        decides = (
            self.settings.target is not None
            or self.settings.evaluations == ()
            or self.tensorboard
            or self.wandb
        )
        algorithm = self.parts.algorithm
        rest = without(
            self.record,
            *("method", "key", "evaluations", PROGRAM, WORDS),
            *(f"schedule.{name}" for name in LIMITS),
        )
        program = self.record[PROGRAM] or {}
        if decides:
            rest |= {PROGRAM: program, "evaluations": self.record["evaluations"]}
            rest["name"] = self.name
        else:
            algorithm = judged.with_default_evaluation(algorithm)
            rest[PROGRAM] = program.get(ROUNDS, program)
        arrays = {n: each for n, each in self.leaves.items() if n not in self.floats}
        rest |= {
            "arrays": describe(arrays),
            "algorithm.model": describe(getattr(algorithm, "model", None)),
            "participation": self.record["method"]["participation"],
            "machine": [getattr(self.settings, name) for name in _OF_MACHINE],
            "models": self.models,
            "checkpoint": self.checkpoint,
        }
        structure = jax.tree.structure(algorithm)
        return json.dumps(jsonable(rest), sort_keys=True), structure

    @functools.cached_property
    def contract(self) -> str:
        """Key that is equal for runs of which a plan traces one.

        Beside their seeds they differ in numbers of an algorithm alone, whose fields have bounds; with own code they
        are runs of one program.
        """
        record = without(self.record, "key", WORDS)
        if not self.record[PROGRAM]:
            algorithm = record["method"]["algorithm"]
            kinds = jax.tree_util.tree_map_with_path(_kind_of_number, algorithm)
            record["method"] = record["method"] | {"algorithm": kinds}
        facts = [record, repr(self.settings), self.communication]
        return json.dumps(facts, sort_keys=True)

    def check(self, most_devices: int | None) -> None:
        """Trace the run; a ValueError for what is wrong, see `request`."""
        prepare(self.request(most_devices, self.record["evaluations"]))

    def request(self, most_devices: int | None, evaluations: Sequence[str]) -> Request:
        """Return the request to the engine, on devices of this process.

        Args:
            most_devices: where it will run; None if that is unknown.
            evaluations: their names.

        Raises:
            ValueError: it asks for more devices.
        """
        arguments = self.simulation()
        devices = arguments["devices"]
        if devices is not None:
            if most_devices is not None and devices > most_devices:
                raise ValueError(
                    f"devices={devices}: a run has {most_devices} here; give no more, or fewer workers"
                )
            devices = min(devices, len(jax.devices()))
        settings = dataclasses.replace(
            self.settings, devices=devices, evaluations=evaluations
        )
        return Request(
            arguments["algorithm"],
            arguments["data"],
            clock=arguments["clock"],
            settings=settings,
        )

    def simulation(self) -> dict[str, Any]:
        """Return the arguments of `simulate`, except for the folder of checkpoints."""
        as_annotated("communication", self.communication, table.Cost)
        method = self._made_for_data
        if self.communication and method.participation.asynchronous:
            raise ValueError(
                f"communication={self.communication:g}: rounds of {self.name!r} overlap, so a cost changes the order "
                "of arrivals; give it to the clock, e.g. --clock 'fixed:exponential(1) + 10'"
            )
        names = [name for name in run_options.SIMULATION if name != "progress"]
        found = {name: getattr(self.settings, name) for name in names}
        if self.settings.evaluations == ("all",):
            found["evaluations"] = "all"
        key = jax.random.key(self.seed)
        parts = {"algorithm": method, "data": self.dataset, "clock": self.clock_object}
        return found | parts | {"key": key}


def _kind_of_number(path: tuple[Any, ...], leaf: Any) -> Any:
    """Return the type of a number in a description; all else, and sizes of `_FITS_DATA`, as they are."""
    names = {getattr(step, "key", None) for step in path}
    if type(leaf) not in (int, float) or not names.isdisjoint(_FITS_DATA):
        return leaf
    return type(leaf).__name__


def _within_codes(described: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an algorithm, without codes and privacy of its messages."""
    inner = described.get("algorithm")
    return _within_codes(inner) if isinstance(inner, dict) else described


@contextlib.contextmanager
def recorded_jax_settings(record: Mapping[str, Any]) -> Iterator[None]:
    """Set JAX as it was in the process that made the record."""
    with contextlib.ExitStack() as stack:
        for name, default in JAX_SETTINGS.items():
            now = getattr(jax.config, name)
            wanted = record["jax"].get(name, default)
            context = getattr(jax, name.removeprefix("jax_"), None)
            if context is not None:
                stack.enter_context(context(wanted))
            elif now != wanted:
                stack.callback(jax.config.update, name, now)
                jax.config.update(name, wanted)
        yield


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


def _arguments_of_load(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `srp.data.load`."""
    return {_OF_LOAD.get(option, option): value for option, value in given.items()}


def _load_data(given: Mapping[str, Any]) -> FederatedSource:
    try:
        if "data" not in given:
            return data.load(**_arguments_of_load(given))
        own = given["data"]
        share = given["validation"]
        if share is None:
            return own
        return data.holdout(own, share, given["partition_seed"])
    except ArgumentError as error:
        called = {name: option for option, name in _OF_LOAD.items()}
        called["fraction"] = "validation"
        raise error.renamed(called.get(error.argument, error.argument)) from None


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
        has_owner = word.partition(".")[0] in run_options.OWNERS
        is_known_by_name = isinstance(method, str) and not has_owner
        # else `methods.choose` names the methods that read it
        if word not in read and not is_known_by_name:
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
    _ = made.choice or made._object  # refuses unread options
    if "redraw" in given and "pool" not in given:
        raise ValueError(
            "redraw: has no effect without a pool; leave it out, or give a pool"
        )
    return made


def _data(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the data, with defaults; those of an object are few."""
    is_object = "data" in given
    if is_object and "dataset" in given:
        raise ValueError("data and dataset: give only one of the two")
    if not is_object and "dataset" not in given:
        raise ValueError("dataset is missing; fedjax-srp list shows the data sets")
    found = {}
    if is_object:
        found["data"] = given["data"]
    for name, option in run_options.DATA.items():
        if not is_object or name in OPTIONS_OF_DATA_OBJECTS:
            found[name] = given.get(name, option.default)
        elif name in given:
            raise ValueError(
                f"{name}: has no effect on data given as an object; leave it out"
            )
    return found
