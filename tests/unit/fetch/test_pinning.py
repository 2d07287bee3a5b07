"""The address that was checked is the one that is connected to, at every hop, whatever names come to mean meanwhile."""

from __future__ import annotations

import pytest

from foveal.errors import UrlFailed, UrlForbidden
from tests.unit.fetch.network import OTHER, PUBLIC, Names, Network, allowance, answer, fetcher, names, redirect

PRIVATE = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"]


async def test_the_checked_address_is_connected_to_and_the_name_is_asked_for() -> None:
    network, resolve = Network({PUBLIC: [answer()]}), names(shop_example=PUBLIC)
    web = fetcher(network, resolve)
    assert await web.fetch(web.rules.url_of("https://shop.example:8443/a%2Fb?c=d"), allowance()) == b"image"
    assert network.connects == [(PUBLIC, 8443)] and network.tls_names == ["shop.example"]
    head = network.streams[0].sent.decode()
    assert head.startswith("GET /a%2Fb?c=d HTTP/1.1\r\nHost: shop.example:8443\r\n")
    assert not any(word in head.lower() for word in ("cookie", "authorization", "referer", "proxy"))


@pytest.mark.parametrize("address", PRIVATE)
async def test_a_name_with_a_private_address_is_never_connected_to(address: str) -> None:
    network = Network({})
    for answers in ([address], [PUBLIC, address], [address, PUBLIC]):
        web = fetcher(network, Names({"a.example": [answers]}))
        with pytest.raises(UrlForbidden) as refusal:
            await web.fetch(web.rules.url_of("http://a.example/"), allowance())
        assert address not in refusal.value.message
    assert network.connects == []


async def test_a_name_that_turns_private_after_its_check_is_still_asked_at_the_checked_address() -> None:
    network, resolve = Network({PUBLIC: [answer()]}), Names({"a.example": [[PUBLIC], ["127.0.0.1"]]})
    web = fetcher(network, resolve)
    url = web.rules.url_of("http://a.example/")
    assert await web.fetch(url, allowance()) == b"image"
    assert resolve.asked == ["a.example"] and network.connects == [(PUBLIC, 80)]
    with pytest.raises(UrlForbidden):
        await web.fetch(url, allowance())
    assert network.connects == [(PUBLIC, 80)]


async def test_a_name_that_turns_private_between_redirects_is_refused() -> None:
    network = Network({PUBLIC: [redirect("/again")]})
    web = fetcher(network, Names({"a.example": [[PUBLIC], ["10.0.0.1"]]}))
    with pytest.raises(UrlForbidden):
        await web.fetch(web.rules.url_of("http://a.example/"), allowance())
    assert network.connects == [(PUBLIC, 80)] and network.num_open == 0


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/",
        "//127.0.0.1/",
        "http://[::1]:8000/",
        "http://inside.example/",
        "http://localhost/",
        "file:///etc/hostname",
        "gopher://b.example/",
        "http://user:pass@b.example/",
        "http://b.example:22/",
        "mailto:a@b.example",
    ],
)
async def test_a_redirect_to_where_nobody_may_go_is_refused(location: str) -> None:
    network = Network({PUBLIC: [redirect(location)]})
    web = fetcher(network, names(a_example=PUBLIC, inside_example="192.168.0.1", localhost="127.0.0.1"))
    with pytest.raises(UrlForbidden):
        await web.fetch(web.rules.url_of("http://a.example/"), allowance())
    assert network.connects == [(PUBLIC, 80)]


async def test_with_a_list_a_redirect_leads_to_listed_hosts_only() -> None:
    network = Network({PUBLIC: [redirect("http://b.example/")], OTHER: [answer()]})
    web = fetcher(network, names(a_example=PUBLIC, b_example=OTHER), "a.example")
    with pytest.raises(UrlForbidden, match="--url-allow-host"):
        await web.fetch(web.rules.url_of("http://a.example/"), allowance())
    web = fetcher(network, names(a_example=PUBLIC, b_example=OTHER), "a.example", "b.example")
    assert await web.fetch(web.rules.url_of("http://a.example/"), allowance()) == b"image"


async def test_an_internal_store_is_fetched_from_when_it_is_named() -> None:
    network = Network({"10.0.0.9": [answer()]})
    web = fetcher(network, names(store_internal="10.0.0.9"), "store.internal:9000")
    assert await web.fetch(web.rules.url_of("http://store.internal:9000/bucket/key"), allowance()) == b"image"
    assert network.connects == [("10.0.0.9", 9000)]


@pytest.mark.parametrize("text", ["127.1", "0x7f000001", "2130706433", "017700000001"])
async def test_numbers_that_the_resolver_takes_for_addresses_are_checked_as_such(text: str) -> None:
    network, web = Network({}), fetcher(Network({}), Names({text: [["127.0.0.1"]]}))
    with pytest.raises(UrlForbidden):
        await web.fetch(web.rules.url_of(f"http://{text}/"), allowance())
    assert network.connects == []


async def test_a_name_without_an_address_fails_and_is_not_worth_a_retry() -> None:
    web = fetcher(Network({}), names())
    with pytest.raises(UrlFailed) as failure:
        await web.fetch(web.rules.url_of("http://nowhere.example/"), allowance())
    assert not failure.value.retryable
