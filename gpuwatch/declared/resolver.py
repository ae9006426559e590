"""Resolver of declared shares: computes from the facts of one process its limit on each GPU.

Within one framework the candidate of the highest rank counts. Frameworks that share an allocator (vLLM and PyTorch) are
limited to the lowest of their candidates; frameworks with separate allocators to the sum: a fifth for CuPy and two
fifths for PyTorch make three fifths. Where the process uses a framework that nothing limits, or another package with
an allocator of its own, the others limit only themselves. The lowest of that and of the layers below the frameworks
(MPS, HAMi, an agreement) is the limit. A limit that several processes share (a container, an agreement) is kept apart
from the limit of one process.

A candidate for a framework that the process does not use is excluded first: a variable for JAX limits no PyTorch job.
A declaration without a limit (start sizes, caches, reserves, growth, defaults) is a label and never in `limits`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from gpuwatch.base import programs
from gpuwatch.base.text import clean
from gpuwatch.base.units import size
from gpuwatch.declared import env, flags, frameworks, visible_devices
from gpuwatch.declared.env import UNSURE, Environment, weakest
from gpuwatch.declared.facts import (
    NO_GPU,
    OBJECTS,
    Candidate,
    Facts,
    GpuFacts,
    RelatedProcess,
    Selection,
    Share,
    Unread,
    format_excerpt,
)
from gpuwatch.declared.flags import find_program
from gpuwatch.declared.script_values import read_ordinals
from gpuwatch.model.snapshot import (
    LIMITS,
    Basis,
    Confidence,
    Declaration,
    Declared,
    Hint,
    Kind,
    Knowledge,
    Limit,
    Margin,
    Order,
)

_SEARCHED = 4096
"""Characters of a command line in which a pattern is searched, at most."""

_JAX_VISIBLE = "JAX_CUDA_VISIBLE_DEVICES"


def agreed_candidates(facts: Facts, gpus: Sequence[GpuFacts]) -> list[Candidate]:
    """Return a candidate per GPU for each agreed share that matches a process; of one GPU the lowest comes last.

    A share belongs to one user: all processes of that user that match one table count together, so that the scope names
    the user, the table's pattern and the GPU. Where several tables of one scope match, the lowest counts, so that
    nobody exceeds the administrator's ceiling. Patterns must compile; nothing else raises.
    """
    line, users = " ".join(facts.argv)[:_SEARCHED], ("", facts.user, str(facts.uid))
    matching = [
        (share.memory if share.memory is not None else (share.share or 0.0) * (gpu.total or 0), share, gpu)
        for share in facts.shares
        if share.user in users and (not share.command or re.search(share.command, line))
        for gpu in _chosen(share, gpus)
    ]
    return [_candidate(share, gpu, facts) for _, share, gpu in sorted(matching, key=lambda one: -one[0])]


def _chosen(share: Share, gpus: Sequence[GpuFacts]) -> Iterable[GpuFacts]:
    """Return the GPUs of a share, in the machine's order; an ambiguous beginning of a UUID means no GPU."""
    if not share.gpus:
        return gpus
    named = {gpu for gpu in share.gpus if isinstance(gpu, int)}
    for start in share.gpus:
        fitting = [gpu.index for gpu in gpus if isinstance(start, str) and gpu.uuid.startswith(start)]
        named.update(fitting if len(fitting) == 1 else ())
    return [gpu for gpu in gpus if gpu.index in named]


def _candidate(share: Share, gpu: GpuFacts, facts: Facts) -> Candidate:
    who = facts.user or ("anybody" if facts.uid is None else str(facts.uid))
    what = f" for {format_excerpt(share.command)}" if share.command else ""
    said = f"share = {share.share:g}" if share.share is not None else f"memory = {size(share.memory or 0)}"
    return Candidate(
        channel="gpuwatch.toml",
        where=clean(share.where),
        line=share.line,
        text=f"ceiling, {said}" if share.ceiling else said,
        kind=Kind.GRANT,
        basis=Basis.TOTAL if share.share is not None else Basis.BYTES,
        value=share.share if share.share is not None else share.memory,
        scope=f"share of {clean(who)}{what} on GPU {gpu.index}",
        device=gpu.uuid,
    )


