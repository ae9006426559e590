"""What is told when, and in which words."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.config import Notify
from gpuwatch.recorder.delivery import LINES, TITLE, Kind, Message, Repeats, cleared, clock_time, digest, raised
from gpuwatch.recorder.notify import Deduplicator
from tests.support.builders import EPOCH
from tests.support.telling import alert, ended

CRITICAL, WARNING, NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE


class Story:
    """A plan, and what holds; each step is a frame. The plan's clock is at 0 when the story begins at EPOCH."""

    def __init__(self, manner: Notify | None = None) -> None:
        self.plan = Deduplicator(manner)
        self.holding: dict[str, Alert] = {}
        self.sent: list[tuple[float, Message]] = []
        self.now = 0.0

    def step(self, *new: Alert, over: Sequence[str] = (), seconds: float = 1.0) -> None:
        """Raise alerts, or make them worse, and end those of these subjects; then time passes."""
        gone = [ended(one, EPOCH + self.now - one.raised) for one in self.holding.values() if one.subject in over]
        for one in gone:
            del self.holding[one.key]
        self.holding |= {one.key: one for one in new}
        self.plan.update(new, gone, self.holding.values(), self.now)
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Let time pass, and send whatever becomes due."""
        end = self.now + seconds
        while (wake := self.plan.next_due()) is not None and wake <= end:
            self.now = max(self.now, wake)
            self.sent += [(self.now, message) for message in self.plan.pop_due(self.now)]
        self.now = end

    def mark(self, subject: str = "", **marks: bool) -> None:
        """Acknowledge or mute what holds of a subject, or take that back."""
        for key, one in self.holding.items():
            if one.subject == subject:
                self.holding[key] = msgspec.structs.replace(one, **marks)
        self.step()

    def kinds(self) -> list[str]:
        """Return the kinds of all that was sent."""
        return [message.kind.value for _, message in self.sent]

    def titles(self) -> list[str]:
        """Return their titles."""
        return [message.title for _, message in self.sent]


def hour(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(EPOCH + seconds))


def test_a_raise_is_one_message_that_waits_two_seconds_and_a_clear_is_one() -> None:
    story = Story()
    story.step(alert(), seconds=1.9)
    assert story.sent == []
    story.wait(600)
    story.step(over=[""], seconds=600)
    assert story.kinds() == ["raised", "cleared"]
    assert [round(at, 3) for at, _ in story.sent] == [2.0, 603.9]
    first, last = (message for _, message in story.sent)
    assert first.title == "▲ box3: GPU 3 full in about 4 min"
    assert first.body.splitlines() == ["ada grew 9.0 GiB/min", f"since {hour(0)}", "by ada"]
    assert last.title == "✓ box3: over after 10 min 1 s: GPU 3 full in about 4 min"
    assert last.body.splitlines() == ["back within the limit", f"{hour(0)} to {hour(601.9)}", "by ada"]


def test_what_is_over_before_it_was_told_is_not_told() -> None:
    story = Story()
    story.step(alert())
    story.step(over=[""], seconds=3600)
    assert story.sent == []
    story.step(alert(at=3602), seconds=10)
    assert story.kinds() == ["raised"]


def test_what_is_worth_little_is_told_once_it_is_worth_more() -> None:
    story = Story(Notify(least=CRITICAL))
    for severity in (NOTE, WARNING):  # a note is never a message
        story.step(alert(severity=severity), seconds=10)
    assert story.sent == []
    story.step(alert(severity=CRITICAL), seconds=10)
    story.step(over=[""], seconds=10)
    assert story.kinds() == ["raised", "cleared"]


def test_worse_is_one_more_message_even_within_the_cool_down() -> None:
    story = Story()
    story.step(alert(), seconds=10)
    story.step(alert(severity=CRITICAL, title="GPU 3 full"), seconds=10)
    story.step(over=[""], seconds=1000)
    assert story.kinds() == ["raised", "worse", "cleared"]
    assert story.sent[1][1].title == "● box3: GPU 3 full"
    assert "critical now" in story.sent[1][1].body
    # The end names what was told last, whatever the alert was called at its end.
    assert story.sent[2][1].title.endswith(": GPU 3 full")


def test_easing_and_getting_worse_again_is_told_once_in_a_cool_down() -> None:
    story = Story()
    story.step(alert(severity=CRITICAL), seconds=10)
    for _ in range(5):
        story.holding = {one.key: msgspec.structs.replace(one, severity=WARNING) for one in story.holding.values()}
        story.step(seconds=10)
        story.step(alert(severity=CRITICAL), seconds=10)
    assert story.kinds() == ["raised"]
    story.holding = {one.key: msgspec.structs.replace(one, severity=WARNING) for one in story.holding.values()}
    story.step(seconds=400)
    story.step(alert(severity=CRITICAL), seconds=10)
    assert story.kinds() == ["raised", "worse"]


def test_a_condition_that_flaps_is_told_once_and_then_at_the_end_of_the_cool_down() -> None:
    story = Story()
    for number in range(3):
        story.step(alert(at=number * 40), seconds=20)
        story.step(over=[""], seconds=20)
    story.wait(1000)
    assert story.kinds() == ["raised", "cleared", "cleared"]
    assert [at for at, _ in story.sent] == [2.0, 22.0, 302.0]
    assert story.titles()[2] == f"✓ box3: over after 20 s (3 times since {hour(0)}): GPU 3 full in about 4 min"


def test_one_that_flaps_and_then_holds_says_so_and_its_end_is_told() -> None:
    story = Story()
    story.step(alert(), seconds=20)
    story.step(over=[""], seconds=20)
    story.step(alert(at=40), seconds=560)
    story.step(over=[""], seconds=1000)
    assert story.kinds() == ["raised", "cleared", "raised", "cleared"]
    assert [at for at, _ in story.sent] == [2.0, 22.0, 302.0, 602.0]
    assert story.titles()[2] == f"▲ box3: GPU 3 full in about 4 min (2 times since {hour(0)})"


def test_after_a_long_time_a_raise_is_counted_from_one_again() -> None:
    story = Story()
    story.step(alert(), seconds=20)
    story.step(over=[""], seconds=1000)
    story.step(alert(at=1020), seconds=20)
    assert story.kinds() == ["raised", "cleared", "raised"]
    assert "times" not in story.titles()[2]


def test_a_worse_raise_does_not_wait_for_the_end_of_the_cool_down() -> None:
    story = Story()
    story.step(alert(), seconds=20)
    story.step(over=[""], seconds=20)
    story.step(alert(at=40, severity=CRITICAL), seconds=20)
    assert story.kinds() == ["raised", "cleared", "raised"]
    assert story.sent[-1][0] == 42.0


@pytest.mark.parametrize(("acknowledged", "muted"), [(True, False), (False, True)])
def test_nothing_is_said_of_what_was_acknowledged_or_muted(acknowledged: bool, muted: bool) -> None:
    story = Story()
    story.step(alert(acknowledged=acknowledged, muted=muted), seconds=10)
    story.step(over=[""], seconds=1000)
    assert story.sent == []
    # Marked before the message went out.
    story.step(alert(at=story.now))
    story.mark(acknowledged=acknowledged, muted=muted)
    story.step(over=[""], seconds=1000)
    assert story.sent == []
    # Or after.
    story.step(alert(at=story.now), seconds=10)
    story.mark(acknowledged=acknowledged, muted=muted)
    story.step(over=[""], seconds=1000)
    assert story.kinds() == ["raised"]


def test_what_came_up_under_a_mute_and_outlasts_it_is_told_then() -> None:
    story = Story()
    story.step(alert(muted=True), seconds=1000)
    assert story.sent == []
    story.mark(muted=False)
    story.wait(10)
    story.mark(muted=True)
    story.mark(muted=False)
    story.wait(1000)
    assert story.kinds() == ["raised"]


def test_an_acknowledged_alert_that_gets_worse_speaks_again() -> None:
    story = Story()
    story.step(alert(), seconds=10)
    story.mark(acknowledged=True)
    story.step(alert(severity=CRITICAL), seconds=10)
    assert story.kinds() == ["raised", "worse"]


def test_what_was_taken_over_is_not_told_again_but_its_end_is() -> None:
    story = Story()
    held = alert(at=-100)
    story.holding = {held.key: held}
    story.step(seconds=10)
    assert story.sent == []
    story.step(over=[""], seconds=10)
    assert story.titles() == ["✓ box3: over after 1 min 50 s: GPU 3 full in about 4 min"]
    story = Story()
    story.holding = {held.key: held}
    story.step(seconds=10)
    story.step(alert(at=-100, severity=CRITICAL), seconds=10)
    assert story.kinds() == ["worse"]


def test_what_ends_without_ever_having_been_seen_is_told() -> None:
    story = Story()
    story.plan.update([], [ended(alert("a"), 60)], [], 0.0)
    story.plan.update([], [ended(alert("b", muted=True), 60), ended(alert("c", severity=NOTE), 60)], [], 0.0)
    story.wait(10)
    assert story.kinds() == ["cleared"]


def test_troubles_of_our_own_are_no_messages() -> None:
    story = Story()
    trouble = alert("messages", rule=TROUBLE)
    story.holding = {trouble.key: trouble}
    story.step(seconds=10)
    story.holding = {}
    story.step(seconds=1000)
    assert story.sent == []


def test_lost_frames_leave_nothing_open() -> None:
    story = Story()
    story.step(alert("a"), alert("b"), seconds=10)
    story.holding = {}
    story.step(seconds=10)  # neither was cleared in a frame that came
    assert story.kinds() == ["raised", "raised", "cleared", "cleared"]


def test_a_gpu_that_is_known_by_another_name_now_keeps_its_alert() -> None:
    story = Story()
    story.step(alert(gpu="index-3", id="0123456789"), seconds=10)
    story.holding = {}
    named = alert(gpu="GPU-3", id="0123456789")
    story.holding = {named.key: named}
    story.step(seconds=10)
    story.step(over=[""], seconds=10)
    assert story.kinds() == ["raised", "cleared"]


def test_three_are_three_and_four_are_one() -> None:
    story = Story()
    story.step(*(alert(str(number)) for number in range(3)), seconds=10)
    assert story.kinds() == ["raised"] * 3
    story = Story()
    story.step(*(alert(str(number)) for number in range(2)))
    story.step(*(alert(str(number), at=1) for number in range(2, 4)), seconds=10)
    assert story.kinds() == ["digest"]


def test_a_hundred_at_once_are_one_message_the_worst_first() -> None:
    story = Story()
    mild = [alert(str(number), title=f"GPU {number} warm") for number in range(99)]
    story.step(*mild, alert("bad", CRITICAL, title="GPU 5 lost"), seconds=10)
    (sent,) = (message for _, message in story.sent)
    assert sent.title == "● 100 alerts on box3: GPU 5 lost"
    lines = sent.body.splitlines()
    assert lines[0] == "● GPU 5 lost"
    assert len(lines) == LINES + 1
    assert lines[-1] == "and 90 more"
    assert (len(sent.alerts), sent.count, sent.severity) == (100, 100, CRITICAL)
    story.step(over=[str(number) for number in range(99)], seconds=10)
    assert story.titles()[1:] == ["✓ 99 alerts on box3 are over"]


def test_a_digest_of_what_holds_and_what_is_over_names_what_holds() -> None:
    story = Story()
    story.step(*(alert(str(number)) for number in range(3)), seconds=10)
    story.step(alert("new", title="GPU 1 hot"), over=["0", "1", "2"], seconds=10)
    assert story.titles()[-1] == "▲ 1 alert on box3, 3 over: GPU 1 hot"


def test_digests_are_made_one_without_loss() -> None:
    parts = [raised(alert(str(number)), Kind.RAISED, Repeats()) for number in range(8)]
    both = digest([digest(parts[:4]), digest(parts[4:])])
    assert both.count == 8
    assert {one.subject for one in both.alerts} == {str(number) for number in range(8)}


def test_the_end_of_the_program_does_not_wait_for_others_to_come() -> None:
    plan = Deduplicator()
    plan.update([alert()], [], [alert()], 0.0)
    assert plan.pop_due(0.5) == []
    assert len(plan.pop_all(0.5)) == 1


def test_hostile_texts_fit_a_line() -> None:
    nasty = alert(title="a\x1b]0;x\a\n" * 200, evidence="b\r\n\x9c" * 2000, owners=("eve\n",), host="box\n3", how="\0")
    for message in (raised(nasty, Kind.RAISED, Repeats()), cleared(ended(nasty, 3), nasty.title, Repeats())):
        for one in (message, digest([message] * 5)):
            assert len(one.title) <= TITLE
            assert one.title.isprintable()
            assert all(line.isprintable() for line in one.body.split("\n"))
            assert len(one.body.split("\n")) <= LINES


def test_a_time_that_is_not_todays_has_its_date() -> None:
    assert re.fullmatch(r"\d\d:\d\d", clock_time(EPOCH, EPOCH + 3600))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", clock_time(EPOCH, EPOCH + 86400))


def test_without_a_host_it_says_so() -> None:
    assert raised(alert(host=""), Kind.RAISED, Repeats()).title.startswith("▲ this machine: ")


# ---------------------------------------------------------------------------------------------------------------
# Whatever happens

SUBJECTS = "abcdef"
DO = st.tuples(
    st.sampled_from(["raise", "clear", "worse", "mute", "unmute", "lose"]),
    st.sampled_from(SUBJECTS),
    st.floats(0.1, 200.0),
)


def play(steps: Sequence[tuple[str, str, float]]) -> Story:
    """Live through a story, and wait for all that it leaves to be said."""
    story = Story(Notify(digest=2))
    for do, subject, seconds in steps:
        key = alert(subject).key
        held = story.holding.get(key)
        at = story.now
        if do == "raise" and held is None:
            story.step(alert(subject, at=at), seconds=seconds)
        elif do == "clear" and held is not None:
            story.step(over=[subject], seconds=seconds)
        elif do == "worse" and held is not None and held.severity < CRITICAL:
            story.step(msgspec.structs.replace(held, severity=CRITICAL, most=CRITICAL), seconds=seconds)
        elif do in ("mute", "unmute"):
            story.mark(subject, muted=do == "mute")
            story.wait(seconds)
        elif do == "lose" and held is not None:
            del story.holding[key]
            story.step(seconds=seconds)
    story.wait(2000)
    return story


def parts(story: Story) -> dict[str, list[tuple[float, Message]]]:
    """Give, by key, what was said and when, in digests or alone."""
    said: defaultdict[str, list[tuple[float, Message]]] = defaultdict(list)
    for at, message in story.sent:
        for part in message.parts or (message,):
            said[part.alerts[0].key].append((at, part))
    return said


@given(st.lists(DO, max_size=40))
def test_whatever_happens_it_is_told_once_in_order_and_then_forgotten(steps: list[tuple[str, str, float]]) -> None:
    story = play(steps)
    said = parts(story)
    for messages in said.values():
        seen: dict[tuple[Kind, Severity], float] = {}
        for number, (at, part) in enumerate(messages):
            assert not part.alerts[0].quiet
            if part.kind is Kind.CLEARED:
                assert number, "its raise was told before"
                continue
            last = seen.get((part.kind, part.severity))
            assert last is None or at - last >= story.plan.policy.cooldown
            seen[part.kind, part.severity] = at
    # Whoever read everything knows how it stands now, but for what they do not want to hear of.
    believed = {key for key, messages in said.items() if messages[-1][1].kind is not Kind.CLEARED}
    assert {key for key, one in story.holding.items() if not one.quiet} <= believed
    # A digest loses none.
    for _, message in story.sent:
        if message.kind is Kind.DIGEST:
            assert len(message.alerts) == message.count > story.plan.policy.digest
            assert [part.alerts[0] for part in message.parts] == list(message.alerts)
    assert sum(message.count for _, message in story.sent) == sum(map(len, said.values()))
    # And once all is over nothing is kept.
    story.step(over=SUBJECTS, seconds=1000)
    story.plan.pop_due(story.now)
    assert story.plan.next_due() is None
    story.plan.pop_due(story.now + 1000)
    assert not story.plan._topics


@pytest.mark.parametrize("gather", [0.0, 0.5])
def test_a_shorter_wait_is_kept(gather: float) -> None:
    story = Story(Notify(gather=gather))
    story.step(alert(), seconds=10)
    assert [at for at, _ in story.sent] == [gather]
