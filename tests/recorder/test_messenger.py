"""The sink that sends: one thread for what is sent, one for each notifier, and none of them holds up another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.config import Notify
from gpuwatch.monitor import Sink
from gpuwatch.recorder.delivery import Kind, Message, Notifier, Repeats, raised
from gpuwatch.recorder.notify import DeliveryQueue, Messenger
from tests.support.telling import Outbox, alert, ended, frame
from tests.support.waiting import wait_for

FAST = Notify(gather=0.02)


class Time:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Election:
    """Lock that a test gives and takes."""

    def __init__(self, *, won: bool = True) -> None:
        self.won = won
        self.asked = threading.Event()
        self.failure: Exception | None = None

    def acquire(self) -> bool:
        self.asked.set()
        if self.failure is not None:
            raise self.failure
        return self.won

    def release(self) -> None:
        pass


@pytest.fixture
def made() -> Iterator[Callable[..., Messenger]]:
    """Return what makes a messenger that is closed when the test ends."""
    messengers: list[Messenger] = []

    def make(notifiers: Sequence[Notifier], policy: Notify = FAST, **parts: object) -> Messenger:
        messengers.append(Messenger(policy, notifiers, **{"lock": Election(), **parts}))  # type: ignore[arg-type]
        return messengers[-1]

    yield make
    for one in messengers:
        one.close(0.1)


def tell(messenger: Messenger, *alerts: Alert) -> None:
    """Let alerts be raised in a frame of their own, and hold."""
    messenger.take(frame(raised=alerts))


def test_a_raise_goes_to_every_notifier_and_so_does_its_end(made: Callable[..., Messenger]) -> None:
    first, second = Outbox("first"), Outbox("second")
    messenger = made([first, second])
    sink: Sink = messenger
    assert sink.name == "messages"
    tell(messenger, alert())
    wait_for(lambda: len(first.sent) == len(second.sent) == 1)
    messenger.take(frame(cleared=[ended(alert(), 60)]))
    wait_for(lambda: len(first.sent) == len(second.sent) == 2)
    assert [one.kind for one in first.sent] == [Kind.RAISED, Kind.CLEARED]
    assert messenger.trouble == ""


def test_only_one_gpuwatch_sends_and_the_other_goes_on_where_it_stops(made: Callable[..., Messenger]) -> None:
    notifier, lock = Outbox(), Election(won=False)
    messenger = made([notifier], lock=lock)
    tell(messenger, alert("a"))
    assert lock.asked.wait(30)
    lock.won = True
    # The other one has told of `a`; its end is ours to tell, and so is what comes now.
    messenger.take(frame(raised=[alert("b")], cleared=[ended(alert("a"), 60)]))
    wait_for(lambda: len(notifier.sent) == 2)
    assert sorted((one.kind.value, one.alerts[0].subject) for one in notifier.sent) == [
        ("cleared", "a"),
        ("raised", "b"),
    ]


def test_a_dead_notifier_does_not_hold_up_another(made: Callable[..., Messenger]) -> None:
    gate = threading.Event()
    dead, live = Outbox("dead", gate=gate), Outbox("live")
    messenger = made([dead, live])
    for number in range(3):
        tell(messenger, alert(str(number)))
        wait_for(lambda: len(live.sent) > number)  # noqa: B023 - called at once
    assert not dead.sent
    gate.set()
    wait_for(lambda: len(dead.sent) > 1)


def test_trouble_is_said_until_the_next_message_gets_out(made: Callable[..., Messenger]) -> None:
    notifier = Outbox("slack", "does not answer (timeout)")
    messenger = made([notifier], retry=0.05)
    tell(messenger, alert())
    wait_for(lambda: messenger.trouble == "messages: slack does not answer (timeout)")
    wait_for(lambda: messenger.trouble == "messages: slack does not answer (timeout); 1 message not delivered")
    assert [one.alerts[0].subject for one in notifier.sent] == ["", ""]  # tried twice, and no third time
    notifier.why = ""
    tell(messenger, alert("next"))
    wait_for(lambda: messenger.trouble == "")


def test_a_second_try_that_succeeds_leaves_nothing_to_say(made: Callable[..., Messenger]) -> None:
    notifier = Outbox("slack", "refuses (HTTP 503)")
    messenger = made([notifier], retry=0.2)
    tell(messenger, alert())
    wait_for(lambda: bool(messenger.trouble))
    notifier.why = ""
    wait_for(lambda: len(notifier.sent) == 2 and messenger.trouble == "")


def test_a_notifier_that_raises_is_a_failure_like_any(made: Callable[..., Messenger]) -> None:
    class Broken(Outbox):
        def send(self, message: Message) -> str:
            raise RuntimeError("\x1boh")

    messenger = made([Broken("odd")])
    tell(messenger, alert())
    wait_for(lambda: messenger.trouble == "messages: odd failed: RuntimeError: \ufffdoh")


def test_where_nobody_can_have_the_lock_everybody_sends(made: Callable[..., Messenger]) -> None:
    notifier, lock = Outbox(), Election()
    lock.failure = OSError("read-only")
    messenger = made([notifier], lock=lock)
    tell(messenger, alert("a"))
    wait_for(lambda: bool(notifier.sent) and messenger.trouble == "")


def test_a_fault_of_our_own_is_said_and_ends_nothing(made: Callable[..., Messenger]) -> None:
    notifier, lock = Outbox(), Election()
    lock.failure = TypeError("no lock")
    messenger = made([notifier], lock=lock)
    tell(messenger, alert("a"))
    wait_for(lambda: messenger.trouble == "messages: failed: TypeError: no lock")
    lock.failure = None
    tell(messenger, alert("b"))
    wait_for(lambda: bool(notifier.sent) and messenger.trouble == "")


def test_closing_sends_what_waits_only_for_others(made: Callable[..., Messenger]) -> None:
    notifier = Outbox()
    messenger = made([notifier], Notify(gather=1000.0))
    tell(messenger, alert())
    messenger.close(30)
    assert len(notifier.sent) == 1
    assert notifier.closed.is_set()
    tell(messenger, alert("later"))
    messenger.close(30)
    assert len(notifier.sent) == 1


def test_closing_gives_up_on_what_takes_too_long(made: Callable[..., Messenger]) -> None:
    never = threading.Event()
    notifier = Outbox(gate=never)
    messenger = made([notifier])
    tell(messenger, alert())
    messenger.close(0.05)  # or it would wait for ever
    assert notifier.closed.is_set()


def test_a_reload_changes_the_ways_out_and_keeps_what_is_known(made: Callable[..., Messenger]) -> None:
    old, new = Outbox("old"), Outbox("new")
    messenger = made([old])
    tell(messenger, alert())
    wait_for(lambda: len(old.sent) == 1)
    messenger.configure(Notify(gather=0.02, least=Severity.CRITICAL), [new])
    wait_for(old.closed.is_set)
    # The raise was told; a warning is too little now; the end of what was told is told.
    messenger.take(frame(raised=[alert("b")], cleared=[ended(alert(), 60)]))
    wait_for(lambda: len(new.sent) == 1)
    messenger.close(1)
    assert [one.kind for one in new.sent] == [Kind.CLEARED]
    assert len(old.sent) == 1


# ---------------------------------------------------------------------------------------------------------------
# One queue


def note(subject: str = "") -> Message:
    return raised(alert(subject), Kind.RAISED, Repeats())


def filled_queue(**options: int) -> tuple[Outbox, threading.Event, DeliveryQueue]:
    """Return a queue whose first message is being sent until the event is set, while six others wait."""
    gate = threading.Event()
    notifier = Outbox("slow", gate=gate)
    queue = DeliveryQueue(notifier, clock=Time(), **options)
    queue.put(note("0"))
    wait_for(lambda: queue._worker.is_running and not queue._queue)
    for number in range(1, 7):
        queue.put(note(str(number)))
    return notifier, gate, queue


def test_the_oldest_are_dropped_where_too_many_wait() -> None:
    notifier, gate, queue = filled_queue(together=1000, waiting=3)
    assert queue.trouble == "slow is too slow; 3 messages not delivered"
    gate.set()
    wait_for(lambda: [one.alerts[0].subject for one in notifier.sent] == ["0", "4", "5", "6"])
    wait_for(lambda: queue.trouble == "")
    queue.close(100.0)


def test_what_has_come_to_wait_goes_out_as_one() -> None:
    notifier, gate, queue = filled_queue(together=3)
    gate.set()
    wait_for(lambda: [one.count for one in notifier.sent] == [1, 6])
    queue.close(100.0)


def test_after_a_failure_the_next_try_waits() -> None:
    clock = Time()
    notifier = Outbox(why="is down")
    queue = DeliveryQueue(notifier, together=3, retry=30.0, clock=clock)
    queue.put(note("a"))
    wait_for(lambda: bool(queue.trouble))
    clock.now += 29
    queue.put(note("b"))
    assert len(notifier.sent) == 1
    clock.now += 2
    queue.put(note("c"))  # wakes it
    wait_for(lambda: queue.trouble == "outbox is down; 1 message not delivered")
    assert [one.alerts[0].subject for one in notifier.sent] == ["a", "a"]
    queue.close(clock.now)
