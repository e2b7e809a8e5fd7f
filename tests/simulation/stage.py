"""Play a small scene: a few threads of a state server use the same objects, and may lose their turn anywhere."""

from __future__ import annotations

import logging
import random
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from typing_extensions import override

from pyspark_ckpt.state_store.log import LOGGER
from tests.simulation.running import make_folder, simulated
from tests.simulation.scheduler import Scheduler


class Stage:
    """What a scene has. ``seed`` decides; local files may be in ``folder``; ``told``: what the log tells."""

    def __init__(self, seed: object, scheduler: Scheduler, folder: Path, told: list[logging.LogRecord]) -> None:
        """Begin without threads."""
        self.draw = random.Random(f"stage {seed}")
        self.scheduler = scheduler
        self.folder = folder
        self.told = told
        scheduler.current.process.has_threads = True

    def play(self, *threads: Callable[[], object]) -> None:
        """Run threads to their end, together."""
        tasks = [self.scheduler.spawn(thread, f"thread-{number}") for number, thread in enumerate(threads)]
        self.scheduler.wait(lambda: all(task.has_ended for task in tasks))


Scene: TypeAlias = Callable[[Stage], None]
"""Builds what its threads use, lets them play, and asserts what must be true in the end."""


class _Told(logging.Handler):
    """Keeps warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def play(scene: Scene, seed: int) -> str:
    """Play a scene once. Return what went wrong: an exception in a thread, or an error in the log; else nothing."""
    name = scene.__name__
    scheduler, folder, told, logger = Scheduler(f"{name} {seed}"), make_folder(f"{name}-{seed}"), _Told(), _logger()
    logger.addHandler(told)
    try:
        with simulated(scheduler, seed, steps=scheduler.draw.choice((0.01, 0.1, 0.3))):
            scheduler.run(lambda: scene(Stage(f"{name} {seed}", scheduler, folder, told.records)))
    except Exception:  # noqa: BLE001 - whatever it is, it is wrong
        return traceback.format_exc()
    finally:
        logger.removeHandler(told)
        shutil.rmtree(folder, ignore_errors=True)
    return "\n".join(logging.Formatter().format(record) for record in told.records if record.levelno >= logging.ERROR)


def _logger() -> logging.Logger:
    logger = logging.getLogger(LOGGER)
    logger.propagate = False
    return logger
