"""Demand: the sum of those who wait for one image, as they join and leave."""

from __future__ import annotations

from foveal.engine.demand import Asker, Demand


def test_it_is_as_urgent_as_the_most_urgent_and_late_only_when_all_are() -> None:
    hurried, patient = Asker("a", 0, 10.0), Asker("b", 5, 20.0)
    demand = Demand(hurried, patient)
    assert (demand.caller, demand.priority, demand.deadline) == ("a", 5, 10.0)
    assert not demand.is_late(15.0) and demand.is_late(20.0)


def test_when_the_first_leaves_the_others_decide() -> None:
    first, second = Asker("a", 9, 10.0), Asker("b", 1, 20.0)
    demand = Demand(first, second)
    demand.leave(first)
    assert (demand.caller, demand.priority, demand.deadline) == ("b", 1, 20.0)
    demand.leave(second)
    assert demand.is_empty and demand.caller == "b"


def test_one_without_a_deadline_is_never_late() -> None:
    demand = Demand(Asker(deadline=1.0), Asker())
    assert demand.deadline == 1.0 and not demand.is_late(1e9)
