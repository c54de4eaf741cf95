"""The page of questions, in a real browser; and what the server behind it lets in."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket

import pytest

from freezethaw.errors import PreferenceError
from freezethaw.prefer.file import read_file
from freezethaw.prefer.server import PreferServer
from freezethaw.prefer.session import Session
from freezethaw.preference import Price, Stakes

STAKES = Stakes(budget=72_000, unit="seconds")
TRUTH = Price(powers=((0.3, 1.0),))

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path / "utility.json", STAKES, metric="accuracy")


@pytest.fixture
def server(session):
    with PreferServer(session, 10) as server:
        yield server


@pytest.fixture
def browser():
    if BROWSER is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"]
            )
        except api.Error as error:
            pytest.skip(f"the browser does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


def key_of(session):
    (x1, y1), (x2, y2) = map(session.stakes.place, session.question)
    return "1" if y1 - TRUTH(x1) > y2 - TRUTH(x2) else "2"


def open_page(browser, server, **settings):
    from playwright.sync_api import expect

    page = browser.new_page(**settings)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda request: (
            problems.append(request.url)
            if not request.url.startswith(server.address) and not request.url.startswith("data:")
            else None
        ),
    )
    page.goto(server.address)
    expect(page.locator("#progress")).not_to_have_text("Loading…")
    return page, problems


def wait_for(page, n):
    from playwright.sync_api import expect

    expect(page.locator("#answers li")).to_have_count(n)


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────


def test_a_whole_session(session, server, browser):
    from playwright.sync_api import expect

    page, problems = open_page(browser, server)
    expect(page.get_by_role("button", name="accuracy")).to_have_count(2)
    expect(page.locator("#undo")).to_be_disabled()
    assert page.locator(".curve").count() == 0

    page.keyboard.press(key_of(session))  # by key
    wait_for(page, 1)
    assert page.locator(".curve").count() == 5
    assert page.locator(".band").count() == 5
    expect(page.locator("#sentence")).to_contain_text("worth")

    page.locator("#first" if key_of(session) == "1" else "#second").click()  # by mouse
    wait_for(page, 2)
    page.keyboard.press("0")  # cannot say
    wait_for(page, 3)
    expect(page.locator("#answers li").nth(2)).to_contain_text("cannot say", use_inner_text=False)

    asked = page.locator("#first").get_attribute("aria-label")
    page.keyboard.press("u")
    wait_for(page, 2)
    assert len(read_file(session.path).answers) == 2
    assert page.locator("#first").get_attribute("aria-label") != asked

    page.reload()  # in the middle: nothing is lost
    wait_for(page, 2)

    while not session.is_enough and len(session.answers) < 10:
        n = len(session.answers)
        page.keyboard.press(key_of(session))
        wait_for(page, n + 1)
    expect(page.locator("#heading")).to_have_text("What your answers say")
    expect(page.locator("#question")).to_be_hidden()
    page.locator("#finish").click()
    expect(page.locator("#end-text")).to_contain_text('utility="')
    assert server.done.wait(5)
    assert session.fit.price(1.0) == pytest.approx(0.3, abs=0.1)
    assert problems == []


def test_a_second_tab_is_kept_up_and_cannot_answer_an_old_question(session, server, browser):
    from playwright.sync_api import expect

    one, _ = open_page(browser, server)
    other, _ = open_page(browser, server)
    other.route("**/state", lambda route: route.abort())  # it does not hear of the answer
    one.keyboard.press("1")
    wait_for(one, 1)
    other.keyboard.press("2")
    expect(other.locator("#error")).to_contain_text("Another tab has answered meanwhile")
    wait_for(other, 1)
    assert [answer.choice for answer in session.answers] == ["first"]
    other.keyboard.press("2")
    wait_for(other, 2)
    wait_for(one, 2)  # by itself, after a moment
    assert [answer.choice for answer in session.answers] == ["first", "second"]


def test_touch_on_a_small_dark_screen(session, server, browser):
    page, problems = open_page(
        browser, server, viewport={"width": 360, "height": 740}, has_touch=True, color_scheme="dark"
    )
    page.locator("#second").tap()
    wait_for(page, 1)
    page.locator("#tie").tap()
    wait_for(page, 2)
    boxes = [page.locator(name).bounding_box() for name in ("#first", "#second", "#tie", "#chart")]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 360 for box in boxes)
    assert all(box["height"] >= 44 for box in boxes)
    red, green, blue = map(
        int,
        re.findall(
            r"\d+", page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
        )[:3],
    )
    assert max(red, green, blue) < 60
    assert problems == []


def test_a_screen_reader_hears_the_question_the_progress_and_the_sentence(session, server, browser):
    from playwright.sync_api import expect

    page, _ = open_page(browser, server)
    outcomes = server.state()["question"]
    for name, outcome in zip(("#first", "#second"), outcomes, strict=True):
        expect(page.locator(name)).to_have_attribute(
            "aria-label", f"accuracy {outcome['score']} for {outcome['cost']}"
        )
    assert page.locator("#progress").get_attribute("aria-live") == "polite"
    page.keyboard.press("1")
    wait_for(page, 1)
    expect(page.locator("#heading")).to_be_focused()
    expect(page.locator("#chart-title")).to_contain_text("worth", use_inner_text=False)


def test_a_page_whose_server_is_gone_says_so(session, browser):
    from playwright.sync_api import expect

    with PreferServer(session, 10) as server:
        page, _ = open_page(browser, server)
        page.keyboard.press("1")
        wait_for(page, 1)
    page.keyboard.press("1")
    expect(page.locator("#error")).to_contain_text("freezethaw is not running any more")
    assert len(read_file(session.path).answers) == 1


# ── at the door ──────────────────────────────────────────────────────────────────────────────────


def ask(server, method, path, body=None, host=None):
    port = int(server.address.split(":")[2].split("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    headers = {"Host": host} if host else {}
    connection.request(method, path, body=body, headers=headers)
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply, text


def test_nothing_is_served_without_the_token(server):
    for path in ("/", "/state", "/wrong/state", f"/{server.token}", f"/{server.token}/../x"):
        assert ask(server, "GET", path)[0].status == 404
    assert ask(server, "POST", "/wrong/act", "{}")[0].status == 404
    assert ask(server, "GET", f"/{server.token}/state")[0].status == 200
    assert len(server.token) >= 20


def test_other_sites_cannot_reach_it_by_another_name(server):
    path = f"/{server.token}/state"
    assert ask(server, "GET", path, host="evil.example:80")[0].status == 404
    assert ask(server, "GET", path, host="localhost:80")[0].status == 200
    policy = ask(server, "GET", f"/{server.token}/")[0].headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_only_the_loopback_is_listened_on(server):
    assert server._http.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "body", ["", "no json", "[1]", '{"n": 0}', '{"n": 0, "do": "answer", "choice": "left"}']
)
def test_a_request_that_is_none_of_the_pages_changes_nothing(body, server, session):
    reply, text = ask(server, "POST", f"/{server.token}/act", body)
    assert reply.status == 400
    assert json.loads(text) == {"error": "not a request of this page"}
    assert session.answers == []


def test_an_answer_to_an_old_question_is_refused(server, session):
    request = json.dumps({"n": 0, "do": "answer", "choice": "first"})
    assert ask(server, "POST", f"/{server.token}/act", request)[0].status == 200
    reply, text = ask(server, "POST", f"/{server.token}/act", request)
    assert reply.status == 409
    assert json.loads(text)["n"] == 1
    assert len(session.answers) == 1


def test_an_answer_that_cannot_be_saved_is_told(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    session = Session(folder / "utility.json", STAKES)
    with PreferServer(session, 10) as server:
        folder.rmdir()
        reply, text = ask(
            server, "POST", f"/{server.token}/act", '{"n": 0, "do": "answer", "choice": "tie"}'
        )
    assert reply.status == 500
    assert "cannot be written" in json.loads(text)["error"]
    assert session.answers == []


def test_a_port_in_use_is_named(session):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PreferenceError, match=rf"port {port}: cannot be used .*--port"):
            PreferServer(session, 10, port)
