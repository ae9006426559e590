"""From the facts of one process to what it declared: who says what, what of it holds, and on which GPU.

The framework comes first: a variable for JAX binds no PyTorch job. Then `weighing` decides between the claims that
apply. What is no limit (start sizes, caches, reserves, growth, defaults) is a label and never in `limits`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpuwatch.declared import agreed, env, flags, frameworks, visible_devices
from gpuwatch.declared import env as environment
from gpuwatch.declared.env import Environment, weakest
from gpuwatch.declared.facts import Card, Claim, Facts, Script, Selection, Unread
from gpuwatch.declared.flags import started
from gpuwatch.declared.weighing import Weighed, called, hold
from gpuwatch.model import LIMITS, Basis, Confidence, Declaration, Declared, Hint, Kind, Knowledge, Margin, Order

_LABELS = {
    Kind.START: "a start size is no limit: more may be taken",
    Kind.CACHE: "a share of what is free is no limit",
    Kind.RESERVE: "says what is left free, not what is taken",
    Kind.GROWTH: "memory is taken as it is needed; no limit",
    Kind.COMPUTE: "a share of the SMs says nothing of memory",
    Kind.DEFAULT: "a default is not a declaration",
}

_NAMED = 3
"""Modules that are named of those that were left out."""
_ONE_GPU = "it is for one GPU, which is known only at run time"
_MORE_THAN_IT_HAS = "it is more than the GPU has that it was guessed to mean"


def resolve(facts: Facts, cards: Sequence[Card], driver: str = "") -> Declared:
    """Weigh all that one process said, on the GPUs of its machine with this version of the driver.

    Never raises for what a process wrote.
    """
    around = environment.environment_of(facts)
    found = frameworks.identify(facts)
    selected = visible_devices.device_set(around.settings, _selections(facts), found, facts, cards, driver)
    claims = list(_sum(_claims(facts, cards, around)))
    claims += frameworks.defaults(found or ())
    margin = Margin.EAGER if frameworks.eager(facts) else Margin.FRAMEWORK
    weighed = [
        Weighed(_complete(claim, facts, margin), place, tentative=_is_tentative(claim))
        for place, claim in enumerate(claims)
    ]
    _judge(weighed, found)
    for one in weighed:
        if one.applies and one.claim.kind in LIMITS:
            _place(one, selected, cards)
    limits = hold(weighed)
    _label(weighed)
    ordered = sorted(weighed, key=_prominence)
    place = {id(one): number for number, one in enumerate(ordered)}
    knowledge, words = _known(facts, around)
    unread = _module_words(facts.modules)
    return Declared(
        knowledge=knowledge,
        words="; ".join(filter(None, (words, unread))),
        incomplete=bool(unread),
        frameworks=tuple(frameworks.NAMES[name] for name in found or ()),
        visible=selected.visible,
        declarations=tuple(_declaration(one) for one in ordered),
        limits=tuple(msgspec.structs.replace(limit, declaration=place[id(one)]) for limit, one in limits),
        collective=frameworks.collective(facts),
        hints=(*selected.hints, *_hints(facts, around, weighed)),
    )


def _prominence(one: Weighed) -> tuple[bool, ...]:
    """Sort what names a limit first, then what adds to one, what else applies, what does not, and defaults."""
    return (not one.on, bool(one.on and one.why), not one.applies, one.claim.kind is Kind.DEFAULT)


def _claims(facts: Facts, cards: Sequence[Card], around: Environment) -> Iterable[Claim]:
    """Give all claims, what is closer to the process later: of equal ones the last counts."""
    for file in facts.rc:
        yield from env.theanorc(file.text, file.path)
    for kin in reversed(facts.ancestors):
        yield from flags.claims(kin.argv, f"command line of parent {kin.pid}", facts.configs.get(kin.pid))
    yield from env.claims(around.settings)
    yield from flags.claims(facts.argv, config=facts.configs.get(facts.pid))
    for script in facts.scripts:
        for claim in script.scan.claims if not isinstance(script.scan, Unread) else ():
            sure = environment.surely(claim.confidence, script)
            yield msgspec.structs.replace(claim, where=script.path, confidence=sure)
    yield from agreed.claims(facts, cards)


def _selections(facts: Facts) -> Sequence[Selection]:
    scans = [(script.path, script.scan) for script in facts.scripts if not isinstance(script.scan, Unread)]
    return [msgspec.structs.replace(one, where=path) for path, scan in scans for one in scan.selections]


def _sum(claims: Iterable[Claim]) -> Iterable[Claim]:
    """Put the parts of one sum together: the memory limits of the logical devices of one GPU."""
    parts: defaultdict[tuple[str, str], list[Claim]] = defaultdict(list)
    for claim in claims:
        if claim.adds:
            parts[claim.where, claim.adds].append(claim)
        else:
            yield claim
    for several in parts.values():
        values = [claim.value for claim in several if claim.value is not None]
        known = len(values) == len(several)
        texts = dict.fromkeys(claim.text for claim in several)
        yield msgspec.structs.replace(
            several[0],
            value=sum(values) if known else None,
            dynamic=not known,
            text=several[0].text if len(texts) == 1 else " + ".join(texts),
            confidence=weakest(*(claim.confidence for claim in several)),
        )


def _complete(claim: Claim, facts: Facts, margin: Margin) -> Claim:
    """Fill in what a claim leaves to the process: which container, and how its CUDA loads kernels."""
    changes: dict[str, str | Margin] = {}
    if claim.scope == "container":
        changes["scope"] = f"container {visible_devices.container(facts.cgroup)[:12]}".strip()
    if claim.margin is Margin.FRAMEWORK:
        changes["margin"] = margin
    return msgspec.structs.replace(claim, **changes)


def _judge(weighed: Iterable[Weighed], found: Mapping[str, Confidence] | None) -> None:
    """Set aside what has no effect on this process."""
    weighed = list(weighed)
    for one in weighed:
        framework = one.claim.framework
        if framework and found is not None and framework not in found:
            one.applies, one.why = False, f"it does not use {frameworks.NAMES[framework]}"
        elif one.claim.void:
            one.applies, one.why = False, one.claim.void
        elif one.claim.uncalled:
            one.applies, one.why = False, "nothing is known to call the function that it stands in"
            one.undecided = one.claim.kind in LIMITS
        elif framework:
            sure = Confidence.LIKELY if found is None else found[framework]
            one.claim = msgspec.structs.replace(one.claim, confidence=weakest(one.claim.confidence, sure))
    reserved = {one.claim.framework for one in weighed if one.applies and one.claim.kind is Kind.RESERVE}
    for one in weighed:
        claim = one.claim
        # gpu_device.cc, SingleVirtualDeviceMemoryLimit: the reserve is applied in the place of the fraction.
        replaced = claim.framework == "tensorflow" and claim.kind is Kind.CAP and claim.basis is Basis.TOTAL
        if one.applies and replaced and "tensorflow" in reserved:
            one.applies, one.why = False, "TF_DEVICE_MIN_SYS_MEMORY_IN_MB takes its place"


def _is_tentative(claim: Claim) -> bool:
    # A channel without a framework has no rivals, and an agreement's line is no line of code.
    return bool(claim.framework and claim.line) and claim.confidence is not Confidence.CERTAIN


def _place(one: Weighed, selected: visible_devices.DeviceSet, cards: Sequence[Card]) -> None:
    """Find the GPUs that a claim of a limiting kind concerns, and its bytes on each."""
    claim = one.claim
    # TensorFlow's list of physical devices has what the script hides from it later.
    physical = claim.framework == "tensorflow" and isinstance(claim.device, int)
    seen = selected.unselected if physical else selected.visible
    targets = visible_devices.targets(claim.device, seen, cards)
    one.limits = _limits(claim, targets)
    one.undecided = claim.dynamic
    if claim.dynamic or claim.lifts:
        one.lifted = frozenset(target.gpu for target in targets)
    if claim.some_gpu and len({target.gpu for target in targets}) != 1:
        one.why = _ONE_GPU
        _anywhere(one, targets)
    if isinstance(claim.device, int) and seen is not None and seen.order is Order.HEURISTIC and targets:
        one.guessed = True
        one.claim = msgspec.structs.replace(claim, confidence=weakest(claim.confidence, Confidence.GUESS))
        if any(target.total is not None and one.limits.get(target.gpu, 0) > target.total for target in targets):
            one.why = _MORE_THAN_IT_HAS
            _anywhere(one, visible_devices.targets(None, seen, cards))


def _anywhere(one: Weighed, targets: Iterable[visible_devices.Target]) -> None:
    """Let a claim limit no GPU, and take the place of others on each that it may concern."""
    one.limits, one.undecided = {}, True
    one.lifted = frozenset(target.gpu for target in targets)


def _limits(claim: Claim, targets: Iterable[visible_devices.Target]) -> dict[str, int]:
    """Give a claim's bytes on each GPU that it concerns; several MIG instances of one GPU add up."""
    if claim.value is None or claim.lifts:
        return {}
    limits: defaultdict[str, int] = defaultdict(int)
    for target in targets:
        if claim.basis is Basis.BYTES:
            limits[target.gpu] += round(claim.value)
        elif claim.basis is Basis.TOTAL and target.total is not None:
            limits[target.gpu] += round(claim.value * target.total)
    return dict(limits)


