"""From what a family has read to a `ModelSpec`: the fields that all families fill alike, and their checks."""

from __future__ import annotations

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint, dtype_of
from foveal.families.processor import normalisation
from foveal.families.spec import ModelSpec, ResizeRule
from foveal.families.tower_plan import TowerPlan
from foveal.types import Level, OutputKind


def make_spec(
    name: str,
    checkpoint: Checkpoint,
    family: str,
    rule: ResizeRule,
    tower: TowerPlan,
    default_output: OutputKind,
    row_meaning: dict[OutputKind, str],
) -> ModelSpec:
    """The spec of a checkpoint; raises ConfigurationError for a plan that the tower would compute wrongly."""
    _check(checkpoint, tower)
    level_width = tower.merger.width if tower.merger else tower.hidden
    deepstack_layers = tower.merger.deepstack_layers if tower.merger else ()
    names = ["main", *(f"deepstack.{i}" for i in range(len(deepstack_layers)))]
    mean, deviation = normalisation(checkpoint)
    return ModelSpec(
        name=name,
        family=family,
        architecture=checkpoint.architecture,
        folder=checkpoint.folder,
        revision=checkpoint.revision,
        dummy_weights=checkpoint.dummy_weights,
        dtype=dtype_of(checkpoint),
        rule=rule,
        tower=tower,
        width=level_width * len(names),
        pooled_width=tower.pool.projection or level_width,
        levels=tuple(Level(level, i * level_width, (i + 1) * level_width) for i, level in enumerate(names)),
        outputs=("tokens", "pooled"),
        default_output=default_output,
        row_meaning=row_meaning,
        image_mean=mean,
        image_std=deviation,
    )


def grid_of(rule: ResizeRule, patch_size: int) -> tuple[int, int]:
    """Height and width in patches of a rule with one size; what is left at the edges is cut off."""
    assert rule.fixed_size is not None, "the rule has no fixed size: this is a bug"
    height, width = rule.fixed_size
    if min(height, width) < patch_size:
        raise ConfigurationError(f"pictures of {height} x {width} pixels have no patch of {patch_size} x {patch_size}")
    return height // patch_size, width // patch_size


def same_grid(checkpoint: Checkpoint, rule: ResizeRule, image_size: int, patch_size: int) -> tuple[int, int]:
    """The grid of a tower whose positions are for one size; raises ConfigurationError if its processor has another."""
    side = image_size // patch_size
    grid = grid_of(rule, patch_size)
    if grid != (side, side):
        raise ConfigurationError(
            f"{checkpoint.folder}: {checkpoint.processor_file} makes pictures of {grid} patches, config.json has "
            f"positions for {(side, side)}; these files are not of one model"
        )
    return grid


def _check(checkpoint: Checkpoint, tower: TowerPlan) -> None:
    positions = tower.positions
    deepstack_layers = tower.merger.deepstack_layers if tower.merger else ()
    square = positions.table in ("interpolated", "antialiased")
    complaints = {
        f"{tower.hidden} columns are no multiple of {tower.heads} heads": tower.hidden % tower.heads != 0,
        f"{tower.hidden} columns are no multiple of 4 x {tower.heads} heads, which rotation needs": (
            positions.rope_theta is not None and tower.hidden % (4 * tower.heads) != 0
        ),
        f"{positions.count} positions are no square": square and round(positions.count**0.5) ** 2 != positions.count,
        "the blocks of deepstack must rise and exist": list(deepstack_layers)
        != sorted({layer for layer in deepstack_layers if 0 <= layer < tower.depth}),
    }
    wrong = [text for text, is_wrong in complaints.items() if is_wrong]
    if wrong:
        raise ConfigurationError(f"{checkpoint.folder}/config.json, vision tower: {'; '.join(wrong)}")