class Evaluation(msgspec.Struct):
    """Candidate with its limits, or the reason why it sets none."""

    candidate: Candidate
    place: int
    why: str = ""
    """Why it is not in effect, or is no limit."""
    applies: bool = True
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    lifted: frozenset[str] = frozenset()
    """GPUs on which it replaces other candidates and gives no number: it is dynamic, or removes the limit."""
    guessed: bool = False
    """Whether its GPU is a guess, see `model.snapshot.Declaration`."""
    undecided: bool = False
    """As in `model.snapshot.Declaration.undecided`."""
    on: set[str] = msgspec.field(default_factory=set)
    """GPUs on which it is the limit, or a part of it."""

    @property
    def possible(self) -> bool:
        """Whether it depends on a condition that is not known to hold."""
        return self.candidate.confidence is Confidence.POSSIBLE

    @property
    def rival(self) -> str:
        """Framework, or else channel: of the candidates with the same one only one can be in effect."""
        return self.candidate.framework or self.candidate.channel

    def exclude(self, why: str) -> None:
        self.applies, self.why = False, why

    def leave_undecided(self, why: str, targets: Iterable[visible_devices.TargetGpu]) -> None:
        """Remove its limits; on each GPU that it may concern it still replaces other candidates."""
        self.why, self.limits, self.undecided = self.why or why, {}, True
        self.lifted = frozenset(target.gpu for target in targets)

    def limit_confidence(self, confidence: Confidence) -> None:
        """Lower the confidence of the candidate to another one, unless it is lower."""
        confidence = weakest(self.candidate.confidence, confidence)
        self.candidate = msgspec.structs.replace(self.candidate, confidence=confidence)


_Parts: TypeAlias = tuple[Evaluation, ...]
"""Candidates that add up to the limit of a process on one GPU, the largest first; most limits have one."""

_Scope: TypeAlias = tuple[str, str]
"""Scope and GPU of a limit."""

_Rivals: TypeAlias = tuple[str, str, str]
"""Scope, GPU and `rival` of an evaluation."""


def find_limits(evaluations: Sequence[Evaluation], using: Collection[str]) -> dict[_Scope, _Parts]:
    """Return the parts of the limit of each scope on each GPU, and set on which GPUs an evaluation is a part of it.

    `using` are the allocators that the process uses; an allocator without a limit may take any amount. A framework
    that is one of them does not share that of another.
    """
    rivals: defaultdict[_Rivals, list[Evaluation]] = defaultdict(list)
    for one in evaluations:
        for gpu in (*one.limits, *one.lifted):
            rivals[one.candidate.scope, gpu, one.rival].append(one)
    best = {key: winner for key, several in rivals.items() if (winner := _winner(several, key[1])) is not None}
    least, unlimited = _least(best, using)
    for (_, gpu), parts in least.items():
        for one in parts:
            one.on.add(gpu)
            if one is not parts[0]:
                one.why = f"it adds to {short_name(parts[0], one)}: each has its own allocator"
    for evaluation in evaluations:
        others = [gpu for gpu in evaluation.limits if gpu not in evaluation.on and not evaluation.possible]
        why = _explain_loss(evaluation, others, best, least, unlimited) if others else ""
        if others and evaluation.on:
            evaluation.why = evaluation.why or f"elsewhere {why or 'it limits only its framework'}"
        elif others:
            evaluation.why = why
            if not why:
                own, other = evaluation.candidate.framework, unlimited[evaluation.candidate.scope, others[0]]
                evaluation.why = f"it limits only {frameworks.NAMES[own]}: {other} may take any amount"
                evaluation.limits, evaluation.undecided = {}, True
    return least