def _label(weighed: Sequence[Weighed]) -> None:
    """Say of what applies and limits nothing why that is so; a default yields to anything that was said."""
    sizes = (*LIMITS, Kind.CACHE, Kind.START)
    said = {one.claim.framework for one in weighed if one.applies and one.claim.kind in sizes}
    started = {one.claim.framework: one for one in weighed if one.applies and one.claim.kind is Kind.START}
    for one in weighed:
        claim = one.claim
        if not one.applies or one.limits or one.why:
            continue
        if claim.kind is Kind.START and started[claim.framework] is not one:
            one.applies, one.why = False, f"{called(started[claim.framework], one)} comes before it"
        elif claim.kind is Kind.DEFAULT and claim.framework in said:
            one.applies, one.why = False, "something else was declared"
        elif claim.unread:
            one.why = claim.unread
        elif claim.kind in _LABELS:
            one.why = _LABELS[claim.kind]
        elif claim.lifts:
            one.why = "it sets no limit"
        elif claim.dynamic:
            one.why = "its value is only known at run time"
        else:
            one.applies, one.why = False, "it concerns no GPU that the process can see"


def _declaration(one: Weighed) -> Declaration:
    claim = one.claim
    effective = one.applies and bool(one.on or not one.limits)
    return Declaration(
        channel=claim.channel,
        where=claim.where,
        line=claim.line,
        text=claim.text,
        framework=frameworks.NAMES.get(claim.framework, ""),
        kind=claim.kind,
        basis=claim.basis,
        value=claim.value,
        limits={gpu: size for gpu, size in one.limits.items() if gpu in one.on or not one.on},
        scope=claim.scope,
        confidence=claim.confidence,
        effective=effective,
        why=one.why,
        guessed=one.guessed,
        undecided=one.undecided and (effective or claim.uncalled),
    )


