"""The page holds everything, needs nothing, and text stays text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from autotune.outcome import TrialRecord
from autotune.report.content import gather
from autotune.report.page import html_page
from autotune.report.payload import plain, script_json
from autotune.report.values import ReportContent
from autotune.testing.history import HOSTILE, SECRET, history_spec, made_up_history


class Outline(HTMLParser):
    """Elements with their attributes, and the texts of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self._inside = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def page(content: ReportContent) -> str:
    return html_page(content)


def test_text_from_logs_never_becomes_markup(page: str, content: ReportContent) -> None:
    outline = Outline(page)
    assert len(outline.scripts) == 2, "our data and our code, and nothing from a log"
    assert not [tag for tag, _ in outline.elements if tag == "img"]
    broken = next(one for one in content.failures if one.cause == "port_taken")
    assert HOSTILE in broken.reason
    assert "<img src=x onerror=alert(1)>" in outline.text, "it is shown as the text that it is"


def test_a_study_s_own_names_never_become_markup(content: ReportContent) -> None:
    evil = replace(content, name="<b>bold</b>", model='"><script>x()</script>', command="a </pre><script>x()</script>")
    assert len(Outline(html_page(evil)).scripts) == 2


def test_the_data_can_be_read_back(page: str, content: ReportContent) -> None:
    data = json.loads(Outline(page).scripts[0])
    assert [trial["number"] for trial in data["trials"]] == [trial.number for trial in content.trials]
    assert any(HOSTILE in trial.get("reason", "") for trial in data["trials"])


def test_marks_of_the_template_inside_texts_are_not_filled(page: str) -> None:
    assert "%%data%%" in Outline(page).text
    assert not re.search(r"%%(title|style|script|path|gains)%%", page)


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    outline = Outline(page)
    for tag, attributes in outline.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            target = attributes.get(name) or ""
            assert not target or target.startswith(("#", "data:,")), (tag, target)
    addresses = set(re.findall(r"https?://[\w./-]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "the name of SVG is no address that is visited"
    assert "default-src 'none'" in page
    assert "url(" not in page.replace("`url(#${clip})`", ""), "styles load nothing either"


def test_secrets_do_not_reach_the_page(page: str) -> None:
    assert SECRET not in page


def test_simulated_is_said_at_the_top(content: ReportContent, page: str) -> None:
    assert "Simulated." not in Outline(page).text
    simulated = html_page(replace(content, simulated=True))
    assert simulated.index("Simulated.") < simulated.index("Recommendation against baseline")


def test_a_page_of_500_trials_stays_small() -> None:
    page = html_page(gather(history_spec(), made_up_history(500)))
    assert len(page.encode()) < 3_000_000


def test_a_study_without_a_trial_has_a_page(records: tuple[TrialRecord, ...]) -> None:
    page = html_page(gather(history_spec(), ()))
    assert "Nothing was measured yet" in page and "No trial failed" in page


def test_script_json_cannot_end_its_element() -> None:
    text = script_json("</script><!-- \u2028 & -->")
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == "</script><!-- \u2028 & -->"


def test_what_is_not_finite_becomes_null() -> None:
    assert plain([float("nan"), float("inf"), 1.23456789]) == [None, None, 1.2346]
