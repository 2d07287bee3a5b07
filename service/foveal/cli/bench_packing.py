"""`foveal bench packing`: a table of padding and time under several rules of packing, from given costs."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from foveal.bench.figures import plot_path
from foveal.bench.packing import Costs, assumed_costs, compare
from foveal.bench.report import draw, table, write_json
from foveal.engine.ladder import MAX_BUDGET_TOKENS, Attention, inferred_budgets
from foveal.errors import ConfigurationError
from foveal.types import TokenBudget


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the bench."""
    shown = "(default: %(default)s)"
    parser.add_argument("--costs", type=Path, help="JSON list of {tokens, items, milliseconds}: `budgets` of /info")
    parser.add_argument("--run-ms", type=float, default=0.5, help=f"without --costs: time of a run {shown}")
    parser.add_argument("--token-us", type=float, default=6.6, help=f"without --costs: of a budget's token {shown}")
    parser.add_argument("--items", type=int, default=64, help=f"without --costs: images in one pack {shown}")
    parser.add_argument("--attention", type=float, default=0.0, help=f"ms of each squared patch count {shown}")
    parser.add_argument(
        "--typical-patches",
        type=int,
        default=2560,
        help=f"patches of the images that budgets were measured with {shown}",
    )
    parser.add_argument(
        "--depths", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help=f"images that always wait {shown}"
    )
    parser.add_argument("--packs", type=int, default=1500, help=f"packs of each depth and rule {shown}")
    parser.add_argument("--workers", type=int, default=1, help=f"workers that share the queue {shown}")
    parser.add_argument("--seed", type=int, default=0, help=f"of the mixture {shown}")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--plot", type=plot_path, help="draw them here (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """Simulate, print, write; the exit code."""
    if min(*args.depths, args.packs, args.workers, args.items) < 1:
        raise ConfigurationError("--depths, --packs, --workers and --items start at 1")
    attention = Attention(args.attention, args.typical_patches)
    if args.costs is None:
        budgets = inferred_budgets(MAX_BUDGET_TOKENS)
        costs = assumed_costs(budgets, args.items, args.run_ms, args.token_us / 1000, attention)
    else:
        costs = Costs(read_budgets(args.costs), attention)
    results = compare(costs, args.depths, args.packs, args.workers, args.seed)
    # Before the table, which may be for nobody: `| head`.
    if args.json is not None:
        given = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
        write_json(args.json, given, results)
    if args.plot is not None:
        draw(args.plot, results)
    print("padded tokens, % of real ones / time over no padding in fewest runs / most packs that one image waited\n")
    print(table(results))
    return 0


def read_budgets(path: Path) -> tuple[TokenBudget, ...]:
    """Measured budgets, ascending; raises ConfigurationError if that is not what the file holds."""
    try:
        budgets = msgspec.json.decode(path.read_bytes(), type=list[TokenBudget])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"--costs {path}: {error}") from None
    if not budgets or any(b.milliseconds <= 0 or b.tokens < 1 or b.items < 1 for b in budgets):
        raise ConfigurationError(f"--costs {path}: every budget needs tokens, items and measured milliseconds")
    return tuple(sorted(budgets, key=lambda b: b.tokens))