def _least(
    best: Mapping[_Rivals, Evaluation], using: Collection[str]
) -> tuple[dict[_Scope, _Parts], dict[_Scope, str]]:
    """Return the parts of the limit on each GPU in each scope; where there is none, a framework without a limit."""
    allocators: defaultdict[_Scope, defaultdict[str, list[Evaluation]]] = defaultdict(lambda: defaultdict(list))
    layers: defaultdict[_Scope, list[_Parts]] = defaultdict(list)
    for (scope, gpu, _), one in best.items():
        if one.candidate.framework:
            own = one.candidate.framework
            allocators[scope, gpu][own if own in using else frameworks.IMPLIED.get(own, own)].append(one)
        elif gpu not in one.lifted:
            layers[scope, gpu].append((one,))
    unlimited: dict[_Scope, str] = {}
    single = [name for name in using if name != "vllm"]  # without a limit it is PyTorch's that counts
    for (scope, gpu), families in allocators.items():
        found: dict[str, Evaluation | None] = {}  # the lowest that share an allocator; None where none has a number
        for name in (*families, *single):
            limited = (one for one in families.get(name, ()) if gpu not in one.lifted)
            found[name] = min(limited, key=lambda one: _order((one,), gpu), default=None)
        largest = sorted((one for one in found.values() if one is not None), key=lambda one: -one.limits[gpu])
        if len(largest) == len(found):
            layers[scope, gpu].append(tuple(largest))
        else:
            unlimited[scope, gpu] = next(frameworks.NAMES.get(name, name) for name, one in found.items() if one is None)
    return {key: min(several, key=lambda parts: _order(parts, key[1])) for key, several in layers.items()}, unlimited


def _sum_bytes(parts: _Parts, gpu: str) -> int:
    return sum(one.limits[gpu] for one in parts)


def _order(parts: _Parts, gpu: str) -> tuple[bool, int, int, int]:
    """Return the sort key of a limit: one that may not be in effect lowers none that is; of equal ones by the kind."""
    unsure = any(one.candidate.confidence in UNSURE for one in parts)
    kind = (Kind.HARD, Kind.CAP, Kind.GRANT).index(parts[0].candidate.kind)
    return (unsure, _sum_bytes(parts, gpu), kind, parts[0].place)


def _winner(evaluations: Sequence[Evaluation], gpu: str) -> Evaluation | None:
    """Return the candidate of the highest rank (the last of equal ones), or the largest of those that may be in effect.

    The limit is never lower than one that may be in effect: the order of a script's statements is not known, nor
    whether a possible one has run. Where a possible one allows more, it is returned, and leaves the limit open; None
    where nothing is known to be in effect below the frameworks.
    """
    may_hold: list[Evaluation] = []
    for one in sorted(evaluations, key=lambda one: (one.candidate.rank, one.place), reverse=True):
        if may_hold:  # may it be in effect although the last one takes precedence?
            last = may_hold[-1].candidate
            same = bool(last.framework and last.line and last.rank == one.candidate.rank)
            if last.confidence not in (*UNSURE, Confidence.POSSIBLE) and not same:
                break
        may_hold.append(one)
    found = next((one for one in may_hold if gpu in one.lifted), None) or max(
        may_hold, key=lambda one: (one.limits[gpu], not one.possible)
    )
    if not found.possible:
        return found
    if found.candidate.framework:
        found.lifted |= {gpu}
        return found
    return next((one for one in may_hold if not one.possible), None)


def _explain_loss(
    evaluation: Evaluation,
    gpus: Sequence[str],
    best: Mapping[_Rivals, Evaluation],
    least: Mapping[_Scope, _Parts],
    unlimited: Mapping[_Scope, str],
) -> str:
    """Return why a candidate is not the limit on these GPUs; empty where it limits only its framework."""
    candidate = evaluation.candidate
    for gpu in gpus:
        winner = best[candidate.scope, gpu, evaluation.rival]
        if winner is not evaluation:
            name = short_name(winner, evaluation)
            if winner.possible or (winner.candidate.lifts and winner.candidate.rank == candidate.rank):
                return f"{name} may allow more"
            later = (evaluation.candidate.rank, evaluation.place) >= (winner.candidate.rank, winner.place)
            return f"it may not be in effect, and {name} allows more" if later else f"{name} takes precedence"
    parts = least.get((candidate.scope, gpus[0]))
    if parts is None or (candidate.framework and (candidate.scope, gpus[0]) in unlimited):
        return ""
    limit, own, name = _sum_bytes(parts, gpus[0]), evaluation.limits[gpus[0]], short_name(parts[0], evaluation)
    if candidate.confidence in UNSURE and limit > own:
        return f"it may not be in effect, and {name} allows more"
    return f"{name} is less{'' if limit < own else 'than its frameworks may take together'}"