def _known(facts: Facts, around: Environment) -> tuple[Knowledge, str]:
    """Say whether all places were looked at; what was not found in one that could not be read may still be there."""
    words = [around.words, _script_words(facts.script), _arguments_words(facts)]
    read = around.read and not any(words[1:])
    return (Knowledge.READ if read else Knowledge.UNREADABLE), "; ".join(filter(None, words))


def _arguments_words(facts: Facts) -> str:
    """Say which command lines are too long to be read whole: what limits the process may stand in the rest of one.

    Of an ancestor only that of a program counts whose options say something.
    """
    if facts.argv_cut:
        return "its command line is too long to be read whole"
    long = next((kin.pid for kin in facts.ancestors if kin.argv_cut and started(kin.argv)), None)
    return "" if long is None else f"the command line of parent {long} is too long to be read whole"


def _script_words(script: Script | None) -> str:
    if script is None:
        return ""
    if isinstance(script.scan, Unread):
        return (
            f"{script.path} could not be read"
            if script.scan is not Unread.DENIED
            else f"{script.path} is not ours to read"
        )
    return f"{script.path} could not be understood: {script.scan.error}" if script.scan.error else ""


def _module_words(modules: Sequence[Script]) -> str:
    """Say which modules of a program were not read."""
    left = [one.path for one in modules if one.scan is Unread.LEFT]
    words = [_script_words(one) for one in modules if one.scan is not Unread.LEFT]
    if left:
        verb, them = ("was", left[0]) if len(left) == 1 else ("were", ", ".join(left[:_NAMED]))
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        words.append(f"{them}{more} {verb} not read: only modules that the script itself imports are")
    return "; ".join(filter(None, words))


def _hints(facts: Facts, around: Environment, weighed: Sequence[Weighed]) -> Iterable[Hint]:
    """Give what somebody wrote and did not mean: misspelt names, void values."""
    yield from env.misspelt(around.settings)
    for script in facts.scripts:
        if not isinstance(script.scan, Unread):
            yield from script.scan.hints
    for one in weighed:
        claim = one.claim
        if claim.void and one.why == claim.void:
            yield Hint(rule="no effect", words=f"{claim.text or claim.channel}: {claim.void}")
