import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from nereid_perf.measurement import PhaseTiming
from nereid_perf.output.page import page_text
from nereid_perf.output.result_file import parse_result, result_text
from nereid_perf.questions.metrics import time_text
from tests.support import perf_results
from tests.support.measurements import concurrency, measured

_PAGES = {
    "sweep": page_text(
        {"r": perf_results.sweep(slo="p99=5ms", violations=("p99>1ms: it is 2 ms",))}
    ),
    "search": page_text({"r": perf_results.rate_search()}),
    "comparison": page_text({"r": perf_results.comparison()}),
    "two files": page_text({"before": perf_results.sweep(), "after": perf_results.sweep()}),
}


class _Page(HTMLParser):
    """Elements with their attributes, and the texts of those that hold code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.styles = ""
        self.texts: list[str] = []
        self.figures = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = "figures" if dict(attrs).get("id") == "figures" else tag

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.styles += data
        elif self._inside == "figures":
            self.figures += data
        elif self._inside != "script":
            self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


@pytest.mark.parametrize("name", _PAGES)
def test_nothing_is_fetched(name: str) -> None:
    page = _Page(_PAGES[name])
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "a"}
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes)
        assert not any(re.match("https?:", value or "") for value in attributes.values())
    assert "url(" not in page.styles
    assert "@import" not in page.styles
    assert "http" not in page.figures
    policies = [
        attributes["content"]
        for _, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    # And plotly, which has addresses in its code, could not.
    assert len(policies) == 1
    assert (policies[0] or "").startswith("default-src 'none'; script-src 'unsafe-inline';")
    assert "http" not in (policies[0] or "")


@pytest.mark.parametrize("name", _PAGES)
def test_each_chart_has_its_place(name: str) -> None:
    page = _Page(_PAGES[name])
    ids = {attributes.get("id") for _, attributes in page.elements}
    figures = json.loads(page.figures)
    assert figures.keys() <= ids
    assert {"percentiles", "histogram", "split"} <= figures.keys()


def test_what_the_page_says_of_a_sweep() -> None:
    texts = _Page(_PAGES["sweep"]).texts
    assert "Knee (most rate per p99): Request concurrency 8, 4000/s, 3.44 ms" in texts
    assert "Failed: p99>1ms: it is 2 ms" in texts
    for text in ("goodput", "8 in flight", "18.4 us", "A processor of some make"):
        assert any(text in each for each in texts)
    assert any("nereid perf -m mlp -i grpc" in each for each in texts)
    assert not any("goodput 500/s" in each for each in texts)


def test_what_the_page_says_of_a_comparison() -> None:
    texts = _Page(_PAGES["comparison"]).texts
    assert texts.count("the client's, not judged") == 1
    assert texts.count("different") == 3
    assert "0.909 to 0.909" in texts
    assert any(each.startswith("12 rounds of each, unpaired") for each in texts)


def test_what_the_page_says_of_a_search() -> None:
    texts = _Page(_PAGES["search"]).texts
    assert any(each.startswith("Highest rate under p99=20ms: 3700/s") for each in texts)


def test_each_file_has_its_name() -> None:
    texts = _Page(_PAGES["two files"]).texts
    assert "How before was measured" in texts
    assert any(each.startswith("after: Knee") for each in texts)


def test_names_cannot_become_code() -> None:
    evil = "</script><script>alert(1)</script><img src=x>"
    result = perf_results.sweep()
    server = replace(result.servers[0], name=evil, models=(evil,), url=evil)
    hostile = replace(result, servers=(server,), command=(evil,), notes=(evil,))
    page = _Page(page_text({evil: hostile, "b": result}))
    assert sum(tag == "script" for tag, _ in page.elements) == 3
    assert not any(tag == "img" for tag, _ in page.elements)
    assert evil in "".join(json.loads(page.figures)["percentiles"]["data"][0]["name"])


def test_a_run_without_statistics_or_findings_has_what_there_is() -> None:
    measurement = replace(perf_results.sweep().servers[0].measurements[0], server=())
    text = page_text({"r": perf_results.result(perf_results.server(measurement, batch_size=8))})
    page = _Page(text)
    assert json.loads(page.figures).keys() == {"percentiles", "histogram"}
    assert not any(attributes.get("class") == "found" for _, attributes in page.elements)
    assert any("batch size 8" in each for each in page.texts)


def test_what_responses_say_of_their_time() -> None:
    level = measured(concurrency(1), timings={"queue": PhaseTiming(3, 12.0, 40.0)})
    result = perf_results.result(perf_results.server(level))
    page = page_text({"a": result})
    assert "<h2>Server-Timing</h2>" in page
    assert f"<td>queue</td><td>{time_text(12.0)}</td><td>{time_text(40.0)}</td><td>3</td>" in page
    assert parse_result(result_text(result)).servers[0].measurements[0].timings == level.timings
    assert "Server-Timing" not in page_text({"a": perf_results.sweep()})
