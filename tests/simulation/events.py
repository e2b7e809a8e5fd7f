"""What may befall a world, by name. Each event draws its details from the randomness that it is given."""

from __future__ import annotations

import errno
import random
import resource
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tests.faults.faulty_disk import FULL, READ_ONLY, broken, nearly_full
from tests.simulation.history import Query
from tests.simulation.shared_folder import SharedFolder
from tests.simulation.weather import LATE_S, Weather

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

Happens = Callable[["World", random.Random], None]
SOON_REQUESTS = 12


def _soon(process: Process, draw: random.Random, act: Callable[[], object]) -> None:
    """Let something befall a process now, or within its next requests."""
    if draw.random() < 0.5:
        act()
    else:
        process.after_requests(draw.randrange(SOON_REQUESTS), act)


def _kill_executor(world: World, draw: random.Random) -> None:
    executor, keeps_disk = draw.choice(world.executors), draw.random() < 0.5
    process = executor.process

    def kill() -> None:
        world.tell(f"{process} is killed, its disk {'stays' if keeps_disk else 'is lost'}")
        executor.kill(keeps_disk=keeps_disk)

    _soon(process, draw, kill)


def _let_sleep(world: World, process: Process, seconds: float) -> None:
    process.sleep_until(world.scheduler.now_s + seconds)
    world.tell(f"{process} sleeps until {process.asleep_until_s:.0f}")


def _let_executor_sleep(world: World, draw: random.Random) -> None:
    process, seconds = draw.choice(world.executors).process, draw.choice((5, 60, 400, 4000)) * draw.random()
    _soon(process, draw, lambda: _let_sleep(world, process, seconds))


def _sleep_in_a_snapshot(world: World, draw: random.Random) -> None:
    """An executor sleeps in the midst of a snapshot of new table files, while others go on and clean up."""
    executor = draw.choice(world.executors)
    if not executor.handles:
        return
    key, seconds = draw.choice(sorted(executor.handles)), world.grace_s * draw.uniform(0.1, 4)
    process = executor.process
    executor.compact()
    process.after_requests(draw.randrange(SOON_REQUESTS), lambda: _let_sleep(world, process, seconds))
    world.begin_snapshot(executor, key)
    for other in world.executors:
        if other is not executor and draw.random() < 0.5:
            other.compact()
    world.scheduler.sleep(draw.choice((1, 20, world.grace_s)) * draw.random())
    world.tools.collect(waits=draw.random() < 0.5)


def _lose_power(world: World, draw: random.Random) -> None:
    """The power of the whole site is lost. What was acknowledged must be there when it is back."""
    world.tell("all power is lost")
    for process in [*(driver.process for driver in world.drivers), *world.tools.processes]:
        world.scheduler.kill(process)
    for executor in world.executors:
        executor.kill(keeps_disk=False)
    world.lose_power(draw)


def _set_clock(world: World, draw: random.Random) -> None:
    executor = draw.choice(world.executors)
    executor.process.ahead_s = draw.choice((-4000.0, -100.0, 0.0, 100.0, 4000.0))


def _rot(world: World, draw: random.Random) -> None:
    """A bit of a file on a local disk changes."""
    path = draw.choice(world.executors).rot(draw)
    if path is not None:
        world.has_rotted = True
        world.stored.note_rot(path.read_bytes())
        world.tell(f"{path.name} in {path.parent.parent.name} rots")


def _kill_driver(world: World, _: random.Random) -> None:
    world.scheduler.kill(world.drivers[-1].process)


def _stop_driver(world: World, _: random.Random) -> None:
    world.drivers[-1].is_stopping = True


def _replace_driver(world: World, draw: random.Random) -> None:
    """A driver sleeps, perhaps between two requests, and is thought dead, and another one takes its place."""
    process, seconds = world.drivers[-1].process, draw.choice((1, 30, 400, 4000)) * draw.random()
    _soon(process, draw, partial(_let_sleep, world, process, seconds))
    world.scheduler.sleep(draw.choice((0, 1, 10)) * draw.random())
    world.start_driver()


def _start_second_driver(world: World, _: random.Random) -> None:
    """Another driver starts while the first one works."""
    world.start_driver()


def _change_format(world: World, draw: random.Random) -> None:
    """The next run has the other checkpoint format."""
    world.format = 3 - world.format
    world.drivers[-1].is_stopping = draw.random() < 0.5


def _stop_query(world: World) -> None:
    world.is_stopped = True
    world.went_back += 1
    for driver in world.drivers:
        world.scheduler.kill(driver.process)


def _go_back(world: World, draw: random.Random) -> None:
    """A user stops the query, waits for requests under way, deletes the newest entries of the logs, and starts it."""
    _stop_query(world)
    world.scheduler.sleep(LATE_S)
    stored = world.stored
    before = stored.newest
    whole = set(stored.numbers("commits")) & set(stored.numbers("offsets"))
    # An entry far below the others has come late, after it was deleted: nobody goes back to that.
    ways = [each for each in range(max(0, before - stored.first_kept) + 1) if before - 1 - each in whole]
    steps = draw.choice(ways) if ways else 0
    for log in ("commits", "offsets"):
        for number in stored.numbers(log):
            if number >= before - steps:
                world.service.delete(stored.key(f"{log}/{number}"))
    world.acknowledged = stored.newest
    world.tell(f"the logs go back from version {before} to {stored.newest}")
    world.is_stopped = False
    world.start_driver()