def short_name(winner: Evaluation, loser: Evaluation) -> str:
    """Return a name that distinguishes a candidate from another one."""
    candidate = winner.candidate
    if candidate.channel != loser.candidate.channel:
        return candidate.channel
    return f"the one in {candidate.where}:{candidate.line}" if candidate.line else f"the one in the {candidate.where}"


_LABELS = {
    Kind.START: "a start size is not a limit: it may take more",
    Kind.CACHE: "a part of the free memory is not a limit",
    Kind.RESERVE: "says how much to leave free, not how much to take",
    Kind.GROWTH: "memory is taken as needed, without a limit",
    Kind.COMPUTE: "limits SMs, not memory",
    Kind.DEFAULT: "a default is not a declaration",
}

_NAMED = 3
"""Modules, and parts of a sum, that are named, at most."""


def resolve(facts: Facts, gpus: Sequence[GpuFacts], driver: str = "") -> Declared:
    """Return the declarations and limits of a process on the GPUs of its machine.

    Never raises for what a process wrote.
    """
    environment = env.merge_environment(facts)
    used = frameworks.identify(facts)
    selections = _selections(facts, environment, used)
    selected = visible_devices.device_set(environment.settings, selections, used, facts, gpus, driver)
    candidates = list(_sum(_candidates(facts, gpus, environment), facts))
    candidates += frameworks.defaults(used or ())
    margin = Margin.EAGER if frameworks.eager(facts) else Margin.FRAMEWORK
    evaluations = [Evaluation(_complete(candidate, facts, margin), place) for place, candidate in enumerate(candidates)]
    _exclude(evaluations, used)
    for one in evaluations:
        if (one.applies or one.undecided) and one.candidate.kind in LIMITS:
            _locate(one, selected, gpus)
    limits = find_limits(evaluations, frameworks.allocators(used or (), facts))
    _explain_rest(evaluations)
    # Limits, parts of limits, others in effect, others, defaults.
    ordered = sorted(
        evaluations,
        key=lambda one: (not one.on, bool(one.on and one.why), not one.applies, one.candidate.kind is Kind.DEFAULT),
    )
    place = {id(one): number for number, one in enumerate(ordered)}
    knowledge, words = _knowledge(facts, environment)
    unread = _unread_words(facts)
    return Declared(
        knowledge=knowledge,
        words="; ".join(filter(None, (words, unread))),
        incomplete=bool(unread),
        frameworks=tuple(frameworks.NAMES[name] for name in used or ()),
        visible=selected.visible,
        unseen=selected.why,
        declarations=tuple(_declaration(one) for one in ordered),
        limits=tuple(
            Limit(
                gpu=gpu,
                bytes=_sum_bytes(parts, gpu),
                declaration=place[id(parts[0])],
                scope=scope,
                margin=parts[0].candidate.margin,
            )
            for (scope, gpu), parts in sorted(limits.items(), key=lambda item: item[0][0])
        ),
        collective=frameworks.collective(facts),
        hints=tuple(_hints(facts, environment, evaluations)),
    )


def _candidates(facts: Facts, gpus: Sequence[GpuFacts], environment: Environment) -> Iterable[Candidate]:
    """Return all candidates; those closer to the process come later, because the last of equal ones counts."""
    for file in facts.rc:
        yield from env.theanorc(file.text, file.path)
    for relative in reversed(_telling_ancestors(facts)):
        yield from flags.candidates(
            relative.argv, f"command line of parent {relative.pid}", facts.configs.get(relative.pid)
        )
    yield from env.candidates(environment.settings)
    yield from flags.candidates(facts.argv, config=facts.configs.get(facts.pid))
    if facts.script is not None:
        for candidate in facts.contents.candidates:
            sure = env.file_confidence(candidate.confidence, facts.script)
            yield msgspec.structs.replace(candidate, confidence=sure)
    yield from agreed_candidates(facts, gpus)


