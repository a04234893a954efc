"""CPU time of one decision: ``python -m bench.micro.decision``.

Per size of the pool the CPU microseconds of ``Router.ask`` (in brackets: of ask and end together), as
median and best of several rounds of bursts of a hundred requests of mixed length.
"""

from __future__ import annotations

import random
import time
from statistics import median

from picker.inference.question import Question
from picker.routing.decision import Cause, Decision, Outcome, Visibility
from picker.routing.router import Router
from scorer.fleet import Fleet
from scorer.profile import built_in_profile

SIZES = (8, 100, 1000)
ROUNDS = 7
BURSTS = 20
IN_FLIGHT = 100
VISIBLE = Visibility(status=True, first_token=True, end=True)
FINISHED = Outcome(Cause.COMPLETE, status=200)


def pool(size: int, rng: random.Random) -> Fleet:
    """A fleet with pages, as a Ray pool's."""
    fleet = Fleet()
    for number in range(size):
        slot = fleet.add(f"10.0.{number // 250}.{number % 250}:8000")
        fleet.fetched_at[slot.row] = 1000.0
        fleet.scraped_load[slot.row] = rng.randrange(20)
        fleet.local_running[slot.row] = rng.randrange(10)
        fleet.set_routes(slot, ["/"])
    return fleet


def measure(size: int) -> tuple[list[float], list[float]]:
    """CPU microseconds per ask, and per ask and end, of each round."""
    rng = random.Random(size)
    router = Router(pool(size, rng), built_in_profile(), rng)
    questions = [Question(path="/v1/completions", prompt=b"x" * rng.randrange(20_000)) for _ in range(64)]
    asking, whole = [], []
    now = 1000.0
    for _ in range(ROUNDS):
        ask_ns = whole_ns = 0
        for _ in range(BURSTS):
            start = time.process_time_ns()
            answers = []
            for number in range(IN_FLIGHT):
                now += 0.0005
                answers.append(router.ask(questions[number % len(questions)], VISIBLE, now))
            asked = time.process_time_ns()
            for answer in answers:
                if isinstance(answer, Decision):
                    router.first_token(answer.ticket, now)
                    router.ended(answer.ticket, FINISHED, now)
            ask_ns += asked - start
            whole_ns += time.process_time_ns() - start
        asking.append(ask_ns / (BURSTS * IN_FLIGHT) / 1000)
        whole.append(whole_ns / (BURSTS * IN_FLIGHT) / 1000)
    return asking, whole


def main() -> None:
    """Print one line per size of pool."""
    for size in SIZES:
        asking, whole = measure(size)
        print(
            f"{size:5} endpoints: {median(asking):6.1f} us median, {min(asking):6.1f} best "
            f"({median(whole):6.1f}, {min(whole):6.1f} with first token and end)"
        )


if __name__ == "__main__":
    main()
