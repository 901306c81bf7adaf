"""What the page of `costcert explore` says: while it loads, about uploads, in numbers, about no promise."""

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the page needs costcert[explore]")
pytest.importorskip("uvicorn", reason="the page needs costcert[explore]")
pytest.importorskip("PIL", reason="pictures need Pillow")

import costcert as cc
from costcert.datasets.arrays import ArrayDataset
from costcert.explorer.pictures import Pictures
from costcert.explorer.session import Session
from costcert.reports.tables.layout import Cell
from explorer_page import ready, settled, slide, state, until
from served import imagenet_votes, picture, served, wait_until
from tiny import Tiny, pictures

NAMES = ("shoe", "bag", "coat", "dress")


@pytest.fixture(scope="module")
def model():
    return Tiny(4, class_names=NAMES)


@pytest.fixture(scope="module")
def session(model):
    return Session(cc.vote(model, pictures(30), "columns:3", soft=cc.Soft(0.2, 2)), name="noise")


@pytest.fixture(scope="module")
def address(session, model):
    with served(session, deployed=cc.Deployed(model, "columns:3", soft=cc.Soft(0.2, 2))) as where:
        yield where


def text_of(page, selector):
    return page.locator(selector).inner_text()


# Loading


@pytest.fixture
def route(window):
    """Answers requests in place of the service; afterwards the service answers again."""
    page, _ = window
    yield page.route
    page.unroute_all()


@pytest.mark.slow
def test_it_says_what_loads_what_failed_and_how_to_retry(visit, route, address):
    held = []
    route("**/certificates?*", lambda request: held.append(request))
    page = visit(address, wait=False, complaints=["ERR_FAILED"])
    until(page, "document.querySelector('#loading-step').textContent.includes('certificates')")
    side = state(page, "width")
    expected = f"certificates of the 30 images of noise against a {side} × {side} pixel sticker"
    assert expected in text_of(page, "#loading")
    assert page.locator("#main").is_hidden()
    wait_until(lambda: held or page.wait_for_timeout(20))
    held[0].abort()
    page.wait_for_selector("#trouble:not([hidden])")
    assert text_of(page, "#trouble-text").startswith(
        f"Could not load {expected}. The service cannot be reached"
    )
    assert page.locator("#loading").is_hidden()
    page.unroute_all()
    page.click("#retry")
    ready(page)
    assert page.locator("#trouble").is_hidden()
    assert page.locator("#loading").is_hidden()
    assert page.locator("#main").is_visible()


@pytest.mark.slow
def test_it_says_that_the_service_is_busy(visit, route, address):
    answers = iter([429, 503])

    def busy(request):
        status = next(answers, None)
        if status is None:
            request.continue_()
        else:
            request.fulfill(status=status, json={"detail": "busy"}, headers={"retry-after": "0.2"})

    route("**/about", busy)
    page = visit(address, wait=False, complaints=["status of 429", "status of 503"])
    page.wait_for_selector("#loading-busy:not([hidden])")
    assert "the service is busy (attempt" in text_of(page, "#loading-busy")
    ready(page)


@pytest.mark.slow
def test_later_requests_can_be_repeated(visit, route, address):
    page = visit(address, complaints=["ERR_FAILED"])
    route("**/certificates?*", lambda request: request.abort())
    slide(page, "size", 3)
    page.wait_for_selector("#retry:not([hidden])")
    assert "The service cannot be reached" in text_of(page, "#trouble-text")
    page.unroute_all()
    page.click("#retry")
    settled(page)
    until(page, "document.querySelector('#trouble').hidden")
    assert state(page, "table.patch") == "square:3"


@pytest.mark.slow
def test_a_refusal_is_not_repeated(visit, route, address):
    """A run that the service cannot certify: trying again would not help."""
    refusal = {"detail": "columns:3 makes too many mutants: use costcert certify"}
    route("**/certificates?*", lambda request: request.fulfill(status=422, json=refusal))
    page = visit(address, wait=False, complaints=["status of 422"])
    page.wait_for_selector("#trouble:not([hidden])")
    assert text_of(page, "#trouble-text").endswith(
        "sticker. Columns:3 makes too many mutants: use costcert certify."
    )
    assert page.locator("#retry").is_hidden()


# Uploads


def send(page, name, kind, content):
    page.set_input_files("#upload", files=[{"name": name, "mimeType": kind, "buffer": content}])