def _telling_ancestors(facts: Facts) -> list[RelatedProcess]:
    """Return the ancestors whose arguments may be the process's own, because it shows a title, and known programs."""
    telling: list[RelatedProcess] = []
    below = facts.argv
    for relative in facts.ancestors:
        hidden = len(below) < 2 or programs.is_worker(below)
        if hidden or find_program(relative.argv):
            telling.append(relative)
        below = relative.argv if hidden else below
    return telling


def _selections(facts: Facts, environment: Environment, used: Mapping[str, Confidence] | None) -> Sequence[Selection]:
    """Return the selections among the visible GPUs: JAX's variable, which only JAX reads, then those of the script."""
    selections = facts.contents.selections
    setting = environment.settings.get(_JAX_VISIBLE)
    if setting is None or setting.value == "all" or not used or "jax" not in used:
        return selections
    ordinals = read_ordinals(setting.value) if setting.confidence in (Confidence.CERTAIN, Confidence.LIKELY) else None
    own = Selection(
        channel=_JAX_VISIBLE,
        framework="jax",
        ordinals=ordinals,
        where=setting.where,
        line=setting.line,
        text=setting.text or format_excerpt(f"{_JAX_VISIBLE}={setting.value}"),
    )
    return [own, *selections]


def _sum(candidates: Iterable[Candidate], facts: Facts) -> Iterable[Candidate]:
    """Add up candidates that form one sum: logical devices of one GPU, engines, sessions or pools of one process.

    Of several in a script that a parent runs, as vLLM's engines, each may be in a process of its own.
    """
    parent = facts.ancestors[0].argv if facts.ancestors else ()
    apart = parent == facts.argv or any(word.startswith(env.WORKER) for word in facts.argv[1:8])
    apart |= facts.script is not None and facts.script.likely
    parts: defaultdict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        if candidate.adds:
            parts[candidate.where, candidate.adds].append(candidate)
        else:
            yield candidate
    for several in parts.values():
        values = [candidate.value for candidate in several if candidate.value is not None]
        known = len(values) == len(several)
        texts = Counter(candidate.text for candidate in several)
        shown = [text if count == 1 else f"{count} × {text}" for text, count in texts.items()]
        more = [f"{len(shown) - _NAMED} more"] if len(shown) > _NAMED else []
        sure, condition = weakest(*(candidate.confidence for candidate in several)), several[0].condition
        if apart and len(several) > 1 and several[0].adds.startswith(OBJECTS):
            sure, condition = Confidence.POSSIBLE, "if all of them are in this process"
        yield msgspec.structs.replace(
            several[0],
            value=round(sum(values), 9) if known else None,
            dynamic=not known,
            text=" + ".join([*shown[:_NAMED], *more]),
            confidence=sure,
            condition=condition,
        )


def _complete(candidate: Candidate, facts: Facts, margin: Margin) -> Candidate:
    """Complete a candidate with facts of the process: container, loading of CUDA kernels, code that changes it."""
    changes: dict[str, str | Margin | Confidence] = {}
    lacks = env.find_lack(candidate.channel, facts)
    if lacks:
        changes |= {"confidence": Confidence.POSSIBLE, "condition": lacks}
    elif candidate.framework and candidate.kind in LIMITS and facts.contents.changes and not candidate.dynamic:
        changes |= {"confidence": Confidence.POSSIBLE, "condition": f"unless {facts.contents.changes} changes it"}
    if candidate.scope == "container":
        inside = (facts.container or visible_devices.container(facts.cgroup))[:12]
        changes["scope"] = f"container {inside}" if inside else ""
    if candidate.margin is Margin.FRAMEWORK:
        changes["margin"] = margin
    return msgspec.structs.replace(candidate, **changes)


