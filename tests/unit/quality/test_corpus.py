"""The texts and the windows cut from them."""

from __future__ import annotations

from itertools import pairwise

from autotune.quality import corpus


def test_the_first_texts_are_of_different_kinds() -> None:
    kinds = [text.kind for text in corpus.texts()]
    assert [kind.split("-")[0] for kind in kinds[:4]] == ["prose", "code", "dialogue", "prose"]
    assert len(kinds) == len(set(kinds)) == 24


def test_no_text_occurs_twice_or_repeats_itself() -> None:
    lines = [line for text in corpus.texts() for line in text.content.splitlines() if len(line) > 60]
    assert len(lines) == len(set(lines)) > 100
    assert all(len(text.content) > 300 for text in corpus.texts())


def test_windows_take_every_text_in_turn_and_do_not_overlap() -> None:
    texts = [tuple(range(100 * n, 100 * n + size)) for n, size in enumerate((50, 21, 40))]
    found = corpus.windows(texts, 20, 99)
    assert [window[0] for window in found] == [0, 100, 200, 20, 220]
    assert all(len(window) == 20 for window in found)
    assert len({token for window in found for token in window}) == 100
    assert corpus.windows(texts, 20, 2) == found[:2]


def test_a_short_text_is_continued_with_the_next_ones() -> None:
    texts = [(1, 2, 3), (4, 5), (6, 7, 8, 9)]
    assert corpus.windows(texts, 6, 99) == [(1, 2, 3, 4, 5, 6), (4, 5, 6, 7, 8, 9), (6, 7, 8, 9, 1, 2)]


def test_a_long_text_repeats_the_corpus_as_often_as_it_takes() -> None:
    texts = [(1, 2), (3,)]
    assert corpus.long_text(texts, 7, 1) == (3, 1, 2, 3, 1, 2, 3)


def test_the_hash_depends_on_every_text() -> None:
    before = corpus.corpus_hash()
    assert before == corpus.corpus_hash()
    assert len(before) == 12


def test_texts_are_in_the_order_of_their_files() -> None:
    assert all(first.kind != second.kind for first, second in pairwise(corpus.texts()))