def _move(world: World, draw: random.Random) -> None:
    """A user stops the query, and goes on in a checkpoint that a restore or a branch has made of it."""
    checkpoints = world.tools.checkpoints
    if not checkpoints:
        world.tools.branch(draw)
        world.scheduler.wait(lambda: checkpoints or not world.tools.is_working, LATE_S)
    if not checkpoints:
        return
    folder = checkpoints.pop(draw.randrange(len(checkpoints)))
    _stop_query(world)
    world.scheduler.sleep(draw.choice((1, LATE_S)) * draw.random())
    world.go_on_in(Query(folder.url, folder.partitions, folder.version, folder.made_with))
    world.counts["query: moved to another checkpoint"] += 1
    world.tell(f"the query goes on in {folder.url} with {folder.partitions} partitions")
    world.is_stopped = False
    world.start_driver()


def _damage_a_table(world: World, draw: random.Random) -> None:
    """The place damages the next table file that is written there."""
    world.is_damaged = True
    seed = draw.random()

    def damage(key: str) -> None:
        world.service.damage(key, random.Random(seed))
        world.counts["place: damaged table files"] += 1
        world.tell(f"{key} is damaged")

    world.stored.damages = damage


def _break_disks(world: World, draw: random.Random) -> None:
    """The local disks are full or read-only for a while."""
    trouble = draw.choice((FULL, READ_ONLY, nearly_full(int(2 ** draw.uniform(4, 14)))))
    if isinstance(world.service, SharedFolder):  # the limit is that of all files
        trouble = replace(trouble, largest_file_bytes=resource.RLIM_INFINITY)
    world.is_read_only |= trouble.errno == errno.EROFS
    world.tell(f"all local disks are {trouble.name}")
    with broken(world.local, trouble):
        world.scheduler.sleep(draw.choice((10, 100)) * draw.random())
    world.tell("all local disks are well")


def _go_back_over_a_sleeper(world: World, draw: random.Random) -> None:
    """An executor stops in the midst of its tasks, and wakes up in another history of the query."""
    process = draw.choice(world.executors).process
    _let_sleep(world, process, LATE_S + draw.choice((5, 60, 400)) * draw.random())
    _go_back(world, draw)


def _sleep_beside_a_compaction(world: World, draw: random.Random) -> None:
    """An executor sleeps with table files that the others replace. When it wakes, they may be about to be deleted."""
    sleeper = draw.choice(world.executors)
    _let_sleep(world, sleeper.process, world.grace_s * draw.uniform(0.5, 3))
    for executor in world.executors:
        if executor is not sleeper:
            executor.compact()


def _be_quiet(world: World, draw: random.Random) -> None:
    """No rows come for a while."""
    seconds = draw.choice((200, 1000, 4000)) * draw.random()
    world.quiet_until_s = world.scheduler.now_s + seconds
    world.scheduler.sleep(seconds)


def _storm(world: World, draw: random.Random) -> None:
    """The place refuses or loses most requests for a while."""
    before = world.service.weather
    world.service.weather = Weather(0.9, (draw.choice(world.storms),), 1.0)
    world.scheduler.sleep(draw.choice((10, 100)) * draw.random())
    world.service.weather = before


def _let_executor_go(world: World, draw: random.Random) -> None:
    """An executor gives its stores back, as Spark lets it when their tasks run elsewhere."""
    world.let_go(draw.choice(world.executors))


def _working_tool(world: World, draw: random.Random) -> Process | None:
    working = [process for process in world.tools.processes if not process.is_dead]
    return draw.choice(working) if working else None


def _kill_tool(world: World, draw: random.Random) -> None:
    if (process := _working_tool(world, draw)) is not None:
        _soon(process, draw, partial(_kill, world, process))


def _kill(world: World, process: Process) -> None:
    world.tell(f"{process} is killed")
    world.scheduler.kill(process)


def _let_tool_sleep(world: World, draw: random.Random) -> None:
    if (process := _working_tool(world, draw)) is not None:
        _soon(process, draw, partial(_let_sleep, world, process, draw.choice((60, 1000, 4000)) * draw.random()))


EVENTS: Mapping[str, Happens] = {
    "kill executor": _kill_executor,
    "power is lost": _lose_power,
    "executor sleeps": _let_executor_sleep,
    "clock is set": _set_clock,
    "local disk rots": _rot,
    "kill driver": _kill_driver,
    "driver stops": _stop_driver,
    "driver is replaced": _replace_driver,
    "second driver": _start_second_driver,
    "change format": _change_format,
    "go back": _go_back,
    "move": _move,
    "place damages": _damage_a_table,
    "disks break": _break_disks,
    "go back over a sleeper": _go_back_over_a_sleeper,
    "sleep beside a compaction": _sleep_beside_a_compaction,
    "sleep in a snapshot": _sleep_in_a_snapshot,
    "quiet": _be_quiet,
    "storm": _storm,
    "executor lets go": _let_executor_go,
    "read": lambda world, draw: world.read(draw),
    "savepoint": lambda world, draw: world.tools.save(draw),
    "restore": lambda world, draw: world.tools.restore(draw),
    "look": lambda world, draw: world.tools.look(draw),
    "branch": lambda world, draw: world.tools.branch(draw),
    "savepoint is deleted": lambda world, draw: world.tools.delete(draw),
    "clean-up": lambda world, draw: world.tools.collect(waits=draw.random() < 0.5),
    "kill tool": _kill_tool,
    "tool sleeps": _let_tool_sleep,
}
