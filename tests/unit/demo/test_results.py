"""Pictures in, ranks and colours out: what the demo prints and draws, without a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveal.demo import pictures
from foveal.demo.drawing import Line, draw
from foveal.demo.maps import Basis, basis_within, common_basis, token_grid, what_stands_out
from foveal.demo.neighbours import cosines, nearest, num_found_again
from foveal.demo.pictures import Picture, find, load, seen, shipped
from foveal.demo.report import HEADINGS, Results, lines_of, print_costs, print_neighbours
from foveal.errors import ConfigurationError
from foveal.types import PixelPlan
from foveal_client import Embedding, GridTHW, Level
from foveal_client._types import Usage


def embedding(values: np.ndarray, grid: tuple[int, int, int], levels: tuple[Level, ...] = ()) -> Embedding:
    usage = Usage(1, grid[1] * grid[2], len(values))
    return Embedding(
        values, GridTHW(*grid), len(values), "m", "float32", "", "11" * 32, levels, None, {"total": 1.5}, usage
    )


def two_by_two(colours: list[str]) -> list[Picture]:
    """A picture and a variant of each colour."""
    images = [Image.new("RGB", (40, 20), colour) for colour in colours]
    return [Picture(c, i, g, v) for g, (c, i) in enumerate(zip(colours, images, strict=True)) for v in (False, True)]


def test_folders_are_searched_and_files_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("b.png", "below/a.jpg", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name, "PNG")
    found = find([tmp_path / "notes.txt", tmp_path])
    assert [path.name for path in found] == ["notes.txt", "b.png", "a.jpg"]


@pytest.mark.parametrize(("name", "words"), [("gone.png", "no such picture"), ("empty", "no pictures in")])
def test_nothing_to_show_is_a_sentence(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=words):
        find([tmp_path / name])


def test_files_that_are_no_pictures_are_named_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("hello")
    Image.new("RGB", (4, 4)).save(tmp_path / "b.png")
    told: list[str] = []
    loaded = load([tmp_path / "a.png", tmp_path / "b.png"], told.append)
    assert [picture.name for picture in loaded] == ["b", "b mirrored"]
    assert len(told) == 1 and "a.png cannot be read" in told[0]
    with pytest.raises(ConfigurationError, match="none of these"):
        load([tmp_path / "a.png"], told.append)


def test_every_shipped_picture_is_small_and_credited() -> None:
    paths = find([shipped()])
    credits = (shipped() / "CREDITS.md").read_text()
    assert len(paths) == 14 and all(path.name in credits for path in paths)
    assert max(path.stat().st_size for path in paths) < 80_000


def test_a_variant_is_mirrored_and_cropped(tmp_path: Path) -> None:
    image = Image.new("RGB", (100, 50), "red")
    image.paste("blue", (0, 0, 50, 50))
    image.save(tmp_path / "a.png")
    first, second = load([tmp_path / "a.png"], pytest.fail)
    assert (first.group, second.group) == (0, 0) and second.is_variant and second.name == "a mirrored"
    assert second.image.size == (84, 42)
    assert second.image.getpixel((0, 0)) == (255, 0, 0) and second.image.getpixel((83, 0)) == (0, 0, 255)


def test_transparent_parts_are_white_as_on_the_server(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "a.png")
    assert load([tmp_path / "a.png"], pytest.fail)[0].image.getpixel((0, 0)) == (255, 255, 255)


def test_large_pictures_are_scaled_down(tmp_path: Path) -> None:
    Image.new("RGB", (3000, 1500)).save(tmp_path / "a.png")
    assert load([tmp_path / "a.png"], pytest.fail)[0].image.size == (pictures.MAX_SIDE, pictures.MAX_SIDE // 2)


def test_what_is_shown_is_what_the_model_saw() -> None:
    image = Image.new("RGB", (400, 200), "red")
    image.paste("blue", (100, 0, 300, 200))
    middle = seen(image, PixelPlan(height=28, width=28, patch_size=14, merge_size=1, resized=(56, 112)))
    assert middle.size == (28, 28) and middle.getpixel((14, 14)) == (0, 0, 255)
    assert middle.getcolors(1) is not None  # nothing of what lies left and right of it
    whole = seen(image, PixelPlan(height=28, width=56, patch_size=14, merge_size=1))
    assert whole.size == (56, 28) and whole.getpixel((0, 0)) == (255, 0, 0)


def test_neighbours_are_ranked_and_a_picture_counts_once() -> None:
    shots = two_by_two(["red", "blue", "green"])
    rows = [[1, 0, 0], [9, 1, 0], [1, 1, 0], [1, 2, 0], [0, 0, 1], [0, 1, 0]]
    similarity = cosines([np.array(row, np.float32) for row in rows])
    found = nearest(similarity, shots, 0)
    assert [n.place for n in found] == [1, 2, 4]
    assert found[1].cosine == pytest.approx(2**-0.5)
    assert num_found_again(similarity, shots) == 4  # both greens are nearer to others


def test_class_and_register_rows_are_no_part_of_a_map() -> None:
    values = np.arange(5 * 3, dtype=np.float32).reshape(5, 3)
    grid = token_grid(embedding(values, (1, 2, 2)), merge_size=1)
    np.testing.assert_array_equal(grid, values[1:].reshape(2, 2, 3))


def test_merged_patches_and_the_main_level_make_a_map() -> None:
    values = np.arange(6 * 4, dtype=np.float32).reshape(6, 4)
    levels = Level("main", 0, 2), Level("deepstack.0", 2, 4)
    grid = token_grid(embedding(values, (1, 4, 6), levels), merge_size=2)
    np.testing.assert_array_equal(grid, values[:, :2].reshape(2, 3, 2))


def test_like_tokens_have_one_colour_in_all_pictures() -> None:
    draw_from = np.random.default_rng(1)
    grids = [draw_from.standard_normal((4, 4, 8)).astype(np.float32) for _ in range(2)]
    grids[1][0, 0] = grids[0][3, 3]
    basis = common_basis(grids)
    first, second = (basis.paint(grid) for grid in grids)
    assert first.shape == (4, 4, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(first[3, 3], second[0, 0])
    assert first.std() > 20


def test_a_single_token_has_a_colour_too() -> None:
    rows = np.ones((1, 8), np.float32)
    assert Basis.fit(rows).paint(rows[None]).shape == (1, 1, 3)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_differs_from_the_borders_stands_out(sign: int) -> None:
    grid = np.zeros((8, 8, 4), np.float32)
    grid[2:6, 3:6, 0] = sign * 5
    (mask,) = what_stands_out([grid], common_basis([grid]))
    np.testing.assert_array_equal(mask, grid[..., 0] != 0)
    assert basis_within([grid], [mask]).paint(grid).shape == (8, 8, 3)
    assert basis_within([grid], [mask & False]).paint(grid).shape == (8, 8, 3)


@pytest.fixture
def results() -> Results:
    shots = two_by_two(["red", "blue"])
    rows = [np.array(row, np.float32) for row in ([1, 0], [5, 1], [0, 1], [1, 5])]
    values = np.random.default_rng(2).standard_normal((9, 6)).astype(np.float32)
    tokens = [embedding(values, (1, 2, 4)), embedding(-values, (1, 2, 4))]
    return Results(shots, [shot.image for shot in shots], cosines(rows), tokens)


@pytest.mark.parametrize("has_background", [False, True])
def test_a_line_has_a_cell_for_each_heading(results: Results, has_background: bool) -> None:
    lines = list(lines_of(results, 1, has_background))
    assert [len(line.cells) for line in lines] == [len(HEADINGS)] * 2
    captions = [cell.caption if cell else None for cell in lines[0].cells]
    assert captions == ["red", "found again 0.98", "blue 0.20", None, "", ""]
    assert lines[0].cells[1] is not None and lines[0].cells[1].is_found_again


def test_the_tables_name_pictures_and_their_nearest(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    print_costs(results)
    print_neighbours(results)
    said = capsys.readouterr().out
    assert "red                        40x20      1x2x4       9          9x6" in said and "1.5" in said
    assert "red mirrored 0.98" in said and "4 of 4 pictures" in said


def test_a_drawing_grows_with_its_lines_up_to_a_bound(results: Results) -> None:
    lines: list[Line] = list(lines_of(results, 1, False))
    heights = [draw(lines * n, HEADINGS, "title", "note").height for n in (1, 2, 7, 20)]
    assert heights[0] < heights[1] < heights[2] == heights[3]
    long = [
        Line(tuple(cell and type(cell)(cell.image, "a name of a file that goes on and on") for cell in lines[0].cells))
    ]
    assert draw(long, HEADINGS, "title", "note").width < draw(lines, HEADINGS, "title", "note").width
