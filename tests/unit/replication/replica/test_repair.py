"""A damaged replica is cut only when it is noted and has left the ISR, and is well only when it was cut."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replication.model.cluster import LeaderAndIsr
from replication.replica.machine import repair

ME, OTHERS = 2, (1, 3)


class Repair(RuleBasedStateMachine):
    """A driver that may be slow, fail, and be killed; and a controller that says what it likes."""

    def __init__(self):
        super().__init__()
        self.state = None
        self.is_damaged = self.is_noted = self.is_offline = self.is_cutting = False
        self.stored = self.shown = None
        self.is_told = False  # since it is known to be damaged
        self.todo = []

    def _step(self, event):
        self.state, effects = repair.step(ME, self.state, event)
        self._perform(effects)

    def _perform(self, effects):
        for effect in effects:
            if isinstance(effect, repair.MarkOffline):
                assert self.is_noted
                self.is_offline = True
            elif isinstance(effect, repair.Cut):
                assert self.is_noted
                assert self.is_offline
                assert not self.is_cutting
                assert self.is_told
                assert self.shown == (self.stored.leader_epoch, effect.offset)
                assert self.stored.leader in OTHERS
                assert ME not in self.stored.isr
                self.is_cutting = True
                self.todo.append(effect)
            else:
                self.todo.append(effect)

    @rule(offset=st.sampled_from([None, 0, 5, 9]))
    def find(self, offset):
        self.is_damaged = True
        self.is_told &= self.state is not None
        self._step(repair.Found(offset, "a bit", self.stored))

    @rule(leader=st.sampled_from([-1, 1, 2, 3]), isr=st.sampled_from([(1,), (1, 2), (1, 2, 3), (2,), (3,)]))
    def tell(self, leader, isr):
        epoch = 0 if self.stored is None else self.stored.leader_epoch + 1
        self.stored, self.is_told = LeaderAndIsr(leader, epoch, isr, 1), True
        self._step(repair.LeaderKnown(self.stored))

    @rule()
    def lose_session(self):
        self.stored, self.is_told = None, False
        self._step(repair.LeaderUnknown())

    @rule()
    def tick(self):
        self._step(repair.Ticked())

    @precondition(lambda self: self.todo)
    @rule(is_well=st.booleans())
    def do(self, is_well):
        match self.todo.pop(0):
            case repair.Note():
                self.is_noted = True
                self._step(repair.Noted())
            case repair.ReadLeader(_, leader_epoch, offset):
                begin = (offset or 0) if is_well else None
                self.shown = leader_epoch, begin
                self._step(repair.LeaderRead(leader_epoch, begin))
            case repair.Cut():
                self.is_cutting = False
                if is_well:
                    self.is_damaged = False
                self._step(repair.WasCut() if is_well else repair.NotCut())
            case repair.Fill(_, leader_epoch):
                assert self.is_noted
                assert self.is_offline
                assert not self.is_cutting
                if is_well:
                    self.is_damaged = False
                self._step(repair.Filled(leader_epoch, is_well))
            case repair.Wait():
                self.tick()
            case repair.Forget():
                assert not self.is_damaged or self.state is not None
                if self.state is None:
                    self.is_noted = self.is_offline = False

    @rule()
    def be_killed(self):
        """Recorded damage is there after the restart, and other damage is found again some time."""
        self.todo, self.stored, self.is_cutting, self.state, self.is_offline = [], None, False, None, False
        self.is_told = False
        if self.is_noted:
            self.is_damaged = True
            self.state, effects = repair.begin(None, "noted")
            self._perform(effects)

    @invariant()
    def what_is_damaged_and_known_is_not_forgotten(self):
        assert not (self.is_noted and self.is_damaged) or self.state is not None

    def teardown(self):
        """In the end, once a controller has taken it out, it is well."""
        self.stored, self.is_told = LeaderAndIsr(1, 99, (1, 3), 1), True
        self._step(repair.LeaderKnown(self.stored))
        for _ in range(20):
            if self.todo:
                self.do(is_well=True)
            self.tick()
        assert self.state is None


TestRepair = Repair.TestCase


def test_a_leader_is_never_cut_and_the_only_member_neither():
    state, _ = repair.begin(5, "a bit")
    for leader, isr in ((ME, (ME,)), (ME, (ME, 1)), (1, (1, ME)), (-1, (ME,)), (-1, (1,))):
        state, effects = repair.step(ME, state, repair.LeaderKnown(LeaderAndIsr(leader, 1, isr, 1)))
        assert effects == (repair.Wait(),)
    state, effects = repair.step(ME, state, repair.LeaderKnown(LeaderAndIsr(1, 2, (1,), 1)))
    assert effects == (repair.ReadLeader(1, 2, 5),)
    state, effects = repair.step(ME, state, repair.LeaderRead(2, None))
    assert effects == (repair.Fill(1, 2),)
    state, effects = repair.step(ME, state, repair.Filled(2, is_sound=False))
    assert effects == ()
    state, effects = repair.step(ME, state, repair.Ticked())
    assert effects == (repair.ReadLeader(1, 2, 5),)
    state, effects = repair.step(ME, state, repair.LeaderRead(2, 4))
    assert effects == (repair.Cut(4),)


def test_what_a_leader_of_another_epoch_has_shown_counts_for_nothing():
    state, _ = repair.begin(5, "a bit")
    state, _ = repair.step(ME, state, repair.LeaderKnown(LeaderAndIsr(1, 2, (1,), 1)))
    state, effects = repair.step(ME, state, repair.LeaderKnown(LeaderAndIsr(3, 3, (3,), 1)))
    assert effects == ()
    state, effects = repair.step(ME, state, repair.LeaderRead(2, 5))
    assert effects == (repair.ReadLeader(3, 3, 5),)
    assert repair.step(ME, state, repair.LeaderRead(3, 5))[1] == (repair.Cut(5),)


def test_what_was_found_lower_is_noted_before_anything_is_cut():
    state, _ = repair.begin(9, "a bit")
    state, effects = repair.step(ME, state, repair.Found(3, "another"))
    assert effects == (repair.Note(3, "another"),)
    told = repair.LeaderKnown(LeaderAndIsr(1, 2, (1,), 1))
    state, effects = repair.step(ME, state, told)
    assert effects == ()
    state, effects = repair.step(ME, state, repair.Noted())
    assert effects == (repair.MarkOffline("another"), repair.ReadLeader(1, 2, 3))


def test_a_leader_from_whom_nobody_takes_over_is_filled_and_leads_on():
    state, _ = repair.begin(5, "a bit")
    state, effects = repair.step(ME, state, repair.LeaderKnown(LeaderAndIsr(ME, 2, (ME,), 1)))
    assert effects == (repair.Wait(),)
    state, effects = repair.step(ME, state, repair.Ticked())
    assert effects == (repair.Fill(ME, 2),)
    assert repair.step(ME, state, repair.Ticked()) == (state, ())  # one attempt at a time
    assert repair.step(ME, state, repair.Filled(2, is_sound=True)) == (None, (repair.Forget(None),))


def test_who_is_filled_follows_in_the_epoch_that_it_knows_by_then():
    state, _ = repair.begin(5, "a bit")
    state, _ = repair.step(ME, state, repair.LeaderKnown(LeaderAndIsr(1, 2, (1,), 1)))
    state, _ = repair.step(ME, state, repair.LeaderRead(2, None))
    state, _ = repair.step(ME, state, repair.LeaderKnown(LeaderAndIsr(3, 3, (3,), 1)))
    assert repair.step(ME, state, repair.Filled(2, is_sound=True))[1] == (repair.Forget(3),)
    assert repair.step(ME, state, repair.Filled(2, is_sound=False))[1] == (repair.ReadLeader(3, 3, 5),)
    state, _ = repair.step(ME, state, repair.LeaderUnknown())
    assert repair.step(ME, state, repair.Filled(2, is_sound=True))[1] == (repair.Forget(None),)
    assert repair.step(ME, state, repair.Filled(2, is_sound=False))[1] == ()


def test_what_was_said_before_the_damage_was_found_is_no_leave_to_cut():
    said = LeaderAndIsr(1, 2, (1,), 1)  # and then it fetched, and joined
    state, effects = repair.step(ME, None, repair.Found(5, "a bit", said))
    assert effects == repair.step(ME, None, repair.Found(5, "a bit"))[1] == (repair.Note(5, "a bit"),)
    state, effects = repair.step(ME, state, repair.Noted())
    assert effects == (repair.MarkOffline("a bit"), repair.Wait())
    assert repair.step(ME, state, repair.Ticked())[1] == (repair.Fill(1, 2),)


def test_a_cut_that_failed_is_tried_again():
    state, _ = repair.begin(5, "a bit")
    state, _ = repair.step(ME, state, repair.LeaderKnown(LeaderAndIsr(1, 2, (1,), 1)))
    state, _ = repair.step(ME, state, repair.LeaderRead(2, 5))
    state, effects = repair.step(ME, state, repair.NotCut())
    assert effects == ()
    assert repair.step(ME, state, repair.Ticked())[1] == (repair.ReadLeader(1, 2, 5),)


def test_more_damage_is_noted_if_it_is_lower_and_nothing_is_being_done():
    known, _ = repair.begin(5, "a bit")
    for offset in (None, 5, 9):
        assert repair.step(ME, known, repair.Found(offset, "another")) == (known, ())
    busy, _ = repair.step(ME, known, repair.LeaderKnown(LeaderAndIsr(1, 2, (1,), 1)))
    assert repair.step(ME, busy, repair.Found(3, "another")) == (busy, ())
    assert repair.step(ME, known, repair.Found(4, "another"))[1] == (repair.Note(4, "another"),)
    unknown, _ = repair.begin(None, "a bit")
    assert repair.step(ME, unknown, repair.Found(9, "another"))[1] == (repair.Note(9, "another"),)