def _exclude(evaluations: Sequence[Evaluation], used: Mapping[str, Confidence] | None) -> None:
    """Exclude candidates that have no effect on this process; `used` are its frameworks, None where not known."""
    for evaluation in evaluations:
        framework = evaluation.candidate.framework
        if framework and used is not None and framework not in used:
            evaluation.exclude(f"it does not use {frameworks.NAMES[framework]}")
        elif evaluation.candidate.void:
            evaluation.exclude(evaluation.candidate.void)
        elif evaluation.possible:
            evaluation.exclude("not known to be in effect")
            evaluation.undecided = evaluation.candidate.kind in LIMITS
        elif framework:
            evaluation.limit_confidence(Confidence.LIKELY if used is None else used[framework])
    reserved = {one.candidate.framework for one in evaluations if one.applies and one.candidate.kind is Kind.RESERVE}
    for evaluation in evaluations:
        candidate = evaluation.candidate
        # gpu_device.cc, SingleVirtualDeviceMemoryLimit: the reserve is applied in the place of the fraction.
        replaced = candidate.framework == "tensorflow" and candidate.kind is Kind.CAP and candidate.basis is Basis.TOTAL
        if evaluation.applies and replaced and "tensorflow" in reserved:
            evaluation.exclude("TF_DEVICE_MIN_SYS_MEMORY_IN_MB replaces it")


def _locate(evaluation: Evaluation, selected: visible_devices.DeviceSet, gpus: Sequence[GpuFacts]) -> None:
    """Set the GPUs of a candidate, and its bytes on each."""
    candidate = evaluation.candidate
    # TensorFlow's list of physical devices includes GPUs that the script hides later.
    physical = candidate.framework == "tensorflow" and isinstance(candidate.device, int)
    seen = selected.unselected if physical else selected.visible
    targets = visible_devices.targets(candidate.device, seen, gpus)
    evaluation.limits = _bytes_by_gpu(candidate, targets)
    evaluation.undecided |= candidate.dynamic
    if candidate.dynamic or candidate.lifts:
        evaluation.lifted = frozenset(target.gpu for target in targets)
    if candidate.some_gpu and len({target.gpu for target in targets}) != 1:
        evaluation.leave_undecided("it is for one GPU, which is known only at run time", targets)
    if isinstance(candidate.device, int) and seen is None:
        evaluation.leave_undecided(f"its GPU is not known: {selected.why}", visible_devices.targets(None, None, gpus))
    elif isinstance(candidate.device, int) and seen is not None and seen.order is Order.HEURISTIC and targets:
        evaluation.guessed = True
        evaluation.limit_confidence(Confidence.GUESS)
        if any(target.total is not None and evaluation.limits.get(target.gpu, 0) > target.total for target in targets):
            perhaps = visible_devices.targets(None, seen, gpus)
            evaluation.leave_undecided("it is more than the guessed GPU has", perhaps)


def _bytes_by_gpu(candidate: Candidate, targets: Iterable[visible_devices.TargetGpu]) -> dict[str, int]:
    """Return the bytes of a candidate on each GPU that it concerns; several MIG instances of one GPU add up."""
    if candidate.value is None or candidate.lifts:
        return {}
    found: defaultdict[str, int] = defaultdict(int)
    for target in targets:
        if candidate.basis is Basis.BYTES:
            found[target.gpu] += round(candidate.value)
        elif candidate.basis is Basis.TOTAL and target.total is not None:
            found[target.gpu] += round(candidate.value * target.total)
    return dict(found)


def _explain_rest(evaluations: Sequence[Evaluation]) -> None:
    """Set the reason for candidates that are in effect but limit nothing."""
    sizes = (*LIMITS, Kind.CACHE, Kind.START)
    said = {
        one.candidate.framework for one in evaluations if (one.applies or one.undecided) and one.candidate.kind in sizes
    }
    perhaps = {one.candidate.framework for one in evaluations if one.possible and one.candidate.kind in sizes}
    started = {one.candidate.framework: one for one in evaluations if one.applies and one.candidate.kind is Kind.START}
    for evaluation in evaluations:
        candidate = evaluation.candidate
        if not evaluation.applies or evaluation.limits or evaluation.why:
            continue
        if candidate.kind is Kind.START and started[candidate.framework] is not evaluation:
            evaluation.exclude(f"{short_name(started[candidate.framework], evaluation)} takes precedence")
        elif candidate.kind is Kind.DEFAULT and candidate.framework in said:
            evaluation.exclude("something else was declared")
        elif candidate.kind is Kind.DEFAULT and not perhaps.isdisjoint(("", candidate.framework)):
            evaluation.exclude("something else may have been declared")
        elif candidate.unread:
            evaluation.why = candidate.unread
        elif candidate.kind in _LABELS:
            evaluation.why = _LABELS[candidate.kind]
        elif candidate.lifts:
            evaluation.why = "it sets no limit"
        elif candidate.dynamic:
            evaluation.why = "its value is known only at run time"
        else:
            evaluation.exclude(NO_GPU)


