"""A picture of what happened when: points over time, and marks for events."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import PLOTS


def plot_timeline(
    name: str,
    title: str,
    points: Mapping[str, Sequence[tuple[float, float]]],
    events: Mapping[str, Sequence[float]],
) -> Path:
    """Plots points (seconds, value) per label, and events as marks below them, into benchmarks/plots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 5), sharex=True, height_ratios=(4, 1))
    for label, values in points.items():
        above.plot([at for at, _ in values], [value for _, value in values], ".", markersize=2, label=label)
    above.set(title=title, ylim=(0, None))
    above.legend(loc="upper left")
    for row, (_, times) in enumerate(events.items()):
        below.plot(times, [row] * len(times), "|", markersize=10)
    below.set(yticks=range(len(events)), yticklabels=list(events), xlabel="seconds", ylim=(-1, len(events)))
    PLOTS.mkdir(parents=True, exist_ok=True)
    path = PLOTS / f"{name}.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return path
