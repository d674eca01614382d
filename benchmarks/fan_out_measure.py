"""The measures of feeding many watchers of one turn within a process."""

from __future__ import annotations

from benchmarks.measure import Plan, Table, fresh, samples_of
from benchmarks.processes import Server, Worker, Workers


async def watchers(server: Server, plan: Plan) -> Table:
    """CPU per event and watcher of one turn, beside RxPY's own operators and queues by hand."""
    order = ["rx-publish", "rx-share", "rx-replay", "queues", "hot-subscribed", "hot-watch"]
    many = plan.watchers
    table = Table(f"CPU per event and watcher, in process (slope 1 to {many} watchers)", "us", baseline=order[0])
    for label, deltas, pace in (("at once  ", plan.short, ""), ("1 ms     ", plan.watched_deltas, "-paced-1ms")):
        model = f"text-{deltas}{pace}"
        found: dict[str, list[float]] = {}
        async with Workers(order, server) as workers:
            await workers.call("fan_out", model="text-200", watchers=10)
            for _ in range(plan.rounds):
                one = await workers.call("fan_out", model=model, watchers=1)
                all_of_them = await workers.call("fan_out", model=model, watchers=many)
                for name, answer in all_of_them.items():
                    slope = (answer["cpu"] - one[name]["cpu"]) / ((many - 1) * deltas)
                    found.setdefault(name, []).append(slope * 1e6)
            table.add(found, workers.unavailable, order=order, label=label)
    table.targets.append("hot-subscribed and hot-watch <= 3 us")
    table.notes.append("an event is a delta of the provider; at once, hot-watch takes those that wait as one")
    table.notes.append("all but rx-publish and rx-share keep the events for a watcher that lags or comes late")
    return table


async def watchers_stall(server: Server, plan: Plan) -> Table:
    """One watcher among ten that takes one event and nothing more until the turn has ended."""
    order = ["queues", "hot-watch"]
    deltas = plan.ui_stall
    table = Table(
        f"10 watchers of {deltas:,} deltas of 400 characters as fast as they come, in process", "", baseline=order[0]
    )
    for text, stalled in (("all brisk ", 0), ("1 stalled ", 1)):

        async def work(worker: Worker, stalled: int = stalled) -> dict[str, float]:
            return await worker.call("fan_out", model=f"text-{deltas}-wide", watchers=10, stalled=stalled)

        rounds, missing = await fresh(server, order, plan.rounds, work)
        scale = 1e6 / (deltas * 10)
        table.add(samples_of(rounds, "cpu", scale), missing, order=order, label=f"{text}us  ")
        table.add(samples_of(rounds, "kib", 1 / 1024), missing, order=order, label=f"{text}MiB ")
    table.notes.append("us: CPU per event and watcher, the turn's own tenth included")
    return table