@pytest.mark.slow
def test_the_label_of_an_upload_is_only_predicted_until_one_is_chosen(visit, address, model):
    page = visit(address)
    pixels, content = picture(size=(8, 6))
    deployed = cc.Deployed(model, "columns:3", soft=cc.Soft(0.2, 2))
    top = deployed.predict(pixels, k=4)[0].tolist()
    predicted, other = NAMES[top[0]], NAMES[top[1]]
    send(page, "mine.png", "image/png", content)
    page.wait_for_selector("#upload-answer button")
    settled(page)
    page.evaluate("costcert.draw()")
    assert f"The model predicts “{predicted}” for mine.png" in text_of(page, "#upload-answer")
    buttons = page.locator("#upload-answer button").all_inner_texts()
    assert [each.partition(" (")[0] for each in buttons] == [NAMES[label] for label in top]
    assert f" for “{predicted}”, the predicted label. " in text_of(page, "#anywhere")
    note = text_of(page, "#label-note")
    assert note.startswith(f"“{predicted}” is what the model predicts.")
    assert "does not know what your picture shows" in note
    # The predicted label can be confirmed, too.
    for name in (predicted, other):
        page.locator("#upload-answer button", has_text=name).click()
        until(page, f"document.querySelector('#anywhere').textContent.includes('you chose: “{name}”')")
        assert text_of(page, "#label-note").startswith(f"You chose “{name}”. costcert does not know whether")
        assert page.locator("#label").input_value() == str(NAMES.index(name))
    page.select_option("#label", "2")
    until(page, "document.querySelector('#anywhere').textContent.includes('for the label you chose: “coat”')")
    # The label of an image of the run is the true one.
    page.locator("#cards button").first.click()
    until(page, "costcert.state.image !== null && costcert.state.anywhere")
    page.evaluate("costcert.draw()")
    assert page.locator("#label-note").is_hidden()
    assert "chose" not in text_of(page, "#anywhere")
    assert "predicted" not in text_of(page, "#anywhere")
    truth = state(page, "trueLabel")
    page.select_option("#label", str((truth + 1) % 4))
    until(
        page, "document.querySelector('#label-note').textContent.includes('the true label of this image is')"
    )
    assert f"“{NAMES[truth]}”" in text_of(page, "#label-note")
    page.select_option("#label", str(truth))
    until(page, "document.querySelector('#label-note').hidden")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        (
            "notes.txt",
            "text/plain",
            "This is a text file (text/plain), which cannot be read: choose a PNG, JPEG",
        ),
        ("data.unheard", "", "This is a file of another kind (application/octet-stream)"),
        ("a.png", "image/png", "This is not a picture that can be read: choose a PNG, JPEG or WebP file."),
    ],
)
def test_a_file_that_is_no_picture(visit, address, name, kind, words):
    page = visit(address, complaints=["status of 415", "status of 422"])
    send(page, name, kind, b"hello")
    page.wait_for_selector("#trouble:not([hidden])")
    assert words in text_of(page, "#trouble-text")
    assert "Content-Type" not in text_of(page, "#trouble-text")
    assert page.locator("#retry").is_hidden()
    # The image that was shown still is.
    assert state(page, "upload") is None
    send(page, "mine.png", "image/png", picture(size=(8, 6))[1])
    page.wait_for_selector("#upload-answer button")
    until(page, "document.querySelector('#trouble').hidden")


# Numbers


@pytest.mark.slow
def test_numbers_are_rounded_as_in_tables(visit, address):
    """Shares of up to 1,000 images, of which many are halves, exact ones and others, at the last digit."""
    page = visit(address)
    shares = [hits / images for images in (8, 16, 40, 200, 400, 997, 1000) for hits in range(images + 1)]
    # Tables of 2,000 images say 70.5 for 1,411 of them: 70.55 is a little less in binary.
    shares.append(1411 / 2000)
    ask = """async ([values, digits]) => {
        const {decimals} = await import("/page/numbers.js");
        return values.map((value) => decimals(value, digits)); }"""
    percents = [100 * share for share in shares]
    assert page.evaluate(ask, [percents, 1]) == [Cell(share).text for share in shares]
    assert Cell(1411 / 2000).text == "70.5"
    assert page.evaluate(ask, [percents, 2]) == [f"{percent:.2f}" for percent in percents]


@pytest.mark.slow
def test_accuracy_has_the_text_of_tables(visit):
    """1,411 of 2,000 certified: 70.5 in tables, where rounding in a browser made it 70.6."""
    certified = np.arange(2000) < 1411
    ballots = np.where(certified, 0, 1)[:, None].repeat(6, axis=1)
    votes = cc.Votes(ballots, np.zeros(2000), num_classes=3, ablation="columns:1", image_size=6)
    with served(Session(votes)) as where:
        page = visit(where)
        slide(page, "k", 1)
        (share,) = cc.certify(votes, state(page, "width"), "costcert").accuracy(1).certified
        assert share == 1411 / 2000
        assert (
            text_of(page, "#curve-keys li[data-defender=costcert] b") == f"{Cell(share).text} %" == "70.5 %"
        )


