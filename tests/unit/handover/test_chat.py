"""Where the pictures of a chat lie: found by meaning, replaced by bytes, everything else left as it was sent."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.errors import InvalidRequest
from foveal.handover import marks
from foveal.handover.chat import MAX_VALUES, find_images
from foveal.handover.marks import has_more_values
from foveal.handover.outgoing import replaced

NAMES = st.text(max_size=8) | st.sampled_from(["type", "image_url", "url", "messages", "content", "uuid"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
TEXT_PARTS = st.text(max_size=20).map(lambda text: {"type": "text", "text": text})
OTHER_PARTS = st.tuples(
    st.sampled_from(["text", "image_embeds", "video_url", "input_audio", "image", "x"]),
    st.dictionaries(NAMES, VALUES, max_size=3),
).map(lambda found: {**found[1], "type": found[0]})
IMAGE_PARTS = st.tuples(
    st.sampled_from([{"type": "image_url"}, {"type": "input_image"}, {"type": None}, {}]),
    st.text(min_size=1, max_size=20),
    st.booleans(),
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda n: n not in ("type", "image_url")), VALUES, max_size=2
    ),
).map(lambda f: {**f[3], **f[0], "image_url": {"url": f[1], "detail": "low"} if f[2] else f[1]})
ROLES = st.sampled_from(["user", "system", "tool", "assistant"])


def messages_of(parts: st.SearchStrategy) -> st.SearchStrategy:  # type: ignore[type-arg]
    contents = st.text(max_size=20) | st.none() | st.lists(parts, max_size=5)
    message = st.tuples(ROLES, contents, st.dictionaries(st.text(max_size=5), VALUES, max_size=2))
    return st.lists(message.map(lambda f: {**f[2], "role": f[0], "content": f[1]}), max_size=4)


FIELDS = st.dictionaries(st.text(max_size=8).filter(lambda name: name != "messages"), VALUES, max_size=3)
STYLES = st.fixed_dictionaries({"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 1, "\t"])})


def written(content: object, style: dict) -> bytes:
    return json.dumps(content, **style).encode("utf-8", "surrogatepass" if style["ensure_ascii"] else "replace")


@given(messages_of(TEXT_PARTS | OTHER_PARTS | st.text(max_size=5)), FIELDS, STYLES)
def test_what_is_no_picture_is_not_touched(messages: list, fields: dict, style: dict) -> None:
    body = written({**fields, "messages": messages}, style)
    assert find_images(body) == []
    assert b"".join(replaced(body, [], []).pieces()) == body


@given(messages_of(TEXT_PARTS | OTHER_PARTS | IMAGE_PARTS), FIELDS, STYLES)
def test_pictures_are_replaced_where_they_stand_and_nothing_else_changes(
    messages: list, fields: dict, style: dict
) -> None:
    body = written({**fields, "messages": messages}, style)
    parts = find_images(body)
    out = replaced(body, parts, [[b'{"swapped":', b"%d}" % i] for i in range(len(parts))])
    sent = b"".join(out.pieces())
    assert out.num_bytes == len(sent)
    wanted, number = json.loads(body), 0
    for i, message in enumerate(wanted["messages"]):
        for j, part in enumerate(message["content"] if isinstance(message["content"], list) else ()):
            if part.get("type") in ("image_url", "input_image") or (part.get("type") is None and part.get("image_url")):
                url = part["image_url"]
                assert parts[number].path == f"messages[{i}].content[{j}]"
                assert parts[number].text == (url["url"] if isinstance(url, dict) else url)
                message["content"][j] = {"swapped": number}
                number += 1
    assert json.loads(sent) == wanted and number == len(parts)
    stretches = [body[a.stop : b.start] for a, b in pairwise(parts)]
    assert all(stretch in sent for stretch in stretches)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | VALUES.map(lambda v: json.dumps(v).encode()))
def test_no_body_is_a_bug(body: bytes) -> None:
    try:
        find_images(body)
    except InvalidRequest as error:
        assert error.message


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": None, "uuid": "k"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": {"url": 5}},
        {"type": "image_url", "image_url": ""},
        {"type": "input_image", "image_url": ["a"]},
    ],
    ids=str,
)
def test_a_picture_part_without_a_picture_is_refused_by_its_place(part: dict) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_images(json.dumps({"messages": [{"content": ["a", part]}]}).encode())
    assert caught.value.param == "messages[0].content[1]"


LENIENT = ['"\\ud83d"', '"\\ude00"', "NaN", "-Infinity", '"tab\there"', "01", "'a'", "[1,]"]


@pytest.mark.parametrize("value", LENIENT)
def test_what_other_parsers_read_passes_where_it_can_hold_no_picture(value: str) -> None:
    text = f'{{"messages": [{{"content": "an image"}}], "x": {value}}}'
    for body in (text.encode(), b"\xef\xbb\xbf" + text.encode(), text.encode("utf-16"), text.encode("utf-32")):
        assert find_images(body) == []


@pytest.mark.parametrize("kind", ["image_url", "input_image", "image\\u005furl", "\\u0069nput\\u005Fimage"])
@pytest.mark.parametrize("value", LENIENT)
def test_a_picture_is_not_missed_in_what_other_parsers_read(value: str, kind: str) -> None:
    text = f'{{"x": {value}, "messages": [{{"content": [{{"type": "{kind}", "image_url": "a"}}]}}]}}'
    if "\\" in kind:
        text = text.replace('"image_url"', '"image_ur\\u006c"')
    for body in (text.encode(), b"\xef\xbb\xbf" + text.encode(), text.encode("utf-16"), text.encode("utf-32-be")):
        with pytest.raises(InvalidRequest, match="pictures cannot be found"):
            find_images(body)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"image_url": "\\ud83d"}', "no low surrogate"),
        ('\ufeff{"image_url": 1}', "byte order mark"),
        ('{"image_url": NaN}', "char 14"),
        ('{"image_url"', "end of data"),
    ],
    ids=["surrogate", "mark", "nan", "cut_off"],
)
def test_the_true_reason_is_given(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        find_images(text.encode())


@pytest.mark.parametrize("value", [None, {}, "absent"], ids=str)
def test_fields_that_prepare_pictures_may_be_empty(value: object) -> None:
    body = {"messages": [{"content": [{"type": "image_url", "image_url": "a"}]}], "mm_processor_kwargs": value}
    if value == "absent":
        del body["mm_processor_kwargs"]
    assert len(find_images(json.dumps(body, indent=2).encode())) == 1
    text_only = {"messages": [{"content": "a"}], "mm_processor_kwargs": {"a": 1}}
    assert find_images(json.dumps(text_only).encode()) == []


@pytest.mark.parametrize("mark", [b"0,", b"[", b"{", b'{"content":[{}]},'], ids=str)
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(mark: bytes) -> None:
    with pytest.raises(InvalidRequest, match=str(MAX_VALUES)):
        find_images(b'{"messages":[' + mark * (MAX_VALUES + 1))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="deeply"):
        find_images(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}")


def test_a_long_prompt_full_of_commas_is_one_value() -> None:
    prompt = '{"a": [1, 2, "\\\\"]},\n' * (MAX_VALUES // 2)
    assert find_images(json.dumps({"messages": [{"role": "user", "content": prompt}]}).encode()) == []


@given(VALUES, STYLES, st.integers(1, 40))
def test_values_are_counted_outside_of_strings_at_any_step(value: object, style: dict, step: int) -> None:
    def count(found: object) -> int:
        inner = list(found.values()) if isinstance(found, dict) else found if isinstance(found, list) else []
        here = max(0, len(inner) - 1) + isinstance(found, dict | list)
        return here + sum(count(one) for one in inner)

    text, most = written(value, style), count(value)
    before = marks._STEP_BYTES
    marks._STEP_BYTES = step
    try:
        assert not has_more_values(text, most)
        assert most == 0 or has_more_values(text, most - 1)
    finally:
        marks._STEP_BYTES = before