def _declaration(evaluation: Evaluation) -> Declaration:
    candidate = evaluation.candidate
    effective = evaluation.applies and bool(evaluation.on or not evaluation.limits)
    return Declaration(
        channel=candidate.channel,
        where=candidate.where,
        line=candidate.line,
        text=candidate.text,
        framework=frameworks.NAMES.get(candidate.framework, ""),
        kind=candidate.kind,
        basis=candidate.basis,
        value=candidate.value,
        limits={gpu: size for gpu, size in evaluation.limits.items() if gpu in evaluation.on or not evaluation.on},
        scope=candidate.scope,
        confidence=candidate.confidence,
        effective=effective,
        why=evaluation.why,
        each=candidate.kind in LIMITS and candidate.device is None and not candidate.some_gpu,
        ordinal=candidate.kind in LIMITS and (isinstance(candidate.device, int) or candidate.some_gpu),
        guessed=evaluation.guessed,
        undecided=evaluation.undecided and (effective or evaluation.possible),
        condition=candidate.condition if evaluation.possible else "",
    )


def _knowledge(facts: Facts, environment: Environment) -> tuple[Knowledge, str]:
    """Return whether everything could be read, and a text about the parts that could not.

    The rest of a command line that is too long may contain a limit; of the ancestors only programs count whose options
    can declare a share.
    """
    words: list[str] = []
    if facts.script is not None and isinstance(facts.script.contents, Unread):
        words.append(f"{facts.script.path} {facts.script.contents.of_file}")
    elif facts.script is not None and facts.contents.error:
        words.append(f"{facts.script.path} could not be parsed: {facts.contents.error}")
    long = [
        f"the command line of parent {one.pid}" for one in facts.ancestors if one.argv_cut and find_program(one.argv)
    ]
    long = ["its command line"] if facts.argv_cut else long
    words += [f"{one} is too long to read in full" for one in long[:1]]
    read = environment.read and not words
    return (Knowledge.READ if read else Knowledge.UNREADABLE), "; ".join(filter(None, (environment.words, *words)))


def _unread_words(facts: Facts) -> str:
    """Return a text about the code of a program, and code that its script loads, that was not read."""
    unread = facts.unread_code or (flags.find_unread(facts.argv) if facts.script is None else "")
    words = [unread, facts.contents.unread]
    if facts.script is not None and facts.script.edited:
        words.append(f"{facts.script.path} was changed after the process started")
    if facts.script is not None and facts.script.modules:
        contents, modules = facts.contents, facts.script.modules
        named = ", ".join(modules[:_NAMED]) + (f" and {len(modules) - _NAMED} more" if len(modules) > _NAMED else "")
        nothing = not contents.candidates and not contents.settings and not contents.error
        before = f"nothing in {facts.script.path}; " if nothing else ""
        words.append(f"{before}{named} {'is' if len(modules) == 1 else 'are'} not read")
    if facts.contents.dotenv:
        words.append("the variables that load_dotenv() sets are not read")
    if facts.mps or (not isinstance(facts.environ, Unread) and "CUDA_MPS_PIPE_DIRECTORY" in facts.environ):
        words.append("a limit set by an MPS daemon cannot be read")
    return "; ".join(filter(None, words))


def _hints(facts: Facts, environment: Environment, evaluations: Sequence[Evaluation]) -> Iterable[Hint]:
    """Return hints about misspelt names, and about values without effect."""
    yield from visible_devices.find_hints(environment.settings)
    yield from env.find_misspelt(environment.settings)
    yield from facts.contents.hints
    for one in evaluations:
        candidate = one.candidate
        if candidate.void and one.why == candidate.void:
            yield Hint(rule="no effect", words=f"{candidate.text or candidate.channel}: {candidate.void}")