@pytest.mark.slow
def test_few_votes_are_readable(visit, address):
    page = visit(address)
    ask = """async (values) => {
        const {votesText} = await import("/page/numbers.js");
        return values.map(votesText); }"""
    expected = {
        0: "0",
        1 / 65536: "<0.01",
        0.0049: "<0.01",
        0.125: "0.12",
        0.375: "0.38",
        7: "7",
        12.5: "12.50",
    }
    assert page.evaluate(ask, list(expected)) == list(expected.values())


# No promise, and what words mean


@pytest.mark.slow
def test_min_k_of_all_classes_is_no_promise(visit):
    """One vote more for the right label: whatever the sticker touches, the attacker lifts all rivals."""
    ballots = np.array([[0, 1, 2, 0, 1, 2, 0, 1], [0] * 8])
    votes = cc.Votes(ballots, [0, 0], num_classes=3, ablation="columns:3", image_size=8)
    with served(Session(votes)) as where:
        page = visit(where)
        slide(page, "size", 4)
        until(page, "costcert.state.table && costcert.state.table.patch === 'square:4'")
        settled(page)
        # The list of all three labels cannot be chosen.
        assert page.locator("#k").get_attribute("max") == "2"
        slide(page, "k", 3)
        assert state(page, "k") == 2
        badges = page.locator("#cards .badge").all_inner_texts()
        certs = cc.certify(votes, 4, "costcert")
        assert certs.min_k("costcert", 4).tolist()[0] == 3
        assert badges[0] == "✗ no promise"
        page.locator("#cards button").first.click()
        until(page, "costcert.state.image === '0' && costcert.state.anywhere")
        page.click("#worst")
        page.evaluate("costcert.draw()")
        verdict = text_of(page, "#verdict")
        assert "✗ Nothing is promised. " in verdict
        assert "cannot exclude that “class 0” ends last, 3rd of 3" in verdict
        assert "“class 0” can end last" in verdict
        cells = page.locator("#defenders tr[data-defender=costcert] td").all_inner_texts()
        assert cells[1:] == ["✗ no promise", "✗ no promise"]
        assert "top 3" not in text_of(page, "main")
        assert "min-k 3" not in text_of(page, "main")


@pytest.mark.slow
def test_one_class_promises_nothing(visit):
    votes = cc.Votes(np.zeros((2, 6), int), [0, 0], num_classes=1, ablation="columns:1", image_size=6)
    with served(Session(votes)) as where:
        page = visit(where)
        assert set(page.locator("#cards .badge").all_inner_texts()) == {"✗ no promise"}
        assert "✗ Nothing is promised. " in text_of(page, "#anywhere")


@pytest.mark.slow
def test_defenders_are_explained(visit, address):
    page = visit(address)
    for row in page.locator("#defenders tbody tr").all():
        defender = cc.defenders.find(row.get_attribute("data-defender"))
        assert row.locator("th").get_attribute("title") == defender.meaning
    page.select_option("#defender", "cbn")
    meaning = cc.defenders.find("cbn").meaning
    assert text_of(page, "#explained") == f"{cc.defenders.find('cbn').title}: {meaning}"
    page.click("#glossary summary")
    glossary = text_of(page, "#glossary")
    for word in ("min-k", "no promise", "ballot", meaning):
        assert word in glossary


# Pictures


@pytest.mark.slow
def test_missing_and_broken_pictures_are_said(visit, tmp_path, model):
    votes = cc.vote(model, pictures(4), "columns:3")
    with served(Session(votes)) as where:
        page = visit(where)
        assert "start costcert explore with --data" in text_of(page, "#no-picture")
    for number in range(4):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.png").write_bytes(b"broken")
    data = cc.parse_dataset(f"folder:{tmp_path}")
    broken = votes.replace(image_ids=data.ids)
    with served(Session(broken, pictures=Pictures(data, model.prepare))) as where:
        page = visit(where, complaints=["status of 422"])
        page.wait_for_selector("#no-picture:not([hidden])")
        assert text_of(page, "#no-picture") == "The picture cannot be read, but its votes are here."


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_badges_fit(visit, width):
    """The longest one is "no promise"."""
    votes = imagenet_votes(12, seed=3)
    images = np.zeros((12, 32, 32), np.uint8)
    shown = Pictures(
        ArrayDataset("black", images, votes.truth, ids=votes.image_ids),
        lambda image: images[:1, ..., None][0],
    )
    with served(Session(votes, pictures=shown)) as where:
        page = visit(where, width=width)
        slide(page, "size", 200)
        until(page, "costcert.state.table && costcert.state.table.patch === 'square:200'")
        settled(page)
        assert "✗ no promise" in page.locator("#cards .badge").all_inner_texts()
        badges = "[...document.querySelectorAll('#cards .badge')]"
        assert page.evaluate(f"{badges}.every((each) => each.scrollWidth <= each.clientWidth)")
