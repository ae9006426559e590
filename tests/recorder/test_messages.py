"""Which alerts become messages, when, and in which words; stories are played on a clock of their own."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import TROUBLE, Alert, AlertCause, AlertGpu, AlertUser, Severity
from gpuwatch.config.types import Notify
from gpuwatch.history.history import History
from gpuwatch.model.snapshot import Health
from gpuwatch.monitor import Frame
from gpuwatch.recorder.messages import (
    LINES,
    TITLE,
    WAITING,
    Message,
    MessageSchedule,
    Messenger,
    Route,
    digest,
    others_alerts,
    raised,
)
from gpuwatch.recorder.messages import cleared as over_message
from gpuwatch.recorder.recorder import find_place
from tests.recorder.telling import Outbox, alert, ended, frame
from tests.support.builders import EPOCH, gpu, holding, process, snapshot, uid
from tests.support.waiting import Clock, wait_for

CRITICAL, WARNING, NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE


class Story:
    """A schedule, and what holds; each step is a frame. The clock is at 0 when the story begins at EPOCH."""

    def __init__(self, policy: Notify | None = None) -> None:
        self.policy = policy or Notify()
        self.schedule = MessageSchedule(self.policy)
        self.active: dict[str, Alert] = {}
        self.sent: list[tuple[float, Message]] = []
        self.now = 0.0

    def play(self, steps: str) -> None:
        """Play steps such as `raise a 10`: a verb, a subject, and the seconds that pass then."""
        for step in filter(None, steps.split(", ")):
            verb, subject, seconds = step.split()
            self.step(verb, subject)
            self.wait(float(seconds))

    def step(self, verb: str, subject: str) -> None:
        """Change what holds of a subject, and give the schedule the frame of that."""
        new: list[Alert] = []
        gone: list[Alert] = []
        known = self.active.get(subject)
        now = known or alert(subject, at=self.now, rule=subject.rstrip("0123456789"))
        if verb in ("raise", "note", "critical", "inherit", "find"):
            severity = {"note": NOTE, "critical": CRITICAL}.get(verb, WARNING)
            self.active[subject] = msgspec.structs.replace(now, severity=severity, most=max(now.most, severity))
            self.restore(*[self.active[subject]] * (verb == "inherit"))
            new = [] if verb in ("inherit", "find") else [self.active[subject]]
        elif verb == "clear":
            self.restore(*[now] * (subject not in self.active))
            self.active.pop(subject, None)
            gone = [ended(now, self.now - now.raised + EPOCH)]
        elif verb == "moment":
            new = gone = [ended(now, 0)]
        elif verb == "lose":
            self.active.pop(subject, None)
        elif known:
            change: dict[str, dict[str, Any]] = {
                "ease": {"severity": WARNING},
                "mute": {"muted": True},
                "unmute": {"muted": False},
            }
            change |= {"ack": {"acknowledged": True}}
            self.active[subject] = msgspec.structs.replace(known, **change[verb])
        self.schedule.update(new, gone, self.active.values())
        self.wait(0)

    def restore(self, *events: Alert) -> None:
        """Let the schedule know that another gpuwatch has sent messages about alerts, longer ago than a cool-down."""
        before = [msgspec.structs.replace(one, sent=True) for one in events]
        self.schedule.restore(before, self.now, EPOCH + self.now + 10_000.0)

    def wait(self, seconds: float) -> None:
        """Let time pass, and send whatever becomes due."""
        end = self.now + seconds
        while True:
            self.sent += [(self.now, message) for message in self.schedule.pop_due(self.now)]
            due = self.schedule.next_due()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
        self.now = end

    def summary(self) -> str:
        """Return what was sent: `raised a @2, cleared a @602`."""
        return ", ".join(f"{one.kind} {one.alerts[0].subject} @{at:g}" for at, one in self.sent)


STORIES = [json.loads(line) for line in (Path(__file__).parent / "messages.jsonl").read_text().splitlines()]
"""What is about a story, its steps, the messages that are sent, and other fields of the policy."""


@pytest.mark.parametrize("case", STORIES, ids=lambda case: case["about"])
def test_story(case: dict[str, Any]) -> None:
    options = {key: value for key, value in case.items() if key not in ("about", "steps", "sent")}
    story = Story(msgspec.convert(options, Notify))
    story.play(case["steps"])
    assert story.summary() == case["sent"]


def test_troubles_of_our_own_are_no_messages() -> None:
    schedule = MessageSchedule(Notify())
    trouble = alert("messages", rule=TROUBLE)
    schedule.update([], [], [trouble])
    schedule.update([], [ended(trouble, 3)], [])
    assert (schedule.pop_due(1000, flush=True), schedule.next_due()) == ([], None)


def test_who_does_not_send_keeps_what_nobody_has_sent_until_it_does() -> None:
    schedule, held = MessageSchedule(Notify()), [alert("a"), alert("b")]
    schedule.is_leader = False
    schedule.update([], [], held)
    assert (schedule.pop_due(0, flush=True), schedule.next_due()) == ([], None)
    schedule.is_leader = True
    schedule.restore([msgspec.structs.replace(held[0], sent=True), held[1]], 5.0, EPOCH + 500.0)
    assert [one.alerts[0].subject for one in schedule.pop_due(9, flush=True)] == ["b"], "another one has sent the first"
    schedule.update([], [ended(one, 60) for one in held], [])
    assert [one.kind for one in schedule.pop_due(60, flush=True)] == ["cleared"] * 2


def test_what_was_sent_is_known_to_who_comes_next_with_the_rest_of_its_cool_down() -> None:
    policy = Notify(urls=("json://127.0.0.1:1",), cooldown=300.0)
    first, one, over = MessageSchedule(policy), alert("a"), ended(alert("b"), 60.0)
    first.update([one], [], [one])
    assert not first.was_sent(one)
    first.pop_due(0, flush=True)
    assert first.was_sent(one)
    second = MessageSchedule(policy)
    second.restore([msgspec.structs.replace(each, sent=first.was_sent(each)) for each in (one, over)], 0.0, EPOCH + 100)
    second.update([], [], [one])
    assert second.pop_due(0, flush=True) == []
    flapping = alert("c")
    second.update([flapping], [], [one, flapping])
    assert (second.pop_due(1, flush=True), second.next_due()) == ([], 200.0)
    second.update([], [ended(one, 120.0)], [flapping])
    assert not second.was_sent(one)
    assert [message.kind for message in second.pop_due(200, flush=True)] == ["raised", "cleared"]


@pytest.mark.parametrize("sent", [True, False])
def test_who_takes_over_sends_what_the_one_before_has_not(sent: bool) -> None:
    schedule, one = MessageSchedule(Notify(urls=("json://127.0.0.1:1",))), alert("a")
    schedule.is_leader = False
    schedule.update([one], [], [one])
    schedule.pop_due(0, flush=True)
    assert not schedule.was_sent(one), "who does not send has sent nothing"
    schedule.is_leader = True
    schedule.restore([msgspec.structs.replace(one, sent=sent)], 9.0, EPOCH + 9.0)
    assert len(schedule.pop_due(9, flush=True)) == (not sent)
    assert schedule.was_sent(one)


def test_a_gpu_that_has_another_key_now_keeps_its_alert() -> None:
    schedule = MessageSchedule(Notify())
    first, named = (alert(gpu=gpu, id="0123456789") for gpu in ("index-3", "GPU-3"))
    schedule.update([first], [], [first])
    assert [one.kind for one in schedule.pop_due(0, flush=True)] == ["raised"]
    schedule.update([], [], [named])
    schedule.update([], [ended(named, 60)], [])
    assert [one.kind for one in schedule.pop_due(9, flush=True)] == ["cleared"]


# ---------------------------------------------------------------------------------------------------------------
# Only what concerns the viewer

YOURS, BENS = gpu(0, holdings=[holding(7)]), gpu(1, holdings=[holding(8)])
BEN, YOU = AlertUser(uid("ben"), "ben"), AlertUser(uid("you"), "you")
MINE = [
    (alert(gpu=YOURS.key, users=(BEN,)), True, "on a GPU where a process of yours holds memory"),
    (alert(gpu=BENS.key, users=(BEN,)), False, "on another GPU"),
    (alert(gpu=BENS.key, users=(BEN, YOU)), True, "about you"),
    (alert(gpu=BENS.key, causes=(AlertCause(uid=YOU.uid, pid=7),)), True, "caused by you"),
    (alert(gpu="", users=(BEN,), gpus=(AlertGpu(BENS.key, 1), AlertGpu(YOURS.key, 0))), True, "on yours, too"),
    (alert(gpu="", users=(BEN,)), False, "about another user on no GPU"),
    (alert(gpu="", owners=()), True, "about the whole machine"),
]


@pytest.mark.parametrize(("one", "is_mine", "_about"), MINE, ids=lambda value: value if isinstance(value, str) else "")
def test_what_concerns_the_viewer(one: Alert, is_mine: bool, _about: str) -> None:
    history, owners = History(), [process(7, "you"), process(8, "ben")]
    listed = snapshot([YOURS, BENS], owners)
    lost = snapshot([gpu(0, health=Health.LOST, sampled=0.0), BENS], owners[1:])
    for now, shown in ((5000.0, listed), (5001.0, lost)):  # a lost GPU lists no process
        seen = Frame(shown, now, history.add(shown, now), (one,))
        assert others_alerts(seen) == (frozenset() if is_mine else {one.key})
    nobody = snapshot([BENS], owners[1:])
    seen = Frame(nobody, 5000.0, History().add(nobody, 5000.0), (one,))
    assert (others_alerts(seen) == {one.key}) is (YOU not in one.users and not one.causes)


def test_what_comes_to_concern_the_viewer_is_sent_and_so_is_its_end() -> None:
    schedule, one = MessageSchedule(Notify()), alert()
    schedule.others = {one.key}
    schedule.update([one], [], [one])
    assert (schedule.pop_due(0, flush=True), schedule.next_due()) == ([], None)
    schedule.others = ()
    schedule.update([], [], [one])
    assert [message.kind for message in schedule.pop_due(9, flush=True)] == ["raised"]
    schedule.others = {one.key}
    schedule.update([], [ended(one, 60)], [])
    assert [message.kind for message in schedule.pop_due(60, flush=True)] == ["cleared"]


# ---------------------------------------------------------------------------------------------------------------
# Texts


def hour(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(EPOCH + seconds))


def test_texts_of_a_message() -> None:
    first, worse = raised(alert()), raised(alert(severity=CRITICAL, title="GPU 3 full"), "worse")
    assert first.title == "▲ box3: GPU 3 full in about 4 min"
    assert first.body.splitlines() == ["ada grew 9.0 GiB/min", f"since {hour(0)}", "by ada"]
    assert (worse.title, "critical now" in worse.body) == ("● box3: GPU 3 full", True)
    last = over_message(ended(alert(), 601), "GPU 3 full")
    assert last.title == "✓ box3: ended after 10 min 1 s: GPU 3 full"
    assert last.body.splitlines() == ["back within the limit", f"{hour(0)} to {hour(601)}", "by ada"]
    assert raised(alert(host="")).title.startswith("▲ this machine: ")


def test_a_digest_has_the_worst_first_and_what_is_over_last() -> None:
    mild = [raised(alert(str(number), title=f"GPU {number} warm")) for number in range(99)]
    many = digest([*mild, raised(alert("bad", CRITICAL, title="GPU 5 lost"))])
    assert (many.title, many.severity, len(many.alerts)) == ("● 100 alerts on box3: GPU 5 lost", CRITICAL, 100)
    assert many.body.splitlines()[0] == "● GPU 5 lost"
    assert many.body.splitlines()[LINES:] == ["and 90 more"]
    over = [over_message(ended(alert(str(number)), 9), "GPU 3 full") for number in range(3)]
    assert digest([*over, mild[1]]).title == "▲ 1 alert on box3, 3 ended: GPU 1 warm"
    assert (digest(over).title, digest(over).is_over) == ("✓ 3 alerts on box3 have ended", True)


def test_hostile_texts_fit_a_line() -> None:
    nasty = alert(title="a\x1b]0;x\a\n" * 200, evidence="b\r\n\x9c" * 2000, owners=("eve\n",), host="box\n3", how="\0")
    for message in (raised(nasty), over_message(ended(nasty, 3), nasty.title)):
        for one in (message, digest([message] * 5)):
            assert len(one.title) <= TITLE
            assert one.title.isprintable()
            assert all(line.isprintable() for line in one.body.split("\n"))
            assert len(one.body.split("\n")) <= LINES


# ---------------------------------------------------------------------------------------------------------------
# Whatever happens

VERBS = ["raise", "critical", "clear", "mute", "unmute", "ease", "lose"]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.sampled_from("abc"), st.floats(0.1, 200.0)), max_size=40)


@given(STEPS)
def test_whatever_happens_the_last_message_is_true(steps: list[tuple[str, str, float]]) -> None:
    story = Story()
    for verb, subject, seconds in steps:
        if (verb == "raise") > (subject in story.active) or verb not in ("raise", "clear") or subject in story.active:
            story.step(verb, subject)
        story.wait(seconds)
    story.wait(2000)
    found: defaultdict[str, list[tuple[float, Message]]] = defaultdict(list)
    for at, message in story.sent:
        assert not message.alerts[0].quiet
        found[message.alerts[0].subject].append((at, message))
    for messages in found.values():
        seen: dict[Severity, float] = {}
        for number, (at, message) in enumerate(messages):
            assert (message.kind != "cleared") or number, "its raise was sent before"
            if message.kind != "cleared":
                assert at - seen.get(message.severity, -1000.0) >= story.policy.cooldown
                seen[message.severity] = at
    # Whoever read everything knows how it stands now, but for what they do not want to hear of.
    believed = {key for key, messages in found.items() if messages[-1][1].kind != "cleared"}
    assert {key for key, one in story.active.items() if not one.quiet} <= believed
    for subject in list(story.active):
        story.step("clear", subject)
    story.wait(1000)
    assert story.schedule.next_due() is None


# ---------------------------------------------------------------------------------------------------------------
# A route, and the sink


def notes(*subjects: str) -> list[Message]:
    return [raised(alert(subject)) for subject in subjects]


def sent(route: Outbox) -> list[list[str]]:
    return [[one.subject for one in message.alerts] for message in route.sent]


def deliver(route: Route, *messages: Message, stopped: bool = False) -> None:
    route.deliver(messages, together=3, is_stopped=lambda: stopped)


def test_a_route_that_fails_is_tried_again_later_and_later() -> None:
    clock = Clock()
    route = Outbox("slack", "does not answer (timeout)", clock=clock, retry=30.0)
    deliver(route, *notes("a"))
    assert (route.trouble, route.next_due) == ("slack does not answer (timeout)", 130.0)
    clock.now = 129.0
    deliver(route, *notes("b"))
    assert sent(route) == [["a"]]
    for pause, lost in ((30, ""), (60, ""), (120, ""), (240, "; 2 messages not delivered")):
        clock.now += pause
        deliver(route)
        assert route.trouble == f"slack does not answer (timeout){lost}"
    assert sent(route) == [["a"], *[["a", "b"]] * 4], "what waits goes together, and is dropped in the end"
    route.why, clock.now = "", clock.now + 480
    deliver(route, *notes("c"))
    assert (route.trouble, route.next_due, sent(route)[-1]) == ("", None, ["c"])
    deliver(route, *notes(*"def"))
    deliver(route, *notes(*"ghij"))
    assert sent(route)[-4:] == [["d"], ["e"], ["f"], [*"ghij"]], "more than three are one"
    full = Outbox("odd", "fails", clock=Clock())
    deliver(full, *notes("first"))
    deliver(full, *notes("a"), *notes("b") * WAITING)
    assert full.trouble == "odd fails; 2 messages not delivered", "the oldest are dropped where too many wait"


def test_a_route_that_raises_is_a_failure_like_any() -> None:
    def fail(_message: Message, _is_stopped: Callable[[], bool]) -> str:
        raise RuntimeError("\x1boh")

    route = Route("odd", fail)
    deliver(route, *notes("a"))
    assert route.trouble == "odd failed: RuntimeError: \ufffdoh"


class Leader:
    """Answer to whether this gpuwatch sends, that a test changes."""

    def __init__(self) -> None:
        self.leads: bool | Exception = True
        self.asked = threading.Event()

    def __call__(self) -> bool:
        self.asked.set()
        if isinstance(self.leads, Exception):
            raise self.leads
        return self.leads


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def make(leader: Leader) -> Iterator[Callable[..., Messenger]]:
    """Return a function that makes a messenger, which is closed when the test ends."""
    made: list[Messenger] = []

    def make(*routes: Route, **options: Any) -> Messenger:
        policy = Notify(**{"gather": 0.02, "cooldown": 0.0, **options})
        made.append(Messenger(policy, leader, routes=lambda policy: [] if policy.command else routes))
        return made[-1]

    yield make
    for one in made:
        one.close(0.1)


def test_a_raise_goes_to_every_route_and_so_does_its_end(make: Callable[..., Messenger]) -> None:
    first, second = Outbox("first", "is down"), Outbox("second")
    messenger = make(first, second)
    messenger.take(frame(raised=[alert()]))
    wait_for(lambda: len(first.sent) == len(second.sent) == 1)
    messenger.take(frame(cleared=[ended(alert(), 60)]))
    wait_for(lambda: len(second.sent) == 2)
    assert [one.kind for one in second.sent] == ["raised", "cleared"]
    assert messenger.trouble == "messages: first is down"
    messenger.configure(Notify(command=("/bin/true",)))
    wait_for(lambda: messenger.trouble == "")


def test_what_held_before_there_was_an_address_is_sent_once_there_is(leader: Leader) -> None:
    route, held = Outbox(), [alert("a"), alert("b")]
    messenger = Messenger(Notify(gather=0.0), leader, routes=lambda policy: [route] if policy.urls else [])
    messenger.restore([msgspec.structs.replace(held[1], sent=True)])
    for new in (held[:1], []):  # the first was handled when it asks again
        messenger.take(frame(raised=new, active=held[len(new) :]))
        assert leader.asked.wait(30)
        leader.asked.clear()
    for many in (3, 4):  # the second change sends nothing again
        messenger.configure(Notify(urls=("json://127.0.0.1:1",), gather=0.0, digest=many))
        messenger.take(frame(active=held))
        wait_for(lambda: route.sent)
    messenger.close(30)
    assert sent(route) == [["a"]]


def test_a_messenger_that_is_told_so_sends_what_concerns_the_viewer_alone(make: Callable[..., Messenger]) -> None:
    route, history, shown = Outbox(), History(), snapshot([YOURS, BENS], [process(7, "you"), process(8, "ben")])
    messenger = make(route, mine=True)
    held = tuple(alert(str(number), gpu=one.key) for number, one in enumerate((BENS, YOURS)))
    messenger.take(Frame(shown, 5000.0, history.add(shown, 5000.0), held, held))
    wait_for(lambda: route.sent)
    messenger.close(30)
    assert sent(route) == [["1"]]


def test_only_one_gpuwatch_sends_and_the_other_goes_on_where_it_stops(
    make: Callable[..., Messenger], leader: Leader
) -> None:
    leader.leads = False
    route = Outbox()
    messenger = make(route, gather=0.0)
    messenger.take(frame(raised=[alert("a")]))
    assert leader.asked.wait(30)
    wait_for(lambda: bool(leader.asked.is_set()))
    leader.asked.clear()
    messenger.take(frame(active=[alert("a")]))  # `a` was handled in the frame before
    assert leader.asked.wait(30)
    leader.leads = True
    messenger.take(frame(raised=[alert("b")], cleared=[ended(alert("a"), 60)]))
    wait_for(lambda: len(route.sent) == 2)
    assert [(one.kind, one.alerts[0].subject) for one in route.sent] == [("raised", "b"), ("cleared", "a")]


def test_one_that_does_not_send_says_so_where_the_one_that_records_sends_nothing(leader: Leader) -> None:
    leader.leads = False
    silent = ["the one that records (PID 4711)"]
    messenger = Messenger(Notify(command=("true",)), leader, routes=lambda _: [], silent_leader=lambda: silent[0])
    try:
        messenger.take(frame())
        wait_for(lambda: "PID 4711" in messenger.trouble)
        silent[0] = ""
        messenger.take(frame())
        wait_for(lambda: not messenger.trouble)
    finally:
        messenger.close(30)


@pytest.mark.parametrize(
    ("terminal", "environ", "place"),
    [
        (136 << 8 | 3, b"A=1\0TMUX_PANE=%5\0", "PID 4711, /dev/pts/3, tmux pane %5"),
        (0, b"NOT_TMUX_PANE=%5\0TMUX_PANE=%;\0", "PID 4711"),
    ],
)
def test_the_place_of_another_gpuwatch(tmp_path: Path, terminal: int, environ: bytes, place: str) -> None:
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "stat").write_text(f"4711 (gpuwatch) S 1 1 1 {terminal} " + "0 " * 45)
    (tmp_path / "4711" / "environ").write_bytes(environ)
    assert find_place(4711, tmp_path) == place


@pytest.mark.parametrize("gate", [None, threading.Event()], ids=["sends", "hangs"])
def test_closing_sends_what_waits_only_for_others(make: Callable[..., Messenger], gate: threading.Event | None) -> None:
    route = Outbox(gate=gate)
    messenger = make(route, gather=1000.0)
    messenger.take(frame(raised=[alert()]))
    messenger.close(30 if gate is None else 0.05)
    assert len(route.sent) == 1
    messenger.take(frame(raised=[alert("later")]))
    messenger.close(1)
    assert len(route.sent) == 1
