"""Threads and their store on a played clock: what thousands of ranks would ask, one question after another."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from threading import Lock, Thread, stack_size


class Turn:
    """One thread's wait for its next moment."""

    def __init__(self) -> None:
        self.there, self._lock = False, Lock()
        self._lock.acquire()

    def give(self) -> None:
        self._lock.release()

    def wait(self) -> None:
        self._lock.acquire()


class Clock:
    """A clock for threads of which one runs at a time: when it waits, the one whose moment comes first goes on."""

    def __init__(self) -> None:
        self._now, self._order = 0.0, count()
        self._moments: list[tuple[float, int, Turn]] = []

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        turn = Turn()
        self.wake(turn, seconds)
        self.wait(turn)

    def wake(self, turn: Turn, seconds: float) -> None:
        """Has a thread go on so much later, if nothing lets it go on before."""
        heapq.heappush(self._moments, (self._now + seconds, next(self._order), turn))

    def wait(self, turn: Turn) -> None:
        """Lets others run until the moment of `turn`, which is this thread's."""
        self._next()
        turn.wait()
        # one thread has failed: the others end as well
        if self._errors:
            raise self._errors[0]

    def _next(self) -> None:
        while self._moments:
            self._now, _, turn = heapq.heappop(self._moments)
            # a thread goes on once: at a text's arrival or at its time limit
            if not turn.there:
                turn.there = True
                turn.give()
                return

    def run(self, bodies: Sequence[Callable[[], object]]) -> None:
        """Runs the bodies at once, each on a thread of its own. The first error ends all, and is raised."""
        self._errors = list[BaseException]()
        stack_size(1 << 18)
        turns = [Turn() for _ in bodies]
        threads = [Thread(target=self._run, args=each) for each in zip(turns, bodies, strict=True)]
        for turn, thread in zip(turns, threads, strict=True):
            self.wake(turn, 0.0)
            thread.start()
        self._next()
        for thread in threads:
            thread.join()
        stack_size(0)
        if self._errors:
            raise self._errors[0]

    def _run(self, turn: Turn, body: Callable[[], object]) -> None:
        turn.wait()
        try:
            body()
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._next()


class PlayedStore:
    """A store that takes `answer_s` for each question, one after another, as one process that serves all ranks; `asked`
    counts them. To wait for a text and to read it are two questions, as of torch's client."""

    def __init__(self, clock: Clock, answer_s: float) -> None:
        self.asked, self._clock, self._answer_s, self._free = 0, clock, answer_s, 0.0
        self._texts: dict[str, str] = {}
        self._numbers = Counter[str]()
        self._waiting: defaultdict[str, list[Turn]] = defaultdict(list)

    def _ask(self) -> None:
        # it waits for those that asked before
        self.asked += 1
        self._free = max(self._clock.now(), self._free) + self._answer_s
        self._clock.sleep(self._free - self._clock.now())

    def set(self, key: str, value: str) -> None:
        self._ask()
        self._put(key, value)

    def set_all(self, keys: Sequence[str], value: str) -> None:
        self._ask()
        for key in keys:
            self._numbers[key] = int(value)

    def first(self, key: str, value: str) -> str:
        self._ask()
        if key not in self._texts:
            self._put(key, value)
        return self._texts[key]

    def check(self, keys: Sequence[str]) -> bool:
        self._ask()
        return all(key in self._texts for key in keys)

    def delete(self, key: str) -> None:
        self._ask()
        self._texts.pop(key, None)

    def _put(self, key: str, value: str) -> None:
        self._texts[key] = value
        for turn in self._waiting.pop(key, []):
            self._clock.wake(turn, 0.0)

    def get(self, key: str, timeout_s: float) -> str | None:
        self._ask()
        if key not in self._texts and timeout_s:
            turn = Turn()
            self._waiting[key].append(turn)
            self._clock.wake(turn, timeout_s)
            self._clock.wait(turn)
        if key not in self._texts:
            return None
        self._ask()
        return self._texts[key]

    def add(self, key: str, number: int) -> int:
        self._ask()
        self._numbers[key] += number
        return self._numbers[key]
